//! Prepared packets that are sent many times over. On the fake kernel.

use std::collections::VecDeque;

use proptest::prelude::*;
use xskit::{
    Batch, ChunkSize, Clones, ErrorKind, Interest, Result, RingSize, Socket, SocketConfig, Umem,
    UmemConfig,
    fake::{self, Link},
};

const CHUNK: u64 = 4096;

fn size(entries: u32) -> RingSize {
    RingSize::new(entries).expect("a power of two")
}

fn config() -> SocketConfig {
    SocketConfig::default().rx(size(16)).tx(size(64)).fill(size(16)).completion(size(64))
}

/// 32 chunks, of which the last 4 are for clones, from here on.
const FIRST_CLONE: u64 = 28 * CHUNK;

fn umem() -> Result<Umem> {
    UmemConfig::new(32).clones(4).build()
}

#[track_caller]
fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

fn packet(number: u8) -> Vec<u8> {
    vec![number; 60]
}

fn fill(batch: &mut Batch, numbers: impl ExactSizeIterator<Item = u8>) {
    assert_eq!(batch.alloc(numbers.len()), numbers.len());
    let start = batch.packet_count() - numbers.len();
    for (mut packet, number) in batch.packets_mut().skip(start).zip(numbers) {
        packet.write(&[number; 60]).expect("60 bytes fit");
    }
}

#[test]
fn packets_take_turns_over_any_number_of_calls() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 30)?;
    let mut clones = umem.clones([packet(1), packet(2), packet(3)])?;
    let mut expected = (0..).map(|index| packet(index % 3 + 1));
    for count in [1, 2, 5, 64, 7, 0, 31] {
        assert_eq!(socket.send_clones(&mut clones, count)?, count);
        let sent = kernel.transmit(count);
        assert_eq!(sent, expected.by_ref().take(count).collect::<Vec<_>>());
        assert_complete(&umem);
    }
    let (_, mut sender) = socket.into_split();
    sender.reap()?;
    let statistics = sender.statistics()?;
    assert_eq!((statistics.sent, statistics.completed, statistics.lost), (110, 110, 0));
    assert!(!clones.in_flight());
    assert!(clones.packets().eq([packet(1), packet(2), packet(3)]));
    Ok(())
}

#[test]
fn a_full_ring_takes_what_fits() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut clones = umem.clones([packet(1)])?;
    assert_eq!(socket.send_clones(&mut clones, 1000)?, 64);
    assert_eq!(socket.send_clones(&mut clones, 1000)?, 0);
    assert!(!socket.wait(Interest::WRITABLE, std::time::Duration::ZERO)?.writable());
    kernel.transmit(40);
    assert!(socket.wait(Interest::WRITABLE, std::time::Duration::ZERO)?.writable());
    assert_eq!(socket.send_clones(&mut clones, 1000)?, 40);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn many_in_flight_are_one_frame() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
    let audit = umem.audit();
    assert_eq!((audit.free, audit.cloned), (32, 0), "{audit}");
    let mut clones = umem.clones([packet(1), packet(2)])?;
    for (step, cloned) in [(64, 2), (0, 2)] {
        socket.send_clones(&mut clones, step)?;
        let audit = umem.audit();
        assert_eq!((audit.cloned, audit.tx, audit.completion), (cloned, 0, 0), "{audit}");
        assert!(audit.is_complete(), "{audit}");
        // What was completed and not taken yet is no frame more.
        kernel.transmit(30);
        assert_complete(&umem);
    }
    drop(clones);
    let audit = umem.audit();
    assert_eq!((audit.cloned, audit.quarantine), (2, 0), "in flight: {audit}");
    kernel.transmit(64);
    socket.send(&mut umem.batch(1))?;
    let audit = umem.audit();
    assert_eq!((audit.cloned, audit.free), (0, 32), "{audit}");
    assert!(audit.is_complete(), "{audit}");
    Ok(())
}

