//! What the user asks for.

use std::{num::NonZeroU64, path::PathBuf, str::FromStr};

use clap::{Args, Parser};
use xskit::Rules;
use xskit_traffic::{
    Addresses, Flows, Rate, Sizes, Template, Values, parse_mac, parse_port, parse_vlan,
};

use crate::common::{
    Failure, Setup,
    cli::{MemoryOptions, PacketOptions, ReceiveRings, RunOptions, SendRings, SocketOptions},
};

/// The discard protocol's, which the kernel's pktgen sends to as well.
const PORT: u16 = 9;

/// Generates UDP packets over AF_XDP, and tells what became of them at the other end.
///
/// Without --receive it sends: packets of its own (addresses, ports and sizes in turn or drawn at random),
/// one prepared packet over and over (--clone), or a capture (--replay); as fast as possible, or evenly
/// spaced at a rate. Each packet carries a sequence number and a time, unless it is a clone. With --receive
/// it counts them: loss, reordering, duplicates, and the latency by CLOCK_MONOTONIC, which means something
/// where both ends are on one host.
///
/// Sizes are those of frames without their check sequence (4 bytes). At the end it tells the rate that was
/// reached, in packets, and in bits on layer 1 (with preamble and gap) and layer 2.
///
/// Ranges: `A-B` are all values from A to B in turn, `A~B` values drawn between them.
#[derive(Debug, Parser)]
#[command(name = "pktgen", version)]
pub(crate) struct Options {
    /// The interface to send or receive on.
    #[arg(value_name = "INTERFACE")]
    interface: Vec<String>,
    /// Receive, and tell what became of the packets.
    #[arg(long, conflicts_with_all = ["rate", "clone", "replay", "burst", "threads"])]
    pub(crate) receive: bool,
    /// End after this many packets, sent or received by all threads together.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) traffic: TrafficOptions,
    #[command(flatten)]
    flows: FlowOptions,
    #[command(flatten)]
    pub(crate) expected: ExpectOptions,
    #[command(flatten)]
    packets: PacketOptions,
    #[command(flatten)]
    sockets: SocketOptions,
    #[command(flatten)]
    receive_rings: ReceiveRings,
    #[command(flatten)]
    send_rings: SendRings,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    pub(crate) running: RunOptions,
}

/// What to send, and when.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traffic")]
pub(crate) struct TrafficOptions {
    /// Bytes of a packet, without its check sequence: `60`, a range, `imix`, or a mix by weights such as
    /// `60:7,590:4,1514:1`.
    #[arg(long, value_name = "SIZES", default_value = "60")]
    pub(crate) size: Sizes,
    /// Packets or bits a second, of all threads together: `100kpps`, `1Gbps` (on layer 2), `1Gbps-l1` (on
    /// layer 1). As fast as possible without.
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<Rate>,
    /// Packets to send at once; what the rate asks for in 100 microseconds by default.
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<NonZeroU64>,
    /// Send each packet this many times without writing it again. Clones carry no number and no time, and
    /// have the sizes of a mix in turn.
    #[arg(long, value_name = "N")]
    pub(crate) clone: Option<NonZeroU64>,
    /// Leave the number and the time out of packets, which can be shorter then.
    #[arg(long)]
    no_stamp: bool,
    /// Send the packets of a pcap or pcapng file instead, as they are.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["clone", "no_stamp"])]
    pub(crate) replay: Option<PathBuf>,
    /// How many times as fast as captured: `2`, `0.5`, or `max`.
    #[arg(
        long,
        value_name = "TIMES",
        default_value = "1",
        requires = "replay",
        conflicts_with = "rate"
    )]
    pub(crate) speed: Speed,
    /// Send the file so many times.
    #[arg(long, value_name = "N", default_value = "1", requires = "replay")]
    pub(crate) loops: NonZeroU64,
    /// Threads for each queue.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) threads: u8,
    /// What random values are drawn from: the same packets again for the same number.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// Who talks to whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Addresses")]
