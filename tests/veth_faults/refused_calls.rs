//! Each system call of opening refused in turn, with what a kernel says that is out of memory: by a filter on
//! the thread that opens.

use std::{collections::BTreeMap, env::consts::ARCH};

use libc::{MAP_POPULATE, MAP_SHARED, SOL_SOCKET, SOL_XDP};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use xskit::{ErrorKind, Port, QueueId, Result, Step};
use xskit_lab::LabConfig;

use crate::{
    after::nothing_is_left,
    bench::{alone, near, nothing_attached, port},
    census::Census,
    support::{adds_up, comes_home},
};

/// A system call with these values of these arguments, counted from 0.
struct Call<'a>(i64, &'a [(u8, u64)]);

/// Runs `work` on a thread of the calling one's namespace to which such calls answer with this errno.
fn refusing<T: Send>(call: &Call<'_>, errno: i32, work: impl FnOnce() -> T + Send) -> T {
    let conditions = call.1.iter().map(|(argument, value)| {
        let equal = SeccompCmpOp::Eq;
        // What is passed as an int has nothing in the upper half that counts.
        let length = match u32::try_from(*value) {
            Ok(_) if call.0 != libc::SYS_mmap => SeccompCmpArgLen::Dword,
            _ => SeccompCmpArgLen::Qword,
        };
        SeccompCondition::new(*argument, length, equal, *value).unwrap()
    });
    let rule = SeccompRule::new(conditions.collect()).unwrap();
    let filter: BpfProgram = SeccompFilter::new(
        BTreeMap::from([(call.0, vec![rule])]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        ARCH.try_into().unwrap(),
    )
    .unwrap()
    .try_into()
    .unwrap();
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                apply_filter(&filter).unwrap();
                work()
            })
            .join()
            .unwrap()
    })
}

fn option(call: i64, level: i32, name: i32) -> (i64, [(u8, u64); 2]) {
    (call, [(1, u64::from(level.unsigned_abs())), (2, u64::from(name.unsigned_abs()))])
}

fn mapping(offset: u64) -> (i64, [(u8, u64); 2]) {
    (libc::SYS_mmap, [(3, u64::from((MAP_SHARED | MAP_POPULATE).unsigned_abs())), (5, offset)])
}

fn is_of_a_socket(step: Step) -> bool {
    !matches!(step, Step::Interface | Step::LoadProgram | Step::Map | Step::AttachProgram)
}

