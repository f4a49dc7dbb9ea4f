//! Somebody else who wants the interface's place for a program: refused, or with the means of an administrator.

use xskit::{ErrorKind, Interest, Port, Rules, Socket, Step, Umem};
use xskit_lab::{
    Lab, LabConfig, RawPort, XdpAction, XdpMode, detach_bpf_link, replace_in_bpf_link,
};

use crate::{
    after::nothing_is_left,
    bench::{alone, port, receives, sends},
    census::own_xdp_link,
    support::{MOMENT, PORT},
};

fn open(umem: &Umem) -> (Port, Socket) {
    let mut port = port(umem).open().unwrap();
    let socket = port.take_queue(0).unwrap();
    (port, socket)
}

/// Both ways work.
#[track_caller]
fn works(lab: &Lab, socket: &mut Socket, far: &mut RawPort) {
    sends(lab, socket, far);
    receives(lab, socket, far);
}

/// Sending works, and nothing is received, without any error.
#[track_caller]
fn is_cut_off(lab: &Lab, socket: &mut Socket, far: &mut RawPort) {
    far.send(&lab.flow(PORT).frame(b"of more than 60 bytes, headers included")).unwrap();
    assert!(socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
    sends(lab, socket, far);
}

#[test]
fn by_netlink_it_cannot_be_replaced() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut far = lab.raw().unwrap();
            let (port, mut socket) = open(umem);
            let ours = lab.near.xdp_program().unwrap();
            for error in [
                lab.near.attach_xdp(XdpAction::Pass, XdpMode::Native).unwrap_err(),
                lab.near.attach_xdp(XdpAction::Pass, XdpMode::Generic).unwrap_err(),
                lab.near.replace_xdp(XdpAction::Pass, XdpMode::Native).unwrap_err(),
                lab.near.detach_xdp(XdpMode::Native).unwrap_err(),
            ] {
                let code = error.raw_os_error();
                assert!(matches!(code, Some(libc::EBUSY | libc::EEXIST)), "{error}");
            }
            assert_eq!(lab.near.xdp_program().unwrap(), ours);
            works(lab, &mut socket, &mut far);
            drop((socket, port));
        });
    });
}

#[test]
fn replaced_within_our_link() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut far = lab.raw().unwrap();
            let (port, mut socket) = open(umem);
            works(lab, &mut socket, &mut far);
            let before = port.counters().unwrap();
            let ours = lab.near.xdp_program().unwrap();
            replace_in_bpf_link(own_xdp_link(), XdpAction::Drop).unwrap();
            assert_ne!(lab.near.xdp_program().unwrap(), ours);
            is_cut_off(lab, &mut socket, &mut far);
            assert_eq!(port.counters().unwrap().total, before.total, "our program sees nothing");
            // Rules that are set put ours in its place again.
            port.set_rules(&Rules::udp_port(PORT)).unwrap();
            works(lab, &mut socket, &mut far);
            // The link is ours, whatever is in it.
            replace_in_bpf_link(own_xdp_link(), XdpAction::Drop).unwrap();
            drop((socket, port));
        });
    });
}

#[test]
fn detached_and_another_one_attached() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut far = lab.raw().unwrap();
            let (old, mut socket) = open(umem);
            works(lab, &mut socket, &mut far);
            detach_bpf_link(own_xdp_link()).unwrap();
            assert_eq!(lab.near.xdp_program().unwrap(), None);
            is_cut_off(lab, &mut socket, &mut far);
            lab.near.attach_xdp(XdpAction::Pass, XdpMode::Native).unwrap();
            let theirs = lab.near.xdp_program().unwrap();
            is_cut_off(lab, &mut socket, &mut far);
            let error = old.set_rules(&Rules::all()).unwrap_err();
            let text = error.to_string();
            assert_eq!((error.step(), error.kind()), (Step::Rules, ErrorKind::NotFound), "{text}");
            assert_eq!(error.raw_os_error(), Some(libc::ENOLINK), "{text}");
            assert!(text.contains("detached by somebody else"), "{text}");
            drop((socket, old));
            // What is theirs stays, and is in the way until they take it away.
            assert_eq!(lab.near.xdp_program().unwrap(), theirs);
            let error = port(umem).open().unwrap_err();
            assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::Busy));
            lab.near.detach_xdp(XdpMode::Native).unwrap();
        });
    });
}
