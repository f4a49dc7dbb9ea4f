//! What happens inside: the init script, and the lines by which it tells.

use super::{cases::Case, qemu::Nic};

/// How lines begin that the verdict is made of.
pub(super) const MARK: &str = "@@xskit";

/// What comes before the interfaces and the cases.
const START: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for folder in /tmp /run; do mount -t tmpfs tmpfs $folder; done
say() { echo "@@xskit $*"; }
say release "$(uname -r)"
for module in /modules/*.ko; do insmod $module || say module $module; done
# The tests' frames shall be the only ones.
for scope in all default; do echo 1 > /proc/sys/net/ipv6/conf/$scope/disable_ipv6; done
ip link set lo up
name() {
    for path in /sys/class/net/*; do
        [ "$(cat $path/address)" = "$2" ] || continue
        ip link set ${path##*/} name $1 && ip link set $1 up && return
    done
    say missing $1
}
run() {
    case=$1 limit=$2
    shift 2
    start=$(cut -d. -f1 /proc/uptime)
    say start $case
    timeout -s KILL $limit "$@" 2>&1
    code=$?
    say end $case $code $(($(cut -d. -f1 /proc/uptime) - start))
}
export RUST_BACKTRACE=0 XSKIT_TEST_REQUIRE=all
export XSKIT_TEST_NICS=virtio0,virtio1 XSKIT_TEST_NICS_QUEUES=two0,two1
export XSKIT_TEST_NICS_NO_RESET=noreset0,noreset1
export XSKIT_TEST_NICS_COPY_ONLY=vmxnet0"#;

/// How a harness runs its tests.
const HARNESS: [&str; 2] = ["--test-threads=1", "--nocapture"];

/// The process 1 of the guest: loads the modules, names the interfaces, runs the cases and ends. What has no
/// harness takes these arguments.
pub(super) fn init(nics: &[Nic], cases: &[&Case], arguments: &[&str]) -> String {
    let name = |nic: &Nic| format!("name {} {}", nic.name, nic.mac());
    let run = |case: &&Case| {
        let Case { name, target, filters, seconds, .. } = case;
        let arguments = if case.harness { &HARNESS[..] } else { arguments };
        let arguments = [filters, arguments].concat().join(" ");
        format!("run {name} {seconds} /tests/deps/{target} {arguments}")
    };
    let end = ["say done".to_owned(), "poweroff -f\n".to_owned()];
    let lines = [START.to_owned()].into_iter().chain(nics.iter().map(name));
    lines.chain(cases.iter().map(run)).chain(end).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{cases, qemu};

    #[test]
    fn every_interface_is_named_and_every_case_is_run() {
        let cases = cases::chosen(&[]).unwrap();
        let script = init(qemu::NICS, &cases, &[]);
        let lines: Vec<_> = script.lines().collect();
        for nic in qemu::NICS {
            assert!(
                lines.contains(&format!("name {} {}", nic.name, nic.mac()).as_str()),
                "{nic:?}"
            );
            let lent = |line: &&str| line.starts_with("export") && line.contains(nic.name);
            assert!(lines.iter().any(lent), "{} is lent to nobody", nic.name);
        }
        for case in cases {
            let run = format!("run {} ", case.name);
            let line = lines.iter().find(|line| line.starts_with(&run)).expect(case.name);
            assert!(line.ends_with(" --test-threads=1 --nocapture"), "{line}");
        }
        let bench = Case { harness: false, ..Case::new("b", "bench", &[], &[], (0, 0)) };
        let script = init(qemu::NICS, &[&bench], &["--json"]);
        assert!(script.contains("\nrun b 400 /tests/deps/bench --json\n"), "{script}");
        assert_eq!(lines.last(), Some(&"poweroff -f"));
        assert!(lines.iter().any(|line| line.contains(&format!("echo \"{MARK} "))));
    }
}
