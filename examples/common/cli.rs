//! The options that the tools share.

use std::{fmt::Display, time::Duration};

use clap::{Args, ValueEnum};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use xskit::{
    AttachMode, ChunkSize, CopyMode, Interface, Pages, RingSize, Rule, Rules, SocketConfig,
    interface::Deferral,
    program::{CpuSpread, StackCpus, VlanTags},
    socket::BusyPoll,
};

use super::Failure;

/// Which packets to take. The kernel's stack gets the others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
pub(crate) struct PacketOptions {
    /// Take every packet, so that the kernel's stack receives nothing any more.
    #[arg(long, conflicts_with_all = ["udp_port", "rule"])]
    all: bool,
    /// Allow `--all` on the interface of the default route: it cuts off whoever is logged in there.
    #[arg(long, requires = "all")]
    take_default_route: bool,
    /// Take UDP datagrams for this port, over IPv4 and IPv6. Can be repeated.
    #[arg(long, value_name = "PORT")]
    udp_port: Vec<u16>,
    /// Take what a rule matches, such as `protocol=tcp,destination=10.0.0.0/8`. Can be repeated.
    /// Fields: ether-type, vlan, protocol, source, destination, source-port, destination-port.
    #[arg(long, value_name = "RULE")]
    rule: Vec<Rule>,
    /// Allow rules on VLANs where the driver may keep the tag beside the packet, out of their sight: you
    /// have switched that off.
    #[arg(long, requires = "rule")]
    vlan_tags_visible: bool,
    /// CPUs on which the kernel's stack processes what it gets, through a CPUMAP: `2,3`. By default that is
    /// the CPU that receives it.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    stack_cpus: Vec<u32>,
    /// Packets that the queue of each of these CPUs holds, 1 to 16384.
    #[arg(long, value_name = "N", default_value_t = 2048, requires = "stack_cpus")]
    stack_queue: u32,
    /// How packets are spread over these CPUs: in order within each flow, or in turn.
    #[arg(long, value_enum, default_value_t = Spread::Flow, requires = "stack_cpus")]
    stack_spread: Spread,
}

/// How the sockets shall be.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sockets")]
pub(crate) struct SocketOptions {
    /// Queues to open on each interface: `0,2`. All active ones by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    queues: Vec<u32>,
    /// Where the XDP program runs: in the driver, or in the kernel's generic receive path.
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    mode: Mode,
    /// Attach the program that accepts packets of several buffers, which an MTU above about 3.4 KB
    /// takes (Linux 6.6). Packets longer than a chunk are dropped.
    #[arg(long)]
    pub(crate) frags: bool,
    /// Copy packets between the kernel's buffers and the UMEM, also where zero-copy is possible.
    #[arg(long, conflicts_with = "zero_copy")]
    copy: bool,
    /// Fail where zero-copy is not possible.
    #[arg(long)]
    zero_copy: bool,
    /// Whether the kernel may sleep until it is called.
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "ON|OFF")]
    need_wakeup: Switch,
}

/// The rings that packets arrive through.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rings")]
pub(crate) struct ReceiveRings {
    /// Entries of the RX ring.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    rx_ring: RingSize,
    /// Entries of the Fill ring; made larger where the NIC's RX ring needs it.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    fill_ring: RingSize,
}

/// The rings that packets leave through.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rings")]
pub(crate) struct SendRings {
    /// Entries of the TX ring.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    tx_ring: RingSize,
    /// Entries of the Completion ring.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    completion_ring: RingSize,
}

/// The UMEM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryOptions {
    /// Bytes of a chunk: 2048 or 4096.
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = chunk_size)]
    pub(crate) chunk_size: ChunkSize,
    /// Chunks of the UMEM. By default what all rings hold, and some at hand.
    #[arg(long, value_name = "N")]
    pub(crate) frames: Option<u32>,
    /// Bytes to keep free before each packet.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) headroom: u32,
    /// Use huge pages of the system's reserve, or transparent ones where it has too few.
    #[arg(long)]
    huge_pages: bool,
}

