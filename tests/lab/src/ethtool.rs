//! Offloads and channels, through ethtool's ioctl.

use std::io;

use crate::{link::Link, sys::EthtoolCommand};

const GET_RINGS: u32 = 0x10;
const SET_RINGS: u32 = 0x11;
const GET_CHANNELS: u32 = 0x3c;
const SET_CHANNELS: u32 = 0x3d;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;

/// Bits of `SET_FLAGS`.
const TX_VLAN: u32 = 1 << 7;
const RX_VLAN: u32 = 1 << 8;

/// Work that the kernel leaves to the interface, or does in bulk, and that a test wants off (or on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of sent packets. Off, they are complete on the wire; segmentation goes off with it.
    TxChecksum,
    /// Segmentation of TCP.
    Tso,
    /// Segmentation just before the driver.
    Gso,
    /// Merging of received packets.
    Gro,
    /// VLAN tags beside the packet instead of in it, when sending.
    TxVlan,
    /// VLAN tags beside the packet instead of in it, when receiving.
    RxVlan,
}

/// How many queues an interface uses, and could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues in use.
    pub rx: u32,
    /// Send queues in use.
    pub tx: u32,
    /// Receive queues at most.
    pub max_rx: u32,
    /// Send queues at most.
    pub max_tx: u32,
}

/// How many entries the rings of the hardware have, and could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareRings {
    /// Received packets, now.
    pub rx: u32,
    /// Packets to send, now.
    pub tx: u32,
    /// Received packets, at most.
    pub max_rx: u32,
    /// Packets to send, at most.
    pub max_tx: u32,
}

/// `struct ethtool_value`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawChannels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_ringparam`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawRings {
    command: u32,
    max_rx: u32,
    max_rx_mini: u32,
    max_rx_jumbo: u32,
    max_tx: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

mod layouts {
    #![allow(unsafe_code, reason = "promises to the ioctl that the layouts are the kernel's")]

    use super::{EthtoolCommand, RawChannels, RawRings, Value};

    // SAFETY: the two u32 of `struct ethtool_value`, for commands that use it alone.
    unsafe impl EthtoolCommand for Value {}
    // SAFETY: the nine u32 of `struct ethtool_channels`, for the two commands on channels alone.
    unsafe impl EthtoolCommand for RawChannels {}
    // SAFETY: the nine u32 of `struct ethtool_ringparam`, for the two commands on rings alone.
    unsafe impl EthtoolCommand for RawRings {}
}

impl Link {
    /// Switches an offload on or off.
    pub fn set_offload(&self, offload: Offload, on: bool) -> io::Result<()> {
        let set = match offload {
            Offload::TxChecksum => 0x17,
            Offload::Tso => 0x1f,
            Offload::Gso => 0x24,
            Offload::Gro => 0x2c,
            Offload::TxVlan => return self.set_flag(TX_VLAN, on),
            Offload::RxVlan => return self.set_flag(RX_VLAN, on),
        };
        self.ethtool_value(set, u32::from(on)).map(drop)
    }

    /// Whether an offload is on.
    pub fn offload(&self, offload: Offload) -> io::Result<bool> {
        let (get, bit) = match offload {
            Offload::TxChecksum => (0x16, 1),
            Offload::Tso => (0x1e, 1),
            Offload::Gso => (0x23, 1),
            Offload::Gro => (0x2b, 1),
            Offload::TxVlan => (GET_FLAGS, TX_VLAN),
            Offload::RxVlan => (GET_FLAGS, RX_VLAN),
        };
        Ok(self.ethtool_value(get, 0)? & bit != 0)
    }

    /// Switches off all that would make packets differ between the sender's socket and the wire.
    pub fn plain_packets(&self) -> io::Result<()> {
        use Offload::{Gro, Gso, RxVlan, Tso, TxChecksum, TxVlan};
        [Tso, Gso, Gro, TxChecksum, TxVlan, RxVlan]
            .into_iter()
            .try_for_each(|offload| self.set_offload(offload, false))
    }

    /// The queues in use.
    pub fn channels(&self) -> io::Result<Channels> {
        let raw = self.raw_channels()?;
        Ok(Channels {
            rx: raw.rx + raw.combined,
            tx: raw.tx + raw.combined,
            max_rx: raw.max_rx.max(raw.max_combined),
            max_tx: raw.max_tx.max(raw.max_combined),
        })
    }

    /// Changes how many queues are in use.
    pub fn set_channels(&self, rx: u32, tx: u32) -> io::Result<()> {
        let mut raw = RawChannels { command: SET_CHANNELS, rx, tx, ..self.raw_channels()? };
        self.netns().ethtool(self.name(), &mut raw)
    }

    /// The same for a device whose queues go both ways, as most do.
    pub fn set_combined_channels(&self, count: u32) -> io::Result<()> {
        let mut raw =
            RawChannels { command: SET_CHANNELS, combined: count, ..self.raw_channels()? };
        self.netns().ethtool(self.name(), &mut raw)
    }

    /// The rings of the hardware.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where there are none.
    pub fn hardware_rings(&self) -> io::Result<HardwareRings> {
        let raw = self.raw_rings()?;
        Ok(HardwareRings { rx: raw.rx, tx: raw.tx, max_rx: raw.max_rx, max_tx: raw.max_tx })
    }

    /// Changes how many entries the rings of the hardware have.
    pub fn set_hardware_rings(&self, rx: u32, tx: u32) -> io::Result<()> {
        let mut raw = RawRings { command: SET_RINGS, rx, tx, ..self.raw_rings()? };
        self.netns().ethtool(self.name(), &mut raw)
    }

    fn raw_rings(&self) -> io::Result<RawRings> {
        let mut raw = RawRings { command: GET_RINGS, ..RawRings::default() };
        self.netns().ethtool(self.name(), &mut raw)?;
        Ok(raw)
    }

    fn raw_channels(&self) -> io::Result<RawChannels> {
        let mut raw = RawChannels { command: GET_CHANNELS, ..RawChannels::default() };
        self.netns().ethtool(self.name(), &mut raw)?;
        Ok(raw)
    }

    fn set_flag(&self, flag: u32, on: bool) -> io::Result<()> {
        let now = self.ethtool_value(GET_FLAGS, 0)?;
        let wanted = if on { now | flag } else { now & !flag };
        if wanted != now {
            self.ethtool_value(SET_FLAGS, wanted)?;
        }
        Ok(())
    }

    fn ethtool_value(&self, command: u32, data: u32) -> io::Result<u32> {
        let mut value = Value { command, data };
        self.netns().ethtool(self.name(), &mut value)?;
        Ok(value.data)
    }
}
