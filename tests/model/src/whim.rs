//! What the kernel does without being asked.

use xskit::{fake, ring::Desc};

use crate::{
    program::{Call, Errno, Length, Whim, Wrong},
    queue::{Incoming, Member},
    world::World,
};

impl World {
    pub(crate) fn whim(&mut self, whim: &Whim) {
        let (Whim::Refuse { socket, .. }
        | Whim::Link { socket, .. }
        | Whim::NeedWakeup { socket, .. }
        | Whim::OnKick { socket, .. }
        | Whim::Nonsense { socket, .. }
        | Whim::Broken { socket, .. }
        | Whim::CompleteNonsense { socket, .. }) = *whim;
        let Some((queue, at)) = self.socket(socket) else { return };
        if let Whim::Broken { len, at: before, wrong, .. } = *whim {
            return self.broken((queue, at), len, before, wrong);
        }
        let end = u64::from(self.umem.chunks()) * u64::from(self.umem.chunk_size().bytes());
        let bytes = self.umem.chunk_size().bytes();
        let chunks = self.umem.chunks();
        let queue = &mut self.queues[queue];
        let Member { kernel, socket, rx, refusals, .. } = &mut queue.members[at];
        match *whim {
            Whim::Refuse { call, errno, .. } => {
                let errno = match errno {
                    Errno::Eagain => libc::EAGAIN,
                    Errno::Ebusy => libc::EBUSY,
                    Errno::Eintr => libc::EINTR,
                    Errno::Enobufs => libc::ENOBUFS,
                    Errno::Other(errno) => 1 + i32::from(errno % 133),
                };
                let call = match call {
                    Call::KickRx => fake::Call::KickRx,
                    Call::KickTx => fake::Call::KickTx,
                    Call::Poll => fake::Call::Poll,
                    Call::Statistics => {
                        kernel.refuse(fake::Call::Statistics, errno);
                        let error = socket.as_ref().expect("open").statistics().expect_err("told");
                        assert_eq!(error.raw_os_error(), Some(errno));
                        return;
                    }
                };
                kernel.refuse(call, errno);
                refusals.push(errno);
            }
            Whim::Link { up, .. } => {
                kernel.set_link(if up { fake::Link::Up } else { fake::Link::Down });
                queue.up = up;
            }
            Whim::NeedWakeup { rx: true, sleeps, .. } => kernel.set_needs_wakeup_rx(sleeps),
            Whim::NeedWakeup { sleeps, .. } => kernel.set_needs_wakeup_tx(sleeps),
            Whim::OnKick { most, .. } => kernel.transmit_on_kick(usize::from(most % 8)),
            Whim::Nonsense { wrong, .. } => {
                if kernel.deliver_nonsense(nowhere(wrong, end, (chunks, bytes))) {
                    rx.push_back(Incoming { content: Vec::new(), descs: 1, broken: true });
                    self.nonsense += 1;
                }
            }
            Whim::CompleteNonsense { beyond, .. } => {
                let done = kernel.complete_nonsense(end + u64::from(beyond));
                self.nonsense += usize::from(done);
            }
            Whim::Broken { .. } => unreachable!("done before"),
        }
    }

    fn broken(&mut self, (queue, at): (usize, usize), len: Length, before: u8, wrong: Wrong) {
        let content = self.packet(len);
        let bytes = self.umem.chunk_size().bytes();
        let end = u64::from(self.umem.chunks()) * u64::from(bytes);
        let desc = nowhere(wrong, end, (self.umem.chunks(), bytes));
        let descs = content.len().div_ceil(self.umem.max_packet_len() as usize);
        let multi_buffer = self.setup.multi_buffer;
        let member = &mut self.queues[queue].members[at];
        // Without packets of several frames, a descriptor with XDP_PKT_CONTD is one by itself.
        if multi_buffer && member.kernel.deliver_broken(&content, usize::from(before % 4), desc) {
            member.rx.push_back(Incoming { content, descs: descs + 1, broken: true });
            self.nonsense += 1;
        }
    }
}

/// A descriptor that leads nowhere.
fn nowhere(wrong: Wrong, end: u64, (chunks, bytes): (u32, u32)) -> Desc {
    match wrong {
        Wrong::Address(beyond) => Desc { addr: end + u64::from(beyond), len: 1, options: 0 },
        Wrong::Huge(less) => Desc { addr: u64::MAX - u64::from(less), len: 60, options: 0 },
        Wrong::Length { chunk, beyond } => {
            let chunk = u64::from(u32::from(chunk) % chunks);
            let addr = chunk * u64::from(bytes) + 256;
            Desc { addr, len: bytes - 255 + u32::from(beyond), options: 0 }
        }
    }
}