/// Its chunk is written again only when the kernel has completed the last of them.
#[test]
fn a_dropped_one_is_not_written_while_the_kernel_has_it() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let four = |number| [packet(number), packet(number), packet(number), packet(number)];
    let mut clones = umem.clones(four(1))?;
    assert_eq!(socket.send_clones(&mut clones, 10)?, 10);
    drop(clones);
    for left in (0..10).rev() {
        let error = umem.clones(four(2)).expect_err("they are with the kernel");
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert_eq!(kernel.transmit(1), [packet(1)], "{left} left");
        // The kernel has completed it, and nobody has seen that.
        assert!(umem.clones(four(2)).is_err());
        socket.send(&mut umem.batch(1))?;
    }
    let mut clones = umem.clones(four(2))?;
    socket.send_clones(&mut clones, 1)?;
    assert_eq!(kernel.transmit(1), [packet(2)]);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn between_frames_of_batches_each_goes_home() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(4);
    let mut clones = umem.clones([packet(100), packet(101)])?;
    for round in 0..50 {
        fill(&mut batch, round..round + 2);
        assert_eq!(socket.send(&mut batch)?, 2);
        assert_eq!(socket.send_clones(&mut clones, 3)?, 3);
        fill(&mut batch, round + 2..round + 3);
        assert_eq!(socket.send(&mut batch)?, 1);
        let turn = 100 + round % 2;
        let expected = [round, round + 1, turn, 201 - turn, turn, round + 2];
        assert_eq!(kernel.transmit(6), expected.map(packet));
        assert_complete(&umem);
    }
    socket.send(&mut batch)?;
    drop((batch, clones, socket));
    let audit = umem.audit();
    // Nobody has seen that the kernel gave up what lay in the Fill ring.
    assert_eq!((audit.free, audit.quarantine), (16, 16), "{audit}");
    Ok(())
}

/// A chunk for clones never becomes a frame that somebody writes, whatever the kernel completes.
#[test]
fn completions_that_cannot_be_are_counted_and_not_followed() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
    let mut empty = umem.batch(1);
    // None are in flight.
    assert!(kernel.complete_nonsense(FIRST_CLONE + 100));
    socket.send(&mut empty)?;
    assert_eq!((umem.audit().lost, umem.audit().free), (1, 32));
    // More than are in flight, and others from nowhere.
    let mut clones = umem.clones([packet(1)])?;
    assert_eq!(socket.send_clones(&mut clones, 2)?, 2);
    assert_eq!(kernel.transmit(2), [packet(1), packet(1)]);
    for address in [FIRST_CLONE, 32 * CHUNK, FIRST_CLONE, u64::MAX, FIRST_CLONE + CHUNK] {
        assert!(kernel.complete_nonsense(address));
    }
    socket.send(&mut empty)?;
    assert_eq!((umem.audit().lost, clones.in_flight()), (6, false));
    // The kernel has returned what it never had: no frame is missing for that.
    assert_eq!(umem.audit().sum(), 32 + 6, "{}", umem.audit());
    // All frames that there are, in batches, and none of them is a clone's.
    let mut batch = umem.batch(32);
    assert_eq!(batch.alloc(32), 28);
    for mut packet in batch.packets_mut() {
        packet.write(&[9; 60]).expect("60 bytes fit");
    }
    assert!(clones.packets().eq([packet(1)]));
    assert_eq!(socket.send(&mut batch)?, 28);
    assert_eq!(kernel.transmit(28), vec![packet(9); 28]);
    Ok(())
}

#[test]
fn a_received_descriptor_never_leads_to_a_clone() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let _clones = umem.clones([packet(1)])?;
    let desc = xskit::ring::Desc { addr: FIRST_CLONE + 256, len: 60, options: 0 };
    assert!(kernel.deliver_nonsense(desc));
    let mut batch = umem.batch(4);
    assert_eq!(socket.recv(&mut batch)?, 0);
    assert_eq!(umem.audit().lost, 1);
    Ok(())
}

