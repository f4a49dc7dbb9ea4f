//! Interfaces with two queues: a socket on each.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use xskit::{Batch, Interest, Port, Socket, UmemConfig};
use xskit_lab::{Checker, Flow, Link, Numbered, Protocol, Tally};

use crate::{
    bench::{Bench, zero_copy},
    support::{LIMIT, PORT, adds_up, collect, send, settle},
};

/// So many flows that chance brings some to each queue.
const FLOWS: u16 = 32;
const EACH: u64 = 50;

/// One of the flows from one interface to the other, told apart by its source port.
fn flow(from: &Link, to: &Link, number: u16) -> Flow {
    let source: SocketAddr = ([198, 18, 0, 1], 5000 + number).into();
    let destination = ([198, 18, 0, 2], PORT).into();
    Flow::new(Protocol::Udp, (from.mac(), to.mac()), source, destination)
}

/// The number of the flow that a packet is of.
fn number(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[34], packet[35]]) - 5000
}

/// What arrived, by flow.
struct Arrived {
    checkers: BTreeMap<u16, Checker>,
    series: fn(&Bench, u16) -> Numbered,
}

impl Arrived {
    fn check(&mut self, bench: &Bench, packet: &[u8]) {
        let flow = number(packet);
        let new = || Checker::new((self.series)(bench, flow));
        self.checkers.entry(flow).or_insert_with(new).check(packet);
    }

    fn count(&self) -> u64 {
        self.checkers.values().map(|checker| checker.tally().received()).sum()
    }

    fn tallies(&self) -> Vec<Tally> {
        self.checkers.values().map(Checker::tally).collect()
    }

    fn is_perfect(&self) -> bool {
        let mut checkers = self.checkers.values();
        self.checkers.len() == usize::from(FLOWS)
            && checkers.all(|checker| checker.tally().is_perfect(EACH))
    }
}

fn inward(bench: &Bench, number: u16) -> Numbered {
    Numbered::new(flow(&bench.pair.far, &bench.pair.near, number), 200, 1)
}

fn reflected(bench: &Bench, number: u16) -> Numbered {
    Numbered::new(flow(&bench.pair.far, &bench.pair.near, number).reflected(), 200, 1)
}

/// One step of a forwarder that sends back: what is left waits in the batch.
fn reflect(socket: &mut Socket, batch: &mut Batch) -> usize {
    let mut received = 0;
    if batch.is_empty() {
        received = socket.recv(batch).unwrap();
        for mut packet in batch.packets_mut() {
            packet.head_mut()[..12].rotate_left(6);
        }
    }
    socket.send(batch).unwrap();
    received
}

#[test]
fn both_receive_and_send_back() {
    let Some(bench) = Bench::with_queues(2) else { return };
    let mut raw = bench.pair.raw().unwrap();
    let mut port = zero_copy(&bench.pair.near).open().unwrap();
    assert_eq!(port.queues().len(), 2);
    let umem = port.umem().clone();
    let mut sockets = port.take_queues();
    assert!(sockets.iter().all(|socket| socket.mode().zero_copy));
    let mut batches = [umem.batch(32), umem.batch(32)];
    let mut received = [0; 2];
    let mut back = Arrived { checkers: BTreeMap::new(), series: reflected };
    for round in 0..EACH {
        let frames: Vec<_> = (0..FLOWS).map(|flow| inward(&bench, flow).frame(round)).collect();
        raw.send_all(&frames).unwrap();
        let goal = (round + 1) * u64::from(FLOWS);
        let started = Instant::now();
        while back.count() < goal {
            assert!(started.elapsed() < LIMIT, "{received:?}, {} of {goal} back", back.count());
            for ((socket, batch), count) in sockets.iter_mut().zip(&mut batches).zip(&mut received)
            {
                *count += reflect(socket, batch);
            }
            raw.recv_each(Duration::from_millis(1), |frame| back.check(&bench, frame)).unwrap();
        }
    }
    assert!(back.is_perfect(), "{:?}", back.tallies());
    assert!(received.iter().all(|count| *count > 0), "one queue had all: {received:?}");
    for socket in &mut sockets {
        settle(socket);
    }
    adds_up(&umem);
}

/// A socket on one queue alone; the stack has the other.
#[test]
fn the_second_alone() {
    let Some(bench) = Bench::with_queues(2) else { return };
    let mut raw = bench.pair.raw().unwrap();
    let mut port = zero_copy(&bench.pair.near).queues([1]).open().unwrap();
    let mut socket = port.take_queue(1).unwrap();
    let series = bench.to_far(500);
    let mut checker = Checker::new(series.clone());
    for round in 0..10 {
        send(&mut socket, &series, round * 100..(round + 1) * 100, 32);
        collect(&mut raw, &mut checker, 100);
    }
    assert!(checker.tally().is_perfect(1000), "{:?}", checker.tally());
    settle(&mut socket);
    let mut arrived = Arrived { checkers: BTreeMap::new(), series: inward };
    let mut batch = port.umem().batch(64);
    let passed = |port: &Port| port.counters().unwrap().total.passed();
    for round in 0..EACH {
        let frames: Vec<_> = (0..FLOWS).map(|flow| inward(&bench, flow).frame(round)).collect();
        raw.send_all(&frames).unwrap();
        let goal = (round + 1) * u64::from(FLOWS);
        let started = Instant::now();
        while arrived.count() + passed(&port) < goal {
            assert!(started.elapsed() < LIMIT, "{} {}", arrived.count(), passed(&port));
            socket.wait(Interest::READABLE, Duration::from_millis(1)).unwrap();
            socket.recv(&mut batch).unwrap();
            batch.packets().for_each(|packet| arrived.check(&bench, packet.head()));
            batch.clear();
        }
    }
    assert!(arrived.count() > 0 && passed(&port) > 0, "{} {}", arrived.count(), passed(&port));
    adds_up(port.umem());
}

/// Sockets of one mode on all queues of two devices share one registration of the memory.
#[test]
fn one_memory_for_both_interfaces() {
    let Some(bench) = Bench::with_queues(2) else { return };
    let (near, far) = (zero_copy(&bench.pair.near), zero_copy(&bench.pair.far));
    let frames = near.frames_needed().unwrap() + far.frames_needed().unwrap();
    let umem = UmemConfig::new(frames).build().unwrap();
    let mut near = near.umem(&umem).open().unwrap();
    let mut far = far.umem(&umem).open().unwrap();
    let (mut receivers, mut senders) = (near.take_queues(), far.take_queues());
    assert!(receivers.iter().chain(&senders).all(|socket| socket.mode().zero_copy));
    let mut arrived = Arrived { checkers: BTreeMap::new(), series: inward };
    let mut batch = umem.batch(64);
    for flow in 0..FLOWS {
        send(&mut senders[usize::from(flow % 2)], &inward(&bench, flow), 0..EACH, 32);
        let goal = (u64::from(flow) + 1) * EACH;
        let started = Instant::now();
        while arrived.count() < goal {
            assert!(started.elapsed() < LIMIT, "{} of {goal}", arrived.count());
            for receiver in &mut receivers {
                receiver.wait(Interest::READABLE, Duration::from_millis(1)).unwrap();
                receiver.recv(&mut batch).unwrap();
                batch.packets().for_each(|packet| arrived.check(&bench, packet.head()));
                batch.clear();
            }
        }
    }
    assert!(arrived.is_perfect(), "{:?}", arrived.tallies());
    senders.iter_mut().for_each(settle);
    adds_up(&umem);
}
