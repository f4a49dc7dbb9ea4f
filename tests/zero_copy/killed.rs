//! A process that is killed while it forwards: the next one finds everything free.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use xskit_lab::{Checker, Numbered, RawPort, die_with_parent};

use crate::{
    bench::Bench,
    support::{LIMIT, PORT},
};

const TIMES: usize = 5;

/// Sends, and waits until that many frames came back.
fn exchange(raw: &mut RawPort, bench: &Bench, count: u64) {
    let sent = bench.to_near(300);
    let mut checker = Checker::new(Numbered::new(bench.pair.flow(PORT).reflected(), 300, 1));
    let (started, mut next) = (Instant::now(), 0);
    while checker.tally().received() < count {
        assert!(started.elapsed() < LIMIT, "{next} sent, {:?}", checker.tally());
        raw.send(&sent.frame(next)).unwrap();
        next += 1;
        raw.recv_each(Duration::from_millis(1), |frame| {
            checker.check(frame);
        })
        .unwrap();
    }
    assert_eq!(checker.tally().corrupted, 0, "{:?}", checker.tally());
}

#[test]
fn a_forwarder_that_is_killed() {
    let Some(bench) = Bench::for_test() else { return };
    let mut raw = bench.pair.raw().unwrap();
    // Where cargo puts examples: beside the folder of this test's own binary.
    let test = env::current_exe().unwrap();
    let l2fwd = test.parent().unwrap().parent().unwrap().join("examples/l2fwd");
    assert!(l2fwd.is_file(), "{} is missing: cargo build --examples", l2fwd.display());
    for number in 0..TIMES {
        let mut command = Command::new(&l2fwd);
        command.args([bench.pair.near.name(), "--udp-port", &PORT.to_string()]);
        command.args(["--zero-copy", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = die_with_parent(&mut command).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let start =
            lines.next().unwrap_or_else(|| panic!("number {number} did not start")).unwrap();
        assert!(start.contains("\"start\""), "{start}");
        exchange(&mut raw, &bench, 200 + 37 * number as u64);
        // Some are on their way in both directions when it dies.
        for frame in crate::support::frames(&bench.to_near(300), 100) {
            raw.send(&frame).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(bench.pair.near.xdp_program().unwrap(), None);
}
