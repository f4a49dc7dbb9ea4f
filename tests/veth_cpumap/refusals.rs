//! What cannot be is refused in words.

use xskit::{AttachMode, Error, ErrorKind, Port, Step, program::StackCpus};
use xskit_lab::{Lab, XdpAction, cpumap_program, interface_program};

use crate::support::near;

#[track_caller]
fn refused(result: xskit::Result<Port>, kind: ErrorKind, words: &[&str]) {
    let error: Error = result.unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::StackCpus, kind), "{error}");
    for words in words {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(error.to_string().contains("near0"), "{error}");
}

#[test]
fn cpus_and_queues_that_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let open = |cpus: StackCpus| near().stack_cpus(cpus).open();
        refused(open(StackCpus::new([])), ErrorKind::InvalidInput, &["no CPUs"]);
        refused(
            open(StackCpus::new([0, 4095])),
            ErrorKind::NotFound,
            &["CPU 4095", "online are 0"],
        );
        refused(open(StackCpus::new([1, 1])), ErrorKind::InvalidInput, &["CPU 1 is named twice"]);
        for size in [0, 16385] {
            let cpus = StackCpus::new([0]).queue_size(size);
            refused(open(cpus), ErrorKind::InvalidInput, &["1 to 16384"]);
        }
        assert_eq!(lab.near.xdp_program().unwrap(), None);
        drop(open(StackCpus::new([0]).queue_size(16384)).unwrap());
    });
}

#[test]
fn second_programs_of_the_wrong_kind() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let words = ["second program", "xdp/cpumap", "frags"];
        for mode in [AttachMode::Native, AttachMode::Generic] {
            for (port_frags, program) in [
                (false, interface_program(XdpAction::Pass)),
                (false, cpumap_program(XdpAction::Pass, true)),
                (true, cpumap_program(XdpAction::Pass, false)),
                // No program at all.
                (false, std::fs::File::open("/dev/null").map(Into::into)),
            ] {
                let cpus = StackCpus::new([0]).program(program.unwrap());
                let result = near().attach(mode).frags(port_frags).stack_cpus(cpus).open();
                refused(result, ErrorKind::InvalidInput, &words);
                assert_eq!(lab.near.xdp_program().unwrap(), None);
            }
        }
    });
}
