//! An interface opened: a program attached, a socket on every queue.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use crate::{
    AttachMode, Attached, Counters, Error, ErrorKind, Facts, Interface, Program, ProgramOptions,
    QueueId, Result, RingSize, Rules, Socket, SocketConfig, Step, Umem, UmemConfig,
    interface::{self, Deferral, Promiscuous, Spread},
    program::{FlowRules, StackCpus, VlanTags},
    snapshot::{Snapshot, SocketSnapshot},
    socket::StatisticsReader,
};

/// How long a link may take to come back after a program was attached: some NICs reset it then.
const CARRIER: Duration = Duration::from_secs(30);

/// Frames per queue beyond what its rings hold.
const FRAMES_AT_HAND: u32 = 2048;

/// How packets are brought to a port's queues, in the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Steering {
    /// As the NIC does it: those that arrive on queues without a socket go to the kernel's stack.
    #[default]
    Unchanged,
    /// RSS spreads all packets over the port's queues alone: [`Spread`].
    Spread,
    /// Flow rules bring the packets of the port's rules to its queues, a queue for each rule, in turn; all
    /// others stay as they are: [`FlowRules`]. Later [`set_rules`](Port::set_rules) do not change them.
    Flows,
}

/// What a [`Port`] shall be.
///
/// ```no_run
/// use xskit::{AttachMode, PortConfig, Rules};
///
/// let mut port = PortConfig::new("eth0")
///     .rules(Rules::udp_port(4242))
///     .attach(AttachMode::Native)
///     .queues([0, 1])
///     .open()?;
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PortConfig {
    interface: String,
    rules: Rules,
    queues: Option<Vec<QueueId>>,
    attach: AttachMode,
    pin: Option<PathBuf>,
    multi_buffer: bool,
    frags: bool,
    vlan_tags: VlanTags,
    stack_cpus: Option<StackCpus>,
    deferral: Option<Deferral>,
    promiscuous: bool,
    steering: Steering,
    socket: SocketConfig,
    memory: Memory,
    frames_at_hand: u32,
}

/// Where frames come from.
#[derive(Clone, Debug)]
enum Memory {
    Shared(Umem),
    Own(UmemConfig),
}

