//! Programs that do more than redirect.

use std::slice;

use xskit::Interest;

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, send, stream_through},
    bpf::Action,
    bpf::Reg::{R0, R7},
    mode::Mode,
    support::{LIMIT, settle},
};

pub(super) const CASES: &[Case] = &[
    ("a_program_that_drops_half", drops_half),
    ("the_tail_shrunk_by_the_program", |mode| tail(mode, 128, -16)),
    // In native mode veth copies a packet into a buffer that ends with its last cache line.
    ("the_tail_grown_within_a_cache_line", |mode| tail(mode, 104, 16)),
    ("the_tail_grown_by_256_bytes", |mode| tail(mode, 128, 256)),
];

fn drops_half(mode: &'static Mode) -> Outcome {
    /// Where the number's last byte is in a packet: after the headers of Ethernet, IPv4 and UDP.
    const NUMBER: i16 = 14 + 20 + 8 + 7;
    let bench = Bench::new(mode);
    let mut from = bench.sender();
    let mut to = bench.receiver_by(1, |program, map| {
        let short = program.begin(i32::from(NUMBER) + 1);
        let odd = program.load_byte(R0, R7, NUMBER).and(R0, 1).if_set(R0);
        program.redirect_by_queue(map);
        program.land(odd).end(Action::Drop);
        program.land(short).end(Action::Pass);
    });
    let series = bench.to_near(LENGTH);
    let ends = (&mut from.socket, &mut to.socket);
    stream_through(ends, &series, 0..PACKETS, |number, packet| (number % 2 == 0).then_some(packet));
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
    Outcome::Passed
}

/// The program changes each packet's length. What it cannot change it redirects as it is, so that one sees it.
fn tail(mode: &'static Mode, bytes: usize, by: i32) -> Outcome {
    let bench = Bench::new(mode);
    let mut from = bench.sender();
    let mut to = bench.receiver_by(1, |program, map| {
        let short = program.begin(14);
        program.adjust_tail(by).redirect_by_queue(map);
        program.land(short).end(Action::Pass);
    });
    let series = bench.to_near(bytes);
    let length = bytes.checked_add_signed(by as isize).unwrap();
    let changed = |mut packet: Vec<u8>| {
        packet.resize(length, 0);
        packet
    };
    // The first one tells whether the kernel can.
    let first = series.frame(0);
    send(&mut from.socket, slice::from_ref(&first));
    settle(&mut from.socket);
    assert!(to.socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
    let mut batch = to.umem.batch(1);
    to.socket.recv(&mut batch).unwrap();
    let arrived = batch.packets().next().unwrap().head().to_vec();
    drop(batch);
    let outcome = if arrived == changed(first.clone()) {
        let ends = (&mut from.socket, &mut to.socket);
        stream_through(ends, &series, 1..PACKETS, |_, packet| Some(changed(packet)));
        Outcome::Passed
    } else {
        assert_eq!(arrived, first, "neither changed nor as it was");
        Outcome::CannotRun(format!(
            "the kernel refuses bpf_xdp_adjust_tail by {by} bytes: its buffer has no such room behind a \
             packet of {bytes}"
        ))
    };
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
    outcome
}