#[test]
fn a_socket_closed_meanwhile_keeps_them_until_the_kernel_let_go() -> Result<()> {
    for dropped_first in [false, true] {
        let umem = umem()?;
        let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
        let mut clones = umem.clones([packet(1), packet(2)])?;
        assert_eq!(socket.send_clones(&mut clones, 9)?, 9);
        kernel.transmit(3);
        // Completed, and never taken: so are these, at the end.
        if dropped_first {
            drop(clones);
            drop(socket);
            let audit = umem.audit();
            assert_eq!((audit.cloned, audit.quarantine), (0, 2), "{audit}");
            assert!(audit.is_complete(), "{audit}");
            assert!(umem.clones([packet(3), packet(4), packet(5)]).is_err());
            // Bound again, the queue is known to have let go of them.
            let _again = kernel.reopen(&umem, &config().send_only())?;
            assert_eq!((umem.audit().quarantine, umem.audit().free), (0, 32));
            umem.clones([packet(3), packet(4), packet(5)])?;
        } else {
            drop(socket);
            assert!(clones.in_flight());
            assert!(clones.packets().eq([packet(1), packet(2)]));
            let audit = umem.audit();
            assert_eq!((audit.cloned, audit.quarantine), (2, 0), "{audit}");
            // They can be sent by others.
            let (mut other, other_kernel) = fake::socket(&umem, &config().send_only())?;
            assert_eq!(other.send_clones(&mut clones, 2)?, 2);
            assert_eq!(other_kernel.transmit(2), [packet(2), packet(1)]);
            other.send(&mut umem.batch(1))?;
            drop(clones);
            drop(other);
            let audit = umem.audit();
            assert_eq!((audit.cloned, audit.quarantine), (0, 2), "{audit}");
        }
        assert_complete(&umem);
        drop(kernel);
    }
    Ok(())
}

#[test]
fn an_interface_that_is_gone_has_none_any_more() -> Result<()> {
    let umem = umem()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut clones = umem.clones([packet(1), packet(2), packet(3), packet(4)])?;
    assert_eq!(socket.send_clones(&mut clones, 50)?, 50);
    kernel.transmit(10);
    kernel.set_link(Link::Gone);
    drop((socket, clones));
    let audit = umem.audit();
    assert_eq!((audit.free, audit.quarantine, audit.cloned), (32, 0, 0), "{audit}");
    umem.clones([packet(5), packet(6), packet(7), packet(8)])?;
    Ok(())
}

#[test]
fn what_cannot_be_cloned() -> Result<()> {
    let umem = UmemConfig::new(32).clones(2).headroom(96).build()?;
    let clones = |packets: &[usize]| umem.clones(packets.iter().map(|len| vec![0; *len]));
    let kinds = [
        (&[][..], ErrorKind::InvalidInput),
        (&[0], ErrorKind::InvalidInput),
        (&[4001], ErrorKind::InvalidInput),
        (&[60, 0], ErrorKind::InvalidInput),
        (&[60, 60, 60], ErrorKind::Limit),
    ];
    for (packets, kind) in kinds {
        let error = clones(packets).expect_err("no clones");
        assert_eq!(error.kind(), kind, "{packets:?}: {error}");
        assert_eq!(umem.audit().free, 32);
    }
    let longest = clones(&[4000, 1])?;
    assert_eq!(longest.packets().map(<[u8]>::len).collect::<Vec<_>>(), [4000, 1]);
    assert!(UmemConfig::new(2).clones(2).build().is_err());

    let other = UmemConfig::new(64).build()?;
    let (mut socket, _kernel) = fake::socket(&other, &config())?;
    let error = socket.send_clones(&mut clones(&[]).unwrap_or(longest), 1).expect_err("another's");
    assert_eq!(error.kind(), ErrorKind::WrongUmem);
    let receive_only = SocketConfig::default().receive_only().fill(size(16));
    let (mut socket, _kernel) = fake::socket(&umem, &receive_only)?;
    let error = socket.send_clones(&mut clones(&[60])?, 1).expect_err("it only receives");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    Ok(())
}

/// A packet that is longer each time it is asked.
struct Growing(std::cell::Cell<usize>, Vec<u8>);

impl AsRef<[u8]> for Growing {
    fn as_ref(&self) -> &[u8] {
        let len = self.0.get();
        self.0.set(len + 3000);
        &self.1[..len]
    }
}

#[test]
fn a_packet_that_changes_its_mind() -> Result<()> {
    let umem = umem()?;
    let clones = umem.clones([Growing(std::cell::Cell::new(1500), vec![7; 1 << 20])])?;
    assert!(clones.packets().all(|packet| packet.len() == 1500));
    Ok(())
}

