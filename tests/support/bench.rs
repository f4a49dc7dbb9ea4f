//! What tests of refusals and faults do: run alone, count what an attempt leaves, look at the error, open
//! rightly.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    any, env, fmt, fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{self, Command},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use xskit::{
    Error, ErrorKind, Interest, Interface, PortConfig, QueueId, Result, RingSize, Rules, Socket,
    SocketConfig, Step, Umem, UmemConfig,
};
use xskit_lab::{Lab, RawPort, mappings, open_fds, socket_mappings};

/// Nothing that is to happen takes so long, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The UDP port whose packets the sockets get.
pub(crate) const PORT: u16 = 4242;

/// Longer than most tests take: one that waits for ever ends here.
const LIMIT: Duration = Duration::from_secs(60);

/// What a passing test has to say too: lines of its standard error that start so.
pub(crate) const REPORT: &str = "REPORT: ";

const ALONE: &str = "XSKIT_TEST_ALONE";

/// Runs a test's body in a process of its own.
pub(crate) fn alone<F: FnOnce() + Send>(body: F) {
    alone_for(LIMIT, body);
}

/// The same for one that may take so long.
pub(crate) fn alone_for<F: FnOnce() + Send>(limit: Duration, body: F) {
    run(body, limit, |command| command);
}

/// Held by tests without CAP_IPC_LOCK: what they lock counts for the user, whichever process it is in.
pub(crate) fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same inside a new user namespace: root there, and nobody outside.
#[allow(unsafe_code, reason = "the standard library's call between fork and exec")]
pub(crate) fn alone_in_user_namespace<F: FnOnce() + Send>(body: F) {
    let root_is_the_caller = format!("0 {} 1", nix::unistd::Uid::effective());
    let enter = move || {
        // SAFETY: no memory is passed; the process has one thread, as it was forked just now.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::last_os_error());
        }
        fs::write("/proc/self/uid_map", &root_is_the_caller)
    };
    // SAFETY: `enter` makes system calls alone, allocates nothing (the path is short), and touches
    // nothing that another thread may hold.
    run(body, LIMIT, |command| unsafe { command.pre_exec(enter) });
}

fn run<F: FnOnce() + Send>(
    body: F,
    limit: Duration,
    prepare: impl FnOnce(&mut Command) -> &mut Command,
) {
    // `binary::module::test::{{closure}}`
    let name = any::type_name::<F>();
    let name = name.strip_suffix("::{{closure}}").unwrap_or(name);
    let test = name.split_once("::").map_or(name, |(_, test)| test);
    if env::var_os(ALONE).is_some_and(|alone| alone == *test) {
        thread::spawn(move || {
            thread::sleep(limit);
            eprintln!("not done after {limit:?}");
            process::exit(1);
        });
        // Named as the harness names a test's thread, for what a skip says.
        thread::scope(|scope| {
            let body = thread::Builder::new().name(test.to_owned()).spawn_scoped(scope, body);
            body.unwrap().join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        return;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1", test]).env(ALONE, test);
    let output = match prepare(&mut command).output() {
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && !nothing_may_be_skipped() =>
        {
            let why = format!("SKIPPED: {test}: no user namespace can be made ({error})");
            return writeln!(io::stderr(), "{why}").expect("standard error takes a line");
        }
        output => output.unwrap(),
    };
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let aloud = |line: &&str| ["SKIPPED: ", REPORT].iter().any(|start| line.starts_with(start));
    for line in stderr.lines().filter(aloud) {
        // Not `eprintln!`: the harness hides what passing tests print.
        writeln!(io::stderr(), "{line}").expect("standard error takes a line");
    }
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "{test} is no test:\n{stdout}");
}

fn nothing_may_be_skipped() -> bool {
    env::var_os("XSKIT_TEST_REQUIRE").is_some_and(|required| required == "all")
}

/// Gives up all capabilities of this thread but these, by their numbers.
#[allow(unsafe_code, reason = "nix has no call for capabilities")]
pub(crate) fn keep_capabilities(kept: &[u32]) {
    const VERSION_3: u32 = 0x2008_0522;
    let mut sets = [[0u32; 3]; 2];
    for capability in kept {
        // Effective and permitted; nothing is inherited.
        for set in &mut sets[*capability as usize / 32][..2] {
            *set |= 1 << (capability % 32);
        }
    }
    let header = [VERSION_3, 0];
    // SAFETY: header and sets have the layout of version 3 and live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// What a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    fds: usize,
    socket_mappings: usize,
    mappings: usize,
    pages: usize,
}

impl Holdings {
    fn now() -> Self {
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        Self {
            fds: open_fds().unwrap(),
            socket_mappings: socket_mappings().unwrap(),
            mappings: mappings().unwrap(),
            pages: pages.split(' ').next().unwrap().parse().unwrap(),
        }
    }
}

/// Does what has to be refused, several times; returns the first error. No attempt may leave a
/// descriptor, a ring or, once the allocator has what it needs, any other mapping.
#[track_caller]
pub(crate) fn refused<T: fmt::Debug>(mut attempt: impl FnMut() -> Result<T>) -> Error {
    const ROUNDS: usize = 6;
    let error = attempt().expect_err("has to be refused");
    let mut seen = vec![Holdings::now()];
    for round in 1..ROUNDS {
        attempt().expect_err("has to be refused again");
        let (before, after) = (seen[round - 1], Holdings::now());
        assert_eq!(before.fds, after.fds, "open descriptors: {error}");
        assert_eq!(before.socket_mappings, after.socket_mappings, "rings: {error}");
        if before == after {
            return error;
        }
        seen.push(after);
    }
    panic!("every attempt leaves something mapped: {error}: {seen:#?}");
}

/// What an error has to say.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) step: Step,
    pub(crate) kind: ErrorKind,
    pub(crate) interface: Option<&'a str>,
    pub(crate) queue: Option<u32>,
    pub(crate) errno: Option<i32>,
    /// Words that its text contains.
    pub(crate) says: &'a [&'a str],
}

