//! What an interface is and has, as read at one moment.

use std::{fmt, io, path::Path};

use super::{
    Interface,
    netlink::{self, NetdevFeatures},
    offload,
};
use crate::{
    error::{Error, Result, Step},
    sys::{
        ethtool::{Channels, Ethtool},
        numa::{self, SYSFS},
    },
};

/// What an interface is and has. What serves each of its queues: [`Interface::queue_facts`].
///
/// # Staleness
///
/// A snapshot: queues, MTU and state change under it. Attaching an XDP program is one of the causes:
/// some drivers add queues then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// The driver's name, such as `ice` or `veth`. `None` where there is none to tell.
    pub driver: Option<String>,
    /// The largest packet that it takes, in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Set up by the administrator (`IFF_UP`).
    pub up: bool,
    /// Has a carrier: the cable is in, the peer is up.
    pub carrier: bool,
    /// The Ethernet address; zeros on an interface without one.
    pub mac: [u8; 6],
    /// Its receive queues.
    pub queues: Queues,
    /// Entries of the hardware's receive ring. `None` on an interface without one.
    pub rx_ring: Option<u32>,
    /// Entries of the hardware's transmit ring. `None` on an interface without one.
    pub tx_ring: Option<u32>,
    /// What the driver can do with XDP. `None` where the kernel cannot say (before 6.3).
    pub xdp: Option<XdpFeatures>,
    /// Whether the NIC takes VLAN tags off received packets, so that no XDP program sees them.
    /// `None` where the kernel does not say.
    pub rx_vlan_offload: Option<bool>,
    /// The XDP program that is attached, by anybody.
    pub xdp_program: Option<XdpProgram>,
    /// The NUMA node at which its device is. `None` where the machine does not say, for virtual interfaces,
    /// and before Linux 5.14.
    pub numa_node: Option<u32>,
}

/// How many receive queues an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queues {
    /// In use now: a socket can be bound to the queues below this number.
    ///
    /// What the driver's ethtool channels say (receive and combined); where it has none, what the
    /// netdev netlink family lists (kernel 6.7, and only while the interface is up). An interface
    /// of which neither tells counts as having one queue: queue 0 always exists, whereas the number
    /// of allocated queues says nothing about those in use (a tun device allocates 256). A caller
    /// who knows better names the queues.
    pub active: u32,
    /// How many there could be. `None` where the kernel does not say.
    pub maximum: Option<u32>,
}

/// What a driver can do with XDP (`xdp-features` of the netdev netlink family, kernel 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's independent bits, by name")]
pub struct XdpFeatures {
    /// Native XDP: a program runs in the driver and can pass, drop, abort or send back.
    #[doc(alias = "NETDEV_XDP_ACT_BASIC")]
    pub basic: bool,
    /// A native program can redirect, which an AF_XDP socket needs.
    #[doc(alias = "NETDEV_XDP_ACT_REDIRECT")]
    pub redirect: bool,
    /// Takes packets that another interface's program redirects to it.
    #[doc(alias = "NETDEV_XDP_ACT_NDO_XMIT")]
    pub ndo_xmit: bool,
    /// Zero-copy AF_XDP sockets.
    #[doc(alias = "NETDEV_XDP_ACT_XSK_ZEROCOPY")]
    pub zero_copy: bool,
    /// Runs programs on the NIC.
    #[doc(alias = "NETDEV_XDP_ACT_HW_OFFLOAD")]
    pub hw_offload: bool,
    /// Receives packets of several buffers natively.
    #[doc(alias = "NETDEV_XDP_ACT_RX_SG")]
    pub rx_sg: bool,
    /// Takes redirected packets of several buffers.
    #[doc(alias = "NETDEV_XDP_ACT_NDO_XMIT_SG")]
    pub ndo_xmit_sg: bool,
    /// The most frames of one packet in zero-copy mode; 1 means no multi-buffer there. `None` where
    /// there is no zero-copy (kernel 6.6).
    #[doc(alias = "NETDEV_A_DEV_XDP_ZC_MAX_SEGS")]
    pub zc_max_segments: Option<u32>,
    /// What a program can ask about a received packet (kernel 6.6).
    pub rx_metadata: RxMetadata,
    /// What can be asked of the NIC for a packet that is sent (kernel 6.8).
    pub tx_metadata: TxMetadata,
}

