//! The limit on locked memory, reached by a process that has sockets already.
//!
//! What one socket alone may not lock is among the refusals.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use xskit::{ErrorKind, Socket, Step, Umem, UmemConfig};
use xskit_lab::LabConfig;

use crate::{
    after::nothing_is_left,
    bench::{Expected, all_free, alone, in_turn, keep_capabilities, near, port, rings, sends},
    census::Held,
};

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Enough for one UMEM and not for two. The kernel counts for the user, in all processes, so that there
/// is room for what a few others lock without the capability.
const LIMIT: u64 = 8 << 20;
const UMEM: u32 = 5 << 20;

fn umem() -> Umem {
    UmemConfig::new(UMEM / 4096).build().unwrap()
}

fn is_over_the_limit(error: &xskit::Error, queue: u32) {
    Expected {
        step: Step::RegisterUmem,
        kind: ErrorKind::Limit,
        interface: Some("near0"),
        queue: Some(queue),
        errno: Some(libc::ENOBUFS),
        says: &["lock 5242880 bytes", "RLIMIT_MEMLOCK allows 8388608", "CAP_IPC_LOCK"],
    }
    .is(error);
}

#[test]
fn reached_while_a_port_works() {
    let _turn = in_turn();
    alone(|| {
        nothing_is_left(&LabConfig { queues: 2, ..LabConfig::default() }, |lab, _| {
            let mut far = lab.raw().unwrap();
            keep_capabilities(&[BPF, NET_ADMIN, NET_RAW, PERFMON]);
            let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
            setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT, hard).unwrap();
            let (first, second) = (umem(), umem());
            let mut open = port(&first).queues([0]).open().unwrap();
            let mut socket = open.take_queue(0).unwrap();
            sends(lab, &mut socket, &mut far);

            // Other memory, and the same memory in another mode: either is locked once more.
            let before = Held::now();
            let other = || Socket::open(&second, &near(), 1, &rings());
            let mode = || Socket::open(&first, &near(), 1, &rings().need_wakeup(false));
            for _ in 0..3 {
                is_over_the_limit(&other().unwrap_err(), 1);
                is_over_the_limit(&mode().unwrap_err(), 1);
                before.is_unchanged();
                all_free(&second);
                sends(lab, &mut socket, &mut far);
            }
            // The same memory in the same mode is not.
            drop(Socket::open(&first, &near(), 1, &rings()).unwrap());

            // With what is given back, the next one opens: a port that fails before leaves nothing.
            drop((socket, open));
            let mut open = port(&second).queues([0]).open().unwrap();
            let mut socket = open.take_queue(0).unwrap();
            sends(lab, &mut socket, &mut far);
        });
    });
}
