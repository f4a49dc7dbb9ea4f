//! What sends, by xskit itself, on the far end.

use std::{
    net::{Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use xskit::{Batch, Interest, Interface, Socket, SocketConfig, UmemConfig};
use xskit_lab::{Flow, Lab, Protocol};

use crate::{
    Result,
    receiver::{NEAR, OWN_PORT, STACK_PORT},
};

/// The sending host.
const FAR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// Different flows, by their source port.
const FLOWS: u16 = 64;
/// Packets given to the kernel at once.
const BATCH: usize = 64;
/// Headers of Ethernet, IPv6 and UDP have 62 bytes.
const PAYLOAD: [u8; 2] = [0; 2];

/// A socket that sends, and what it sends.
pub(crate) struct Generator {
    socket: Socket,
    batch: Batch,
    flood: Vec<Vec<u8>>,
    own: Vec<Vec<u8>>,
}

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) elapsed: Duration,
    /// Packets for sockets.
    pub(crate) own: u64,
}

impl Generator {
    pub(crate) fn open(lab: &Lab) -> Result<Self> {
        let umem = UmemConfig::new(4096).build()?;
        let socket = lab.far.netns().enter(|| -> xskit::Result<Socket> {
            let far = Interface::by_name("far0")?;
            Socket::open(&umem, &far, 0, &SocketConfig::default().send_only())
        })?;
        let frames = |port: u16| -> Vec<Vec<u8>> {
            (0..FLOWS)
                .map(|flow| {
                    let macs = (lab.far.mac(), lab.near.mac());
                    let (from, to) = ((FAR, 1000 + flow), (NEAR, port));
                    let (from, to) = (SocketAddr::from(from), SocketAddr::from(to));
                    Flow::new(Protocol::Udp, macs, from, to).frame(&PAYLOAD)
                })
                .collect()
        };
        let batch = umem.batch(BATCH);
        Ok(Self { socket, batch, flood: frames(STACK_PORT), own: frames(OWN_PORT) })
    }

    /// Sends for that long, from that CPU: as much as it can for the stack, or nothing, and that many
    /// packets a second for sockets, evenly.
    pub(crate) fn run(
        &mut self,
        length: Duration,
        cpu: usize,
        flood: bool,
        own_rate: u32,
    ) -> Result<Sent> {
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| -> Result<Sent> {
                xskit_report::pin(cpu)?;
                let started = Instant::now();
                let mut own = 0;
                loop {
                    let elapsed = started.elapsed();
                    if elapsed >= length {
                        return Ok(Sent { elapsed, own });
                    }
                    // All that are due, however long a burst of the flood has taken.
                    let due = u128::from(own_rate) * elapsed.as_micros() / 1_000_000;
                    let due = u64::try_from(due)?;
                    while own < due {
                        let count = (due - own).min(BATCH as u64);
                        self.send(false, usize::try_from(count)?)?;
                        own += count;
                    }
                    if flood {
                        self.send(true, BATCH)?;
                    }
                }
            });
            sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sends that many, and waits for room where there is none.
    fn send(&mut self, flood: bool, count: usize) -> Result<()> {
        let frames = if flood { &self.flood } else { &self.own };
        loop {
            let before = self.batch.len();
            self.batch.alloc(count - before);
            for (packet, frame) in self.batch.packets_mut().zip(frames).skip(before) {
                let mut packet = packet;
                packet.write(frame)?;
            }
            if self.batch.len() == count {
                break;
            }
            // All frames are under way.
            self.socket.wait(Interest::WRITABLE, Duration::from_millis(10))?;
        }
        while !self.batch.is_empty() {
            if self.socket.send(&mut self.batch)? == 0 {
                self.socket.wait(Interest::WRITABLE, Duration::from_millis(100))?;
            }
        }
        Ok(())
    }
}
