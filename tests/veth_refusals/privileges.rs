//! Capabilities that are missing, and limits that are too low.

use std::{thread, time::Duration};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use xskit::{
    ErrorKind, RingSize, Socket, SocketConfig, Step, Umem, UmemConfig,
    interface::{Deferral, Offload, Promiscuous, restore_stale},
    socket::BusyPoll,
};
use xskit_lab::{Lab, LabConfig, Need};

use crate::bench::{
    Expected, all_free, alone, alone_in_user_namespace, in_turn, keep_capabilities, near,
    nothing_attached, port, refused, rings, umem, works,
};

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

fn expected<'a>(step: Step, kind: ErrorKind, errno: i32, says: &'a [&'a str]) -> Expected<'a> {
    Expected { step, kind, interface: Some("near0"), queue: None, errno: Some(errno), says }
}

/// Runs `work` where the near end is, with no capabilities but these.
fn with_only(lab: &Lab, capabilities: &[u32], work: impl FnOnce() + Send) {
    lab.enter(|| {
        keep_capabilities(capabilities);
        work();
    });
}

const NO_SOCKET: Expected<'_> = Expected {
    step: Step::OpenSocket,
    kind: ErrorKind::Permission,
    interface: Some("near0"),
    queue: Some(0),
    errno: Some(libc::EPERM),
    says: &["CAP_NET_RAW is missing", "run as root"],
};

/// A port opened with these capabilities alone, as the first thing that the process does with BPF.
fn port_with(capabilities: &[u32], expected: &Expected<'_>) {
    let Some(lab) = Lab::for_test() else { return };
    let umem = umem();
    with_only(&lab, capabilities, || expected.is(&refused(|| port(&umem).open())));
    all_free(&umem);
    nothing_attached(&lab);
}

fn no_program<'a>(says: &'a [&'a str]) -> Expected<'a> {
    expected(Step::LoadProgram, ErrorKind::Permission, libc::EPERM, says)
}

#[test]
fn no_capabilities_for_a_port() {
    let _turn = in_turn();
    alone(|| {
        port_with(
            &[],
            &no_program(&["missing CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON:", "run as root"]),
        );
    });
}

#[test]
fn no_capabilities_for_a_socket() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let umem = umem();
        with_only(&lab, &[], || {
            NO_SOCKET.is(&refused(|| Socket::open(&umem, &near(), 0, &rings())));
        });
        all_free(&umem);
    });
}

#[test]
fn no_cap_net_admin_for_busy_polling() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let umem = umem();
        let config = rings().busy_poll(BusyPoll::default());
        with_only(&lab, &[NET_RAW], || {
            let refused = refused(|| Socket::open(&umem, &near(), 0, &config));
            Expected {
                queue: Some(0),
                ..expected(
                    Step::SocketOption,
                    ErrorKind::Permission,
                    libc::EPERM,
                    &["SO_PREFER_BUSY_POLL", "busy poll 20 µs, budget 64", "needs CAP_NET_ADMIN"],
                )
            }
            .is(&refused);
            // The same without it is permitted.
            drop(Socket::open(&umem, &near(), 0, &rings()).unwrap());
        });
    });
}

/// The whole device has to be set where veth has no NAPI instance: that takes both capabilities.
#[test]
fn no_capabilities_for_deferral() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        for (kept, errno, says) in [
            (NET_ADMIN, libc::EPERM, "CAP_SYS_ADMIN and CAP_NET_ADMIN"),
            (SYS_ADMIN, libc::EPERM, "CAP_NET_ADMIN is needed"),
        ] {
            with_only(&lab, &[kept], || {
                let error = refused(|| Deferral::default().apply(&near()));
                expected(Step::Defer, ErrorKind::Permission, errno, &[says]).is(&error);
            });
        }
    });
}

/// Without the right to see the namespace's sysfs, what the kernel lists is set: veth has NAPI instances while
/// a program is attached.
#[test]
fn deferral_without_cap_sys_admin() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        with_only(&lab, &[BPF, NET_ADMIN, NET_RAW, PERFMON], || {
            let port = port(&umem()).open().unwrap();
            let settings = || {
                let napis = near().napis().unwrap();
                assert_eq!(napis.len(), 1);
                (napis[0].defer_hard_irqs, napis[0].gro_flush_timeout)
            };
            let before = (Some(0), Some(Duration::ZERO));
            if settings() != before {
                // Linux before 6.13.
                let error = refused(|| Deferral::default().apply(&near()));
                assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
                return;
            }
            let deferred = Deferral::default().apply(&near()).unwrap();
            assert!(deferred.per_napi());
            assert_eq!(settings(), (Some(2), Some(Duration::from_micros(200))));
            deferred.restore().unwrap();
            assert_eq!(settings(), before);
            // Instances that are gone need nothing.
            let deferred = Deferral::default().apply(&near()).unwrap();
            drop(port);
            deferred.restore().unwrap();
        });
    });
}

