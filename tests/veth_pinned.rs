//! A program that stays while processes come and go. Needs root; says so and skips where it is not.

mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use support::{
    PORT, adds_up, eventually, frames, near, near_interface, receive, rings, to_near, with_mount,
};
use xskit::{
    AttachMode, Attached, ErrorKind, Program, ProgramOptions, Result, Rules, SocketMap, Step,
    UmemConfig,
};
use xskit_lab::{Checker, Lab};

const DIRECTORY: &str = "/sys/fs/bpf/near0";

/// Runs `work` where the near end is, with a bpffs that nobody else sees.
fn enter(lab: &Lab, work: impl FnOnce() + Send) {
    lab.enter(|| with_mount("bpf", "/sys/fs/bpf", work));
}

fn attach() -> Program {
    Program::attach(
        &near_interface(),
        &Rules::udp_port(PORT),
        AttachMode::Auto,
        &ProgramOptions { sockets: 3, ..ProgramOptions::default() },
    )
    .unwrap()
}

fn take_over() -> Result<Program> {
    Program::from_pin(DIRECTORY, &Rules::udp_port(PORT), &ProgramOptions::default())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, says: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert_eq!((error.step(), error.kind()), (Step::Pin, kind), "{text}");
    assert!(error.next_step().is_some(), "what to do? {text}");
    for words in says {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
}

#[test]
fn the_next_process_takes_over_sockets_counters_and_rules() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = to_near(&lab, 100);
    let packets = frames(&series, 10);
    enter(&lab, || {
        let program = attach();
        program.pin(DIRECTORY).unwrap();
        assert_eq!(program.pinned().as_deref(), Some(Path::new(DIRECTORY)));
        let mut names: Vec<_> =
            fs::read_dir(DIRECTORY).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["link", "queues", "sockets"]);
        let first = program.info().unwrap().id;
        drop(program);
        // Attached, and without a socket all packets pass.
        assert!(lab.near.xdp_program().unwrap().is_some());
        raw.send_all(&packets).unwrap();

        let program = take_over().unwrap();
        assert_eq!(program.attached(), Attached::Native);
        assert_eq!(program.interface().name(), "near0");
        assert_eq!(program.socket_map().sockets(), 3, "as it was made with");
        assert_ne!(program.info().unwrap().id, first);
        let passed = || program.counters().unwrap().total.passed_no_socket;
        eventually("what was sent meanwhile has passed", || passed() == 10);
        let umem = xskit::UmemConfig::new(256).build().unwrap();
        let mut socket = xskit::Socket::open(&umem, &near_interface(), 0, &rings(64)).unwrap();
        socket.join(program.socket_map()).unwrap();
        raw.send_all(&packets).unwrap();
        receive(&mut socket, &mut Checker::new(series.clone()), 10, 8);
        let counters = program.counters().unwrap();
        assert_eq!((counters.total.redirected, counters.total.passed_no_socket), (10, 10));
        assert!(counters.redirect_errors.is_some());

        // Another process may as well use the map alone.
        let map = SocketMap::from_pin(Path::new(DIRECTORY).join("sockets")).unwrap();
        socket.join(&map).unwrap();
        raw.send_all(&packets).unwrap();
        receive(&mut socket, &mut Checker::new(series.clone()), 10, 8);
        drop(socket);
        adds_up(&umem);

        // Rules are exchanged after a takeover as before.
        program.set_rules(&Rules::none()).unwrap();
        raw.send_all(&packets).unwrap();
        eventually("no rule", || program.counters().unwrap().total.passed_no_rule == 10);

        program.unpin().unwrap();
        assert_eq!(program.pinned(), None);
        assert!(!Path::new(DIRECTORY).exists());
        program.unpin().unwrap();
        assert!(lab.near.xdp_program().unwrap().is_some());
        drop(program);
        // The kernel lets go of a file that was removed a moment later.
        eventually("detached", || lab.near.xdp_program().unwrap().is_none());
    });
}

