//! Random programs of everything that batches and sockets can do, against an oracle that holds each
//! packet's content and order. On the fake kernel; after every step the accounts add up.
//!
//! Two sockets and four batches on one UMEM, so that packets and spare frames wander between them.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use xskit::{Batch, Interest, Result, RingSize, Socket, SocketConfig, Umem, UmemConfig, fake};

/// Long enough for many programs, short enough for every run of the tests.
const TIME: Duration = Duration::from_secs(4);

const STEPS: usize = 400;

type Content = Vec<u8>;

/// xorshift64*: the programs of one seed are always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits") % bound
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn packet(&mut self, most: usize) -> Content {
        let len = if self.chance(8) { most } else { 1 + self.below(100) };
        (0..len).map(|_| u8::try_from(self.below(256)).expect("a byte")).collect()
    }
}

/// A socket, its kernel, and what the oracle knows about them.
struct Side {
    socket: Socket,
    kernel: fake::Kernel,
    rx: VecDeque<Content>,
    tx: VecDeque<Content>,
    /// Slots of its TX ring.
    tx_size: usize,
    /// Packets that the kernel has dropped.
    dropped: u64,
    up: bool,
}

struct World {
    random: Random,
    umem: Umem,
    batches: Vec<(Batch, VecDeque<Content>)>,
    sides: Vec<Side>,
    /// Frames that closed sockets left with their kernels.
    quarantine: u32,
}

fn config(random: &mut Random) -> SocketConfig {
    let mut size = || RingSize::new(1 << (1 + random.below(5))).expect("a power of two");
    let config = SocketConfig::default().rx(size()).tx(size()).fill(size()).completion(size());
    config.need_wakeup(!random.chance(4))
}

impl Side {
    fn open(umem: &Umem, random: &mut Random) -> Result<Self> {
        let first = [0, u32::MAX - 20, 1 << 31][random.below(3)];
        let config = config(random);
        let tx_size = config.tx_size().map_or(0, |size| size.get() as usize);
        let (socket, kernel) = fake::socket_from(umem, &config, first)?;
        Ok(Self {
            socket,
            kernel,
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            tx_size,
            dropped: 0,
            up: true,
        })
    }

    /// What calls to the kernel sent by themselves since the last look.
    fn settle(&mut self) {
        let dropped = self.socket.statistics().expect("a fake kernel has them").tx_dropped;
        let mut gaps = 0;
        for packet in self.kernel.sent() {
            while self.tx.pop_front().expect("it was sent before") != packet {
                gaps += 1;
            }
        }
        while self.tx.len() > self.kernel.tx_level() {
            self.tx.pop_front();
            gaps += 1;
        }
        assert_eq!(self.tx.len(), self.kernel.tx_level());
        // In order, as it was, but for what the kernel dropped.
        assert!(gaps <= dropped - self.dropped, "{gaps} packets are missing");
        self.dropped = dropped;
    }
}

impl World {
    fn new(seed: u64) -> Result<Self> {
        let mut random = Random(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1);
        let chunks = u32::try_from(20 + random.below(600)).expect("few");
        let headroom = u32::try_from(random.below(3) * 32).expect("small");
        let umem = UmemConfig::new(chunks).headroom(headroom).build()?;
        let batches = (0..4).map(|_| (umem.batch(1 + random.below(40)), VecDeque::new())).collect();
        let sides = vec![Side::open(&umem, &mut random)?, Side::open(&umem, &mut random)?];
        Ok(Self { random, umem, batches, sides, quarantine: 0 })
    }

