//! Opens the ports on one UMEM.

use std::{sync::Arc, thread, time::Duration};

use xskit::{
    Interface, Port, PortConfig, QueueId, Rules, Socket, SocketConfig, Umem, UmemConfig,
    program::VlanTags,
    socket::{Mode, StatisticsReader},
};

use super::{
    Bytes, Failure, NAME, Stop,
    cli::{MemoryOptions, PacketOptions, RunOptions, SocketOptions},
};

/// Frames per queue that sockets may have in their caches.
const CACHED: u32 = 1024;

/// What to open.
pub(crate) struct Setup<'a> {
    pub(crate) interfaces: &'a [String],
    pub(crate) rules: Rules,
    /// Where packets are to be received.
    pub(crate) packets: Option<&'a PacketOptions>,
    pub(crate) sockets: &'a SocketOptions,
    /// Of every queue.
    pub(crate) socket: SocketConfig,
    /// Batches that a queue's packets may be in at the same time.
    pub(crate) batches: u32,
    pub(crate) memory: &'a MemoryOptions,
    pub(crate) running: &'a RunOptions,
}

/// What is open, and can be watched while the sockets are at work on other threads.
pub(crate) struct Opened {
    pub(crate) ports: Vec<Port>,
    pub(crate) umem: Umem,
    pub(crate) queues: Vec<Queue>,
}

/// What there is to know about a port's queue while its socket is at work elsewhere.
pub(crate) struct Queue {
    /// Index of the port.
    pub(crate) port: usize,
    pub(crate) id: QueueId,
    pub(crate) mode: Mode,
    pub(crate) receives: bool,
    pub(crate) sends: bool,
    pub(crate) socket: StatisticsReader,
    /// Further sockets, which only send.
    pub(crate) senders: Vec<StatisticsReader>,
    /// Of the work that receives here.
    pub(crate) bytes_in: Arc<Bytes>,
    /// Of the work that sends here.
    pub(crate) bytes_out: Vec<Arc<Bytes>>,
}

impl Queue {
    fn new(port: usize, socket: &Socket, config: &SocketConfig) -> Self {
        Self {
            port,
            id: socket.queue(),
            mode: socket.mode(),
            receives: config.rx_size().is_some(),
            sends: config.tx_size().is_some(),
            socket: socket.statistics_reader(),
            senders: Vec::new(),
            bytes_in: Arc::default(),
            bytes_out: Vec::new(),
        }
    }
}

impl Setup<'_> {
    /// Refuses what would fail later or cut somebody off.
    fn check(&self) -> Result<(), Failure> {
        self.sockets.check()?;
        self.running.check()?;
        self.packets.map_or(Ok(()), |packets| packets.check(self.interfaces))
    }

    /// Makes a UMEM that is large enough for all ports, `prepare`s it while all of its frames are free,
    /// and opens the ports with a socket for each queue, by port.
    pub(crate) fn open(
        &self,
        stop: &Stop,
        prepare: impl FnOnce(&Umem) -> Result<(), Failure>,
    ) -> Result<(Opened, Vec<Vec<Socket>>), Failure> {
        self.open_with_clones(stop, 0, prepare)
    }

    /// As [`open`](Self::open), with that many chunks more, which are kept for clones.
    pub(crate) fn open_with_clones(
        &self,
        stop: &Stop,
        clones: u32,
        prepare: impl FnOnce(&Umem) -> Result<(), Failure>,
    ) -> Result<(Opened, Vec<Vec<Socket>>), Failure> {
        self.check()?;
        let configs: Vec<PortConfig> = self.interfaces.iter().map(|name| self.port(name)).collect();
        let umem = self.umem(&configs, clones)?;
        prepare(&umem)?;
        let mut ports = Vec::new();
        for (name, port) in self.interfaces.iter().zip(configs) {
            wait_for_carrier(name, stop)?;
            ports.push(port.umem(&umem).open()?);
        }
        let sockets: Vec<Vec<Socket>> = ports.iter_mut().map(Port::take_queues).collect();
        let queues = sockets
            .iter()
            .enumerate()
            .flat_map(|(port, sockets)| sockets.iter().map(move |socket| (port, socket)))
            .map(|(port, socket)| Queue::new(port, socket, &self.socket))
            .collect();
        Ok((Opened { ports, umem, queues }, sockets))
    }

    fn port(&self, name: &str) -> PortConfig {
        let port = PortConfig::new(name)
            .rules(self.rules.clone())
            .vlan_tags(self.packets.map_or_else(VlanTags::default, PacketOptions::vlan_tags))
            .attach(self.sockets.attach())
            .frags(self.sockets.frags)
            .socket(self.socket.clone())
            // Batches and their spare frames, and what sockets have in their caches.
            .frames_at_hand(2 * self.running.batch * self.batches + CACHED);
        let port = match self.sockets.queues() {
            Some(queues) => port.queues(queues.iter().copied()),
            None => port,
        };
        let port = match self.packets.and_then(PacketOptions::stack_cpus) {
            Some(cpus) => port.stack_cpus(cpus),
            None => port,
        };
        match self.running.deferral() {
            Some(deferral) => port.defer_interrupts(deferral),
            None => port,
        }
    }

    /// One memory for all ports, large enough that no ring runs dry.
    fn umem(&self, ports: &[PortConfig], clones: u32) -> Result<Umem, Failure> {
        let frames = match self.memory.frames {
            Some(frames) => frames,
            None => ports.iter().map(PortConfig::frames_needed).sum::<Result<u32, _>>()?,
        };
        let umem = UmemConfig::new(frames.saturating_add(clones))
            .clones(clones)
            // Of two NICs at different nodes one is served better than the other.
            .near(&Interface::by_name(&self.interfaces[0])?)
            .chunk_size(self.memory.chunk_size)
            .headroom(self.memory.headroom)
            .pages(self.memory.pages())
            .build()?;
        Ok(umem)
    }
}

/// [`PortConfig::open`] waits for the carrier as well, but hears no signal meanwhile.
fn wait_for_carrier(name: &str, stop: &Stop) -> Result<(), Failure> {
    let interface = Interface::by_name(name)?;
    let mut told = false;
    loop {
        let facts = interface.facts()?;
        // That it is set down is for `open` to say.
        if facts.carrier || !facts.up {
            return Ok(());
        }
        if stop.wanted() {
            return Err(format!("ended while waiting for the carrier of {name}").into());
        }
        if !told {
            eprintln!("{NAME}: {name} has no carrier; waiting for it");
            told = true;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
