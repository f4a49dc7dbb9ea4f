//! Several sockets on one queue and UMEM.

use std::{mem, net::SocketAddr, os::fd::AsFd};

use xskit::QueueId;
use xskit_lab::{Flow, Numbered, Protocol};

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, receive, send, stream, windows},
    bpf::Action,
    bpf::Reg::{R0, R7},
    mode::Mode,
    support::{adds_up, rings, settle},
};

pub(super) const CASES: &[Case] = &[
    ("a_second_socket_pair_takes_the_place_of_the_first", second_pair),
    ("two_sockets_chosen_by_destination_mac", chosen_by_mac),
];

fn second_pair(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    let series = bench.to_near(LENGTH);
    stream((&mut from.socket, &mut to.socket), &series, 0..PACKETS);

    let mut second_from = from.share(&rings(512).send_only());
    let mut second_to = to.share(&rings(512).receive_only());
    // Not in the map yet.
    stream((&mut second_from, &mut to.socket), &series, PACKETS..PACKETS + 64);
    second_to.join(to.map()).unwrap();
    stream((&mut second_from, &mut second_to), &series, 0..PACKETS);
    nothing_comes(&mut to.socket);
    adds_up(&to.umem);

    // The first ones go, the second ones stay in their places.
    mem::swap(&mut from.socket, &mut second_from);
    mem::swap(&mut to.socket, &mut second_to);
    drop((second_from, second_to));
    stream((&mut from.socket, &mut to.socket), &series, 0..PACKETS);
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
    Outcome::Passed
}

fn chosen_by_mac(mode: &'static Mode) -> Outcome {
    /// Where the destination's last byte is in a packet.
    const LAST_OF_MAC: i16 = 5;
    let bench = Bench::new(mode);
    let mut from = bench.sender();
    let mut to = bench.receiver_by(2, |program, map| {
        let short = program.begin(14);
        program.load_byte(R0, R7, LAST_OF_MAC).and(R0, 1).redirect(map, R0);
        program.land(short).end(Action::Pass);
    });
    let mut second = to.share(&rings(512).receive_only());
    let entry = to.map().insert(QueueId::new(1), second.as_fd()).unwrap();
    let series = |last: u8| {
        let macs = (bench.lab.far.mac(), [2, 0, 0, 0, 1, last]);
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let flow = Flow::new(Protocol::Udp, macs, address("198.18.0.1:1"), address("198.18.0.2:2"));
        Numbered::new(flow, LENGTH, u64::from(last))
    };
    let (even, odd) = (series(0x10), series(0x11));
    for numbers in windows(0..PACKETS / 2) {
        let packets: Vec<_> =
            numbers.iter().flat_map(|number| [even.frame(*number), odd.frame(*number)]).collect();
        send(&mut from.socket, &packets);
        let half = |skip| packets.iter().skip(skip).step_by(2).cloned().collect::<Vec<_>>();
        receive(&mut to.socket, &half(0));
        receive(&mut second, &half(1));
    }
    settle(&mut from.socket);
    nothing_comes(&mut to.socket);
    nothing_comes(&mut second);
    for socket in [&to.socket, &second] {
        assert_eq!(socket.statistics().unwrap().received, PACKETS / 2);
    }
    adds_up(&to.umem);
    drop(entry);
    drop(second);
    from.close();
    to.close();
    Outcome::Passed
}