    fn step(&mut self) -> Result<()> {
        let (which, side) = (self.random.below(4), self.random.below(2));
        let count = self.random.below(45);
        match self.random.below(26) {
            0..=3 => self.deliver(side, count),
            4..=6 => self.recv(which, side),
            7..=9 => self.send(which, side),
            10..=11 => self.transmit(side, count),
            12 => self.alloc(which, count),
            13 => self.append(which, count),
            14 => self.split_off(which, count),
            15 => self.retain(which),
            16 => self.route(which),
            17 => {
                let (batch, oracle) = &mut self.batches[which];
                batch.truncate(count);
                oracle.truncate(count);
            }
            18 => {
                let (batch, oracle) = &mut self.batches[which];
                batch.clear();
                oracle.clear();
            }
            19 => self.batches[which].0.release_spare(),
            20 => {
                // Dropped with what it holds; another takes its place.
                let capacity = 1 + self.random.below(40);
                self.batches[which] = (self.umem.batch(capacity), VecDeque::new());
            }
            21..=22 => self.change(which),
            23 => self.provoke(side),
            24 => self.wait(side)?,
            _ if self.random.chance(12) => self.reopen(side)?,
            _ => {}
        }
        Ok(())
    }

    fn deliver(&mut self, side: usize, count: usize) {
        let most = self.umem.max_packet_len() as usize;
        let Self { random, sides, .. } = self;
        let Side { kernel, rx, .. } = &mut sides[side];
        for _ in 0..count % 10 {
            let packet = random.packet(most);
            if kernel.deliver(&packet) {
                rx.push_back(packet);
            }
        }
    }

    fn recv(&mut self, which: usize, side: usize) {
        let Self { random, batches, sides, .. } = self;
        let ((batch, oracle), side) = (&mut batches[which], &mut sides[side]);
        let expected = side.rx.len().min(batch.room());
        // By the half alone, completed frames are out of reach for it.
        let received = if random.chance(3) {
            side.socket.split_mut().0.recv(batch)
        } else {
            side.socket.recv(batch)
        };
        // An error takes nothing, and comes only with nothing.
        assert_eq!(received.unwrap_or(0), expected);
        oracle.extend(side.rx.drain(..expected));
    }

    fn send(&mut self, which: usize, side: usize) {
        let ((batch, oracle), side) = (&mut self.batches[which], &mut self.sides[side]);
        side.settle();
        let slots = oracle.len().min(side.tx_size - side.tx.len());
        // Empty packets are dropped as soon as one of them comes up, all of them.
        if oracle.iter().take(slots).any(Vec::is_empty) {
            oracle.retain(|packet| !packet.is_empty());
        }
        let taken = slots.min(oracle.len());
        match side.socket.send(batch) {
            Ok(sent) => assert_eq!(sent, taken),
            // What was taken is not in the batch all the same.
            Err(error) => assert!(!side.up, "{error}"),
        }
        side.tx.extend(oracle.drain(..taken));
        side.settle();
    }

    fn transmit(&mut self, side: usize, count: usize) {
        let Self { random, sides, .. } = self;
        let side = &mut sides[side];
        side.settle();
        let packets =
            if random.chance(2) { side.kernel.take(count) } else { side.kernel.transmit(count) };
        for packet in packets {
            assert_eq!(Some(packet), side.tx.pop_front(), "in order, as it was");
        }
        if random.chance(2) {
            side.kernel.complete(count);
        }
    }

    fn alloc(&mut self, which: usize, count: usize) {
        let (batch, oracle) = &mut self.batches[which];
        let allocated = batch.alloc(count);
        assert!(allocated <= count);
        // Some are written, some stay empty and are refused by send.
        let before = oracle.len();
        for mut packet in batch.packets_mut().skip(before) {
            let random = &mut self.random;
            let content = if random.chance(4) { Vec::new() } else { random.packet(60) };
            packet.write(&content).expect("it fits");
            oracle.push_back(content);
        }
    }

    fn append(&mut self, which: usize, count: usize) {
        let other = (which + 1 + count % 3) % 4;
        let [(to, oracle), (from, other)] =
            self.batches.get_disjoint_mut([which, other]).expect("two of four");
        let moved = to.append(from).expect("one UMEM");
        assert_eq!(moved, other.len().min(to.capacity() - oracle.len()));
        oracle.extend(other.drain(..moved));
    }

