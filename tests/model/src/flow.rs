//! Packets in and out, as a program moves them all the time.

use std::time::Duration;

use xskit::{ErrorKind, Interest};

use crate::{
    held::{Packet, fitting, free},
    places::Place,
    program::{Flow, Length},
    queue::{Incoming, Member},
    world::{BATCHES, World},
};

/// Long enough for a call of `poll`.
const MOMENT: Duration = Duration::from_nanos(1);

impl World {
    pub(crate) fn flow(&mut self, flow: &Flow) {
        let (Flow::Deliver { socket, .. }
        | Flow::Recv { socket, .. }
        | Flow::Send { socket, .. }
        | Flow::Transmit { socket, .. }
        | Flow::Take { socket, .. }
        | Flow::Complete { socket, .. }
        | Flow::Wait { socket, .. }
        | Flow::Reap { socket }
        | Flow::Guards { socket, .. }) = *flow;
        let Some((queue, member)) = self.socket(socket) else { return };
        match *flow {
            Flow::Deliver { count, len, .. } => {
                (0..count % 10).for_each(|_| self.deliver((queue, member), len));
            }
            Flow::Recv { batch, half, .. } => self.recv((queue, member), batch, half),
            Flow::Send { batch, half, .. } => self.send((queue, member), batch, half),
            Flow::Transmit { most, .. } => {
                let packets = self.queues[queue].members[member].kernel.transmit(most.into());
                self.queues[queue].took(member, packets, &mut self.places);
            }
            Flow::Take { most, .. } => {
                let packets = self.queues[queue].members[member].kernel.take(most.into());
                self.queues[queue].took(member, packets, &mut self.places);
            }
            Flow::Complete { most, .. } => {
                self.queues[queue].members[member].kernel.complete(most.into());
            }
            Flow::Wait { readable, writable, .. } => {
                self.wait((queue, member), readable, writable);
            }
            Flow::Guards { count, forgets, .. } => self.guards((queue, member), count, forgets),
            Flow::Reap { .. } => {
                let (socket, _) = self.both(queue, member);
                let outcome = socket.split_mut().1.reap();
                self.tolerate((queue, member), outcome);
            }
        }
        self.queues[queue].settle(member, &mut self.places);
    }

    fn deliver(&mut self, (queue, member): (usize, usize), len: Length) {
        let content = self.packet(len);
        let descs = content.len().div_ceil(self.umem.max_packet_len() as usize);
        let member = &mut self.queues[queue].members[member];
        if member.kernel.deliver(&content) {
            member.rx.push_back(Incoming { content, descs, broken: false });
        }
    }

    fn recv(&mut self, (queue, at): (usize, usize), batch: u8, half: bool) {
        let held = &mut self.batches[usize::from(batch) % BATCHES];
        let Member { socket, rx, .. } = &mut self.queues[queue].members[at];
        let socket = socket.as_mut().expect("an open one was chosen");
        let (room, before) = (held.room(), held.packets.len());
        // By the half alone, completed frames are out of reach for it.
        let outcome = if half {
            socket.split_mut().0.recv(&mut held.batch)
        } else {
            socket.recv(&mut held.batch)
        };
        let received = held.batch.packet_count() - before;
        match outcome {
            Ok(count) => assert_eq!(count, received),
            // Such an error takes nothing.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                assert!(rx.is_empty() && received == 0, "{error}");
                return;
            }
            Err(error) => {
                assert_eq!(received, 0, "an error comes only with nothing");
                self.tolerate::<()>((queue, at), Err(error));
            }
        }
        let member = &mut self.queues[queue].members[at];
        let socket = member.socket.as_ref().expect("as above");
        let level = socket.statistics().expect("nothing is refused").levels.rx as usize;
        let held = &mut self.batches[usize::from(batch) % BATCHES];
        // The first that is whole and fits must have come.
        let capacity = held.batch.capacity();
        let first = member.rx.iter().find(|packet| !packet.broken && packet.descs <= capacity);
        let alone = member.rx.front().is_some_and(|packet| !packet.broken);
        if let Some(first) = first.filter(|first| alone && first.descs <= room) {
            let skips = member.rx.front().is_some_and(|front| front.descs > capacity);
            assert!(received > 0 || skips, "{} descriptors wait", first.descs);
        }
        for packet in held.batch.packets().skip(before) {
            let frames: Vec<u8> = packet.frames().flatten().copied().collect();
            loop {
                let next = member.rx.pop_front().expect("the kernel delivered it");
                if !next.broken && next.descs <= capacity {
                    assert!(next.content == frames, "another packet");
                    break;
                }
            }
        }
        member.pass_over(level, capacity);
        held.note_new(&self.memory, &mut self.places);
    }

    fn send(&mut self, (queue, at): (usize, usize), batch: u8, half: bool) {
        self.queues[queue].settle(at, &mut self.places);
        let held = &mut self.batches[usize::from(batch) % BATCHES];
        let member = &mut self.queues[queue].members[at];
        let slots_taken = member.tx_frames();
        let socket = member.socket.as_mut().expect("an open one was chosen");
        let (mode, size) = (socket.mode(), tx_size(socket));
        let several = held.packets.iter().any(|packet| packet.len() > 1);
        let outcome = if half {
            socket.split_mut().1.send(&mut held.batch)
        } else {
            socket.send(&mut held.batch)
        };
        let Some(size) = size else {
            assert_eq!(outcome.expect_err("no TX ring").kind(), ErrorKind::Unsupported);
            return;
        };
        if several && !mode.multi_buffer {
            assert_eq!(outcome.expect_err("it cannot").kind(), ErrorKind::Unsupported);
            return;
        }
        let room = size - slots_taken;
        let most = mode.max_frames as usize;
        let bad = |packet: &Packet| {
            packet.len() > most || packet.iter().any(|frame| frame.bytes.is_empty())
        };
        let (_, fit) = fitting(&held.packets, room);
        let next_too_long = held.packets.get(fit).is_some_and(|next| next.len() > most);
        if next_too_long || held.packets.iter().take(fit).any(bad) {
            // All of them go, as soon as one comes up.
            held.packets.retain(|packet| {
                let bad = bad(packet);
                if bad {
                    free(packet, &mut self.places);
                }
                !bad
            });
        }
        let (frames, fit) = fitting(&held.packets, room);
        for packet in held.packets.drain(..fit) {
            for frame in &packet {
                self.places.moves(frame.chunk, Place::Batch, Place::Sent);
            }
            member.tx.push_back(packet);
        }
        // Whether there was an error or not, what was taken is not in the batch.
        if let Some(sent) = self.tolerate((queue, at), outcome) {
            assert_eq!(sent, frames);
        }
    }

    fn wait(&mut self, (queue, at): (usize, usize), readable: bool, writable: bool) {
        let interest = match (readable, writable) {
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            _ => Interest::BOTH,
        };
        let (socket, _) = self.both(queue, at);
        let outcome = socket.wait(interest, MOMENT);
        if let Some(ready) = self.tolerate((queue, at), outcome) {
            let rx = &self.queues[queue].members[at].rx;
            assert_eq!(ready.readable(), interest.is_readable() && !rx.is_empty());
        }
    }
}

/// The slots of a socket's TX ring.
fn tx_size(socket: &mut xskit::Socket) -> Option<usize> {
    Some(socket.rings().tx()?.size())
}
