//! What receives: a port on the near end, the kernel's stack behind it, and a reader of the sockets' packets.

use std::{
    fs,
    net::{Ipv6Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use xskit::{AttachMode, Interest, Port, PortConfig, Rules};
use xskit_lab::Lab;

use crate::{Cpus, Result};

/// The receiving host.
pub(crate) const NEAR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// What goes to the kernel's own socket, and what to those of the port.
pub(crate) const STACK_PORT: u16 = 9000;
pub(crate) const OWN_PORT: u16 = 4242;

/// Where the kernel's stack runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// On the CPU that receives.
    Here,
    /// On the destination.
    There,
}

/// Gives the near end its address.
pub(crate) fn prepare(lab: &Lab) -> Result<()> {
    lab.near.add_ipv6_address(NEAR, 64)?;
    Ok(())
}

pub(crate) struct Receiver<'a> {
    lab: &'a Lab,
    port: Port,
    /// The kernel's own, which nobody reads: the stack delivers, and drops when its buffer is full.
    _sink: UdpSocket,
}

/// Counters of the program, the CPUMAP and the stack.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Packets that the program sent to the stack, on whatever CPU.
    pub(crate) to_stack: u64,
    /// Packets that the destination's queue had no room for.
    pub(crate) dropped: u64,
    /// Packets that the destination took out of its queue.
    pub(crate) processed: u64,
    /// Packets that the stack's IPv6 part handed on to UDP.
    pub(crate) delivered: u64,
}

impl Counts {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self {
            to_stack: self.to_stack - before.to_stack,
            dropped: self.dropped - before.dropped,
            processed: self.processed - before.processed,
            delivered: self.delivered - before.delivered,
        }
    }
}

impl<'a> Receiver<'a> {
    pub(crate) fn open(lab: &'a Lab, stack: Stack, cpus: Cpus) -> Result<Self> {
        lab.enter(|| {
            let config = PortConfig::new("near0")
                .rules(Rules::udp_port(OWN_PORT))
                .attach(AttachMode::Native);
            let config = match stack {
                Stack::Here => config,
                Stack::There => config.stack_cpus([u32::try_from(cpus.destination)?]),
            };
            let port = config.open()?;
            Ok(Self { lab, port, _sink: UdpSocket::bind((NEAR, STACK_PORT))? })
        })
    }

    pub(crate) fn counts(&self) -> Result<Counts> {
        let counters = self.port.counters()?;
        let mut counts = Counts { to_stack: counters.total.passed(), ..Counts::default() };
        for cpu in &counters.stack_cpus {
            let (Some(queue), Some(thread)) = (cpu.queue, cpu.thread) else {
                return Err("the kernel's tracepoints for CPUMAPs are out of reach".into());
            };
            counts.dropped += queue.dropped;
            counts.processed += thread.processed;
        }
        let text = self.lab.enter(|| fs::read_to_string("/proc/thread-self/net/snmp6"))?;
        let delivered = text.lines().find_map(|line| line.strip_prefix("Ip6InDelivers"));
        counts.delivered = delivered.ok_or("the kernel counts no IPv6 packets")?.trim().parse()?;
        Ok(counts)
    }

    /// The same once nothing moves any more.
    pub(crate) fn settled(&self) -> Result<Counts> {
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut before = self.counts()?;
        loop {
            thread::sleep(Duration::from_millis(5));
            let now = self.counts()?;
            let still = now.to_stack == before.to_stack && now.delivered == before.delivered;
            if still || Instant::now() > deadline {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Reads the sockets' packets on that CPU from now on.
    pub(crate) fn read(&mut self, cpu: usize) -> Result<Reader> {
        let mut socket = self.port.take_queue(0)?;
        let mut batch = self.port.umem().batch(64);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || -> Result<u64> {
            xskit_report::pin(cpu)?;
            let mut received = 0;
            loop {
                let count = socket.recv(&mut batch)?;
                batch.clear();
                received += count as u64;
                if count == 0 {
                    if stopped.load(Ordering::Relaxed) {
                        return Ok(received);
                    }
                    socket.wait(Interest::READABLE, Duration::from_millis(10))?;
                }
            }
        });
        Ok(Reader { stop, thread })
    }
}

/// A thread that reads the sockets' packets.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Reader {
    /// Ends it; how many packets there were.
    pub(crate) fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