/// How to run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running")]
pub(crate) struct RunOptions {
    /// Packets to take at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) batch: u32,
    /// Sleep in poll(2) while there is nothing to do (the default).
    #[arg(long, conflicts_with = "spin")]
    poll: bool,
    /// Never sleep while there is nothing to receive: lower latency, and a core for each thread.
    #[arg(long)]
    pub(crate) spin: bool,
    /// Let the threads run the driver's receive loop, this many microseconds at a time
    /// (SO_PREFER_BUSY_POLL, SO_BUSY_POLL; Linux 5.11). Together with `--defer` they replace interrupts.
    #[arg(long, value_name = "MICROSECONDS", num_args = 0..=1, default_missing_value = "20")]
    busy_poll: Option<u64>,
    /// Packets for each round of the driver's receive loop (SO_BUSY_POLL_BUDGET).
    #[arg(long, value_name = "N", default_value_t = 64, requires = "busy_poll")]
    busy_poll_budget: u32,
    /// Hold the driver's interrupts back for this many microseconds while packets are few, until the
    /// end (napi_defer_hard_irqs, gro_flush_timeout).
    #[arg(long, value_name = "MICROSECONDS", num_args = 0..=1, default_missing_value = "200")]
    defer: Option<u64>,
    /// CPUs to pin the threads to, in turn: `2,3`. There is a thread for each queue that receives.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpu: Vec<usize>,
    /// End after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Print JSON, an object per line: a start, one for each second, an end.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    Flow,
    RoundRobin,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    Auto,
    Native,
    Generic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl PacketOptions {
    /// The rules, which the user has to choose: there is no safe default that takes anything.
    pub(crate) fn rules(&self) -> Result<Rules, Failure> {
        let rules = self.rules_or_none()?;
        if rules == Rules::none() {
            return Err(
                "which packets? --udp-port PORT or --rule RULE take some and leave the rest \
                        to the kernel's stack; --all takes every packet"
                    .into(),
            );
        }
        Ok(rules)
    }

    /// The rules, where there can be none.
    pub(crate) fn rules_or_none(&self) -> Result<Rules, Failure> {
        if self.all {
            return Ok(Rules::all());
        }
        let mut rules = Rules::none();
        for port in &self.udp_port {
            for rule in Rules::udp_port(*port).as_slice() {
                rules.push(rule.clone())?;
            }
        }
        for rule in &self.rule {
            rules.push(rule.clone())?;
        }
        Ok(rules)
    }

    /// Refuses what would cut somebody off.
    pub(crate) fn check(&self, interfaces: &[String]) -> Result<(), Failure> {
        if !self.all || self.take_default_route {
            return Ok(());
        }
        for name in interfaces {
            if Interface::by_name(name)?.carries_default_route()? {
                return Err(format!(
                    "{name} carries the default route: --all would cut this machine off; choose \
                     packets with --udp-port or --rule, or add --take-default-route if that is \
                     what you want"
                )
                .into());
            }
        }
        Ok(())
    }

    pub(crate) fn vlan_tags(&self) -> VlanTags {
        if self.vlan_tags_visible { VlanTags::Visible } else { VlanTags::default() }
    }

    pub(crate) fn stack_cpus(&self) -> Option<StackCpus> {
        if self.stack_cpus.is_empty() {
            return None;
        }
        let spread = match self.stack_spread {
            Spread::Flow => CpuSpread::FlowHash,
            Spread::RoundRobin => CpuSpread::RoundRobin,
        };
        let cpus = StackCpus::new(self.stack_cpus.iter().copied());
        Some(cpus.queue_size(self.stack_queue).spread(spread))
    }
}

impl SocketOptions {
    /// Refuses what would fail later.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.zero_copy && matches!(self.mode, Mode::Generic) {
            return Err("--zero-copy needs the driver, which --mode generic leaves out".into());
        }
        Ok(())
    }

    pub(crate) fn queues(&self) -> Option<&[u32]> {
        Some(self.queues.as_slice()).filter(|queues| !queues.is_empty())
    }

    pub(crate) fn attach(&self) -> AttachMode {
        match self.mode {
            Mode::Auto => AttachMode::Auto,
            Mode::Native => AttachMode::Native,
            Mode::Generic => AttachMode::Generic,
        }
    }

    /// Everything but the rings.
    pub(crate) fn config(&self, running: &RunOptions) -> SocketConfig {
        let copy_mode = match (self.copy, self.zero_copy) {
            (true, _) => CopyMode::Copy,
            (_, true) => CopyMode::ZeroCopy,
            _ => CopyMode::Auto,
        };
        let config = SocketConfig::default()
            .copy_mode(copy_mode)
            .need_wakeup(self.need_wakeup == Switch::On);
        match running.busy_poll {
            Some(micros) => config.busy_poll(
                BusyPoll::default()
                    .time(Duration::from_micros(micros))
                    .budget(running.busy_poll_budget),
            ),
            None => config,
        }
    }
}

impl ReceiveRings {
    pub(crate) fn of(&self, config: SocketConfig) -> SocketConfig {
        config.rx(self.rx_ring).fill(self.fill_ring)
    }
}

impl SendRings {
    pub(crate) fn of(&self, config: SocketConfig) -> SocketConfig {
        config.tx(self.tx_ring).completion(self.completion_ring)
    }
}

impl RunOptions {
    /// Refuses what would fail later.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.cpu.is_empty() {
            return Ok(());
        }
        let usable = sched_getaffinity(Pid::from_raw(0))?;
        for &cpu in &self.cpu {
            if !usable.is_set(cpu).unwrap_or(false) {
                let known = (0..CpuSet::count()).filter(|&cpu| usable.is_set(cpu).unwrap_or(false));
                let known: Vec<String> = known.map(|cpu| cpu.to_string()).collect();
                return Err(format!("--cpu {cpu}: there are {}", known.join(", ")).into());
            }
        }
        Ok(())
    }

    pub(crate) fn deferral(&self) -> Option<Deferral> {
        let micros = self.defer?;
        Some(Deferral::default().flush_timeout(Duration::from_micros(micros)))
    }
}

impl MemoryOptions {
    pub(crate) fn pages(&self) -> Pages {
        if self.huge_pages { Pages::HugeOrTransparent } else { Pages::Normal }
    }
}

/// A number, given to a constructor that knows which numbers are right.
fn checked<T, E: Display>(text: &str, new: impl FnOnce(u32) -> Result<T, E>) -> Result<T, String> {
    let number = text.parse().map_err(|error| format!("{error}"))?;
    new(number).map_err(|error| error.to_string())
}

fn ring_size(text: &str) -> Result<RingSize, String> {
    checked(text, RingSize::new)
}

fn chunk_size(text: &str) -> Result<ChunkSize, String> {
    checked(text, ChunkSize::new)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
