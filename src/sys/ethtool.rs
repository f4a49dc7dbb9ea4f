//! `SIOCETHTOOL`: channels, ring sizes, the driver's name and offloads.
//!
//! Ioctls rather than ethtool's netlink family, which kernels before 5.6 lack and which asks each
//! of these questions in another way. Sysfs is no substitute: after `setns` it still shows the
//! namespace in which it was mounted.
#![allow(unsafe_code, reason = "ethtool's ioctls take a pointer inside `ifreq`; nix has no call")]

use std::{
    ffi::c_void,
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

use bytemuck::{Pod, Zeroable};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;

/// `struct ethtool_channels`: how many queues there are, and could be.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Channels {
    cmd: u32,
    pub(crate) max_rx: u32,
    pub(crate) max_tx: u32,
    pub(crate) max_other: u32,
    pub(crate) max_combined: u32,
    pub(crate) rx_count: u32,
    pub(crate) tx_count: u32,
    pub(crate) other_count: u32,
    pub(crate) combined_count: u32,
}

/// `struct ethtool_ringparam`: entries of the hardware's descriptor rings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct RingParameters {
    cmd: u32,
    pub(crate) rx_max_pending: u32,
    pub(crate) rx_mini_max_pending: u32,
    pub(crate) rx_jumbo_max_pending: u32,
    pub(crate) tx_max_pending: u32,
    pub(crate) rx_pending: u32,
    pub(crate) rx_mini_pending: u32,
    pub(crate) rx_jumbo_pending: u32,
    pub(crate) tx_pending: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    fw_version: [u8; 32],
    bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_sset_info` with room for the one answer that is asked for.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StringSetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    length: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StringSetHeader {
    cmd: u32,
    string_set: u32,
    len: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FeaturesHeader {
    cmd: u32,
    size: u32,
}

/// `struct ethtool_get_features_block`: 32 features.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FeatureBlock {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_set_features_block`: 32 features.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FeatureChange {
    valid: u32,
    requested: u32,
}

/// One offload, and where its bit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    bit: usize,
    pub(crate) name: String,
    /// In effect now.
    pub(crate) active: bool,
    /// Can be switched by the user.
    pub(crate) changeable: bool,
}

/// A socket that asks, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Ethtool {
    socket: OwnedFd,
}

