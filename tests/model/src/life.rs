//! What is done now and then: sockets come and go, frames leave for the descriptor level and return.

use xskit::fake;

use crate::{
    held::{Held, pattern},
    places::Place,
    program::{Rare, Rings},
    queue::{Member, Queue, config},
    world::{BATCHES, World},
};

/// Open queues, and sockets on one of them, at most.
const MOST: usize = 3;

impl World {
    pub(crate) fn rare(&mut self, rare: &Rare) {
        match *rare {
            Rare::NewBatch { batch, capacity } => {
                let held = &mut self.batches[usize::from(batch) % BATCHES];
                held.forget_from(0, &mut self.places);
                *held = Held::new(&self.umem, capacity);
            }
            Rare::Detach { batch } => {
                let held = &mut self.batches[usize::from(batch) % BATCHES];
                held.forget_from(0, &mut self.places);
                for address in xskit::ring::detach(&mut held.batch) {
                    let chunk = self.memory.chunk_at(address);
                    self.places.moves(chunk, Place::Within, Place::Detached);
                    self.detached.push(address);
                }
            }
            Rare::Attach => self.attach(),
            Rare::Fill { socket } => {
                if let Some(at) = self.socket(socket) {
                    self.fill(at);
                }
            }
            Rare::Share { socket, rings } => {
                let Some((queue, at)) = self.socket(socket) else { return };
                let Queue { members, .. } = &mut self.queues[queue];
                if members.len() < MOST {
                    let first = members[at].socket.as_mut().expect("an open one was chosen");
                    let config = config(rings, self.setup.multi_buffer);
                    let socket = first.share_queue(&config).expect("a further one");
                    let kernel = members[0].kernel.of_queue().pop().expect("its own");
                    members.push(Member::new(socket, kernel));
                }
            }
            Rare::Close { socket, sender_first, gone, late } => {
                if let Some(at) = self.socket(socket) {
                    self.close(at, sender_first, gone < 64, late);
                }
            }
            Rare::Open { which, again, rings } => {
                if self.queues.len() < MOST {
                    self.open(which, again, rings);
                }
            }
        }
    }

    #[allow(unsafe_code, reason = "frames at the descriptor level are the caller's business")]
    pub(crate) fn attach(&mut self) {
        for address in &self.detached {
            let chunk = self.memory.chunk_at(*address);
            self.places.moves(chunk, Place::Detached, Place::Within);
        }
        // SAFETY: all of them came out of `detach`, and the program does nothing else with them.
        unsafe { xskit::ring::attach(&self.umem, &self.detached) };
        self.detached.clear();
    }

    pub(crate) fn open(&mut self, which: u8, again: bool, rings: Rings) {
        let config = config(rings, self.setup.multi_buffer);
        let opened = if again && !self.closed.is_empty() {
            let kernel = self.closed.remove(usize::from(which) % self.closed.len());
            let opened = kernel.reopen(&self.umem, &config);
            // From here on it reaches nothing.
            assert!(!kernel.deliver(b"much too late"));
            opened
        } else {
            let first = u32::MAX - u32::from(self.setup.before_wrap);
            fake::socket_from(&self.umem, &config, first)
        };
        let (socket, kernel) = opened.expect("memory");
        self.queues.push(Queue::new(socket, kernel));
        // Frames of other queues may have come home with it.
        self.quarantine_shrinks();
    }

    /// Closes a socket under traffic, its halves in either order.
    pub(crate) fn close(
        &mut self,
        (index, at): (usize, usize),
        sender_first: bool,
        gone: bool,
        late: u8,
    ) {
        let queue = &mut self.queues[index];
        let kernel = queue.members[at].kernel.clone();
        // A device that was deleted has let go; nothing else proves it.
        if gone {
            kernel.set_link(fake::Link::Gone);
            queue.gone = true;
        }
        for _ in 0..late % 3 {
            kernel.deliver_at_close(&pattern(60, usize::from(late)));
        }
        let socket = queue.members[at].socket.take().expect("an open one was chosen");
        let last = queue.is_closed();
        let held = kernel.fill_level() + queue.flying.len();
        let queued: usize = queue.members.iter().map(Member::tx_frames).sum();
        let (receiver, sender) = socket.into_split();
        if sender_first {
            drop(sender);
            drop(receiver);
        } else {
            drop(receiver);
            drop(sender);
        }
        if last {
            let mut queue = self.queues.remove(index);
            queue.hold(&mut self.places);
            self.closed.push(kernel);
            let held = self.quarantine + u32::try_from(held + queued).expect("few");
            let quarantine = self.umem.audit().quarantine;
            if gone || queue.gone {
                self.quarantine_shrinks();
            } else if self.nonsense == 0 {
                assert_eq!(quarantine, held, "the kernel's are held, and no others");
            } else {
                assert!(quarantine <= held, "{quarantine} of {held}");
            }
            self.quarantine = self.umem.audit().quarantine;
        }
    }

    /// Some queue's kernel is known to have let go.
    pub(crate) fn quarantine_shrinks(&mut self) {
        self.quarantine = self.umem.audit().quarantine;
        self.places.release_held();
    }
}
