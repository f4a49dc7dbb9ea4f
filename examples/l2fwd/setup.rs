//! Opens the ports on one UMEM, and lays the paths between their queues.

use std::{sync::Arc, thread, time::Duration};

use xskit::{
    Interface, Port, PortConfig, QueueId, Receiver, Sender, Socket, SocketConfig, Umem, UmemConfig,
    socket::{Mode, StatisticsReader},
};

use crate::{
    Failure,
    cli::Options,
    path::{Bytes, Path, Style},
    stop::Stop,
};

/// Frames per queue that sockets may have in their caches.
const CACHED: u32 = 1024;

/// Everything that forwards.
pub(crate) struct Forwarder {
    pub(crate) paths: Vec<Path>,
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
    pub(crate) receiver: StatisticsReader,
    /// Sockets that only send, where more paths than one end at the queue.
    pub(crate) senders: Vec<StatisticsReader>,
    /// Of the path that begins here.
    pub(crate) bytes_in: Arc<Bytes>,
    /// Of the paths that end here.
    pub(crate) bytes_out: Vec<Arc<Bytes>>,
}

impl Queue {
    fn new(port: usize, socket: &Socket) -> Self {
        Self {
            port,
            id: socket.queue(),
            mode: socket.mode(),
            receiver: socket.statistics_reader(),
            senders: Vec::new(),
            bytes_in: Arc::default(),
            bytes_out: Vec::new(),
        }
    }
}

impl Forwarder {
    /// Opens what the options ask for.
    pub(crate) fn open(options: &Options, stop: &Stop) -> Result<Self, Failure> {
        let rules = options.rules()?;
        options.check()?;
        let config = options.socket();
        let configs: Vec<PortConfig> = options
            .interfaces
            .iter()
            .map(|name| {
                let port = PortConfig::new(name)
                    .rules(rules.clone())
                    .vlan_tags(options.vlan_tags())
                    .attach(options.attach())
                    .frags(options.frags())
                    .socket(config.clone())
                    // A path's batch and its spare frames, and what sockets have in their caches.
                    .frames_at_hand(2 * options.running.batch + CACHED);
                let port = match options.queues() {
                    Some(queues) => port.queues(queues.iter().copied()),
                    None => port,
                };
                match options.deferral() {
                    Some(deferral) => port.defer_interrupts(deferral),
                    None => port,
                }
            })
            .collect();
        let umem = umem(options, &configs)?;
        let mut ports = Vec::new();
        for (name, port) in options.interfaces.iter().zip(configs) {
            wait_for_carrier(name, stop)?;
            ports.push(port.umem(&umem).open()?);
        }
        let sockets: Vec<Vec<Socket>> = ports.iter_mut().map(Port::take_queues).collect();
        let mut queues: Vec<Vec<Queue>> = sockets
            .iter()
            .enumerate()
            .map(|(port, sockets)| sockets.iter().map(|socket| Queue::new(port, socket)).collect())
            .collect();
        let paths = connect(sockets, &mut queues, &umem, options)?;
        let queues = queues.into_iter().flatten().collect();
        Ok(Self { paths, ports, umem, queues })
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
            eprintln!("l2fwd: {name} has no carrier; waiting for it");
            told = true;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Lays a path from every queue to one of the other port, or back to itself where there is one port.
fn connect(
    mut sockets: Vec<Vec<Socket>>,
    queues: &mut [Vec<Queue>],
    umem: &Umem,
    options: &Options,
) -> Result<Vec<Path>, Failure> {
    let ports = sockets.len();
    let style = Style { reflect: ports == 1, spin: options.running.spin };
    let mut extra = Vec::new();
    for to in 0..ports {
        let arriving = sockets[(to + 1) % ports].len();
        extra.push(share(&mut sockets[to], &mut queues[to], arriving, &options.socket())?);
    }
    let (receivers, mut senders): (Vec<Vec<Receiver>>, Vec<Vec<Sender>>) = sockets
        .into_iter()
        .map(|sockets| sockets.into_iter().map(Socket::into_split).unzip())
        .unzip();
    for (senders, extra) in senders.iter_mut().zip(extra) {
        senders.extend(extra);
    }
    let mut paths = Vec::new();
    for (from, receivers) in receivers.into_iter().enumerate() {
        let to = (from + 1) % ports;
        let outgoing = queues[to].len();
        // Where fewer queues arrive than there are, some do not send.
        for (index, (receiver, sender)) in
            receivers.into_iter().zip(senders[to].drain(..)).enumerate()
        {
            let bytes = queues[from][index].bytes_in.clone();
            queues[to][index % outgoing].bytes_out.push(bytes.clone());
            let batch = umem.batch(usize::try_from(options.running.batch)?);
            paths.push(Path { receiver, sender, batch, bytes, style });
        }
    }
    Ok(paths)
}

/// Where more queues arrive than there are here, some of them need sockets of their own to send with:
/// a sending half belongs to one thread.
fn share(
    sockets: &mut [Socket],
    queues: &mut [Queue],
    arriving: usize,
    config: &SocketConfig,
) -> Result<Vec<Sender>, Failure> {
    let mut senders = Vec::new();
    for index in sockets.len()..arriving {
        let index = index % sockets.len();
        let socket = sockets[index].share_queue(&config.clone().send_only())?;
        queues[index].senders.push(socket.statistics_reader());
        senders.push(socket.into_split().1);
    }
    Ok(senders)
}

/// One memory for all ports, large enough that no ring runs dry.
fn umem(options: &Options, ports: &[PortConfig]) -> Result<Umem, Failure> {
    let frames = match options.memory.frames {
        Some(frames) => frames,
        None => ports.iter().map(PortConfig::frames_needed).sum::<Result<u32, _>>()?,
    };
    let umem = UmemConfig::new(frames)
        .chunk_size(options.memory.chunk_size)
        .headroom(options.memory.headroom)
        .pages(options.memory.pages())
        .build()?;
    Ok(umem)
}