impl PortConfig {
    /// A port on the interface of this name: all active queues, no packets until
    /// [`rules`](Self::rules) say which, native mode where the driver has it.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rules: Rules::none(),
            queues: None,
            attach: AttachMode::Auto,
            pin: None,
            multi_buffer: false,
            frags: false,
            vlan_tags: VlanTags::default(),
            stack_cpus: None,
            deferral: None,
            promiscuous: false,
            steering: Steering::Unchanged,
            socket: SocketConfig::default(),
            memory: Memory::Own(UmemConfig::default()),
            frames_at_hand: FRAMES_AT_HAND,
        }
    }

    /// Which packets go to the sockets. The rest goes to the kernel's stack.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// The queues to open, instead of all active ones. Packets that arrive on other queues go to the
    /// kernel's stack, whatever the rules.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<QueueId>>) -> Self {
        self.queues = Some(queues.into_iter().map(Into::into).collect());
        self
    }

    /// Where the program runs.
    pub fn attach(mut self, mode: AttachMode) -> Self {
        self.attach = mode;
        self
    }

    /// Keeps the program attached when the process ends, for the next one to take over: pinned in this
    /// directory of a bpffs, one for each interface. If one is pinned there already, it is taken over.
    ///
    /// Meanwhile all packets pass to the kernel's stack. [`Program::unpin`] ends it, as does `rm -r`.
    #[doc(alias = "BPF_OBJ_PIN")]
    pub fn pin(mut self, directory: impl Into<PathBuf>) -> Self {
        self.pin = Some(directory.into());
        self
    }

    /// Packets longer than a frame, as on links with jumbo frames: sockets with
    /// [multi-buffer](SocketConfig::multi_buffer), and the program that goes with them. A socket
    /// configuration with multi-buffer does the same. Linux 6.6.
    ///
    /// ```no_run
    /// use xskit::{Interest, PortConfig, Rules};
    ///
    /// let config = PortConfig::new("eth0").rules(Rules::udp_port(4242)).multi_buffer(true);
    /// let mut port = config.open()?;
    /// let mut socket = port.take_queue(0)?;
    /// let mut batch = port.umem().batch(64); // of frames: a packet of 9000 bytes has three
    /// socket.wait(Interest::READABLE, None)?;
    /// socket.recv(&mut batch)?;
    /// for packet in batch.packets() {
    ///     let bytes: usize = packet.frames().map(<[u8]>::len).sum();
    ///     assert_eq!(bytes, packet.len());
    /// }
    /// # Ok::<(), xskit::Error>(())
    /// ```
    #[doc(alias = "XDP_USE_SG")]
    pub fn multi_buffer(mut self, on: bool) -> Self {
        self.multi_buffer = on;
        self
    }

    /// Attaches the variant of the program that takes packets of several buffers, without
    /// [multi-buffer](Self::multi_buffer) sockets: for packets that pass to the kernel's stack on an
    /// interface whose MTU is above about 3.4 KB. Those longer than a frame do not reach a socket.
    pub fn frags(mut self, on: bool) -> Self {
        self.frags = on;
        self
    }

    /// Whether VLAN tags are visible, for rules on them.
    pub fn vlan_tags(mut self, tags: VlanTags) -> Self {
        self.vlan_tags = tags;
        self
    }

    /// Has the kernel's stack process what no socket takes on these CPUs, instead of the CPU that receives
    /// it: CPU numbers, or [`StackCpus`] with more to choose. The port's
    /// [counters](crate::Counters::stack_cpus) say what became of it.
    ///
    /// Linux 5.9 in native mode, 5.15 in generic mode.
    #[doc(alias = "BPF_MAP_TYPE_CPUMAP")]
    pub fn stack_cpus(mut self, cpus: impl Into<StackCpus>) -> Self {
        self.stack_cpus = Some(cpus.into());
        self
    }

    /// Holds the interrupts of the port's queues back, until the port and all of its sockets are dropped.
    #[doc(alias = "napi_defer_hard_irqs")]
    pub fn defer_interrupts(mut self, deferral: Deferral) -> Self {
        self.deferral = Some(deferral);
        self
    }

    /// Receives frames for any MAC address, until the port and all of its sockets are dropped, or the process
    /// ends. See [`Promiscuous`].
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Brings packets to the port's queues in the NIC, until the port and all of its sockets are dropped. The
    /// remedy where only some queues are opened and packets arrive on the others.
    #[doc(alias = "RSS")]
    #[doc(alias = "ntuple")]
    pub fn steer(mut self, steering: Steering) -> Self {
        self.steering = steering;
        self
    }

    /// The rings and the mode of each queue's socket. The Fill ring is made larger where the NIC's RX
    /// ring plus the socket's RX ring need it.
    pub fn socket(mut self, config: SocketConfig) -> Self {
        self.socket = config;
        self
    }

    /// Uses frames of this UMEM: several ports on one UMEM forward packets by moving descriptors.
    pub fn umem(mut self, umem: &Umem) -> Self {
        self.memory = Memory::Shared(umem.clone());
        self
    }

    /// Makes a UMEM of this kind for the port alone, instead of one of [`UmemConfig::default`]. Without a
    /// number of chunks it gets as many as the port [needs](Self::frames_needed); where nothing is said about
    /// NUMA nodes, memory [near](UmemConfig::near) the interface.
    ///
    /// ```no_run
    /// use xskit::{ChunkSize, Pages, PortConfig, Rules, UmemConfig};
    ///
    /// let memory = UmemConfig::default().chunk_size(ChunkSize::K2).pages(Pages::HugeOrTransparent);
    /// let config = PortConfig::new("eth0").rules(Rules::udp_port(4242)).umem_config(memory);
    /// let port = config.open()?;
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn umem_config(mut self, config: UmemConfig) -> Self {
        self.memory = Memory::Own(config);
        self
    }

    /// Frames per queue beyond what its rings hold, 2048 by default: for batches, their spare lists, caches
    /// and packets held for later.
    pub fn frames_at_hand(mut self, frames: u32) -> Self {
        self.frames_at_hand = frames;
        self
    }

    /// Frames that a port of this configuration needs: what the rings of all its queues hold, and
    /// [`frames_at_hand`](Self::frames_at_hand) for each. To make one UMEM for several ports, add them up.
    ///
    /// # Errors
    ///
    /// As [`Interface::by_name`], and for queues that the interface does not have.
    pub fn frames_needed(&self) -> Result<u32> {
        let interface = Interface::by_name(&self.interface)?;
        let facts = interface.facts()?;
        let queues = self.choose_queues(&interface, &facts)?;
        Ok(self.frames_for(queues.len(), &self.socket_config(&facts)))
    }

    /// Opens the port. What a killed process has changed of this network namespace's interfaces is restored
    /// before: [`restore_stale`](interface::restore_stale).
    ///
    /// # Errors
    ///
    /// As [`Interface::by_name`], [`Program::attach`], [`Socket::open`], and what else was asked for, such as
    /// [`Program::pin`], [`Program::from_pin`], [`Deferral::apply`], [`Promiscuous::on`], [`Spread::over`] and
    /// [`FlowRules::install`]. Nothing stays open or mapped, nor attached, except for a program that was
    /// pinned.
    pub fn open(self) -> Result<Port> {
        let interface = Interface::by_name(&self.interface)?;
        interface::restore_first();
        // Before attaching: virtio_net adds queues then, and on those a zero-copy socket is unsafe.
        let facts = interface.facts()?;
        if !facts.up {
            return Err(Error::new(Step::Configure, ErrorKind::LinkDown, "the interface is down")
                .on(interface.name())
                .hint(format!("set it up first: ip link set dev {} up", interface.name())));
        }
        let queues = self.choose_queues(&interface, &facts)?;
        let config = self.socket_config(&facts);
        let umem = match &self.memory {
            Memory::Shared(umem) => umem.clone(),
            Memory::Own(umem) => {
                let umem = umem.clone().or_near(&interface);
                umem.or_chunks(|| self.frames_for(queues.len(), &config)).build()?
            }
        };
        let sockets = facts.queues.maximum.unwrap_or(0).max(facts.queues.active);
        let frags = self.frags || config.is_multi_buffer();
        let options = ProgramOptions {
            frags,
            sockets,
            vlan_tags: self.vlan_tags,
            stack_cpus: self.stack_cpus.clone(),
        };
        let program = match &self.pin {
            None => Program::attach(&interface, &self.rules, self.attach, &options)?,
            Some(directory) => {
                Program::attach_pinned(directory, &interface, &self.rules, self.attach, &options)?
            }
        };
        interface.carrier_wait(CARRIER)?;
        let (sockets, readers) = (BTreeMap::new(), BTreeMap::new());
        let mut port = Port { sockets, readers, program, queues, umem, interface };
        for queue in port.queues.clone() {
            let mut socket = Socket::open(&port.umem, &port.interface, queue, &config)?;
            socket.keep(port.program.attachment());
            socket.join(port.program.socket_map())?;
            port.readers.insert(queue, socket.statistics_reader());
            port.sockets.insert(queue, socket);
        }
        if self.promiscuous {
            port.program.keep(Promiscuous::on(&port.interface)?);
        }
        // Last: attaching and binding reset these, and make new NAPI instances, in some drivers.
        match self.steering {
            Steering::Unchanged => {}
            Steering::Spread => port.program.keep(Spread::over(&port.interface, &port.queues)?),
            Steering::Flows => {
                let flows = FlowRules::install(&port.interface, &self.rules, &port.queues)?;
                port.program.keep(flows);
            }
        }
        if let Some(deferral) = self.deferral {
            port.program.keep(deferral.apply_to(&port.interface, &port.queues)?);
        }
        Ok(port)
    }

    fn choose_queues(&self, interface: &Interface, facts: &Facts) -> Result<Vec<QueueId>> {
        let active = facts.queues.active;
        let Some(queues) = &self.queues else {
            return Ok((0..active).map(QueueId::new).collect());
        };
        let refused = |kind, reason: &'static str| {
            Error::new(Step::Configure, kind, reason).on(interface.name())
        };
        if queues.is_empty() {
            return Err(refused(ErrorKind::InvalidInput, "a port without queues")
                .hint("name at least one, or none for all"));
        }
        for (index, queue) in queues.iter().enumerate() {
            if queues[..index].contains(queue) {
                return Err(refused(ErrorKind::InvalidInput, "the queue is named twice")
                    .queue_is(*queue)
                    .hint("several sockets on one queue: `Socket::share_queue`"));
            }
            if queue.get() >= active {
                return Err(refused(ErrorKind::NotFound, "there is no such queue")
                    .queue_is(*queue)
                    .hint(format!("{} has {}", interface.name(), facts.queues)));
            }
        }
        Ok(queues.clone())
    }

    fn socket_config(&self, facts: &Facts) -> SocketConfig {
        let several = self.multi_buffer || self.socket.is_multi_buffer();
        let config = self.socket.clone().multi_buffer(several);
        let Some(rx) = config.rx_size() else { return config };
        let fill = RingSize::at_least(facts.rx_ring.unwrap_or(0).saturating_add(rx.get()));
        let fill = fill.max(config.fill_size());
        config.fill(fill)
    }

    fn frames_for(&self, queues: usize, config: &SocketConfig) -> u32 {
        let receiving = config.rx_size().map_or(0, |_| config.fill_size().get());
        let sending = config.tx_size().map_or(0, RingSize::get);
        let each = receiving.saturating_add(sending).saturating_add(self.frames_at_hand);
        each.saturating_mul(u32::try_from(queues).unwrap_or(u32::MAX))
    }
}