#[test]
fn with_metadata_for_others_nothing_is_asked_for_clones() -> Result<()> {
    let umem = UmemConfig::new(64).clones(1).tx_metadata(true).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut clones = umem.clones([packet(1)])?;
    let mut batch = umem.batch(4);
    for _ in 0..10 {
        assert_eq!(socket.send_clones(&mut clones, 5)?, 5);
        fill(&mut batch, 2..3);
        let mut packets = batch.packets_mut();
        packets.next().expect("one").request(xskit::umem::TxRequest::new().timestamp(7))?;
        drop(packets);
        assert_eq!(socket.send(&mut batch)?, 1);
        assert_eq!(kernel.transmit(6), [1, 1, 1, 1, 1, 2].map(packet));
        socket.send(&mut batch)?;
        assert_eq!(socket.timestamps().len(), 1);
        assert!(clones.packets().eq([packet(1)]), "nothing was written");
        assert_complete(&umem);
    }
    Ok(())
}

/// Completions of a shared queue are whoever's takes them, and so are clones'.
#[test]
fn sockets_of_one_queue_take_each_others_clones_back() -> Result<()> {
    let umem = umem()?;
    let (mut first, kernel) = fake::socket(&umem, &config())?;
    let mut second = first.share_queue(&config())?;
    let of_second = kernel.of_queue().pop().expect("two");
    let mut ones = umem.clones([packet(1)])?;
    let mut twos = umem.clones([packet(2), packet(3)])?;
    for _ in 0..20 {
        assert_eq!(first.send_clones(&mut ones, 7)?, 7);
        assert_eq!(second.send_clones(&mut twos, 4)?, 4);
        assert_eq!(kernel.transmit(7), vec![packet(1); 7]);
        assert_eq!(of_second.transmit(4), [2, 3, 2, 3].map(packet));
        assert_complete(&umem);
        // The one that sent none of them this time.
        second.send(&mut umem.batch(1))?;
        assert!(!ones.in_flight() && !twos.in_flight());
    }
    first.send_clones(&mut ones, 7)?;
    drop(first);
    assert_complete(&umem);
    drop(ones);
    kernel.transmit(7);
    second.send(&mut umem.batch(1))?;
    assert_complete(&umem);
    drop(second);
    assert_complete(&umem);
    // Whatever the kernel had of them, it has let go when the queue can be bound again.
    let _again = kernel.reopen(&umem, &config())?;
    assert_eq!(umem.audit().quarantine, 0, "{}", umem.audit());
    drop(twos);
    umem.clones([packet(4), packet(5), packet(6), packet(7)])?;
    Ok(())
}

/// What may happen to two sockets, three sets of clones and a batch.
#[derive(Clone, Debug)]
enum Act {
    Clone { set: usize, packets: u8 },
    Drop { set: usize },
    Send { socket: usize, set: usize, count: usize },
    SendBatch { socket: usize, count: u8 },
    Take { socket: usize, most: usize },
    Complete { socket: usize, most: usize },
    Reap { socket: usize },
    Reopen { socket: usize },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (socket, set) = (0..2_usize, 0..3_usize);
    let act = prop_oneof![
        1 => (set.clone(), 1..4_u8).prop_map(|(set, packets)| Act::Clone { set, packets }),
        1 => set.clone().prop_map(|set| Act::Drop { set }),
        6 => (socket.clone(), set, 0..40_usize)
            .prop_map(|(socket, set, count)| Act::Send { socket, set, count }),
        3 => (socket.clone(), 1..5_u8).prop_map(|(socket, count)| Act::SendBatch { socket, count }),
        3 => (socket.clone(), 0..40_usize).prop_map(|(socket, most)| Act::Take { socket, most }),
        3 => (socket.clone(), 0..40_usize)
            .prop_map(|(socket, most)| Act::Complete { socket, most }),
        2 => socket.clone().prop_map(|socket| Act::Reap { socket }),
        1 => socket.prop_map(|socket| Act::Reopen { socket }),
    ];
    proptest::collection::vec(act, 0..200)
}

struct Side {
    socket: Socket,
    kernel: fake::Kernel,
    in_tx: VecDeque<Vec<u8>>,
}

impl Side {
    fn open(umem: &Umem) -> Result<Self> {
        let config = config().tx(size(32)).completion(size(32)).fill(size(2)).send_only();
        let (socket, kernel) = fake::socket_from(umem, &config, u32::MAX - 50)?;
        Ok(Self { socket, kernel, in_tx: VecDeque::new() })
    }