impl Expected<'_> {
    #[track_caller]
    pub(crate) fn is(&self, error: &Error) {
        let text = error.to_string();
        assert_eq!((error.step(), error.kind()), (self.step, self.kind), "{text}");
        assert_eq!(error.interface(), self.interface, "{text}");
        assert_eq!(error.queue().map(QueueId::get), self.queue, "{text}");
        assert_eq!(error.raw_os_error(), self.errno, "{text}");
        assert!(text.starts_with(&self.step.to_string()), "{text}");
        assert!(!text.contains('\n'), "{text}");
        if let Some(code) = self.errno {
            let name = format!("{:?}", nix::errno::Errno::from_raw(code));
            assert!(text.contains(&name), "{name} is missing: {text}");
        }
        let next = error.next_step().unwrap_or_else(|| panic!("what to do? {text}"));
        assert!(text.ends_with(next), "{text}");
        for words in self.says {
            assert!(text.contains(words), "{words:?} is missing: {text}");
        }
    }
}

/// A UMEM of enough frames for two sockets of [`rings`], and some at hand.
pub(crate) fn umem() -> Umem {
    UmemConfig::new(1024).build().unwrap()
}

/// Small rings: these tests do not need more.
pub(crate) fn rings() -> SocketConfig {
    let size = RingSize::new(256).unwrap();
    SocketConfig::default().rx(size).tx(size).fill(size).completion(size)
}

/// A port on the lab's near end, with frames of `umem`.
pub(crate) fn port(umem: &Umem) -> PortConfig {
    PortConfig::new("near0").rules(Rules::udp_port(PORT)).umem(umem).socket(rings())
}

/// The lab's near end.
pub(crate) fn near() -> Interface {
    Interface::by_name("near0").unwrap()
}

#[track_caller]
pub(crate) fn all_free(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete() && audit.free == audit.total, "{audit}");
}

/// Nothing is attached to the near end. A test that looks at all descriptors of the machine in the moment of
/// a detachment delays it by that moment.
#[track_caller]
pub(crate) fn nothing_attached(lab: &Lab) {
    let deadline = Instant::now() + PATIENCE;
    while let Some(program) = lab.near.xdp_program().unwrap() {
        assert!(Instant::now() < deadline, "{program:?} is attached");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Opens the queue with good input, right after a refusal, with the same UMEM; packets go both ways.
#[track_caller]
pub(crate) fn works(lab: &Lab, umem: &Umem, queue: u32) {
    let mut far = lab.raw().unwrap();
    let mut port = port(umem).queues([queue]).open().unwrap();
    let mut socket = port.take_queue(queue).unwrap();
    sends(lab, &mut socket, &mut far);
    // From several queues, the far end chooses one by its CPU.
    if near().facts().unwrap().queues.active == 1 {
        receives(lab, &mut socket, &far);
    }
    drop((socket, port));
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
    nothing_attached(lab);
}

/// A packet of the socket reaches the far end.
#[track_caller]
pub(crate) fn sends(lab: &Lab, socket: &mut Socket, far: &mut RawPort) {
    let frame = lab.flow(PORT).reflected().frame(b"to the far end, of more than 60 bytes");
    let mut batch = socket.umem().batch(1);
    assert_eq!(batch.alloc(1), 1);
    batch.packets_mut().next().unwrap().write(&frame).unwrap();
    assert_eq!(socket.send(&mut batch).unwrap(), 1);
    loop {
        match far.recv(PATIENCE).unwrap() {
            Some(arrived) if arrived == frame => return,
            Some(_) => {}
            None => panic!("nothing arrives at the far end"),
        }
    }
}

/// A packet of the far end reaches the socket.
#[track_caller]
pub(crate) fn receives(lab: &Lab, socket: &mut Socket, far: &RawPort) {
    let frame = lab.flow(PORT).frame(b"to the near end, of more than 60 bytes");
    let mut batch = socket.umem().batch(64);
    // What came before may have filled the RX ring.
    while socket.recv(&mut batch).unwrap() > 0 {
        batch.clear();
    }
    far.send(&frame).unwrap();
    loop {
        assert!(socket.wait(Interest::READABLE, PATIENCE).unwrap().readable(), "nothing arrives");
        socket.recv(&mut batch).unwrap();
        if batch.packets().any(|packet| packet.head() == frame) {
            return;
        }
        batch.clear();
    }
}