/// An interface with the program attached and a socket on each of its queues.
///
/// The program is detached when the port and the last of its sockets are dropped, in whatever order.
/// A killed process leaves nothing attached, unless that is [asked for](PortConfig::pin).
///
/// ```no_run
/// use xskit::{Interest, Port, Rules};
///
/// let mut port = Port::open("eth0", Rules::udp_port(4242))?;
/// let mut socket = port.take_queue(0)?;
/// let mut batch = port.umem().batch(64);
/// loop {
///     socket.wait(Interest::READABLE, None)?;
///     socket.recv(&mut batch)?;
///     for packet in batch.packets() {
///         println!("{} bytes", packet.len());
///     }
///     batch.clear();
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), xskit::Error>(())
/// ```
pub struct Port {
    // Sockets first, then the program.
    sockets: BTreeMap<QueueId, Socket>,
    readers: BTreeMap<QueueId, StatisticsReader>,
    program: Program,
    queues: Vec<QueueId>,
    umem: Umem,
    interface: Interface,
}

impl Port {
    /// Opens all active queues of an interface; packets that match the rules go to the sockets, the rest
    /// to the kernel's stack. [`PortConfig`] has more to choose.
    ///
    /// # Errors
    ///
    /// As [`PortConfig::open`].
    pub fn open(interface: &str, rules: Rules) -> Result<Self> {
        PortConfig::new(interface).rules(rules).open()
    }

