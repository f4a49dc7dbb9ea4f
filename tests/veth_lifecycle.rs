//! What is left when sockets and ports end, in whatever order. Needs root; says so and skips where it is not.

mod support;

use std::{
    collections::BTreeSet,
    env, fs,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use support::{
    adds_up, comes_home, eventually, frames, near, near_interface, receive, rings, settle, to_near,
};
use xskit::{
    Batch, ErrorKind, Interest, Interface, Pages, Port, Receiver, Sender, Socket, SocketConfig,
    Step, Umem, UmemConfig,
};
use xskit_lab::{
    Checker, Lab, LabConfig, Link, RawPort, VethEnd, mappings, open_fds, socket_mappings,
};

/// The tests here count what the process holds, so that they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File descriptors, all mappings, mappings of rings.
fn held() -> (usize, usize, usize) {
    (open_fds().unwrap(), mappings().unwrap(), socket_mappings().unwrap())
}

#[test]
fn a_thousand_ports_leave_nothing() {
    let cycles = env::var("XSKIT_LIFECYCLE_PORTS")
        .map_or(1000, |ports| ports.parse().expect("a number of ports"));
    let _alone = alone();
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = to_near(&lab, 64);
    lab.enter(|| {
        let cycle = |number: usize| {
            let mut port =
                near().umem_config(UmemConfig::new(128)).socket(rings(64)).open().unwrap();
            if number.is_multiple_of(100) {
                let umem = port.umem().clone();
                let mut socket = port.take_queue(0).unwrap();
                raw.send(&series.frame(0)).unwrap();
                receive(&mut socket, &mut Checker::new(series.clone()), 1, 8);
                let mut batch = umem.batch(1);
                batch.alloc(1);
                batch.packets_mut().for_each(|mut packet| packet.write(&[2; 60]).unwrap());
                assert_eq!(socket.send(&mut batch).unwrap(), 1);
                settle(&mut socket);
                adds_up(&umem);
            }
        };
        // What libraries and the allocator make once and keep.
        (0..10).for_each(|_| cycle(0));
        let before = held();
        assert_eq!(before.2, 0);
        (0..cycles).for_each(cycle);
        let after = held();
        assert_eq!((before.0, before.2), (after.0, after.2), "before and after");
        // The allocator may still map and merge heaps of its own; a leak would be one for each port.
        assert!(after.1 <= before.1 + 4, "{before:?} before, {after:?} after");
        assert_eq!(lab.near.xdp_program().unwrap(), None);
    });
}

#[test]
fn failed_opens_leave_nothing() {
    let _alone = alone();
    let Some(lab) = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        let interface = near_interface();
        let umem = UmemConfig::new(256).build().unwrap();
        // Somebody else has the second queue: the port fails after its first socket is open.
        let other = UmemConfig::new(256).build().unwrap();
        let blocker = Socket::open(&other, &interface, 1, &rings(64)).unwrap();
        let fail = || {
            let error = near().umem(&umem).socket(rings(64)).open().unwrap_err();
            assert_eq!((error.step(), error.kind()), (Step::Bind, ErrorKind::Busy), "{error}");
        };
        fail();
        let before = held();
        fail();
        let after = held();
        assert_eq!((before.0, before.2), (after.0, after.2), "before and after");
        assert_eq!(lab.near.xdp_program().unwrap(), None);
        comes_home(&umem, &[(&interface, 0)]);
        drop(blocker);
        let port = near().umem(&umem).socket(rings(64)).open().unwrap();
        assert_eq!(port.queues().len(), 2);
        drop(port);
        comes_home(&umem, &[(&interface, 0), (&interface, 1)]);
    });
}

/// All that a program can hold of a port.
struct Holding {
    port: Option<Port>,
    receiver: Option<Receiver>,
    sender: Option<Sender>,
    sharing: Option<Socket>,
    memory: Option<(Umem, Batch)>,
}

const PARTS: usize = 5;

