//! The kernel's threads for other CPUs, which are the whole machine's to see: in a process of its own. Needs
//! root; says so and skips where it is not.

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeSet, fs};

use xskit::Rules;
use xskit_lab::Lab;

use self::support::{eventually, near};

/// Such as `cpumap/1/map:42`.
fn threads() -> BTreeSet<String> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|process| fs::read_to_string(process.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("cpumap/"))
        .collect()
}

#[test]
fn they_live_as_long_as_the_program() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let before = threads();
        let port = near().stack_cpus([0, 1]).open().unwrap();
        let ours: BTreeSet<String> = threads().difference(&before).cloned().collect();
        assert_eq!(ours.len(), 2, "{ours:?}");
        port.set_rules(&Rules::all()).unwrap();
        assert!(threads().is_superset(&ours), "an exchange of rules keeps them: {ours:?}");
        drop(port);
        eventually("they end", || threads().is_disjoint(&ours));
    });
}