struct FlowOptions {
    /// MAC addresses to send to.
    #[arg(
        long,
        value_name = "MACS",
        value_parser = parse_mac,
        required_unless_present_any = ["receive", "replay"]
    )]
    destination_mac: Option<Values>,
    /// MAC addresses to send from.
    #[arg(long, value_name = "MACS", value_parser = parse_mac, default_value = "02:00:00:00:00:01")]
    source_mac: Values,
    /// Tag packets with these VLAN ids.
    #[arg(long, value_name = "IDS", value_parser = parse_vlan)]
    vlan: Option<Values>,
    /// IP addresses to send from. The defaults are reserved for benchmarks.
    #[arg(long, value_name = "ADDRESSES", default_value = "198.18.0.1")]
    source: Addresses,
    /// IP addresses to send to.
    #[arg(long, value_name = "ADDRESSES", default_value = "198.18.0.2")]
    destination: Addresses,
    /// UDP ports to send from.
    #[arg(long, value_name = "PORTS", value_parser = parse_port, default_value = "9")]
    source_port: Values,
    /// UDP ports to send to.
    #[arg(long, value_name = "PORTS", value_parser = parse_port, default_value = "9")]
    destination_port: Values,
}

/// What the receiver is to expect.
#[derive(Debug, Args)]
#[command(next_help_heading = "Receiving (packets for UDP port 9, if nothing else is said)")]
pub(crate) struct ExpectOptions {
    /// Packets that each stream was sent as, so that those missing at its end are counted too.
    #[arg(long, value_name = "N", requires = "receive")]
    pub(crate) expect: Option<u64>,
}

/// How fast to replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    /// So many times as fast as captured.
    Times(f64),
    /// As fast as possible.
    Max,
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let times: f64 = text.parse().map_err(|error| format!("{error}; or `max`"))?;
        if times.is_finite() && times > 0.0 {
            return Ok(Self::Times(times));
        }
        Err("above 0, or `max`".to_owned())
    }
}

impl Options {
    /// Refuses what would fail later.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let [_] = self.interface.as_slice() else { return Err("name one interface".into()) };
        if self.receive {
            return Ok(());
        }
        self.packets.check(&self.interface)?;
        if self.traffic.replay.is_some() {
            return Ok(());
        }
        let template = self.template()?;
        let (least, asked) = (template.least().max(60), self.traffic.size.least());
        if asked < least {
            return Err(format!(
                "--size: {asked} bytes; these packets have at least {least}{}",
                if template.is_stamped() { ", or less with --no-stamp" } else { "" }
            )
            .into());
        }
        Ok(())
    }

    /// The packets to make.
    pub(crate) fn template(&self) -> Result<Template, Failure> {
        let flows = &self.flows;
        let flows = Flows {
            source_mac: flows.source_mac,
            destination_mac: flows.destination_mac.ok_or("--destination-mac: send to whom?")?,
            vlan: flows.vlan,
            source: flows.source,
            destination: flows.destination,
            source_port: flows.source_port,
            destination_port: flows.destination_port,
        };
        let stamped = !self.traffic.no_stamp && self.traffic.clone.is_none();
        Ok(Template::new(flows, stamped)?)
    }

    /// Packets that are sent at once.
    pub(crate) fn burst(&self, threads: u64) -> u64 {
        const WHILE: u64 = 100_000;
        let batch = u64::from(self.running.batch);
        match (self.traffic.burst, self.traffic.rate) {
            (Some(burst), _) => burst.get(),
            (None, Some(rate)) => {
                (rate.packets_in(WHILE, self.traffic.size.most()) / threads).clamp(1, batch)
            }
            (None, None) => batch,
        }
    }

    pub(crate) fn setup(&self) -> Result<Setup<'_>, Failure> {
        let config = self.sockets.config(&self.running);
        let (rules, socket) = if self.receive {
            let rules = match self.packets.rules_or_none()? {
                none if none == Rules::none() => Rules::udp_port(PORT),
                rules => rules,
            };
            (rules, self.receive_rings.of(config).receive_only())
        } else {
            (Rules::none(), self.send_rings.of(config).send_only())
        };
        Ok(Setup {
            interfaces: &self.interface,
            rules,
            packets: self.receive.then_some(&self.packets),
            sockets: &self.sockets,
            socket,
            batches: 1,
            memory: &self.memory,
            running: &self.running,
        })
    }
}