    fn split_off(&mut self, which: usize, count: usize) {
        let (batch, oracle) = &mut self.batches[which];
        let rest = batch.split_off(count);
        let other = oracle.split_off(count.min(oracle.len()));
        // It takes the place of a batch that is dropped.
        self.batches[(which + 1) % 4] = (rest, other);
    }

    fn retain(&mut self, which: usize) {
        let Self { random, batches, .. } = self;
        let (batch, oracle) = &mut batches[which];
        let panics = random.chance(3).then(|| random.below(20));
        let choices: Vec<bool> = (0..oracle.len()).map(|_| random.chance(2)).collect();
        let mut index = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            batch.retain(|_| {
                assert_ne!(panics, Some(index), "on purpose");
                index += 1;
                choices[index - 1]
            });
        }));
        assert_eq!(outcome.is_err(), index < choices.len());
        let mut at = 0;
        oracle.retain(|_| {
            at += 1;
            at > index || choices[at - 1]
        });
    }

    fn route(&mut self, which: usize) {
        let Self { random, batches, .. } = self;
        batches.swap(0, which);
        let panics = random.chance(3).then(|| random.below(20));
        let (mut targets, mut oracles): (Vec<Batch>, Vec<VecDeque<Content>>) =
            batches.drain(1..).unzip();
        let (batch, oracle) = &mut batches[0];
        let choices: Vec<usize> = (0..oracle.len()).map(|_| random.below(5)).collect();
        let mut index = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            batch.route(&mut targets, |_| {
                assert_ne!(panics, Some(index), "on purpose");
                index += 1;
                choices[index - 1]
            })
        }));
        let mut moved = 0;
        let mut stay = VecDeque::new();
        for (at, packet) in oracle.drain(..).enumerate() {
            let choice = if at < index { choices[at] } else { usize::MAX };
            match oracles.get_mut(choice) {
                Some(target) if target.len() < targets[choice].capacity() => {
                    target.push_back(packet);
                    moved += 1;
                }
                _ => stay.push_back(packet),
            }
        }
        *oracle = stay;
        if let Ok(routed) = outcome {
            assert_eq!(routed.expect("one UMEM"), moved);
        }
        batches.extend(targets.into_iter().zip(oracles));
    }

    /// Shortens, lengthens and writes packets, some beyond what their chunk has.
    fn change(&mut self, which: usize) {
        let Self { random, batches, .. } = self;
        let (batch, oracle) = &mut batches[which];
        for (mut packet, oracle) in batch.packets_mut().zip(oracle) {
            match random.below(8) {
                0 => {
                    packet.set_len(0).expect("shrinks");
                    oracle.clear();
                }
                1 => {
                    let len = random.below(5000);
                    if packet.set_len(len).is_ok() {
                        assert!(len <= packet.max_len());
                        *oracle = packet.head().to_vec();
                    } else {
                        assert!(len > packet.max_len());
                    }
                }
                2 => {
                    let count = random.below(oracle.len() + 2);
                    if packet.trim_front(count).is_ok() {
                        oracle.drain(..count);
                    }
                }
                3 => {
                    let count = random.below(400);
                    if packet.grow_front(count).is_ok() {
                        let front: Vec<u8> = packet.head()[..count].to_vec();
                        oracle.splice(..0, front);
                    }
                }
                4 => {
                    let content = random.packet(200);
                    if packet.write(&content).is_ok() {
                        *oracle = content;
                    }
                }
                5 => packet.head_mut().iter_mut().zip(oracle).for_each(|(ours, oracle)| {
                    *ours = ours.wrapping_add(1);
                    *oracle = *ours;
                }),
                _ => {}
            }
        }
    }

    /// The kernel's own ideas.
    fn provoke(&mut self, side: usize) {
        let Self { random, sides, .. } = self;
        let side = &mut sides[side];
        side.settle();
        match random.below(8) {
            0 => side.kernel.refuse_kick(Errno::EBUSY),
            1 => side.kernel.refuse_kick(Errno::EAGAIN),
            2 => side.kernel.refuse_kick(Errno::EINTR),
            3 => {
                side.up = !side.up;
                side.kernel.set_link(if side.up { fake::Link::Up } else { fake::Link::Down });
            }
            4 => side.kernel.set_needs_wakeup_tx(random.chance(2)),
            5 => side.kernel.set_needs_wakeup_rx(random.chance(2)),
            _ => side.kernel.transmit_on_kick(random.below(6)),
        }
    }

    fn wait(&mut self, side: usize) -> Result<()> {
        let side = &mut self.sides[side];
        match side.socket.wait(Interest::READABLE, Duration::ZERO) {
            Ok(ready) => assert_eq!(ready.readable(), !side.rx.is_empty()),
            Err(error) => assert!(!side.up, "{error}"),
        }
        match side.socket.split_mut().1.reap() {
            Err(error) if side.up => return Err(error),
            _ => {}
        }
        side.settle();
        Ok(())
    }

    /// Closes a socket under traffic, its halves in either order, and opens another.
    fn reopen(&mut self, side: usize) -> Result<()> {
        let Self { random, sides, umem, .. } = self;
        if umem.audit().free < 40 {
            return Ok(());
        }
        let closed = std::mem::replace(&mut sides[side], Side::open(umem, random)?);
        let (receiver, sender) = closed.socket.into_split();
        // A device that was deleted has let go; nothing else proves it.
        let gone = random.chance(3);
        if gone {
            closed.kernel.set_link(fake::Link::Gone);
        }
        if random.chance(2) {
            drop(receiver);
            closed.kernel.transmit(3);
            drop(sender);
        } else {
            drop(sender);
            closed.kernel.deliver(b"late");
            drop(receiver);
        }
        // Whatever it does now reaches nobody's frames.
        closed.kernel.deliver(b"too late");
        closed.kernel.transmit(3);
        let audit = umem.audit();
        assert!(gone || audit.quarantine >= self.quarantine, "{audit}");
        self.quarantine = audit.quarantine;
        Ok(())
    }

    fn check(&self) {
        let audit = self.umem.audit();
        assert!(audit.is_complete(), "{audit}");
        assert_eq!((audit.lost, audit.detached), (0, 0), "{audit}");
        let held: usize = self.batches.iter().map(|(batch, _)| batch.len()).sum();
        assert_eq!(audit.batch as usize, held, "{audit}");
        assert_eq!(audit.quarantine, self.quarantine, "{audit}");
        for (batch, oracle) in &self.batches {
            assert_eq!(batch.packet_count(), oracle.len());
            assert!(batch.packets().zip(oracle).all(|(packet, oracle)| packet.head() == oracle));
            let bytes: usize = oracle.iter().map(Vec::len).sum();
            assert_eq!(batch.bytes(), bytes as u64);
        }
    }

    fn end(self) {
        let Self { umem, batches, sides, .. } = self;
        drop((batches, sides));
        let audit = umem.audit();
        assert!(audit.is_complete(), "{audit}");
        assert_eq!(audit.free + audit.quarantine, audit.total, "{audit}");
    }
}

#[test]
fn any_program_keeps_its_packets_and_frames() -> Result<()> {
    // Panics on purpose are part of the programs: nobody has to read them.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        if !text.is_some_and(|text| text.contains("on purpose")) {
            hook(panic);
        }
    }));
    let started = Instant::now();
    let mut seed = 0;
    while started.elapsed() < TIME {
        seed += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(seed)?;
            for _ in 0..STEPS {
                world.step()?;
                world.check();
            }
            world.end();
            Ok::<(), xskit::Error>(())
        }));
        match outcome {
            Ok(result) => result?,
            Err(panic) => {
                eprintln!("the program of seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{seed} programs of {STEPS} steps");
    Ok(())
}
