//! `SIOCETHTOOL`, where it steers packets to queues: the RSS indirection table and the flow rules (ntuple).
#![allow(unsafe_code, reason = "ethtool's ioctls take a pointer inside `ifreq`; nix has no call")]

use std::io;

use bytemuck::{Pod, Zeroable};

use super::ethtool::Ethtool;

const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;

const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;
const RX_CLS_LOC_ANY: u32 = 0xffff_ffff;

pub(crate) const TCP_V4_FLOW: u32 = 0x01;
pub(crate) const UDP_V4_FLOW: u32 = 0x02;
pub(crate) const SCTP_V4_FLOW: u32 = 0x03;
pub(crate) const TCP_V6_FLOW: u32 = 0x05;
pub(crate) const UDP_V6_FLOW: u32 = 0x06;
pub(crate) const SCTP_V6_FLOW: u32 = 0x07;
pub(crate) const IPV4_USER_FLOW: u32 = 0x0d;
pub(crate) const IPV6_USER_FLOW: u32 = 0x0e;
pub(crate) const ETHER_FLOW: u32 = 0x12;
pub(crate) const FLOW_EXT: u32 = 0x8000_0000;

/// `struct ethtool_rx_flow_spec`: values, and masks of the bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FlowSpec {
    pub(crate) flow_type: u32,
    pub(crate) value: [u8; 52],
    pub(crate) value_ext: [u8; 20],
    pub(crate) mask: [u8; 52],
    pub(crate) mask_ext: [u8; 20],
    padding: [u8; 4],
    /// The queue.
    pub(crate) ring_cookie: u64,
    location: u32,
    tail: [u8; 4],
}

impl FlowSpec {
    /// Any packet of this type.
    pub(crate) fn new(flow_type: u32) -> Self {
        Self { flow_type, ..Zeroable::zeroed() }
    }

    /// The queue in the cookie, whose upper half names virtual functions.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(crate) fn queue(&self) -> u32 {
        self.ring_cookie as u32
    }
}

/// `struct ethtool_rxnfc`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RxNfc {
    cmd: u32,
    flow_type: u32,
    data: u64,
    spec: FlowSpec,
    rule_count: u32,
    tail: [u8; 4],
}

/// Words of a `struct ethtool_rxnfc` before its list of locations, which begins within its padding.
const RULE_COUNT: usize = 46;
const LOCATIONS: usize = RULE_COUNT + 1;

impl Ethtool {
    /// The queue of each entry of the RSS indirection table.
    pub(crate) fn indirection(&self, interface: &str) -> io::Result<Vec<u32>> {
        let mut header = [ETHTOOL_GRXFHINDIR, 0];
        // SAFETY: with a size of 0, ETHTOOL_GRXFHINDIR writes these two words alone.
        unsafe { self.fixed(interface, &mut header) }?;
        let size = header[1] as usize;
        let mut buffer = vec![0_u32; 2 + size];
        buffer[..2].copy_from_slice(&[ETHTOOL_GRXFHINDIR, header[1]]);
        // SAFETY: ETHTOOL_GRXFHINDIR writes two words and at most as many entries as the second says: the
        // kernel refuses where the table has grown meanwhile.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }?;
        let size = size.min(buffer[1] as usize);
        buffer.truncate(2 + size);
        Ok(buffer.split_off(2))
    }

    /// Sets the RSS indirection table; an empty one means the driver's default.
    pub(crate) fn set_indirection(&self, interface: &str, queues: &[u32]) -> io::Result<()> {
        let size = u32::try_from(queues.len()).map_err(io::Error::other)?;
        let mut buffer = vec![ETHTOOL_SRXFHINDIR, size];
        buffer.extend_from_slice(queues);
        // SAFETY: ETHTOOL_SRXFHINDIR reads the header and `size` entries, the buffer's length, and writes
        // nothing.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }
    }

