//! NUMA nodes: which there are, at which a device is, and memory that prefers one.
//!
//! Nodes and devices are not those of a network namespace, unlike interfaces: any mount of sysfs shows
//! them all.

use std::{fs, io, path::Path};

use super::mapping::Mapping;

/// The highest number of a node in any kernel (`CONFIG_NODES_SHIFT` is 10 at most).
const MAX_NODE: u32 = 1023;

const MPOL_PREFERRED: libc::c_int = 1;

/// Where sysfs is mounted.
pub(crate) const SYSFS: &str = "/sys";

/// The nodes that have memory. `None` where the kernel knows nothing of nodes, or sysfs is not there.
pub(crate) fn nodes(sysfs: &Path) -> Option<Vec<u32>> {
    let list = fs::read_to_string(sysfs.join("devices/system/node/has_memory")).ok()?;
    parse_list(list.trim())
}

/// A list of numbers as the kernel writes them: `0-1,4`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last > MAX_NODE {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The node at which a device of a bus is: its own, or that of what it is plugged into, as a virtio
/// device into a PCI slot. `None` where that is told of none of them.
pub(crate) fn node_of(sysfs: &Path, bus: &str, device: &str) -> Option<u32> {
    let devices = sysfs.join("devices").canonicalize().ok()?;
    let device = sysfs.join(format!("bus/{bus}/devices/{device}")).canonicalize().ok()?;
    let node = device
        .ancestors()
        .take_while(|path| path.starts_with(&devices))
        .find_map(|path| fs::read_to_string(path.join("numa_node")).ok())?;
    // -1 where the firmware does not say.
    node.trim().parse().ok()
}

/// Has memory that nobody has touched yet come from this node, as long as it has any.
pub(crate) fn prefer(mapping: &Mapping, node: u32) -> io::Result<()> {
    if node > MAX_NODE {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0_u64; MAX_NODE as usize / 64 + 1];
    mask[node as usize / 64] |= 1 << (node % 64);
    // The kernel takes one bit less than it is told.
    let bits = mask.len() * 64 + 1;
    // SAFETY: the range is that of a mapping of ours, whose content the call does not touch; the mask
    // lives through the call, which only reads it, and has as many bits as said but for the last, which
    // the kernel leaves out.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.start().as_ptr(),
            mapping.len(),
            MPOL_PREFERRED,
            mask.as_ptr(),
            bits,
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::fs::symlink, path::PathBuf, process};

    use super::*;

    /// A sysfs of our own, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = env::temp_dir().join(format!("xskit-numa-{name}-{}", process::id()));
            fs::create_dir_all(root.join("devices/system/node")).unwrap();
            Self(root)
        }

        fn with(self, file: &str, content: &str) -> Self {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        /// A device of a bus, by its place among all devices.
        fn with_device(self, bus: &str, path: &str) -> Self {
            let device = self.0.join("devices").join(path);
            let links = self.0.join(format!("bus/{bus}/devices"));
            fs::create_dir_all(&device).unwrap();
            fs::create_dir_all(&links).unwrap();
            symlink(&device, links.join(device.file_name().unwrap())).unwrap();
            self
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn nodes_are_those_with_memory() {
        let root = Root::new("nodes").with("devices/system/node/has_memory", "0-2,5\n");
        assert_eq!(nodes(&root.0), Some(vec![0, 1, 2, 5]));
        assert_eq!(nodes(&root.0.join("nowhere")), None);
        for nonsense in ["", "x", "1-", "0-4294967295"] {
            assert_eq!(parse_list(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_device_is_at_its_own_node_or_at_that_of_its_slot() {
        let root = Root::new("devices")
            .with_device("pci", "pci0000:80/0000:80:01.0")
            .with("devices/pci0000:80/0000:80:01.0/numa_node", "1\n")
            .with_device("virtio", "pci0000:80/0000:80:01.0/virtio0")
            .with_device("pci", "pci0000:00/0000:00:02.0")
            .with("devices/pci0000:00/0000:00:02.0/numa_node", "-1\n")
            .with_device("platform", "platform/ethernet")
            // Outside of the devices: of no meaning.
            .with("numa_node", "3\n");
        let of = |bus, device| node_of(&root.0, bus, device);
        assert_eq!(of("pci", "0000:80:01.0"), Some(1));
        assert_eq!(of("virtio", "virtio0"), Some(1));
        assert_eq!(of("pci", "0000:00:02.0"), None, "the firmware does not say");
        assert_eq!(of("platform", "ethernet"), None);
        assert_eq!(of("pci", "0000:ff:00.0"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no mbind")]
    fn a_node_that_no_kernel_can_have_is_refused() {
        let mapping = Mapping::anonymous(4096, false).unwrap();
        for node in [MAX_NODE, MAX_NODE + 1, u32::MAX] {
            assert_eq!(prefer(&mapping, node).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
