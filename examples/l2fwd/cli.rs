//! What the user asks for.

use std::{fmt::Display, time::Duration};

use clap::{Args, Parser, ValueEnum};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use xskit::{
    AttachMode, ChunkSize, CopyMode, Interface, Pages, RingSize, Rule, Rules, SocketConfig,
    interface::Deferral, program::VlanTags, socket::BusyPoll,
};

use crate::Failure;

/// Forwards Ethernet frames over AF_XDP.
///
/// On one interface it reflects them: back to where they came from, MAC addresses swapped. Between two
/// it forwards both ways, frames unchanged: descriptors move from socket to socket through one UMEM,
/// and nothing is copied in between. Queue n of one interface goes with queue n (modulo their number)
/// of the other.
///
/// Once a second it tells for each queue: packets and bits (without preamble and checksum), received
/// and given to the kernel to send, and each counter of lost packets that moved, by the name that the
/// kernel or xskit gives it.
#[derive(Debug, Parser)]
#[command(name = "l2fwd", version)]
pub(crate) struct Options {
    /// One interface to reflect on, or two to forward between.
    #[arg(required = true, num_args = 1..=2, value_name = "INTERFACE")]
    pub(crate) interfaces: Vec<String>,
    #[command(flatten)]
    packets: PacketOptions,
    #[command(flatten)]
    sockets: SocketOptions,
    #[command(flatten)]
    pub(crate) memory: MemoryOptions,
    #[command(flatten)]
    pub(crate) running: RunOptions,
}

/// Which packets to take. The kernel's stack gets the others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
struct PacketOptions {
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
}

/// How the sockets shall be.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sockets")]
struct SocketOptions {
    /// Queues to open on each interface: `0,2`. All active ones by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    queues: Vec<u32>,
    /// Where the XDP program runs: in the driver, or in the kernel's generic receive path.
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    mode: Mode,
    /// Attach the program that accepts packets of several buffers, which an MTU above about 3.4 KB
    /// takes (Linux 6.6). Packets longer than a chunk are dropped.
    #[arg(long)]
    frags: bool,
    /// Copy packets between the kernel's buffers and the UMEM, also where zero-copy is possible.
    #[arg(long, conflicts_with = "zero_copy")]
    copy: bool,
    /// Fail where zero-copy is not possible.
    #[arg(long)]
    zero_copy: bool,
    /// Whether the kernel may sleep until it is called.
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "ON|OFF")]
    need_wakeup: Switch,
    /// Entries of the RX ring.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    rx_ring: RingSize,
    /// Entries of the TX ring.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    tx_ring: RingSize,
    /// Entries of the Fill ring; made larger where the NIC's RX ring needs it.
    #[arg(long, value_name = "N", default_value_t, value_parser = ring_size)]
    fill_ring: RingSize,
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

impl Options {
    /// The rules, which the user has to choose: there is no safe default that forwards anything.
    pub(crate) fn rules(&self) -> Result<Rules, Failure> {
        let PacketOptions { all, udp_port, rule, .. } = &self.packets;
        if *all {
            return Ok(Rules::all());
        }
        let mut rules = Rules::none();
        for port in udp_port {
            for rule in Rules::udp_port(*port).as_slice() {
                rules.push(rule.clone())?;
            }
        }
        for rule in rule {
            rules.push(rule.clone())?;
        }
        if rules == Rules::none() {
            return Err(
                "which packets? --udp-port PORT or --rule RULE take some and leave the rest \
                        to the kernel's stack; --all takes every packet"
                    .into(),
            );
        }
        Ok(rules)
    }

    /// Refuses what would fail later or cut somebody off.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.interfaces.as_slice() {
            [one, other] if one == other => {
                return Err(format!("{one} is named twice; name it once to reflect on it").into());
            }
            _ => {}
        }
        if self.sockets.zero_copy && matches!(self.sockets.mode, Mode::Generic) {
            return Err("--zero-copy needs the driver, which --mode generic leaves out".into());
        }
        self.check_cpus()?;
        if self.packets.all && !self.packets.take_default_route {
            for name in &self.interfaces {
                if Interface::by_name(name)?.carries_default_route()? {
                    return Err(format!(
                        "{name} carries the default route: --all would cut this machine off; choose \
                         packets with --udp-port or --rule, or add --take-default-route if that is \
                         what you want"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    fn check_cpus(&self) -> Result<(), Failure> {
        if self.running.cpu.is_empty() {
            return Ok(());
        }
        let usable = sched_getaffinity(Pid::from_raw(0))?;
        for &cpu in &self.running.cpu {
            if !usable.is_set(cpu).unwrap_or(false) {
                let known = (0..CpuSet::count()).filter(|&cpu| usable.is_set(cpu).unwrap_or(false));
                let known: Vec<String> = known.map(|cpu| cpu.to_string()).collect();
                return Err(format!("--cpu {cpu}: there are {}", known.join(", ")).into());
            }
        }
        Ok(())
    }

    pub(crate) fn queues(&self) -> Option<&[u32]> {
        Some(self.sockets.queues.as_slice()).filter(|queues| !queues.is_empty())
    }

    pub(crate) fn vlan_tags(&self) -> VlanTags {
        if self.packets.vlan_tags_visible { VlanTags::Visible } else { VlanTags::default() }
    }

    pub(crate) fn frags(&self) -> bool {
        self.sockets.frags
    }

    pub(crate) fn attach(&self) -> AttachMode {
        match self.sockets.mode {
            Mode::Auto => AttachMode::Auto,
            Mode::Native => AttachMode::Native,
            Mode::Generic => AttachMode::Generic,
        }
    }

    pub(crate) fn deferral(&self) -> Option<Deferral> {
        let micros = self.running.defer?;
        Some(Deferral::default().flush_timeout(Duration::from_micros(micros)))
    }

    pub(crate) fn socket(&self) -> SocketConfig {
        let options = &self.sockets;
        let copy_mode = match (options.copy, options.zero_copy) {
            (true, _) => CopyMode::Copy,
            (_, true) => CopyMode::ZeroCopy,
            _ => CopyMode::Auto,
        };
        let config = SocketConfig::default()
            .copy_mode(copy_mode)
            .need_wakeup(options.need_wakeup == Switch::On)
            .rx(options.rx_ring)
            .tx(options.tx_ring)
            .fill(options.fill_ring)
            .completion(options.completion_ring);
        match self.running.busy_poll {
            Some(micros) => config.busy_poll(
                BusyPoll::default()
                    .time(Duration::from_micros(micros))
                    .budget(self.running.busy_poll_budget),
            ),
            None => config,
        }
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