/// Receive metadata that a driver offers to device-bound XDP programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RxMetadata {
    /// The time of arrival by the NIC's clock.
    #[doc(alias = "NETDEV_XDP_RX_METADATA_TIMESTAMP")]
    pub timestamp: bool,
    /// The hash that chose the queue.
    #[doc(alias = "NETDEV_XDP_RX_METADATA_HASH")]
    pub hash: bool,
    /// The VLAN tag that the NIC took off.
    #[doc(alias = "NETDEV_XDP_RX_METADATA_VLAN_TAG")]
    pub vlan_tag: bool,
}

/// Transmit metadata that a driver offers to AF_XDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxMetadata {
    /// The time of sending by the NIC's clock.
    #[doc(alias = "NETDEV_XSK_FLAGS_TX_TIMESTAMP")]
    pub timestamp: bool,
    /// The NIC computes a checksum.
    #[doc(alias = "NETDEV_XSK_FLAGS_TX_CHECKSUM")]
    pub checksum: bool,
    /// The NIC sends at a given time (kernel 6.15).
    #[doc(alias = "NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO")]
    pub launch_time: bool,
}

/// An attached XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpProgram {
    /// The kernel's id of it, as `bpftool prog show id` takes.
    pub id: u32,
    /// Where it runs.
    pub mode: XdpProgramMode,
}

/// Where an attached XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpProgramMode {
    /// In the driver.
    #[doc(alias = "XDP_ATTACHED_DRV")]
    Native,
    /// In the stack, on packets that are already copied.
    #[doc(alias = "XDP_ATTACHED_SKB")]
    Generic,
    /// On the NIC.
    #[doc(alias = "XDP_ATTACHED_HW")]
    Offloaded,
}

impl Interface {
    /// What it is and has now.
    ///
    /// ```
    /// use xskit::Interface;
    ///
    /// let facts = Interface::by_name("lo")?.facts()?;
    /// println!("{facts}");
    /// assert!(facts.xdp.is_none_or(|xdp| !xdp.zero_copy), "it has no driver");
    /// # Ok::<(), xskit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`](crate::ErrorKind::LinkGone) where it was deleted or moved to another
    /// namespace.
    pub fn facts(&self) -> Result<Facts> {
        let link = self.link()?;
        let ethtool = Ethtool::open().map_err(|error| {
            Error::os(Step::Interface, "no socket to ask ethtool with", error).on(&self.name)
        })?;
        // It may have been renamed since it was looked up.
        let name = &link.name;
        let channels = self.told(ethtool.channels(name))?;
        let rings = self.told(ethtool.ring_parameters(name))?;
        let features = self.told(ethtool.features(name))?;
        let netdev = netlink::netdev_features(self.index)
            .map_err(|refusal| self.failed("its XDP features cannot be read", refusal))?;
        Ok(Facts {
            driver: self.told(ethtool.driver(name))?,
            mtu: link.mtu,
            up: link.up,
            carrier: link.carrier,
            mac: link.mac,
            queues: self.queues(channels, link.max_rx_queues)?,
            // A driver that has the call, but no such ring, says 0.
            rx_ring: rings.map(|rings| rings.rx_pending).filter(|&entries| entries > 0),
            tx_ring: rings.map(|rings| rings.tx_pending).filter(|&entries| entries > 0),
            xdp: netdev.map(XdpFeatures::from),
            rx_vlan_offload: features.map(|features| {
                features.iter().any(|feature| feature.active && offload::hides_tags(feature))
            }),
            xdp_program: link.xdp,
            numa_node: link
                .parent
                .and_then(|(bus, device)| numa::node_of(Path::new(SYSFS), &bus, &device)),
        })
    }

    fn queues(&self, channels: Option<Channels>, allocated: u32) -> Result<Queues> {
        if let Some(queues) = channels.and_then(Queues::from_channels) {
            return Ok(queues);
        }
        let listed = netlink::active_rx_queues(self.index)
            .map_err(|refusal| self.failed("its queues cannot be listed", refusal))?;
        let active = listed.unwrap_or(1);
        let maximum = (allocated > 0).then_some(allocated.max(active));
        Ok(Queues { active, maximum })
    }

    /// `None` where the driver has no answer. Only a device that is gone is an error.
    fn told<T>(&self, answer: io::Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(self.gone()),
            Err(_) => Ok(None),
        }
    }
}

impl Queues {
    fn from_channels(channels: Channels) -> Option<Self> {
        let active = channels.rx_count.saturating_add(channels.combined_count);
        // Receive-only and combined queues are cut from the same stock on most NICs: the larger limit
        // is the one for queues that receive.
        let maximum = channels.max_rx.max(channels.max_combined).max(active);
        (active > 0).then_some(Self { active, maximum: Some(maximum) })
    }
}