#[test]
fn no_cap_net_admin_for_offloads() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        with_only(&lab, &[NET_RAW], || {
            let error = refused(|| Offload::RxVlan.disable(&near()));
            let says = ["receive VLAN offload", "CAP_NET_ADMIN is needed"];
            expected(Step::Offload, ErrorKind::Permission, libc::EPERM, &says).is(&error);
            assert_eq!(
                restore_stale().unwrap(),
                [],
                "nothing was changed, and nothing is written down"
            );
        });
    });
}

#[test]
fn no_cap_net_raw_for_promiscuous_mode() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        with_only(&lab, &[NET_ADMIN], || {
            let error = refused(|| Promiscuous::on(&near()));
            let says = ["CAP_NET_RAW is missing"];
            expected(Step::Steer, ErrorKind::Permission, libc::EPERM, &says).is(&error);
        });
    });
}

#[test]
fn no_cap_bpf() {
    alone(|| port_with(&[NET_ADMIN, NET_RAW, PERFMON], &no_program(&["missing CAP_BPF:"])));
}

#[test]
fn no_cap_net_admin() {
    alone(|| port_with(&[BPF, NET_RAW, PERFMON], &no_program(&["missing CAP_NET_ADMIN:"])));
}

#[test]
fn no_cap_net_raw() {
    alone(|| port_with(&[BPF, NET_ADMIN, PERFMON], &NO_SOCKET));
}

#[test]
fn no_cap_perfmon() {
    let _turn = in_turn();
    alone(|| {
        let no_program = Expected {
            errno: Some(libc::EACCES),
            ..no_program(&["verifier refuses the program", "missing CAP_PERFMON"])
        };
        port_with(&[BPF, NET_ADMIN, NET_RAW], &no_program);
    });
}

#[test]
fn the_capabilities_that_are_enough() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        with_only(&lab, &[BPF, NET_ADMIN, NET_RAW, PERFMON], || {
            let port = port(&umem()).open().unwrap();
            assert!(port.counters().unwrap().redirect_errors.is_some());
        });
        lab.enter(|| works(&lab, &umem(), 0));
    });
}

fn of_bytes(bytes: u64) -> Umem {
    UmemConfig::new(u32::try_from(bytes / 4096).unwrap()).build().unwrap()
}

fn tiny_rings() -> SocketConfig {
    let size = RingSize::new(4).unwrap();
    SocketConfig::default().rx(size).tx(size).fill(size).completion(size)
}

const OVER_THE_LIMIT: &[&str] = &[
    "the kernel does not take the memory",
    "lock 1048576 bytes",
    "RLIMIT_MEMLOCK allows 65536",
    "ulimit -l",
    "CAP_IPC_LOCK",
];

/// More than the lowered limit, then within it, on a socket alone.
fn over_the_limit(lab: &Lab) {
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, hard).unwrap();
    let umem = of_bytes(1 << 20);
    let error = refused(|| Socket::open(&umem, &near(), 0, &tiny_rings()));
    Expected {
        queue: Some(0),
        ..expected(Step::RegisterUmem, ErrorKind::Limit, libc::ENOBUFS, OVER_THE_LIMIT)
    }
    .is(&error);
    all_free(&umem);
    nothing_attached(lab);
    let less = of_bytes(64 << 10);
    drop(Socket::open(&less, &near(), 0, &tiny_rings()).unwrap());
}

#[test]
fn more_than_may_be_locked() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        with_only(&lab, &[NET_RAW], || over_the_limit(&lab));
        // With CAP_IPC_LOCK the limit does not count.
        lab.enter(|| works(&lab, &umem(), 0));
    });
}

/// Root of a user namespace has every capability there, and neither CAP_IPC_LOCK nor CAP_BPF counts.
#[test]
fn root_of_a_user_namespace() {
    let _turn = in_turn();
    alone_in_user_namespace(|| {
        let config = LabConfig { need: Need::Namespaces, ..LabConfig::default() };
        let Some(lab) = Lab::for_test_with(&config) else { return };
        thread::scope(|scope| {
            scope.spawn(|| lab.enter(|| over_the_limit(&lab))).join().unwrap();
        });
        lab.enter(|| {
            let umem = of_bytes(64 << 10);
            let error = refused(|| port(&umem).open());
            let says = &["in a user namespace they do not count for BPF"];
            expected(Step::LoadProgram, ErrorKind::Permission, libc::EPERM, says).is(&error);
            all_free(&umem);
            nothing_attached(&lab);
        });
    });
}
