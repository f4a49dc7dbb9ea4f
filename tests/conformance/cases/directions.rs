//! Both directions, at once and in turn.

use std::thread;

use xskit::Socket;
use xskit_lab::Numbered;

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, receive, send, stream, windows},
    mode::Mode,
    support::settle,
};

pub(super) const CASES: &[Case] =
    &[("both_directions_at_once", at_once), ("both_directions_in_turn", in_turn)];

fn at_once(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let mut near = bench.both_ways(&bench.lab.near);
    let mut far = bench.both_ways(&bench.lab.far);
    let (to_near, to_far) = (bench.to_near(LENGTH), bench.to_far(LENGTH));
    thread::scope(|scope| {
        scope.spawn(|| exchange(&mut near.socket, &to_far, &to_near));
        exchange(&mut far.socket, &to_near, &to_far);
    });
    for end in [near, far] {
        let mut end = end;
        nothing_comes(&mut end.socket);
        let statistics = end.socket.statistics().unwrap();
        assert_eq!((statistics.sent, statistics.received), (PACKETS, PACKETS));
        end.close();
    }
    Outcome::Passed
}

/// Sends a window of the one series, then receives one of the other: its sender is never further ahead.
fn exchange(socket: &mut Socket, ours: &Numbered, theirs: &Numbered) {
    for numbers in windows(0..PACKETS) {
        let frames = |series: &Numbered| -> Vec<_> {
            numbers.iter().map(|number| series.frame(*number)).collect()
        };
        send(socket, &frames(ours));
        receive(socket, &frames(theirs));
    }
    settle(socket);
}

fn in_turn(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let mut near = bench.both_ways(&bench.lab.near);
    let mut far = bench.both_ways(&bench.lab.far);
    for turn in 0..4 {
        let numbers = turn * PACKETS / 2..(turn + 1) * PACKETS / 2;
        let (there, back) = (bench.to_near(LENGTH), bench.to_far(LENGTH));
        stream((&mut far.socket, &mut near.socket), &there, numbers.clone());
        stream((&mut near.socket, &mut far.socket), &back, numbers);
    }
    nothing_comes(&mut near.socket);
    nothing_comes(&mut far.socket);
    near.close();
    far.close();
    Outcome::Passed
}
