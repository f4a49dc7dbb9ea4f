//! MTUs that change under an open port.

use xskit::{AttachMode, Interest, Socket, Umem};
use xskit_lab::{Checker, Lab, LabConfig};

use crate::{
    after::nothing_is_left,
    bench::alone,
    support::{
        MOMENT, adds_up, collect, eventually, frames, near, receive, send, settle, to_far, to_near,
    },
};

/// Frames of this length go both ways, all of them.
#[track_caller]
fn flows(lab: &Lab, socket: &mut Socket, length: usize) {
    let mut raw = lab.raw().unwrap();
    let series = to_near(lab, length);
    raw.send_all(&frames(&series, 100)).unwrap();
    let mut checker = Checker::new(series);
    receive(socket, &mut checker, 100, 64);
    assert!(checker.tally().is_perfect(100), "{:?}", checker.tally());
    let series = to_far(lab, length);
    send(socket, &series, 0..100, 64);
    let mut checker = Checker::new(series);
    collect(&mut raw, &mut checker, 100);
    assert!(checker.tally().is_perfect(100), "{:?}", checker.tally());
    settle(socket);
}

fn open(umem: &Umem, mode: AttachMode) -> (xskit::Port, Socket) {
    let mut port =
        near().umem(umem).socket(crate::support::rings(256)).attach(mode).open().unwrap();
    let socket = port.take_queue(0).unwrap();
    (port, socket)
}

#[test]
fn a_smaller_one_and_back() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            for mode in [AttachMode::Native, AttachMode::Generic] {
                let (port, mut socket) = open(umem, mode);
                flows(lab, &mut socket, 1514);

                // At the peer: what is longer is dropped there, as the kernel tells the sender.
                lab.far.set_mtu(500).unwrap();
                let before = socket.statistics().unwrap();
                send(&mut socket, &to_far(lab, 1514), 0..100, 64);
                settle(&mut socket);
                let after = socket.statistics().unwrap();
                assert_eq!(after.tx_dropped - before.tx_dropped, 100, "{after:?}");
                flows(lab, &mut socket, 500);
                lab.far.set_mtu(1500).unwrap();
                flows(lab, &mut socket, 1514);

                // At our own end: what is longer does not arrive.
                lab.near.set_mtu(500).unwrap();
                let raw = lab.raw().unwrap();
                drop(raw.send(&to_near(lab, 1514).frame(0)));
                assert!(socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
                flows(lab, &mut socket, 500);
                lab.near.set_mtu(1500).unwrap();
                flows(lab, &mut socket, 1514);
                adds_up(umem);
                drop((socket, port));
            }
        });
    });
}

#[test]
fn a_larger_one_is_refused_or_its_packets_are_counted() {
    const JUMBO: u32 = 9000;
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            // A native program without frags: what it could not take cannot be sent to it.
            let (port, mut socket) = open(umem, AttachMode::Native);
            let error = lab.far.set_mtu(JUMBO).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
            flows(lab, &mut socket, 1514);
            drop((socket, port));

            let (port, mut socket) = open(umem, AttachMode::Generic);
            lab.far.set_mtu(JUMBO).unwrap();
            lab.near.set_mtu(JUMBO).unwrap();
            let raw = lab.raw().unwrap();
            raw.send_all(&frames(&to_near(lab, 9000), 50)).unwrap();
            eventually("the kernel counts what fits no frame", || {
                socket.statistics().unwrap().kernel.rx_dropped == 50
            });
            assert!(socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
            flows(lab, &mut socket, 1514);
            adds_up(umem);
            drop((socket, port));
            lab.far.set_mtu(1500).unwrap();
            lab.near.set_mtu(1500).unwrap();
        });
    });
}
