//! What the tests on veth pairs have in common.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    fs, io,
    time::{Duration, Instant},
};

use xskit::{
    Batch, CopyMode, Interest, Interface, PortConfig, QueueId, RingSize, Rules, Socket,
    SocketConfig, Umem,
};
use xskit_lab::{Checker, Lab, Link, Numbered, RawPort};

/// The port that the rules of most tests ask for.
pub(crate) const PORT: u16 = 4242;

/// Nothing that is to happen takes so long, however busy the machine is.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Long enough to see that nothing happens.
pub(crate) const MOMENT: Duration = Duration::from_millis(200);

/// A port on the lab's near end for UDP packets to [`PORT`].
pub(crate) fn near() -> PortConfig {
    PortConfig::new("near0").rules(Rules::udp_port(PORT))
}

pub(crate) fn near_interface() -> Interface {
    Interface::by_name("near0").unwrap()
}

pub(crate) fn ring(entries: u32) -> RingSize {
    RingSize::new(entries).unwrap()
}

/// Small rings, all of that many entries.
pub(crate) fn rings(entries: u32) -> SocketConfig {
    let size = ring(entries);
    SocketConfig::default().rx(size).tx(size).fill(size).completion(size)
}

/// Frames of the flow to the near end, numbered.
pub(crate) fn to_near(lab: &Lab, length: usize) -> Numbered {
    Numbered::new(lab.flow(PORT), length, 1)
}

/// Frames of the flow from the near end, numbered.
pub(crate) fn to_far(lab: &Lab, length: usize) -> Numbered {
    Numbered::new(lab.flow(PORT).reflected(), length, 2)
}

pub(crate) fn frames(series: &Numbered, count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| series.frame(number)).collect()
}

/// Every frame is in a place, and in one.
#[track_caller]
pub(crate) fn adds_up(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
    assert_eq!((audit.lost, audit.detached), (0, 0), "{audit}");
}

/// All sockets are closed and all batches dropped: every frame is free, but for those that the kernel
/// might still reach, and these come back when their queues are bound again.
#[track_caller]
pub(crate) fn comes_home(umem: &Umem, queues: &[(&Interface, u32)]) {
    adds_up(umem);
    let audit = umem.audit();
    assert_eq!(audit.free + audit.quarantine, audit.total, "{audit}");
    for (interface, queue) in queues {
        // In copy mode it keeps no frames for the driver.
        let config = rings(64).send_only().copy_mode(CopyMode::Copy);
        drop(Socket::open(umem, interface, QueueId::new(*queue), &config).unwrap());
    }
    let audit = umem.audit();
    assert_eq!(audit.free, audit.total, "{audit}");
}

/// Receives until that many frames of the series were there, by batches of that size.
#[track_caller]
pub(crate) fn receive(socket: &mut Socket, checker: &mut Checker, count: u64, size: usize) {
    let mut batch = socket.umem().batch(size);
    let goal = checker.tally().received() + count;
    while checker.tally().received() < goal {
        let ready = socket.wait(Interest::READABLE, LIMIT).unwrap();
        assert!(ready.readable(), "{:?} {:?}", checker.tally(), socket.statistics());
        assert!(socket.recv(&mut batch).unwrap() > 0, "wait said that there are packets");
        for packet in batch.packets() {
            checker.check(packet.head());
        }
        batch.clear();
    }
}

/// Makes frames of the numbers, as many as the batch has room for.
#[track_caller]
pub(crate) fn write(batch: &mut Batch, series: &Numbered, numbers: &mut impl Iterator<Item = u64>) {
    let mut content = Vec::new();
    let before = batch.packet_count();
    batch.alloc(batch.room());
    let mut written = before;
    for mut packet in batch.packets_mut().skip(before) {
        let Some(number) = numbers.next() else { break };
        series.write(number, &mut content);
        packet.write(&content).unwrap();
        written += 1;
    }
    batch.truncate(written);
}

/// Sends the frames of these numbers, by batches of that size.
#[track_caller]
pub(crate) fn send(
    socket: &mut Socket,
    series: &Numbered,
    mut numbers: impl Iterator<Item = u64>,
    size: usize,
) {
    let mut batch = socket.umem().batch(size);
    loop {
        write(&mut batch, series, &mut numbers);
        if batch.is_empty() {
            return;
        }
        socket.send(&mut batch).unwrap();
        if !batch.is_empty() {
            let ready = socket.wait(Interest::WRITABLE, LIMIT).unwrap();
            assert!(ready.writable(), "{:?}", socket.statistics());
        }
    }
}

/// Waits until all that was sent on the socket has completed.
#[track_caller]
pub(crate) fn settle(socket: &mut Socket) {
    eventually("what was sent completes", || {
        socket.split_mut().1.reap().unwrap();
        let statistics = socket.statistics().unwrap();
        statistics.completed == statistics.sent
    });
}

/// Reads at the far end until that many frames of the series were there.
#[track_caller]
pub(crate) fn collect(raw: &mut RawPort, checker: &mut Checker, count: u64) {
    let goal = checker.tally().received() + count;
    while checker.tally().received() < goal {
        let arrived = raw.recv_each(LIMIT, |frame| {
            checker.check(frame);
        });
        assert!(arrived.unwrap() > 0, "{:?}", checker.tally());
    }
}

/// Major and minor of the running kernel.
pub(crate) fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).unwrap_or_else(|| panic!("{release} is no release"))
}

/// Tries again until it is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` on a thread with a file system tree of its own, with a file system of this kind on `at`.
pub(crate) fn with_mount<T: Send>(kind: &str, at: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                private_mount(kind, at).unwrap();
                work()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[allow(unsafe_code, reason = "nix has these calls behind features that nothing else needs")]
fn private_mount(kind: &str, at: &str) -> io::Result<()> {
    use std::{ffi::CString, ptr::null};

    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let (kind, at) = (CString::new(kind)?, CString::new(at)?);
    // SAFETY: all strings live through the calls. The thread leaves the tree it shared with others, so
    // that what is mounted concerns it alone.
    unsafe {
        check(libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(null(), c"/".as_ptr(), null(), private, null()))?;
        check(libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, null()))
    }
}

/// Reads an attribute of the interface.
pub(crate) fn attribute(link: &Link, attribute: &str) -> String {
    let path = format!("/sys/class/net/{}/{attribute}", link.name());
    let read = || with_mount("sysfs", "/sys", || fs::read_to_string(path).unwrap());
    link.netns().enter(read).trim().to_owned()
}

/// Writes an attribute of the interface, which sysfs shows to those who mount it in its namespace.
pub(crate) fn set_attribute(link: &Link, attribute: &str, value: &str) {
    let path = format!("/sys/class/net/{}/{attribute}", link.name());
    link.netns().enter(|| with_mount("sysfs", "/sys", || fs::write(path, value).unwrap()));
}