    /// Takes a queue's socket, for a thread of its own.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the port has no such queue, or its socket was taken before.
    pub fn take_queue(&mut self, queue: impl Into<QueueId>) -> Result<Socket> {
        let queue = queue.into();
        self.sockets.remove(&queue).ok_or_else(|| {
            let reason = if self.queues.contains(&queue) {
                "its socket has been taken already"
            } else {
                "the port was not opened on it"
            };
            let queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
            Error::new(Step::Configure, ErrorKind::NotFound, reason)
                .on(self.interface.name())
                .queue_is(queue)
                .hint(format!("the port has queues {}", queues.join(", ")))
        })
    }

    /// Takes the sockets of all queues that have not been taken yet, in order.
    pub fn take_queues(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.sockets).into_values().collect()
    }

    /// The queues that the port was opened on.
    pub fn queues(&self) -> &[QueueId] {
        &self.queues
    }

    /// The UMEM of all its sockets.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Where the program runs.
    pub fn attached(&self) -> Attached {
        self.program.attached()
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Exchanges the rules in one step.
    ///
    /// # Errors
    ///
    /// As [`Program::set_rules`]; the old rules stay.
    pub fn set_rules(&self, rules: &Rules) -> Result<()> {
        self.program.set_rules(rules)
    }

    /// What the program counted: packets redirected and passed, by reason and queue.
    ///
    /// # Errors
    ///
    /// If the kernel does not give them.
    pub fn counters(&self) -> Result<Counters> {
        self.program.counters()
    }

    /// What every layer has counted, in one: the program, the kernel, the sockets with their rings, taken or
    /// not, and the frames by place. From any thread, while others receive and send.
    ///
    /// ```no_run
    /// # let port = xskit::Port::open("eth0", xskit::Rules::udp_port(4242))?;
    /// println!("{}", port.snapshot()?);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the kernel does not give its counters.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut sockets = Vec::new();
        for (&queue, reader) in &self.readers {
            sockets.extend(reader.read()?.map(|statistics| SocketSnapshot { queue, statistics }));
        }
        Ok(Snapshot { counters: self.counters()?, sockets, frames: self.umem.audit() })
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("interface", &self.interface)
            .field("queues", &self.queues)
            .field("attached", &self.attached())
            .finish_non_exhaustive()
    }
}
