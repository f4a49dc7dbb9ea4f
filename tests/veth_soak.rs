//! Full rate for a while, receiver and sender on two threads: no frame is lost that the kernel's own
//! counters do not account for. `XSKIT_SOAK_SECONDS` says for how long (5 by default). Needs root; says
//! so and skips where it is not.

mod support;

use std::{
    env, fs,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use support::{LIMIT, adds_up, comes_home, eventually, near, near_interface, to_near};
use xskit::{AttachMode, Batch, Port, Receiver, Sender, UmemConfig};
use xskit_lab::{Checker, Lab, Link, Numbered, RawPort};

/// How often threads look whether they shall end.
const TURN: Duration = Duration::from_millis(20);

const BATCH: usize = 64;

fn seconds() -> u64 {
    env::var("XSKIT_SOAK_SECONDS").map_or(5, |seconds| seconds.parse().expect("seconds"))
}

/// What the interface itself counts as dropped: when it received, when it sent.
fn dropped(link: &Link) -> (u64, u64) {
    let table = link.netns().enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let row = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(link.name())?.strip_prefix(':'))
        .expect("the interface has a row");
    let numbers: Vec<u64> = row.split_whitespace().map(|number| number.parse().unwrap()).collect();
    (numbers[3], numbers[11])
}

/// Frames that the raw socket had no room for.
#[allow(unsafe_code, reason = "nix does not have this option")]
fn missed(raw: &RawPort) -> u64 {
    let mut statistics = [0_u32; 2];
    let mut length = 8;
    // SAFETY: the kernel writes at most the 8 bytes of `struct tpacket_stats` into a live array.
    let done = unsafe {
        libc::getsockopt(
            raw.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    statistics[1].into()
}

/// Sends frames as fast as the interface takes them; returns how many.
fn generate(raw: &RawPort, series: &Numbered, time: Duration) -> u64 {
    let mut frames = vec![Vec::new(); BATCH];
    let end = Instant::now() + time;
    let mut number = 0;
    while Instant::now() < end {
        for frame in &mut frames {
            series.write(number, frame);
            number += 1;
        }
        raw.send_all(&frames).unwrap();
    }
    number
}

/// Takes packets, exchanges their MAC addresses and hands them on.
fn receive(
    receiver: &mut Receiver,
    umem: &xskit::Umem,
    give: &mpsc::SyncSender<Batch>,
    used: &mpsc::Receiver<Batch>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        if !receiver.wait(TURN).unwrap() {
            continue;
        }
        let mut batch = used.try_recv().unwrap_or_else(|_| umem.batch(BATCH));
        receiver.recv(&mut batch).unwrap();
        for mut packet in batch.packets_mut() {
            let (destination, rest) = packet.head_mut().split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
        give.send(batch).unwrap();
    }
}

/// Sends what it is given, and sees to it that it leaves.
fn send(sender: &mut Sender, take: &mpsc::Receiver<Batch>, done: &mpsc::Sender<Batch>) {
    loop {
        match take.recv_timeout(TURN) {
            Ok(mut batch) => {
                while !batch.is_empty() {
                    if sender.send(&mut batch).unwrap() == 0 {
                        assert!(sender.wait(LIMIT).unwrap(), "there is no room to send");
                    }
                }
                // The receiving thread may have ended.
                drop(done.send(batch));
            }
            Err(RecvTimeoutError::Timeout) => drop(sender.reap().unwrap()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reflects until `stop`; returns the socket's halves.
fn reflect(port: &mut Port, stop: &AtomicBool) -> (Receiver, Sender) {
    let umem = port.umem().clone();
    let (mut receiver, mut sender) = port.take_queue(0).unwrap().into_split();
    let (give, take) = mpsc::sync_channel(32);
    let (done, used) = mpsc::channel();
    thread::scope(|scope| {
        let receiver = &mut receiver;
        let umem = &umem;
        scope.spawn(move || receive(receiver, umem, &give, &used, stop));
        send(&mut sender, &take, &done);
    });
    (receiver, sender)
}

fn soak(mode: AttachMode, time: Duration) {
    let Some(lab) = Lab::for_test() else { return };
    let mut sink = lab.raw().unwrap();
    let series = to_near(&lab, 128);
    let back = Numbered::new(lab.flow(support::PORT).reflected(), 128, 1);
    let stop = AtomicBool::new(false);
    let (arrived, quiet) = (AtomicU64::new(0), AtomicBool::new(false));
    lab.enter(|| {
        let mut port = near().attach(mode).umem_config(UmemConfig::new(16384)).open().unwrap();
        let umem = port.umem().clone();
        let before = (dropped(&lab.near), dropped(&lab.far));
        let (generated, (receiver, sender), checker) = thread::scope(|scope| {
            let generator = scope.spawn(|| {
                // Made here, so that it does not hold what comes back for long.
                let raw = lab.raw().unwrap();
                generate(&raw, &series, time)
            });
            let counting = scope.spawn(|| {
                let mut checker = Checker::new(back.clone());
                while !quiet.load(Ordering::Relaxed) {
                    let now = sink.recv_each(TURN, |frame| {
                        checker.check(frame);
                    });
                    arrived.fetch_add(now.unwrap() as u64, Ordering::Relaxed);
                }
                checker
            });
            let port = &mut port;
            let reflector = scope.spawn(|| reflect(port, &stop));
            let generated = generator.join().unwrap();
            // What is still on its way arrives.
            let mut last = (0, Instant::now());
            eventually("it becomes quiet", || {
                let now = arrived.load(Ordering::Relaxed);
                if now != last.0 {
                    last = (now, Instant::now());
                }
                last.1.elapsed() > Duration::from_millis(700)
            });
            stop.store(true, Ordering::Relaxed);
            let halves = reflector.join().unwrap();
            quiet.store(true, Ordering::Relaxed);
            (generated, halves, counting.join().unwrap())
        });
        let statistics = receiver.statistics().unwrap();
        let counters = port.counters().unwrap();
        let (near, far) = (dropped(&lab.near), dropped(&lab.far));
        let (near_rx, near_tx) = (near.0 - before.0.0, near.1 - before.0.1);
        let far_rx = far.0 - before.1.0;
        let missed = missed(&sink);
        let tally = checker.tally();
        let rate = generated / time.as_secs().max(1);
        // Past the harness, which hides what passing tests print.
        let report = format!(
            "soak {mode:?}: {} s, {generated} generated ({rate} a second), {} received, {} sent, {} came \
             back; dropped: {near_rx} near rx, {near_tx} near tx, {far_rx} far rx, {} by EBUSY, \
             {missed} by the raw socket, {:?}, {:?}; {} wake-ups to send\n",
            time.as_secs(),
            statistics.received,
            statistics.sent,
            tally.received(),
            statistics.tx_dropped,
            statistics.kernel,
            counters.redirect_errors,
            statistics.wakeups_tx,
        );
        io::stderr().write_all(report.as_bytes()).unwrap();

        // On the way there.
        let total = counters.total;
        assert_eq!((total.redirected, total.passed()), (generated, 0), "{total:?}");
        let kernel = statistics.kernel;
        // In copy mode what found no frame is among what was dropped.
        let refused = kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0);
        assert_eq!(statistics.received + refused, total.redirected);
        if let Some(errors) = counters.redirect_errors {
            assert_eq!(errors.total(), refused);
        }
        // A native veth counts refused redirects itself, once more.
        assert!(near_rx == 0 || near_rx == refused, "{near_rx} near rx, {refused} refused");
        // Here.
        assert_eq!((statistics.sent, statistics.tx_refused), (statistics.received, 0));
        assert_eq!((statistics.completed, statistics.lost), (statistics.sent, 0));
        assert_eq!((kernel.tx_invalid_descs, kernel.rx_invalid_descs), (0, 0));
        // On the way back.
        assert_eq!(near_tx, statistics.tx_dropped);
        assert_eq!(tally.received() + statistics.tx_dropped + far_rx + missed, statistics.sent);
        assert_eq!((tally.corrupted, tally.duplicate, tally.reordered, tally.foreign), (0, 0, 0, 0));
        assert!(tally.received() > 0);

        adds_up(&umem);
        let audit = umem.audit();
        assert_eq!((audit.batch, audit.rx, audit.tx, audit.completion), (0, 0, 0, 0), "{audit}");
        drop((receiver, sender, port));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

/// One after the other: each wants the machine for itself.
#[test]
fn nothing_is_lost_that_is_not_counted() {
    let time = Duration::from_secs(seconds());
    soak(AttachMode::Native, time);
    soak(AttachMode::Generic, time.min(Duration::from_secs(5)));
}