impl Ethtool {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self { socket })
    }

    /// The name that the interface of this index has now.
    pub(crate) fn name_of(&self, index: u32) -> io::Result<String> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex =
            i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SAFETY: the kernel reads and writes one `ifreq`, ours, and keeps no pointer to it.
        let code = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as libc::Ioctl, &raw mut request)
        };
        nix::errno::Errno::result(code)?;
        Ok(text(bytemuck::cast_slice(&request.ifr_name)))
    }

    /// The driver's name, such as `veth`.
    pub(crate) fn driver(&self, interface: &str) -> io::Result<String> {
        let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, ..Zeroable::zeroed() };
        // SAFETY: ETHTOOL_GDRVINFO writes one `ethtool_drvinfo`.
        unsafe { self.fixed(interface, &mut info) }?;
        Ok(text(&info.driver))
    }

    pub(crate) fn channels(&self, interface: &str) -> io::Result<Channels> {
        let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Zeroable::zeroed() };
        // SAFETY: ETHTOOL_GCHANNELS writes one `ethtool_channels`.
        unsafe { self.fixed(interface, &mut channels) }?;
        Ok(channels)
    }

    pub(crate) fn ring_parameters(&self, interface: &str) -> io::Result<RingParameters> {
        let mut rings = RingParameters { cmd: ETHTOOL_GRINGPARAM, ..Zeroable::zeroed() };
        // SAFETY: ETHTOOL_GRINGPARAM writes one `ethtool_ringparam`.
        unsafe { self.fixed(interface, &mut rings) }?;
        Ok(rings)
    }

    /// Every offload that the kernel knows by name, in the kernel's order.
    pub(crate) fn features(&self, interface: &str) -> io::Result<Vec<Feature>> {
        let names = self.feature_names(interface)?;
        let blocks = names.len().div_ceil(32);
        let mut buffer = vec![0_u32; words::<FeaturesHeader>() + blocks * words::<FeatureBlock>()];
        buffer[0] = ETHTOOL_GFEATURES;
        buffer[1] = count(blocks);
        // SAFETY: ETHTOOL_GFEATURES writes the header and at most `size` blocks: the buffer's length.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }?;
        let blocks: &[FeatureBlock] = bytemuck::cast_slice(&buffer[words::<FeaturesHeader>()..]);
        let set = |mask: u32, bit: usize| mask & (1 << (bit % 32)) != 0;
        Ok(names
            .into_iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
            .map(|(bit, name)| Feature {
                bit,
                name,
                active: set(blocks[bit / 32].active, bit),
                changeable: set(blocks[bit / 32].available, bit),
            })
            .collect())
    }

    /// Asks for these features to be on or off. What came of it, [`features`](Self::features) says:
    /// a driver may refuse quietly.
    pub(crate) fn set_features<'a>(
        &self,
        interface: &str,
        features: impl IntoIterator<Item = &'a Feature>,
        on: bool,
    ) -> io::Result<()> {
        let blocks = self.feature_names(interface)?.len().div_ceil(32);
        let mut changes = vec![FeatureChange::zeroed(); blocks];
        for feature in features {
            let change = changes
                .get_mut(feature.bit / 32)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
            let bit = 1 << (feature.bit % 32);
            change.valid |= bit;
            if on {
                change.requested |= bit;
            }
        }
        let mut buffer = vec![ETHTOOL_SFEATURES, count(blocks)];
        buffer.extend_from_slice(bytemuck::cast_slice(&changes));
        // SAFETY: ETHTOOL_SFEATURES reads the header and `size` blocks, which is the buffer's length,
        // and writes nothing.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }
    }

    fn feature_names(&self, interface: &str) -> io::Result<Vec<String>> {
        let mut info = StringSetInfo {
            cmd: ETHTOOL_GSSET_INFO,
            mask: 1 << ETH_SS_FEATURES,
            ..Zeroable::zeroed()
        };
        // SAFETY: ETHTOOL_GSSET_INFO writes the header and one word per bit set in `mask`, one here.
        unsafe { self.fixed(interface, &mut info) }?;
        if info.mask == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let length = info.length as usize;
        let header = words::<StringSetHeader>();
        let mut buffer = vec![0_u32; header + length * ETH_GSTRING_LEN / size_of::<u32>()];
        buffer[..header].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info.length]);
        // SAFETY: ETHTOOL_GSTRINGS writes the header and as many strings as the set has. The length of
        // this set is a constant of the running kernel, so the buffer holds them all.
        unsafe { self.ioctl(interface, buffer.as_mut_ptr().cast()) }?;
        let strings: &[u8] = bytemuck::cast_slice(&buffer[header..]);
        Ok(strings.chunks_exact(ETH_GSTRING_LEN).map(text).collect())
    }

    /// # Safety
    ///
    /// The first word of `data` is a command that reads and writes no more than a `T`.
    pub(super) unsafe fn fixed<T: Pod>(&self, interface: &str, data: &mut T) -> io::Result<()> {
        // SAFETY: as the caller promises; `data` is exclusively borrowed for the call.
        unsafe { self.ioctl(interface, ptr::from_mut(data).cast()) }
    }

    /// # Safety
    ///
    /// `data` points to writable memory that starts with a command, as long as that command reads
    /// and writes, and nobody else touches it during the call.
    pub(super) unsafe fn ioctl(&self, interface: &str, data: *mut c_void) -> io::Result<()> {
        let mut request = empty_request();
        if interface.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = data.cast();
        // SAFETY: the kernel reads our `ifreq` and, through `data`, what the caller vouches for; it
        // keeps no pointer after the call.
        let code = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        nix::errno::Errno::result(code)?;
        Ok(())
    }
}

fn empty_request() -> libc::ifreq {
    // SAFETY: `ifreq` is integers and pointers, for all of which zero is a value.
    unsafe { std::mem::zeroed() }
}

const fn words<T>() -> usize {
    size_of::<T>() / size_of::<u32>()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a kernel has few features")
}

/// The text before the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uapi_sizes() {
        assert_eq!(size_of::<Channels>(), 36);
        assert_eq!(size_of::<RingParameters>(), 36);
        assert_eq!(size_of::<DriverInfo>(), 196);
        assert_eq!(size_of::<StringSetInfo>(), 24);
        assert_eq!(size_of::<FeatureBlock>(), 16);
    }

    #[test]
    fn text_ends_at_nul_or_at_the_end() {
        assert_eq!(text(b"veth\0junk"), "veth");
        assert_eq!(text(b"full"), "full");
        assert_eq!(text(b""), "");
    }

    #[test]
    fn loopback_has_features_and_no_channels() {
        let ethtool = Ethtool::open().unwrap();
        let features = ethtool.features("lo").unwrap();
        assert!(features.iter().any(|feature| feature.name == "rx-vlan-hw-parse"));
        let refused = ethtool.channels("lo").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(ethtool.name_of(1).unwrap(), "lo");
    }

    #[test]
    fn a_name_too_long_is_no_interface() {
        let refused = Ethtool::open().unwrap().channels("a-name-of-16-by.").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    }
}