#[test]
fn a_takeover_concerns_no_packet() {
    const PACKETS: u64 = 4000;
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = to_near(&lab, 100);
    let packets = frames(&series, PACKETS);
    enter(&lab, || {
        let port =
            || near().umem_config(UmemConfig::new(1024)).socket(rings(256)).pin(DIRECTORY).open();
        let mut first = port().unwrap();
        let mut socket = first.take_queue(0).unwrap();
        let mut checker = Checker::new(series.clone());
        let (mut programs, mut ids) = (Vec::new(), Vec::new());
        for some in packets.chunks(usize::try_from(PACKETS / 20).unwrap()) {
            std::thread::scope(|scope| {
                // For as long as a takeover takes.
                let sending = scope.spawn(|| {
                    for few in some.chunks(5) {
                        raw.send_all(few).unwrap();
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
                let program = take_over().unwrap();
                ids.push(program.info().unwrap().id);
                programs.push(program);
                sending.join().unwrap();
                receive(&mut socket, &mut checker, some.len() as u64, 64);
            });
        }
        assert!(checker.tally().is_perfect(PACKETS), "{:?}", checker.tally());
        ids.dedup();
        assert_eq!(ids.len(), 20);
        let total = programs[0].counters().unwrap().total;
        assert_eq!((total.redirected, total.passed()), (PACKETS, 0));
    });
}

#[test]
fn a_port_comes_back_to_its_program() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = to_near(&lab, 100);
    let packets = frames(&series, 10);
    enter(&lab, || {
        let open = |mode| {
            near()
                .attach(mode)
                .umem_config(UmemConfig::new(256))
                .socket(rings(64))
                .pin(DIRECTORY)
                .open()
        };
        for round in 0..4 {
            let mut port = open(AttachMode::Generic).unwrap();
            assert_eq!(port.attached(), Attached::Generic);
            let mut socket = port.take_queue(0).unwrap();
            raw.send_all(&packets).unwrap();
            receive(&mut socket, &mut Checker::new(series.clone()), 10, 8);
            drop((port, socket));
            raw.send_all(&packets[..3]).unwrap();
            eventually("what comes between has passed", || {
                take_over().unwrap().counters().unwrap().total.passed_no_socket == 3 * (round + 1)
            });
        }
        refused(open(AttachMode::Native), ErrorKind::InvalidInput, &["generic mode", "Auto"]);
        let error = Program::attach(
            &near_interface(),
            &Rules::none(),
            AttachMode::Auto,
            &ProgramOptions::default(),
        );
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Busy);
        fs::remove_dir_all(DIRECTORY).unwrap();
        eventually("detached", || lab.near.xdp_program().unwrap().is_none());
    });
}

#[test]
fn what_stands_in_the_way_is_told() {
    let Some(lab) = Lab::for_test() else { return };
    enter(&lab, || {
        let bpffs = &["mount -t bpf bpf /sys/fs/bpf"];
        refused(take_over(), ErrorKind::NotFound, &["nothing is pinned"]);
        let program = attach();
        let elsewhere = env::temp_dir().join("xskit-no-bpffs");
        refused(program.pin(&elsewhere), ErrorKind::NotFound, bpffs);
        assert!(!elsewhere.exists());
        let (rules, options) = (Rules::none(), ProgramOptions::default());
        refused(Program::from_pin(&elsewhere, &rules, &options), ErrorKind::NotFound, bpffs);
        refused(program.pin("/sys/fs/bpf/not/there"), ErrorKind::NotFound, bpffs);

        program.pin(DIRECTORY).unwrap();
        refused(program.pin("/sys/fs/bpf/again"), ErrorKind::Busy, &[DIRECTORY]);
        assert!(!Path::new("/sys/fs/bpf/again").exists());
        let far = lab.far.netns().enter(|| {
            Program::attach(
                &xskit::Interface::by_name("far0").unwrap(),
                &rules,
                AttachMode::Auto,
                &options,
            )
            .unwrap()
        });
        refused(far.pin(DIRECTORY), ErrorKind::Busy, &["Program::from_pin"]);
        assert_eq!(fs::read_dir(DIRECTORY).unwrap().count(), 3, "those of the first stay");

        // Something else in the place of the maps, of the link.
        let (queues, link) =
            (Path::new(DIRECTORY).join("queues"), Path::new(DIRECTORY).join("link"));
        let kept = Path::new("/sys/fs/bpf/link");
        fs::rename(&link, kept).unwrap();
        fs::hard_link(&queues, &link).unwrap();
        refused(take_over(), ErrorKind::Corrupt, &["no link of an XDP program"]);
        fs::rename(kept, &link).unwrap();
        fs::remove_file(&queues).unwrap();
        refused(take_over(), ErrorKind::NotFound, &[DIRECTORY]);
        fs::hard_link(Path::new(DIRECTORY).join("sockets"), &queues).unwrap();
        refused(take_over(), ErrorKind::Corrupt, &["this version's program"]);
        fs::remove_file(&link).unwrap();
        fs::hard_link(&queues, &link).unwrap();
        refused(take_over(), ErrorKind::Corrupt, &["no link of an XDP program"]);
        fs::remove_file(&link).unwrap();
        fs::create_dir(&link).unwrap();
        let error = take_over().unwrap_err();
        assert!(error.next_step().is_some(), "{error}");
        fs::remove_dir(&link).unwrap();

        // The interface of what is pinned is not here.
        far.pin("/sys/fs/bpf/far0").unwrap();
        let far0 = || Program::from_pin("/sys/fs/bpf/far0", &rules, &options);
        refused(far0(), ErrorKind::NotFound, &["another network namespace"]);
        drop(far);
        lab.far.delete().unwrap();
        refused(far0(), ErrorKind::LinkGone, &["rm -r /sys/fs/bpf/far0"]);
    });
}

#[test]
fn a_link_whose_interface_is_gone_is_not_in_the_way_of_a_port() {
    let Some(lab) = Lab::for_test() else { return };
    let Some(other) = Lab::for_test() else { return };
    with_mount("bpf", "/sys/fs/bpf", || {
        let open =
            || near().umem_config(UmemConfig::new(256)).socket(rings(64)).pin(DIRECTORY).open();
        drop(lab.enter(|| open().unwrap()));
        lab.near.delete().unwrap();
        let port = other.enter(|| open().unwrap());
        assert!(other.near.xdp_program().unwrap().is_some());
        port.program().unpin().unwrap();
        drop(port);
        eventually("detached", || other.near.xdp_program().unwrap().is_none());
    });
}

/// The example, started again and again.
struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Run {
    fn start() -> Self {
        let test = env::current_exe().unwrap();
        let example: PathBuf = test.parent().unwrap().parent().unwrap().join("examples/restart");
        assert!(example.is_file(), "{} is missing: cargo build --examples", example.display());
        let mut command = Command::new(example);
        let mut child = command.args(["near0", DIRECTORY]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Reads on until that many packets were there.
    fn expect(&mut self, packets: u64) {
        let mut seen = 0;
        while seen < packets {
            let line = self.line();
            seen += line.strip_suffix(" packets").unwrap().parse::<u64>().unwrap();
        }
        assert_eq!(seen, packets);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_killed_process_leaves_the_program_to_the_next() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let packets = frames(&to_near(&lab, 100), 20);
    enter(&lab, || {
        let mut run = Run::start();
        assert_eq!(run.line(), "attached; 0 packets came while nobody was there, and passed");
        for round in 1..4 {
            raw.send_all(&packets).unwrap();
            run.expect(20);
            // Killed: nothing of it runs any more.
            drop(run);
            assert!(lab.near.xdp_program().unwrap().is_some());
            raw.send_all(&packets[..5]).unwrap();
            run = Run::start();
            let passed = 5 * round;
            let line =
                format!("taken over; {passed} packets came while nobody was there, and passed");
            assert_eq!(run.line(), line);
        }
        drop(run);
    });
    // With the mount, the last name of the link has gone.
    eventually("detached", || lab.near.xdp_program().unwrap().is_none());
}