    /// The kernel took these out of the TX ring.
    fn expect(&mut self, taken: &[Vec<u8>]) {
        let expected: Vec<_> = self.in_tx.drain(..taken.len()).collect();
        assert!(taken == expected, "{} packets, not as they were prepared", taken.len());
    }
}

/// Sends what it is told; every packet has to arrive as it was prepared, and every frame has to be
/// somewhere after each step.
fn play(chunk: ChunkSize, acts: &[Act]) -> Result<()> {
    let umem = UmemConfig::new(80).clones(6).chunk_size(chunk).build()?;
    let mut sides = [Side::open(&umem)?, Side::open(&umem)?];
    let mut sets: [Option<(Clones, usize)>; 3] = [None, None, None];
    let mut batch = umem.batch(8);
    let mut number = 0_u8;
    for act in acts {
        match *act {
            Act::Clone { set, packets } => {
                let contents: Vec<_> = (0..packets).map(|at| packet(number + at)).collect();
                number = (number + packets) % 200;
                sets[set] = umem.clones(contents).ok().map(|clones| (clones, 0));
            }
            Act::Drop { set } => sets[set] = None,
            Act::Send { socket, set, count } => {
                let (Some((clones, turn)), side) = (&mut sets[set], &mut sides[socket]) else {
                    continue;
                };
                let sent = side.socket.send_clones(clones, count)?;
                assert_eq!(sent, count.min(32 - side.in_tx.len()));
                let contents: Vec<Vec<u8>> = clones.packets().map(<[u8]>::to_vec).collect();
                let turns = contents.iter().cycle().skip(*turn).take(sent).cloned();
                side.in_tx.extend(turns);
                *turn = (*turn + sent) % contents.len();
            }
            Act::SendBatch { socket, count } => {
                let side = &mut sides[socket];
                let count = count.min(u8::try_from(batch.alloc(count.into())).expect("few"));
                for mut packet in batch.packets_mut() {
                    packet.write(&[250; 60]).expect("60 bytes fit");
                }
                let sent = side.socket.send(&mut batch)?;
                assert_eq!(sent, usize::from(count).min(32 - side.in_tx.len()));
                side.in_tx.extend(std::iter::repeat_n(packet(250), sent));
                batch.clear();
            }
            Act::Take { socket, most } => {
                let side = &mut sides[socket];
                side.expect(&side.kernel.take(most));
            }
            Act::Complete { socket, most } => {
                sides[socket].kernel.complete(most);
            }
            Act::Reap { socket } => {
                sides[socket].socket.send(&mut umem.batch(1))?;
            }
            Act::Reopen { socket } => {
                // An interface deleted and made anew: then the kernel is known to have let go.
                sides[socket].kernel.set_link(Link::Gone);
                let fresh = Side::open(&umem)?;
                drop(std::mem::replace(&mut sides[socket], fresh));
            }
        }
        assert_complete(&umem);
    }
    for side in &mut sides {
        // It takes no more than the Completion ring has room for.
        for _ in 0..4 {
            side.socket.send(&mut umem.batch(1))?;
            side.kernel.complete(usize::MAX);
            side.socket.send(&mut umem.batch(1))?;
            side.expect(&side.kernel.transmit(usize::MAX));
        }
        side.socket.send(&mut umem.batch(1))?;
        assert!(side.in_tx.is_empty());
        assert_eq!(side.socket.statistics()?.lost, 0);
    }
    assert!(sets.iter().flatten().all(|(clones, _)| !clones.in_flight()));
    drop((sets, batch));
    // Nothing is left in flight: all six chunks can be had again.
    umem.clones([(); 6].map(|()| packet(1)))?;
    for side in &sides {
        side.kernel.set_link(Link::Gone);
    }
    drop(sides);
    let audit = umem.audit();
    assert_eq!((audit.free, audit.total), (80, 80), "{audit}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_each_clone_arrives_as_it_was_prepared(acts in acts()) {
        for chunk in [ChunkSize::K2, ChunkSize::unaligned(3001).expect("a size")] {
            play(chunk, &acts).expect("no errors");
        }
    }
}
