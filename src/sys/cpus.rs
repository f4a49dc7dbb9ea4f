//! The machine's CPUs, by the numbers that the kernel gives them.

use std::fs;

use nix::sys::utsname::uname;

/// The CPUs that are online, as a list such as `0-3,5`; `None` where sysfs is not to be seen.
pub(crate) fn online() -> Option<String> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(list.trim().to_owned())
}

/// The CPUs of a list such as `0-3,5`.
pub(crate) fn in_list(list: &str) -> Option<Vec<u32>> {
    /// More CPUs than any kernel is built for: a range beyond is no list of CPUs.
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        cpus.extend((to < MOST).then_some(from..=to)?);
    }
    Some(cpus)
}

/// Major and minor version of the running kernel.
pub(crate) fn kernel_version() -> Option<(u32, u32)> {
    version(uname().ok()?.release().to_str()?)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(in_list("0-3,5\n"), Some(vec![0, 1, 2, 3, 5]));
        assert_eq!(in_list("7\n"), Some(vec![7]));
        assert_eq!(in_list("\n"), Some(vec![]));
        assert_eq!(in_list("3-1"), Some(vec![]));
        for nonsense in ["a", "1-", "-1", "0-4294967295", "1;2"] {
            assert_eq!(in_list(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn versions_of_any_make() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.4-rc1"), Some((5, 4)));
        assert_eq!(version("5.14.0-427.el9.x86_64"), Some((5, 14)));
        assert_eq!(version("linux"), None);
        assert!(kernel_version().is_some_and(|version| version > (3, 0)));
    }

    #[test]
    fn what_is_online_is_a_list() {
        if let Some(list) = online() {
            assert!(in_list(&list).is_some_and(|cpus| !cpus.is_empty()), "{list}");
        }
    }
}