    /// Adds a flow rule behind those that are there, as far as the driver has an order; returns where.
    pub(crate) fn insert_flow(&self, interface: &str, spec: &FlowSpec) -> io::Result<u32> {
        let mut request = RxNfc { cmd: ETHTOOL_SRXCLSRLINS, spec: *spec, ..Zeroable::zeroed() };
        request.spec.location = self.free_location(interface)?;
        // SAFETY: ETHTOOL_SRXCLSRLINS reads and writes one `ethtool_rxnfc`.
        unsafe { self.fixed(interface, &mut request) }?;
        Ok(request.spec.location)
    }

    /// Takes a flow rule away.
    pub(crate) fn delete_flow(&self, interface: &str, location: u32) -> io::Result<()> {
        let mut request = RxNfc { cmd: ETHTOOL_SRXCLSRLDEL, ..Zeroable::zeroed() };
        request.spec.location = location;
        // SAFETY: ETHTOOL_SRXCLSRLDEL reads one `ethtool_rxnfc`.
        unsafe { self.fixed(interface, &mut request) }
    }

    /// The queue to which the rule at this place brings packets.
    pub(crate) fn flow_queue(&self, interface: &str, location: u32) -> io::Result<u32> {
        let mut request = RxNfc { cmd: ETHTOOL_GRXCLSRULE, ..Zeroable::zeroed() };
        request.spec.location = location;
        // SAFETY: ETHTOOL_GRXCLSRULE reads and writes one `ethtool_rxnfc`.
        unsafe { self.fixed(interface, &mut request) }?;
        Ok(request.spec.queue())
    }

    /// Where to put a rule: wherever the driver likes, where it chooses itself, else the last free place,
    /// which is the one of least priority.
    fn free_location(&self, interface: &str) -> io::Result<u32> {
        let mut count = RxNfc { cmd: ETHTOOL_GRXCLSRLCNT, ..Zeroable::zeroed() };
        // SAFETY: ETHTOOL_GRXCLSRLCNT reads and writes one `ethtool_rxnfc`.
        unsafe { self.fixed(interface, &mut count) }?;
        if count.data & u64::from(RX_CLS_LOC_SPECIAL) != 0 {
            return Ok(RX_CLS_LOC_ANY);
        }
        let mut buffer = vec![0_u32; size_of::<RxNfc>() / 4 + count.rule_count as usize];
        buffer[0] = ETHTOOL_GRXCLSRLALL;
        buffer[RULE_COUNT] = count.rule_count;
        // SAFETY: ETHTOOL_GRXCLSRLALL writes one `ethtool_rxnfc` and at most as many locations as it says,
        // from within its last word on: the buffer has room for both.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }?;
        let taken = &buffer[LOCATIONS..];
        let taken = &taken[..taken.len().min(buffer[RULE_COUNT] as usize)];
        // The table's size is in the answer to the second question, in some drivers only there.
        let size: u64 = bytemuck::cast([buffer[2], buffer[3]]);
        let size = u32::try_from(size.max(count.data)).unwrap_or(u32::MAX);
        (0..size)
            .rev()
            .find(|location| !taken.contains(location))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn uapi_layout() {
        assert_eq!(size_of::<FlowSpec>(), 168);
        assert_eq!(offset_of!(FlowSpec, mask), 76);
        assert_eq!(offset_of!(FlowSpec, ring_cookie), 152);
        assert_eq!(offset_of!(FlowSpec, location), 160);
        assert_eq!(size_of::<RxNfc>(), 192);
        assert_eq!(offset_of!(RxNfc, rule_count), 4 * RULE_COUNT);
    }

    #[test]
    fn loopback_steers_nothing() {
        let ethtool = Ethtool::open().unwrap();
        let spec = Zeroable::zeroed();
        for refused in [
            ethtool.indirection("lo").map(drop),
            ethtool.insert_flow("lo", &spec).map(drop),
            ethtool.flow_queue("lo", 0).map(drop),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        }
    }
}