impl Holding {
    fn new(raw: &RawPort, packets: &[Vec<u8>]) -> Self {
        let config = near().umem_config(UmemConfig::new(1024)).socket(rings(64));
        let mut port = config.open().unwrap();
        let umem = port.umem().clone();
        let mut first = port.take_queue(0).unwrap();
        let sharing = first.share_queue(&SocketConfig::default()).unwrap();
        raw.send_all(packets).unwrap();
        let mut batch = umem.batch(16);
        batch.alloc(8);
        let (receiver, sender) = first.into_split();
        Self {
            port: Some(port),
            receiver: Some(receiver),
            sender: Some(sender),
            sharing: Some(sharing),
            memory: Some((umem, batch)),
        }
    }

    fn let_go(&mut self, part: usize) {
        match part {
            0 => self.port = None,
            1 => self.receiver = None,
            2 => self.sender = None,
            3 => self.sharing = None,
            _ => self.memory = None,
        }
    }

    /// Whether anything is left that needs the program.
    fn needs_program(&self) -> bool {
        self.port.is_some()
            || self.receiver.is_some()
            || self.sender.is_some()
            || self.sharing.is_some()
    }
}

/// All orders of the parts.
fn orders(parts: &[usize]) -> Vec<Vec<usize>> {
    if parts.is_empty() {
        return vec![Vec::new()];
    }
    parts
        .iter()
        .flat_map(|first| {
            let rest: Vec<_> = parts.iter().copied().filter(|part| part != first).collect();
            orders(&rest).into_iter().map(|rest| [vec![*first], rest].concat())
        })
        .collect()
}

#[test]
fn the_program_goes_with_the_last_of_port_and_sockets() {
    let _alone = alone();
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let packets = frames(&to_near(&lab, 100), 20);
    lab.enter(|| {
        let mut before = None;
        for order in orders(&(0..PARTS).collect::<Vec<_>>()) {
            let mut holding = Holding::new(&raw, &packets);
            for part in &order {
                holding.let_go(*part);
                let attached = lab.near.xdp_program().unwrap().is_some();
                assert_eq!(attached, holding.needs_program(), "{part} of {order:?}");
                if let Some((umem, _)) = &holding.memory {
                    adds_up(umem);
                }
            }
            assert_eq!(socket_mappings().unwrap(), 0, "{order:?}");
            let fds = open_fds().unwrap();
            assert_eq!(*before.get_or_insert(fds), fds, "{order:?}");
        }
    });
}

#[test]
fn a_port_of_two_queues_goes_in_any_order() {
    let _alone = alone();
    let Some(lab) = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        for order in orders(&[0, 1, 2]) {
            let mut port =
                near().umem_config(UmemConfig::new(512)).socket(rings(64)).open().unwrap();
            let umem = port.umem().clone();
            let mut sockets: Vec<_> = port.take_queues().into_iter().map(Some).collect();
            let mut port = Some(port);
            for (gone, what) in order.iter().enumerate() {
                match what {
                    0 => port = None,
                    other => sockets[other - 1] = None,
                }
                let attached = lab.near.xdp_program().unwrap().is_some();
                assert_eq!(attached, gone < 2, "{what} of {order:?}");
                adds_up(&umem);
            }
            let interface = near_interface();
            comes_home(&umem, &[(&interface, 0), (&interface, 1)]);
            drop(port);
        }
    });
}

/// The flags of the mapping in which this address is, and its name.
fn flags_at(address: usize) -> (String, BTreeSet<String>) {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut name = None;
    for line in smaps.lines() {
        let range = line.split(' ').next().unwrap().split_once('-').and_then(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some(number(from)?..number(to)?)
        });
        if let Some(range) = range {
            name = range.contains(&address).then(|| line.to_owned());
        } else if let (Some(name), Some(flags)) = (&name, line.strip_prefix("VmFlags: ")) {
            return (name.clone(), flags.split_whitespace().map(str::to_owned).collect());
        }
    }
    panic!("{address:#x} is not mapped");
}

/// The addresses at which rings are mapped.
fn ring_addresses() -> Vec<usize> {
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains("socket:"))
        .map(|line| usize::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap())
        .collect()
}