impl From<NetdevFeatures> for XdpFeatures {
    fn from(netdev: NetdevFeatures) -> Self {
        let bit = |mask: u64, n: u32| mask & (1 << n) != 0;
        Self {
            basic: bit(netdev.xdp, 0),
            redirect: bit(netdev.xdp, 1),
            ndo_xmit: bit(netdev.xdp, 2),
            zero_copy: bit(netdev.xdp, 3),
            hw_offload: bit(netdev.xdp, 4),
            rx_sg: bit(netdev.xdp, 5),
            ndo_xmit_sg: bit(netdev.xdp, 6),
            zc_max_segments: netdev.zc_max_segments,
            rx_metadata: RxMetadata {
                timestamp: bit(netdev.rx_metadata, 0),
                hash: bit(netdev.rx_metadata, 1),
                vlan_tag: bit(netdev.rx_metadata, 2),
            },
            tx_metadata: TxMetadata {
                timestamp: bit(netdev.xsk, 0),
                checksum: bit(netdev.xsk, 1),
                launch_time: bit(netdev.xsk, 2),
            },
        }
    }
}

impl fmt::Display for Queues {
    /// For example `4 active queues (0–3)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.active {
            1 => f.write_str("1 active queue (0)"),
            active => write!(f, "{active} active queues (0–{})", active.saturating_sub(1)),
        }
    }
}

impl fmt::Display for Facts {
    /// One line, for errors and logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Some(driver) => write!(f, "driver {driver}")?,
            None => f.write_str("no driver")?,
        }
        let state = match (self.up, self.carrier) {
            (false, _) => ", down",
            (true, false) => ", no carrier",
            (true, true) => "",
        };
        write!(f, "{state}, MTU {}, {}", self.mtu, self.queues)?;
        f.write_str(match self.xdp {
            None => ", zero-copy: this kernel cannot say",
            Some(XdpFeatures { zero_copy: true, .. }) => ", zero-copy: yes",
            Some(_) => ", zero-copy: no",
        })?;
        if let Some(program) = self.xdp_program {
            write!(f, ", XDP program {} attached ({})", program.id, program.mode)?;
        }
        Ok(())
    }
}

impl fmt::Display for XdpProgramMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            driver: Some("veth".into()),
            mtu: 1500,
            up: true,
            carrier: true,
            mac: [2, 0, 0, 0, 0, 1],
            queues: Queues { active: 4, maximum: Some(8) },
            rx_ring: None,
            tx_ring: None,
            xdp: Some(NetdevFeatures { xdp: 0b10_0011, ..Default::default() }.into()),
            rx_vlan_offload: Some(true),
            xdp_program: None,
            numa_node: None,
        }
    }

    #[test]
    fn summary() {
        assert_eq!(
            facts().to_string(),
            "driver veth, MTU 1500, 4 active queues (0–3), zero-copy: no"
        );
        let other = Facts {
            driver: None,
            carrier: false,
            queues: Queues { active: 1, maximum: None },
            xdp: None,
            xdp_program: Some(XdpProgram { id: 7, mode: XdpProgramMode::Generic }),
            ..facts()
        };
        assert_eq!(
            other.to_string(),
            "no driver, no carrier, MTU 1500, 1 active queue (0), zero-copy: this kernel cannot say, \
             XDP program 7 attached (generic)"
        );
    }

    #[test]
    fn bits_by_name() {
        let features = facts().xdp.unwrap();
        assert!(features.basic && features.redirect && features.rx_sg);
        assert!(!features.zero_copy && !features.ndo_xmit && !features.ndo_xmit_sg);
    }

    #[test]
    fn channels_add_receive_and_combined() {
        let channels = |max_rx, max_combined, rx_count, combined_count| {
            let mut channels: Channels = bytemuck::Zeroable::zeroed();
            channels.max_rx = max_rx;
            channels.max_combined = max_combined;
            channels.rx_count = rx_count;
            channels.combined_count = combined_count;
            channels
        };
        let of = |c| Queues::from_channels(c).map(|q| (q.active, q.maximum));
        assert_eq!(of(channels(8, 0, 4, 0)), Some((4, Some(8))), "veth");
        assert_eq!(of(channels(0, 63, 0, 16)), Some((16, Some(63))), "a NIC with combined queues");
        assert_eq!(of(channels(16, 16, 4, 14)), Some((18, Some(18))), "both kinds");
        assert_eq!(of(channels(0, 0, 0, 0)), None, "a driver that says nothing");
    }
}