/// Opening with this call refused fails at this step, or works without it; then nothing is left.
fn every_one(calls: &[(Call<'_>, i32, Option<Step>)]) {
    nothing_is_left(&LabConfig { queues: 2, ..LabConfig::default() }, |lab, umem| {
        let before = Census::take();
        for (call, errno, fails_at) in calls {
            let name = format!("system call {} {:?}", call.0, call.1);
            let opened: Result<Port> = refusing(call, *errno, || port(umem).open());
            match (opened, fails_at) {
                (Err(error), Some(step)) => {
                    assert_eq!(
                        (error.step(), error.kind()),
                        (*step, ErrorKind::Limit),
                        "{name}: {error}"
                    );
                    assert_eq!(error.raw_os_error(), Some(*errno), "{name}: {error}");
                    assert_eq!(error.interface(), Some("near0"), "{name}: {error}");
                    // Of a socket's own steps.
                    let queue = is_of_a_socket(*step).then_some(QueueId::new(0));
                    assert_eq!(error.queue(), queue, "{name}: {error}");
                }
                (Ok(port), None) => drop(port),
                (Ok(_), Some(step)) => panic!("{name}: opened, and not refused at {step:?}"),
                (Err(error), None) => panic!("{name}: {error}"),
            }
            before.is_unchanged();
            nothing_attached(lab);
            adds_up(umem);
            comes_home(umem, &[(&near(), 0), (&near(), 1)]);
        }
    });
}

#[test]
fn of_a_socket() {
    const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
    alone(|| {
        let socket = |domain: i32| (libc::SYS_socket, [(0, u64::from(domain.unsigned_abs()))]);
        let set = |name| option(libc::SYS_setsockopt, SOL_XDP, name);
        let get = |name| option(libc::SYS_getsockopt, SOL_XDP, name);
        let pairs = [
            (set(libc::XDP_UMEM_REG), Step::RegisterUmem),
            (set(libc::XDP_RX_RING), Step::MapRings),
            (set(libc::XDP_TX_RING), Step::MapRings),
            (set(libc::XDP_UMEM_FILL_RING), Step::MapRings),
            (set(libc::XDP_UMEM_COMPLETION_RING), Step::MapRings),
            (get(libc::XDP_MMAP_OFFSETS), Step::MapRings),
            (mapping(0), Step::MapRings),
            (mapping(0x8000_0000), Step::MapRings),
            (mapping(0x1_0000_0000), Step::MapRings),
            (mapping(0x1_8000_0000), Step::MapRings),
            (option(libc::SYS_getsockopt, SOL_SOCKET, libc::SO_SNDBUF), Step::SocketOption),
            (get(libc::XDP_OPTIONS), Step::Statistics),
        ];
        let mut calls: Vec<(Call<'_>, i32, Option<Step>)> = pairs
            .iter()
            .map(|((call, arguments), step)| (Call(*call, arguments), libc::ENOMEM, Some(*step)))
            .collect();
        let (call, arguments) = socket(libc::AF_NETLINK);
        calls.push((Call(call, &arguments), libc::ENOMEM, Some(Step::Interface)));
        let (call, arguments) = socket(libc::AF_XDP);
        calls.push((Call(call, &arguments), libc::ENFILE, Some(Step::OpenSocket)));
        // Both ways of setting the send buffer.
        let socket_level = [(1, u64::from(SOL_SOCKET.unsigned_abs()))];
        let buffer = Call(libc::SYS_setsockopt, &socket_level);
        calls.push((buffer, libc::ENOMEM, Some(Step::SocketOption)));
        // An address of netlink is shorter.
        let length = u64::try_from(size_of::<libc::sockaddr_xdp>()).unwrap();
        let bind = [(2, length)];
        calls.push((Call(libc::SYS_bind, &bind), libc::ENOMEM, Some(Step::Bind)));
        let dontfork = [(2, u64::from(libc::MADV_DONTFORK.unsigned_abs()))];
        calls.push((Call(libc::SYS_madvise, &dontfork), libc::ENOMEM, Some(Step::MapRings)));
        // A call to send takes less at once then.
        let (call, arguments) = set(XDP_MAX_TX_SKB_BUDGET);
        calls.push((Call(call, &arguments), libc::ENOPROTOOPT, None));
        every_one(&calls);
    });
}

#[test]
fn of_a_program() {
    const MAP_CREATE: u64 = 0;
    const MAP_UPDATE_ELEM: u64 = 2;
    const PROG_LOAD: u64 = 5;
    const OBJ_GET_INFO_BY_FD: u64 = 15;
    const RAW_TRACEPOINT_OPEN: u64 = 17;
    const LINK_CREATE: u64 = 28;
    alone(|| {
        let arguments = [
            (MAP_CREATE, libc::ENOMEM, Some(Step::LoadProgram)),
            (MAP_UPDATE_ELEM, libc::ENOMEM, Some(Step::LoadProgram)),
            (PROG_LOAD, libc::ENOMEM, Some(Step::LoadProgram)),
            (OBJ_GET_INFO_BY_FD, libc::ENOMEM, Some(Step::Map)),
            (RAW_TRACEPOINT_OPEN, libc::ENOMEM, Some(Step::LoadProgram)),
            // The counter of failed redirects is what not everybody may have.
            (RAW_TRACEPOINT_OPEN, libc::EPERM, None),
            (LINK_CREATE, libc::ENOMEM, Some(Step::AttachProgram)),
        ]
        .map(|(command, errno, step)| ([(0, command)], errno, step));
        let calls: Vec<_> = arguments
            .iter()
            .map(|(arguments, errno, step)| (Call(libc::SYS_bpf, arguments), *errno, *step))
            .collect();
        every_one(&calls);
    });
}