fn fds() -> BTreeSet<u32> {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn nothing_is_inherited() {
    let _alone = alone();
    let Some(lab) = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        let before = fds();
        let mut port = near().open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let sharing = socket.share_queue(&SocketConfig::default()).unwrap();
        // Two queues with four rings each, and the RX and TX of the third socket.
        let rings = ring_addresses();
        assert_eq!(rings.len(), 10);
        let mut batch = port.umem().batch(1);
        batch.alloc(1);
        let frame = batch.packets().next().unwrap().head().as_ptr().addr();
        for address in rings.into_iter().chain([frame]) {
            let (name, flags) = flags_at(address);
            assert!(flags.contains("dc"), "not MADV_DONTFORK: {name} {flags:?}");
        }
        let mut seen = 0;
        for fd in fds().difference(&before) {
            // The directory that was read is closed again.
            let Ok(info) = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) else { continue };
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            assert_ne!(flags & libc::O_CLOEXEC, 0, "{name:?} is inherited");
            seen += 1;
        }
        assert!(seen >= 5, "three sockets, a program and a link, at least");

        // A child sees none of it, and its end does not end ours.
        let child = Command::new("/proc/self/exe").arg("--list").stdout(Stdio::null()).status();
        assert!(child.unwrap().success());
        assert!(lab.near.xdp_program().unwrap().is_some());
        drop((sharing, socket));
    });
}

#[test]
fn huge_pages_where_there_are_some() {
    // 64 MiB.
    let config = UmemConfig::new(16384);
    let umem = config.clone().pages(Pages::HugeOrTransparent).build().unwrap();
    let free: u64 = fs::read_to_string("/proc/meminfo")
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"))
        .map_or(0, |count| count.trim().parse().unwrap());
    let mut batch = umem.batch(1);
    batch.alloc(1);
    let mut frame = 0;
    for mut packet in batch.packets_mut() {
        packet.write(&[7; 4096]).unwrap();
        frame = packet.head().as_ptr().addr();
    }
    let (name, flags) = flags_at(frame);
    assert!(flags.contains("dc"), "{name} {flags:?}");
    match umem.pages() {
        Pages::Huge => assert!(flags.contains("ht"), "{name} {flags:?}"),
        Pages::Transparent => assert!(!flags.contains("ht"), "{name} {flags:?}"),
        other => panic!("{other:?} was not asked for"),
    }
    if umem.pages() == Pages::Transparent && free == 0 {
        let error = config.pages(Pages::Huge).build().unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::AllocateUmem, ErrorKind::Limit), "{error}");
        assert!(error.to_string().contains("nr_hugepages"), "{error}");
    }
}

/// The policy of the mapping at this address, as `/proc/self/numa_maps` has it.
fn policy_at(address: usize) -> String {
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    // Neighbours of one policy are one mapping.
    let mappings = maps.lines().filter_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        Some((usize::from_str_radix(start, 16).ok()?, rest.split(' ').next()?))
    });
    mappings.take_while(|(start, _)| *start <= address).last().unwrap().1.into()
}

#[test]
fn memory_prefers_the_numa_node_that_was_asked_for() {
    let _alone = alone();
    let build = |pages, node: Option<u32>| {
        let config = UmemConfig::new(512).pages(pages);
        node.map_or(config.clone(), |node| config.numa_node(node)).build()
    };
    if !Path::new("/proc/self/numa_maps").exists() {
        let error = build(Pages::Normal, Some(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return;
    }
    for pages in [Pages::Normal, Pages::Transparent, Pages::HugeOrTransparent] {
        for (node, policy) in [(Some(0), "prefer:0"), (None, "default")] {
            let umem = build(pages, node).unwrap();
            assert_eq!(umem.numa_node(), node);
            let mut batch = umem.batch(1);
            batch.alloc(1);
            let address = batch.packets().next().unwrap().head().as_ptr().addr();
            assert_eq!(policy_at(address), policy, "{pages:?}");
        }
    }
    let error = build(Pages::Normal, Some(1023)).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::AllocateUmem, ErrorKind::NotFound), "{error}");
    assert!(error.to_string().contains("node 1023"), "{error}");
    // A virtual interface is at no node, and its UMEM wherever.
    let lo = Interface::by_name("lo").unwrap();
    assert_eq!(lo.facts().unwrap().numa_node, None);
    assert_eq!(UmemConfig::new(4).near(&lo).build().unwrap().numa_node(), None);
}

