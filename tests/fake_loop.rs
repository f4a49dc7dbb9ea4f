//! The model loop: receive, change, send; leftovers wait. On the fake kernel, with a TX ring that has
//! room for nothing, for one, or for all but one.

use std::time::Duration;

use xskit::{Batch, Interest, Result, RingSize, Socket, SocketConfig, Umem, UmemConfig, fake};

const BATCH: usize = 16;
const PACKETS: u32 = 1000;

struct World {
    socket: Socket,
    kernel: fake::Kernel,
    batch: Batch,
    umem: Umem,
    delivered: u32,
    sent: Vec<Vec<u8>>,
}

impl World {
    fn new(first: u32) -> Result<Self> {
        let umem = UmemConfig::new(256).build()?;
        let config = SocketConfig::default()
            .rx(RingSize::new(32)?)
            .tx(RingSize::new(16)?)
            .fill(RingSize::new(64)?)
            .completion(RingSize::new(32)?);
        let (socket, kernel) = fake::socket_from(&umem, &config, first)?;
        let batch = umem.batch(BATCH);
        Ok(Self { socket, kernel, batch, umem, delivered: 0, sent: Vec::new() })
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            if self.delivered == PACKETS {
                return;
            }
            let mut packet = [0; 60];
            packet[..4].copy_from_slice(&self.delivered.to_le_bytes());
            if !self.kernel.deliver(&packet) {
                return;
            }
            self.delivered += 1;
        }
    }

    /// One turn of the loop as the crate's documentation writes it. Byte 4 counts how often a packet was
    /// processed.
    fn turn(&mut self, timeout: Duration) -> Result<bool> {
        let interest = Interest::for_batch(&self.batch);
        if self.socket.wait(interest, timeout)?.timed_out() {
            return Ok(false);
        }
        if self.batch.is_empty() {
            self.socket.recv(&mut self.batch)?;
            for mut packet in self.batch.packets_mut() {
                packet.head_mut()[4] += 1;
            }
        }
        self.socket.send(&mut self.batch)?;
        Ok(true)
    }

    fn check(mut self) {
        self.sent.extend(self.kernel.transmit(usize::MAX));
        assert_eq!(self.sent.len(), PACKETS as usize);
        for (number, packet) in (0..PACKETS).zip(&self.sent) {
            assert_eq!(packet[..4], number.to_le_bytes(), "in order");
            assert_eq!(packet[4], 1, "packet {number} was processed once");
            assert_eq!(packet.len(), 60);
        }
        let audit = self.umem.audit();
        assert!(audit.is_complete(), "{audit}");
        let Self { socket, batch, umem, kernel, .. } = self;
        drop((batch, socket, kernel));
        let audit = umem.audit();
        assert!(audit.is_complete(), "{audit}");
        // What the fake kernel held when the socket closed waits for proof that it let go.
        assert_eq!(audit.free + audit.quarantine, audit.total, "{audit}");
    }
}

/// Runs the loop while the kernel takes `room` packets from a full TX ring at a time.
fn run(room: usize, first: u32) -> Result<()> {
    let mut world = World::new(first)?;
    let mut idle = 0;
    while world.sent.len() < PACKETS as usize {
        world.deliver(BATCH);
        // Until the loop finds nothing to do: then it waits instead of spinning.
        let mut turns = 0;
        while world.turn(Duration::ZERO)? {
            turns += 1;
            assert!(turns <= 2 * BATCH, "the loop spins");
        }
        let taken = world.kernel.transmit(room);
        idle = if taken.is_empty() { idle + 1 } else { 0 };
        world.sent.extend(taken);
        assert!(idle < 3, "the loop does not send what it has");
    }
    world.check();
    Ok(())
}

#[test]
fn one_at_a_time() -> Result<()> {
    run(1, 0)
}

#[test]
fn all_but_one() -> Result<()> {
    run(15, 0)
}

#[test]
fn indices_wrap_on_the_way() -> Result<()> {
    for back in [1, 17, 100] {
        run(1, u32::MAX - back)?;
        run(15, u32::MAX - back)?;
    }
    Ok(())
}

#[test]
fn no_room_at_all_is_waited_for_without_spinning() -> Result<()> {
    let mut world = World::new(u32::MAX - 5)?;
    // The ring takes 16 packets, a batch of 16 more waits, and then nothing moves.
    for _ in 0..3 {
        world.deliver(BATCH);
        while world.turn(Duration::ZERO)? {}
    }
    assert_eq!((world.kernel.tx_level(), world.batch.len()), (16, BATCH));
    let before = world.kernel.kicks();
    assert!(!world.turn(Duration::from_millis(100))?, "there is nothing to do");
    let after = world.kernel.kicks();
    // A hundred milliseconds of waiting cost a handful of calls, not thousands.
    assert!(after.tx - before.tx <= 210 && after.poll - before.poll <= 210, "{before:?} {after:?}");
    assert_eq!(world.batch.len(), BATCH, "leftovers wait");
    // Room for one lets one through; the rest keeps its order.
    world.sent.extend(world.kernel.transmit(1));
    while world.turn(Duration::ZERO)? {}
    assert_eq!((world.kernel.tx_level(), world.batch.len()), (16, BATCH - 1));
    while world.sent.len() < PACKETS as usize {
        world.sent.extend(world.kernel.transmit(usize::MAX));
        world.deliver(BATCH);
        while world.turn(Duration::ZERO)? {}
    }
    world.check();
    Ok(())
}

#[test]
fn a_waiting_loop_is_woken_by_room() -> Result<()> {
    let mut world = World::new(0)?;
    for _ in 0..3 {
        world.deliver(BATCH);
        while world.turn(Duration::ZERO)? {}
    }
    let kernel = world.kernel.clone();
    let helper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        kernel.transmit(usize::MAX)
    });
    assert!(world.turn(Duration::from_secs(10))?, "woken long before the time is up");
    world.sent.extend(helper.join().expect("the helper does not panic"));
    while world.sent.len() < PACKETS as usize {
        while world.turn(Duration::ZERO)? {}
        world.sent.extend(world.kernel.transmit(usize::MAX));
        world.deliver(BATCH);
    }
    world.check();
    Ok(())
}
