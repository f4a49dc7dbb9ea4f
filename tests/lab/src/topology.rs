//! The two arrangements that tests and demo use: a pair, and a chain of three namespaces.

use std::{io, net::Ipv4Addr, time::Duration};

use crate::{
    flow::{Flow, Mac, Protocol},
    link::{Link, VethEnd},
    need::{Need, require},
    netns::Netns,
    raw::RawPort,
};

/// veth comes up at once; this is for a machine that is busy.
const UP_LIMIT: Duration = Duration::from_secs(5);

const fn mac(last: u8) -> Mac {
    // Locally administered.
    [0x02, 0, 0, 0, 0, last]
}

/// How a [`Lab`] should be.
#[derive(Clone, Copy, Debug)]
pub struct LabConfig {
    /// Receive and send queues of both ends.
    pub queues: u32,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Whether the near end may live without BPF.
    pub need: Need,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self { queues: 1, mtu: 1500, need: Need::Bpf }
    }
}

/// Two namespaces joined by a veth pair, both ends up and without offloads.
///
/// Frames that AF_XDP sends reach the far end as it is. Those that an XDP program redirects or returns
/// reach it only with a program there: `far.attach_xdp(XdpAction::Pass, XdpMode::Native)`.
#[derive(Debug)]
pub struct Lab {
    /// The end for the code under test, named `near0`.
    pub near: Link,
    /// The end for the test's own traffic, named `far0`.
    pub far: Link,
}

impl Lab {
    /// The default lab for a privileged test, or `None` where the test must be skipped (it has said so).
    ///
    /// # Panics
    ///
    /// When a skip is forbidden, or the lab cannot be made although the privileges are there.
    pub fn for_test() -> Option<Self> {
        Self::for_test_with(&LabConfig::default())
    }

    /// Like [`for_test`](Self::for_test), with more queues, another MTU or lesser needs.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn for_test_with(config: &LabConfig) -> Option<Self> {
        require(config.need).then(|| Self::new(config).expect("make the lab"))
    }

    /// Makes one.
    pub fn new(config: &LabConfig) -> io::Result<Self> {
        let (near, far) = VethEnd::new(&Netns::new()?, "near0", mac(1))
            .queues(config.queues)
            .join(&VethEnd::new(&Netns::new()?, "far0", mac(2)).queues(config.queues))?;
        for link in [&near, &far] {
            link.plain_packets()?;
            link.set_mtu(config.mtu)?;
            link.up()?;
        }
        near.wait_up(UP_LIMIT)?;
        far.wait_up(UP_LIMIT)?;
        Ok(Self { near, far })
    }

    /// Runs `work` where the near end is.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.near.netns().enter(work)
    }

    /// The far end's raw socket.
    pub fn raw(&self) -> io::Result<RawPort> {
        RawPort::open(&self.far)
    }

    /// UDP from the far end to `port` of the near one, between addresses that no stack owns, so that
    /// nobody answers.
    pub fn flow(&self, port: u16) -> Flow {
        bystanders(&self.far, &self.near, port)
    }
}

/// A source, a forwarder with two interfaces, and a sink, each in a namespace of its own.
///
/// Source and sink are in one subnet and know each other, so that nothing flows but what they are told
/// to send, and it flows only while something forwards frames between the two interfaces.
#[derive(Debug)]
pub struct Chain {
    /// The source's only interface.
    pub source: Link,
    /// The forwarder's interface towards the source.
    pub ingress: Link,
    /// The forwarder's interface towards the sink.
    pub egress: Link,
    /// The sink's only interface.
    pub sink: Link,
}

impl Chain {
    /// The source's address, for ordinary sockets.
    pub const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    /// The sink's address, for ordinary sockets.
    pub const SINK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    /// Makes one, with a queue on each interface.
    pub fn new() -> io::Result<Self> {
        let forwarder = Netns::new()?;
        let (source, ingress) = VethEnd::new(&Netns::new()?, "source0", mac(1))
            .join(&VethEnd::new(&forwarder, "ingress0", mac(2)))?;
        let (egress, sink) = VethEnd::new(&forwarder, "egress0", mac(3)).join(&VethEnd::new(
            &Netns::new()?,
            "sink0",
            mac(4),
        ))?;
        let chain = Self { source, ingress, egress, sink };
        for link in chain.links() {
            link.plain_packets()?;
            link.up()?;
        }
        for link in chain.links() {
            link.wait_up(UP_LIMIT)?;
        }
        chain.source.add_address(Self::SOURCE, 24)?;
        chain.sink.add_address(Self::SINK, 24)?;
        chain.source.add_neighbour(Self::SINK, chain.sink.mac())?;
        chain.sink.add_neighbour(Self::SOURCE, chain.source.mac())?;
        Ok(chain)
    }

    /// The forwarder's namespace.
    pub fn forwarder(&self) -> &Netns {
        self.ingress.netns()
    }

    /// UDP from source to sink between addresses that neither owns, so that nobody answers.
    pub fn flow(&self, port: u16) -> Flow {
        bystanders(&self.source, &self.sink, port)
    }

    fn links(&self) -> [&Link; 4] {
        [&self.source, &self.ingress, &self.egress, &self.sink]
    }
}

/// A flow in the range that RFC 2544 reserves for benchmarks.
pub(crate) fn bystanders(from: &Link, to: &Link, port: u16) -> Flow {
    let address = |last, port| (Ipv4Addr::new(198, 18, 0, last), port).into();
    Flow::new(Protocol::Udp, (from.mac(), to.mac()), address(1, 4000), address(2, port))
}
