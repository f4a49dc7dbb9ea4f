//! A process that is stopped in the middle of traffic, and continued.

use nix::sys::signal::Signal;
use xskit::{ErrorKind, Step};
use xskit_lab::{Checker, Lab, LabConfig, Numbered, RawPort};

use crate::{
    after::nothing_is_left,
    bench::{alone, port},
    census::are_gone,
    child::{Child, RX, Role},
    support::{MOMENT, PORT, collect, eventually, to_near},
};

/// What the child sends back of [`to_near`].
fn back(lab: &Lab) -> Checker {
    Checker::new(Numbered::new(lab.flow(PORT).reflected(), 200, 1))
}

fn send(raw: &RawPort, lab: &Lab, numbers: impl Iterator<Item = u64>) {
    let series = to_near(lab, 200);
    let frames: Vec<_> = numbers.map(|number| series.frame(number)).collect();
    raw.send_all(&frames).unwrap();
}

#[test]
fn and_continued() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut raw = lab.raw().unwrap();
            let child = Child::start(Role::Reflects);
            child.says("traffic");
            let objects = child.objects();
            for _ in 0..5 {
                let mut checker = back(lab);
                send(&raw, lab, 0..RX);
                collect(&mut raw, &mut checker, RX);
                assert!(checker.tally().is_perfect(RX), "{:?}", checker.tally());

                child.signal(Signal::SIGSTOP);
                eventually("it stops", || child.state() == 'T');
                send(&raw, lab, RX..RX * 5);
                assert_eq!(raw.recv_each(MOMENT, |_| ()).unwrap(), 0, "it is stopped");
                // The interface is still its own.
                let error = port(umem).open().unwrap_err();
                assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::Busy));

                // What its ring had room for waits, the oldest first; what came later was dropped.
                child.signal(Signal::SIGCONT);
                collect(&mut raw, &mut checker, RX);
                assert!(checker.tally().is_perfect(2 * RX), "{:?}", checker.tally());
                assert_eq!(raw.recv_each(MOMENT, |_| ()).unwrap(), 0);
            }
            child.end();
            are_gone(&objects);
        });
    });
}

#[test]
fn and_killed() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, _| {
            let raw = lab.raw().unwrap();
            let child = Child::start(Role::Reflects);
            child.says("traffic");
            let objects = child.objects();
            assert!(!objects.is_empty());
            child.signal(Signal::SIGSTOP);
            send(&raw, lab, 0..RX * 5);
            child.kill();
            are_gone(&objects);
        });
    });
}
