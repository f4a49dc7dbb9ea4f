//! The limit on descriptors, met by each step in turn.

use std::{fmt, time::Duration};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use xskit::{
    AttachMode, ErrorKind, Interest, Program, ProgramOptions, Result, Rules, Socket, Step,
    interface::{self, Deferral, Promiscuous},
};
use xskit_lab::{LabConfig, Offload};

use crate::{
    after::nothing_is_left,
    bench::{PORT, alone, near, nothing_attached, port, receives, rings, sends},
    census::{Census, Held},
    support::{adds_up, comes_home},
};

/// Runs `work` with no descriptor of this number or a higher one to be had.
fn below<T>(limit: u64, work: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    let result = work();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    result
}

/// Tries with one descriptor more each time until it is enough. Every attempt before fails aloud, and leaves
/// nothing. Returns the reasons, each once, and what was opened at last.
#[track_caller]
fn one_more_each_time<T: fmt::Debug>(
    mut attempt: impl FnMut() -> Result<T>,
    after: impl Fn(),
) -> (Vec<(Step, String)>, T) {
    let before = Census::take();
    let mut reasons = Vec::new();
    for limit in 0..100 {
        let error = match below(limit, &mut attempt) {
            Ok(opened) => return (reasons, opened),
            Err(error) => error,
        };
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Limit, "{limit}: {text}");
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{limit}: {text}");
        assert!(text.starts_with(&error.step().to_string()), "{text}");
        assert!(text.ends_with("raise RLIMIT_NOFILE (ulimit -n)"), "{text}");
        before.is_unchanged();
        after();
        let reason = (error.step(), text);
        if reasons.last() != Some(&reason) {
            reasons.push(reason);
        }
    }
    panic!("100 descriptors are not enough: {reasons:#?}");
}

/// The steps that failed, without repetitions.
fn steps(reasons: &[(Step, String)]) -> Vec<Step> {
    let mut steps: Vec<Step> = reasons.iter().map(|(step, _)| *step).collect();
    steps.dedup();
    steps
}

#[test]
fn a_port_of_two_queues() {
    alone(|| {
        nothing_is_left(&LabConfig { queues: 2, ..LabConfig::default() }, |lab, umem| {
            let config = port(umem).promiscuous(true).defer_interrupts(Deferral::default());
            let nothing_attached = || {
                nothing_attached(lab);
                adds_up(umem);
            };
            let (reasons, port) = one_more_each_time(|| config.clone().open(), nothing_attached);
            // These take more descriptors at a time than the steps that follow each.
            let expected = [
                Step::Interface,
                Step::LoadProgram,
                Step::Interface,
                Step::Defer,
                Step::Interface,
                Step::Defer,
            ];
            assert_eq!(steps(&reasons), expected, "{reasons:#?}");
            assert!(port.counters().unwrap().redirect_errors.is_some());
            drop(port);
            comes_home(umem, &[(&near(), 0), (&near(), 1)]);
        });
    });
}

#[test]
fn a_socket_and_one_that_shares_its_queue() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |_, umem| {
            let interface = near();
            let open = || Socket::open(umem, &interface, 0, &rings());
            let (reasons, mut socket) = one_more_each_time(open, || adds_up(umem));
            assert_eq!(steps(&reasons), [Step::Interface], "{reasons:#?}");
            let (reasons, sharing) =
                one_more_each_time(|| socket.share_queue(&rings()), || adds_up(umem));
            assert_eq!(steps(&reasons), [Step::Interface], "{reasons:#?}");
            drop((socket, sharing));
            let (reasons, unbound) = one_more_each_time(|| Socket::unbound(&interface), || ());
            assert_eq!(steps(&reasons), [Step::OpenSocket], "{reasons:#?}");
            drop(unbound);
        });
    });
}

/// It opens with all that it has, or not at all: the counter of failed redirects is not left out.
#[test]
fn a_program() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, _| {
            let interface = near();
            let options = ProgramOptions::default();
            let attach = || {
                Program::attach(&interface, &Rules::udp_port(PORT), AttachMode::Native, &options)
            };
            let (reasons, program) = one_more_each_time(attach, || {
                nothing_attached(lab);
            });
            assert_eq!(steps(&reasons), [Step::LoadProgram], "{reasons:#?}");
            assert!(program.counters().unwrap().redirect_errors.is_some());
        });
    });
}

#[test]
fn a_change_of_an_interface() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, _| {
            let interface = near();
            let (reasons, guard) = one_more_each_time(|| Promiscuous::on(&interface), || ());
            assert_eq!(steps(&reasons), [Step::Steer], "{reasons:#?}");
            drop(guard);
            lab.near.set_offload(Offload::TxChecksum, true).unwrap();
            let (reasons, guard) =
                one_more_each_time(|| interface::Offload::TxChecksum.disable(&interface), || ());
            assert_eq!(steps(&reasons), [Step::Offload], "{reasons:#?}");
            drop(guard);
            assert!(lab.near.offload(Offload::TxChecksum).unwrap());
            lab.near.set_offload(Offload::TxChecksum, false).unwrap();
        });
    });
}

/// A port that is open needs no more descriptors to receive, send, wait and count.
#[test]
fn none_left_for_an_open_port() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut far = lab.raw().unwrap();
            let mut port = port(umem).open().unwrap();
            let mut socket = port.take_queue(0).unwrap();
            let before = Held::now();
            // All up to there are in use.
            below(3, || {
                for _ in 0..3 {
                    sends(lab, &mut socket, &mut far);
                    receives(lab, &mut socket, &far);
                    let time = Duration::from_millis(600);
                    assert!(socket.wait(Interest::READABLE, time).unwrap().timed_out());
                    assert!(socket.statistics().unwrap().received > 0);
                }
                // To read counters of every CPU takes a file that says how many there are.
                let error = port.snapshot().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
                assert_eq!(error.interface(), Some("near0"), "{error}");
                let error = port.set_rules(&Rules::none()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
                let error = socket.share_queue(&rings()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
                // The old rules hold.
                receives(lab, &mut socket, &far);
            });
            assert_eq!(port.snapshot().unwrap().sockets.len(), 1);
            before.is_unchanged();
            drop(socket.share_queue(&rings()).unwrap());
            port.set_rules(&Rules::udp_port(PORT)).unwrap();
            receives(lab, &mut socket, &far);
        });
    });
}
