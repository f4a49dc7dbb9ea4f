//! Ports that end while packets arrive and leave, in whatever order their parts are dropped.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use xskit::{
    AttachMode, CopyMode, Interest, Interface, Program, ProgramOptions, Rules, Socket, UmemConfig,
};
use xskit_lab::{Checker, RawPort};

use crate::{
    bench::{Bench, open, zero_copy},
    support::{LIMIT, PORT, adds_up, collect, frames, receive, rings, send, settle, write},
};

const TIMES: usize = 50;

/// Sends all the time until it is told to stop.
fn flood(raw: &RawPort, packets: &[Vec<u8>], sent: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for packets in packets.chunks(8) {
            // The link can be down for the moment that it takes to attach.
            if raw.send_all(packets).is_ok() {
                sent.fetch_add(packets.len() as u64, Ordering::Relaxed);
            }
            // Leaves the processor to those who load programs.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn fifty_times_under_traffic() {
    let Some(bench) = Bench::for_test() else { return };
    let raw = bench.pair.raw().unwrap();
    let packets = frames(&bench.to_near(200), 256);
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| flood(&raw, &packets, &sent, &stop));
        let torn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..TIMES).for_each(|number| tear_down(&bench, number));
        }));
        stop.store(true, Ordering::Relaxed);
        torn.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(sent.load(Ordering::Relaxed) > 1000, "{sent:?}");
    // And all is as before.
    assert_eq!(bench.pair.near.xdp_program().unwrap(), None);
    let (port, mut socket) = open(zero_copy(&bench.pair.near));
    let series = bench.to_near(333);
    raw.send_all(&frames(&series, 100)).unwrap();
    receive(&mut socket, &mut Checker::new(series), 100, 16);
    adds_up(port.umem());
}

/// virtio_net adds queues when a program is attached, and forgets them when it is detached: what a socket has
/// there then stays with the driver, which runs into it later. So the socket has to be gone by then.
#[test]
fn on_a_queue_that_goes_with_the_program() {
    let Some(bench) = Bench::with_queues(1) else { return };
    let near = &bench.pair.near;
    let interface = Interface::by_name(near.name()).unwrap();
    let options = ProgramOptions { sockets: 2, ..ProgramOptions::default() };
    let config = rings(256).copy_mode(CopyMode::ZeroCopy);
    for number in 0..TIMES {
        let rules = Rules::udp_port(PORT);
        let program = Program::attach(&interface, &rules, AttachMode::Native, &options).unwrap();
        assert_eq!(interface.facts().unwrap().queues.active, 2, "attaching adds a queue");
        let umem = UmemConfig::new(1024).build().unwrap();
        let mut socket = Socket::open(&umem, &interface, 1, &config).unwrap();
        socket.keep(program.attachment());
        socket.join(program.socket_map()).unwrap();
        send(&mut socket, &bench.to_far(100), 0..64, 32);
        // Of an interface that is down the kernel does not say whether there is a socket.
        let goes_down = number % 5 == 4;
        if goes_down {
            near.down().unwrap();
        }
        if number.is_multiple_of(2) {
            drop((program, socket));
        } else {
            drop((socket, program));
        }
        adds_up(&umem);
        if goes_down {
            near.up().unwrap();
            near.wait_up(LIMIT).unwrap();
        }
    }
    // And the interface works.
    near.set_combined_channels(2).unwrap();
    let mut raw = bench.pair.raw().unwrap();
    let (port, mut socket) = open(zero_copy(near));
    let series = bench.to_far(222);
    let mut checker = Checker::new(series.clone());
    send(&mut socket, &series, 0..100, 32);
    collect(&mut raw, &mut checker, 100);
    settle(&mut socket);
    adds_up(port.umem());
}

/// Opens a port, moves packets both ways, and drops its parts in one of four orders.
fn tear_down(bench: &Bench, number: usize) {
    let (port, mut socket) = open(zero_copy(&bench.pair.near));
    let umem = port.umem().clone();
    let (mut inward, mut outward) = (umem.batch(64), umem.batch(64));
    assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable(), "number {number}");
    socket.recv(&mut inward).unwrap();
    write(&mut outward, &bench.to_far(200), &mut (0..64));
    socket.send(&mut outward).unwrap();
    match number % 4 {
        0 => drop((socket, port)),
        1 => drop((port, socket)),
        2 => {
            let (receiver, sender) = socket.into_split();
            drop((receiver, port, sender));
        }
        _ => {
            let (receiver, sender) = socket.into_split();
            drop((sender, receiver, inward, outward, port));
        }
    }
    adds_up(&umem);
}