#[test]
fn a_umem_on_huge_pages_carries_traffic() {
    let _alone = alone();
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near()
            .umem_config(UmemConfig::default().pages(Pages::HugeOrTransparent))
            .open()
            .unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        let series = to_near(&lab, 1514);
        raw.send_all(&frames(&series, 500)).unwrap();
        let mut checker = Checker::new(series);
        receive(&mut socket, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        drop((port, socket));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

#[test]
fn a_queue_is_free_soon_after_it_was_closed() {
    let _alone = alone();
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let interface = near_interface();
        let started = Instant::now();
        for _ in 0..20 {
            let umem = UmemConfig::new(128).build().unwrap();
            drop(Socket::open(&umem, &interface, 0, &rings(64)).unwrap());
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    });
}

/// Two interfaces of two network namespaces that have the same index: a UMEM's sockets on them are not mixed
/// up, neither while they are open nor when the kernel may still have frames of one that was closed.
#[test]
fn queues_of_two_namespaces() {
    let _alone = alone();
    let (Some(lab), Some(other)) = (Lab::for_test(), Lab::for_test()) else { return };
    assert_eq!(lab.near.index(), other.near.index());
    let umem = UmemConfig::new(128).build().unwrap();
    let open = || Socket::open(&umem, &near_interface(), 0, &rings(32)).unwrap();
    let mut socket = lab.enter(open);
    let second = other.enter(open);
    assert_eq!((umem.audit().fill, umem.audit().quarantine), (64, 0));
    let error = other.enter(|| socket.share_queue(&rings(32)).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("another network namespace"), "{error}");
    drop(second);
    assert_eq!(umem.audit().quarantine, 32);
    // Somebody else has a descriptor of it: the kernel goes on.
    let descriptor = socket.as_fd().try_clone_to_owned().unwrap();
    drop(socket);
    assert_eq!((umem.audit().free, umem.audit().quarantine), (64, 64));
    let second = other.enter(open);
    assert_eq!(umem.audit().quarantine, 32, "those of the other namespace: {}", umem.audit());
    drop((second, descriptor));
    let socket = lab.enter(open);
    assert_eq!(umem.audit().quarantine, 32, "{}", umem.audit());
    drop(socket);
    lab.enter(|| comes_home_in_part(&umem, 32));
    other.enter(|| comes_home_in_part(&umem, 0));
}

/// The queue of this namespace is bound again: so many frames stay in quarantine.
#[track_caller]
fn comes_home_in_part(umem: &Umem, rest: u32) {
    drop(Socket::open(umem, &near_interface(), 0, &rings(32).send_only()).unwrap());
    assert_eq!(umem.audit().quarantine, rest, "{}", umem.audit());
}

/// The usual way to come back after an interface was deleted: a new socket is put in the place of the dead one,
/// which is dropped only when the new one is there.
#[test]
fn a_dead_socket_is_in_nobodys_way() {
    let _alone = alone();
    let Some(mut lab) = Lab::for_test() else { return };
    let umem = UmemConfig::new(256).build().unwrap();
    let open = || Socket::open(&umem, &near_interface(), 0, &rings(64));
    let mut socket = lab.enter(open).unwrap();
    let mut batch = umem.batch(8);
    for _ in 0..3 {
        lab.near.delete().unwrap();
        eventually("the link is gone", || {
            socket
                .wait(Interest::READABLE, Duration::ZERO)
                .is_err_and(|error| error.kind() == ErrorKind::LinkGone)
        });
        let end = |link: &Link| VethEnd::new(link.netns(), link.name(), link.mac());
        (lab.near, lab.far) = end(&lab.near).join(&end(&lab.far)).unwrap();
        for link in [&lab.near, &lab.far] {
            link.up().unwrap();
        }
        lab.near.wait_up(Duration::from_secs(5)).unwrap();
        socket = lab.enter(open).unwrap();
        batch.alloc(1);
        batch.packets_mut().for_each(|mut packet| packet.write(&[2; 60]).unwrap());
        assert_eq!(socket.send(&mut batch).unwrap(), 1);
        settle(&mut socket);
    }
    drop((socket, batch));
    lab.enter(|| comes_home(&umem, &[(&near_interface(), 0)]));
}
