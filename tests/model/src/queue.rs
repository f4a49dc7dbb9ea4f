//! A queue, its sockets, and what the oracle knows to be on the way in them.

use std::collections::VecDeque;

use xskit::{RingSize, Socket, SocketConfig, fake};

use crate::{
    held::{Packet, content},
    places::{Place, Places},
    program::Rings,
};

/// What lies in an RX ring, by packets.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) content: Vec<u8>,
    /// Descriptors.
    pub(crate) descs: usize,
    /// A descriptor of it leads nowhere.
    pub(crate) broken: bool,
}

/// One socket.
pub(crate) struct Member {
    /// None once it is closed.
    pub(crate) socket: Option<Socket>,
    pub(crate) kernel: fake::Kernel,
    pub(crate) rx: VecDeque<Incoming>,
    /// What lies in the TX ring.
    pub(crate) tx: VecDeque<Packet>,
    /// Packets that the kernel has dropped, as the socket counts them.
    dropped: u64,
    /// What calls may fail with.
    pub(crate) refusals: Vec<i32>,
}

/// The sockets of one queue.
pub(crate) struct Queue {
    pub(crate) members: Vec<Member>,
    /// Chunks that the kernel took from TX rings and has not completed, in that order.
    pub(crate) flying: VecDeque<usize>,
    pub(crate) up: bool,
    pub(crate) gone: bool,
}

/// Rings of few entries, so that they are full and empty all the time.
pub(crate) fn config(rings: Rings, multi_buffer: bool) -> SocketConfig {
    let size = |log: u8| RingSize::new(1 << (1 + log % 5)).expect("a power of two");
    let (own, common) = (rings.own, rings.common);
    let config = SocketConfig::default()
        .rx(size(own.0))
        .tx(size(own.1))
        .fill(size(common.0))
        .completion(size(common.1))
        .multi_buffer(multi_buffer)
        .need_wakeup(own.0 < 192);
    // A few sockets do one thing only.
    match own.1 {
        0..=7 => config.receive_only(),
        8..=15 => config.send_only(),
        _ => config,
    }
}

impl Member {
    pub(crate) fn new(socket: Socket, kernel: fake::Kernel) -> Self {
        let (rx, tx, refusals) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self { socket: Some(socket), kernel, rx, tx, dropped: 0, refusals }
    }

    pub(crate) fn tx_frames(&self) -> usize {
        self.tx.iter().map(Vec::len).sum()
    }

    /// Frees the oracle's RX ring of what is not a packet: after `recv` it has as many descriptors as the
    /// real one.
    pub(crate) fn pass_over(&mut self, level: usize, capacity: usize) {
        let mut descs: usize = self.rx.iter().map(|incoming| incoming.descs).sum();
        while descs > level {
            let front = self.rx.front_mut().expect("it has descriptors");
            assert!(front.broken || front.descs > capacity, "{front:?} was skipped");
            if descs - front.descs >= level {
                descs -= front.descs;
                self.rx.pop_front();
            } else {
                // A packet too long for the batch is skipped in several calls.
                front.descs -= descs - level;
                front.broken = true;
                descs = level;
            }
        }
        assert_eq!(descs, level);
    }
}

impl Queue {
    pub(crate) fn new(socket: Socket, kernel: fake::Kernel) -> Self {
        let members = vec![Member::new(socket, kernel)];
        Self { members, flying: VecDeque::new(), up: true, gone: false }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.members.iter().all(|member| member.socket.is_none())
    }

    /// Takes note of what calls to the kernel sent, dropped and completed.
    pub(crate) fn settle(&mut self, which: usize, places: &mut Places) {
        let member = &mut self.members[which];
        if let Some(socket) = &member.socket {
            let dropped = socket.statistics().expect("nothing is refused").tx_dropped;
            let mut gaps = 0;
            for sent in member.kernel.sent() {
                loop {
                    let packet = member.tx.pop_front().expect("it was given to it");
                    self.flying.extend(packet.iter().map(|frame| frame.chunk));
                    if content(&packet) == sent {
                        break;
                    }
                    gaps += 1;
                }
            }
            while member.tx_frames() > member.kernel.tx_level() {
                let packet = member.tx.pop_front().expect("it has frames");
                self.flying.extend(packet.iter().map(|frame| frame.chunk));
                gaps += 1;
            }
            assert_eq!(member.tx_frames(), member.kernel.tx_level());
            // In order, as they were, but for what the kernel dropped.
            assert!(gaps <= dropped - member.dropped, "{gaps} packets are missing");
            member.dropped = dropped;
        }
        self.complete(places);
    }

    /// Takes note of packets that the kernel has taken.
    pub(crate) fn took(&mut self, which: usize, packets: Vec<Vec<u8>>, places: &mut Places) {
        for taken in packets {
            let packet = self.members[which].tx.pop_front().expect("it was given to it");
            assert!(content(&packet) == taken, "in order, as it was");
            self.flying.extend(packet.iter().map(|frame| frame.chunk));
        }
        self.complete(places);
    }

    /// Takes note of completions, which come in order.
    fn complete(&mut self, places: &mut Places) {
        let left = self.members[0].kernel.in_flight();
        while self.flying.len() > left {
            let chunk = self.flying.pop_front().expect("it has some");
            places.moves(chunk, Place::Sent, Place::Within);
        }
        assert_eq!(self.flying.len(), left);
    }

    /// The last socket is closed: all that the kernel has it keeps for now.
    pub(crate) fn hold(&mut self, places: &mut Places) {
        let flying = self.flying.drain(..);
        let queued = self.members.iter_mut().flat_map(|member| member.tx.drain(..)).flatten();
        for chunk in flying.chain(queued.map(|frame| frame.chunk)) {
            places.moves(chunk, Place::Sent, Place::Held);
        }
    }
}
