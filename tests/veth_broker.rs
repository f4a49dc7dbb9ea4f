//! The example `broker`: a worker without capabilities, on a socket that it was handed. Needs root; says
//! so and skips where it is not.

mod support;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{PORT, eventually, frames, to_near};
use xskit_lab::{Checker, Lab, Numbered, RawPort};

/// A broker, which is killed if the test fails: the worker ends with it.
struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().unwrap();
    }
}

/// Starts the broker at the near end; its words as they come, the first of them the worker's.
fn start(lab: &Lab) -> (Broker, impl Iterator<Item = String>) {
    let test = env::current_exe().unwrap();
    let broker = test.parent().unwrap().parent().unwrap().join("examples/broker");
    assert!(broker.is_file(), "{} is missing: cargo build --examples", broker.display());
    let mut command = Command::new(broker);
    command.arg("near0").stdout(Stdio::piped());
    let mut child = lab.enter(|| command.spawn()).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (Broker(child), lines)
}

fn echoes(lab: &Lab, raw: &mut RawPort) {
    const PACKETS: u64 = 40;
    raw.send_all(&frames(&to_near(lab, 100), PACKETS)).unwrap();
    let mut checker = Checker::new(Numbered::new(lab.flow(PORT).reflected(), 100, 1));
    support::collect(raw, &mut checker, PACKETS);
    assert_eq!(checker.tally().received(), PACKETS, "{:?}", checker.tally());
}

/// The worker's process.
fn worker(line: &str) -> Pid {
    let (place, id) = line.split_once(", worker ").unwrap_or_else(|| panic!("{line}"));
    assert_eq!(place, "queue 0 of near0: native");
    Pid::from_raw(id.parse().unwrap())
}

#[test]
fn a_worker_without_capabilities_echoes() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let (mut broker, mut lines) = start(&lab);
    let words = lines.next().unwrap();
    assert_eq!(words, "worker: capabilities 0000000000000000, copy, need_wakeup");
    let id = worker(&lines.next().unwrap());
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    for line in ["Uid:\t65534\t65534\t65534\t65534", "NoNewPrivs:\t1", "Groups:\t \n"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    for _ in 0..3 {
        echoes(&lab, &mut raw);
    }
    kill(Pid::from_raw(broker.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(lines.next().unwrap(), "the worker has ended: exit status: 0");
    assert!(broker.0.wait().unwrap().success());
    assert_eq!(lab.near.xdp_program().unwrap(), None);

    // The queue is free at once for the next.
    let (mut broker, mut lines) = start(&lab);
    let id = worker(&lines.nth(1).unwrap());
    echoes(&lab, &mut raw);
    // A worker that is killed takes nothing with it but its socket.
    kill(id, Signal::SIGKILL).unwrap();
    assert_eq!(lines.next().unwrap(), "the worker has ended: signal: 9 (SIGKILL)");
    assert!(broker.0.wait().unwrap().success());
    eventually("nothing is attached", || lab.near.xdp_program().unwrap().is_none());
}

#[test]
fn a_worker_that_cannot_bind_is_told_of() {
    let Some(lab) = Lab::for_test() else { return };
    // The queue is taken.
    let _taken = lab.enter(|| {
        let umem = xskit::UmemConfig::new(64).build().unwrap();
        let config = support::rings(16);
        xskit::Socket::open(&umem, &support::near_interface(), 0, &config).unwrap()
    });
    let (mut broker, mut lines) = start(&lab);
    assert_eq!(lines.next(), None);
    assert!(!broker.0.wait().unwrap().success());
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
