//! Interfaces that are not there, are down, or cannot do what is asked.

use std::net::UdpSocket;

use xskit::{
    AttachMode, Attached, CopyMode, ErrorKind, Interest, Interface, Port, PortConfig, Rules,
    Socket, Step,
};
use xskit_lab::{Lab, LabConfig, Link, Need, Netns, XdpAction, XdpMode, require};

use crate::bench::{
    Expected, PATIENCE, PORT, all_free, alone, near, nothing_attached, port, refused, rings, umem,
    works,
};

#[test]
fn an_interface_that_does_not_exist() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let expected = Expected {
                step: Step::Interface,
                kind: ErrorKind::NotFound,
                interface: Some("near7"),
                queue: None,
                errno: Some(libc::ENODEV),
                says: &["no interface `near7` in this network namespace", "there are: lo, near0"],
            };
            expected.is(&refused(|| Port::open("near7", Rules::udp_port(PORT))));
            expected.is(&refused(|| Interface::by_name("near7")));
            let error = refused(|| Interface::by_index(4711));
            Expected { interface: None, says: &["index 4711", "there are: "], ..expected }
                .is(&error);
            for name in ["", "a/b", "a-name-of-16-byt"] {
                let error = refused(|| Port::open(name, Rules::all()));
                Expected {
                    kind: ErrorKind::InvalidInput,
                    interface: None,
                    errno: None,
                    says: &["an interface's name", &format!("{name:?}"), "there are: lo, near0"],
                    ..expected
                }
                .is(&error);
            }
            works(&lab, &umem(), 0);
        });
    });
}

#[test]
fn an_interface_that_is_down() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            lab.near.down().unwrap();
            let expected = Expected {
                step: Step::Configure,
                kind: ErrorKind::LinkDown,
                interface: Some("near0"),
                queue: None,
                errno: None,
                says: &["the interface is down", "ip link set dev near0 up"],
            };
            expected.is(&refused(|| port(&umem).open()));
            let error = refused(|| Socket::open(&umem, &near(), 0, &rings()));
            Expected { step: Step::Bind, queue: Some(0), ..expected }.is(&error);
            all_free(&umem);
            nothing_attached(&lab);
            lab.near.up().unwrap();
            lab.near.wait_up(PATIENCE).unwrap();
            lab.far.wait_up(PATIENCE).unwrap();
            works(&lab, &umem, 0);
        });
    });
}

/// Nobody can look the name up in vain: the interface is gone between looking up and opening.
#[test]
fn an_interface_that_was_deleted_before() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let interface = near();
            lab.near.delete().unwrap();
            let error = refused(|| Socket::open(&umem, &interface, 0, &rings()));
            Expected {
                step: Step::Interface,
                kind: ErrorKind::LinkGone,
                interface: Some("near0"),
                queue: Some(0),
                errno: Some(libc::ENODEV),
                says: &["it was deleted", "Interface::by_name"],
            }
            .is(&error);
            all_free(&umem);
        });
    });
}

#[test]
fn lo_in_native_mode() {
    alone(|| {
        if !require(Need::Bpf) {
            return;
        }
        let netns = Netns::new().unwrap();
        let lo = Link::named(&netns, "lo").unwrap();
        lo.up().unwrap();
        netns.enter(|| {
            let umem = umem();
            let config = |mode| {
                let rules = Rules::udp_port(PORT);
                PortConfig::new("lo").rules(rules).umem(&umem).socket(rings()).attach(mode)
            };
            let error = refused(|| config(AttachMode::Native).open());
            Expected {
                step: Step::AttachProgram,
                kind: ErrorKind::Unsupported,
                interface: Some("lo"),
                queue: None,
                errno: Some(libc::EOPNOTSUPP),
                says: &[
                    "native mode",
                    "the driver cannot run XDP programs natively",
                    "the kernel says: ",
                    "AttachMode::Generic, or Auto",
                ],
            }
            .is(&error);
            all_free(&umem);
            assert_eq!(lo.xdp_program().unwrap(), None);

            // Generic mode works, and automatic falls back to it and says so.
            for mode in [AttachMode::Generic, AttachMode::Auto] {
                let mut port = config(mode).open().unwrap();
                assert_eq!(port.attached(), Attached::Generic);
                assert_eq!(lo.xdp_program().unwrap().unwrap().mode, XdpMode::Generic);
                let mut socket = port.take_queue(0).unwrap();
                assert!(!socket.mode().zero_copy);
                let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
                sender.send_to(b"over lo", ("127.0.0.1", PORT)).unwrap();
                let mut batch = umem.batch(8);
                assert!(socket.wait(Interest::READABLE, PATIENCE).unwrap().readable());
                socket.recv(&mut batch).unwrap();
                assert!(batch.packets().any(|packet| packet.head().ends_with(b"over lo")));
                drop((socket, port, batch));
                assert_eq!(lo.xdp_program().unwrap(), None);
                assert!(umem.audit().is_complete());
            }
        });
    });
}

#[test]
fn zero_copy_where_the_driver_has_none() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let forced = rings().copy_mode(CopyMode::ZeroCopy);
            let expected = Expected {
                step: Step::Bind,
                kind: ErrorKind::Unsupported,
                interface: Some("near0"),
                queue: Some(0),
                errno: Some(libc::EOPNOTSUPP),
                says: &["zero-copy, need_wakeup", "driver veth", "zero-copy: no", "CopyMode::Auto"],
            };
            expected.is(&refused(|| Socket::open(&umem, &near(), 0, &forced)));
            for mode in [AttachMode::Native, AttachMode::Generic] {
                expected.is(&refused(|| port(&umem).socket(forced.clone()).attach(mode).open()));
                nothing_attached(&lab);
                all_free(&umem);
            }
            // Automatic falls back, and says so.
            let mut port = port(&umem).open().unwrap();
            assert_eq!(port.attached(), Attached::Native);
            let socket = port.take_queue(0).unwrap();
            assert!(!socket.mode().zero_copy);
            assert_eq!(socket.mode().to_string(), "copy, need_wakeup");
            drop((socket, port));
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn an_mtu_of_9000_without_frags() {
    alone(|| {
        let config = LabConfig { mtu: 9000, ..LabConfig::default() };
        let Some(lab) = Lab::for_test_with(&config) else { return };
        lab.enter(|| {
            let umem = umem();
            for mode in [AttachMode::Native, AttachMode::Auto] {
                let error = refused(|| port(&umem).attach(mode).open());
                Expected {
                    step: Step::AttachProgram,
                    kind: ErrorKind::Unsupported,
                    interface: Some("near0"),
                    queue: None,
                    errno: Some(libc::ERANGE),
                    says: &["MTU is too large", "the kernel says: ", "frags", "lower the MTU"],
                }
                .is(&error);
                all_free(&umem);
                nothing_attached(&lab);
            }
            let port = port(&umem).attach(AttachMode::Native).frags(true).open().unwrap();
            assert_eq!(port.attached(), Attached::Native);
            assert_eq!(lab.near.xdp_program().unwrap().unwrap().mode, XdpMode::Native);
            drop(port);
            for link in [&lab.near, &lab.far] {
                link.set_mtu(1500).unwrap();
            }
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn a_program_of_somebody_else() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            for (theirs, ours, errno) in [
                (XdpMode::Native, AttachMode::Auto, libc::EBUSY),
                (XdpMode::Native, AttachMode::Native, libc::EBUSY),
                (XdpMode::Native, AttachMode::Generic, libc::EEXIST),
                (XdpMode::Generic, AttachMode::Auto, libc::EEXIST),
                (XdpMode::Generic, AttachMode::Generic, libc::EBUSY),
            ] {
                lab.near.attach_xdp(XdpAction::Pass, theirs).unwrap();
                let before = lab.near.xdp_program().unwrap().unwrap();
                let error = refused(|| port(&umem).attach(ours).open());
                Expected {
                    step: Step::AttachProgram,
                    kind: ErrorKind::Busy,
                    interface: Some("near0"),
                    queue: None,
                    errno: Some(errno),
                    says: &[
                        "the interface has an XDP program already",
                        "the kernel says: ",
                        "end the process that attached it",
                        "ip link set dev near0 xdp",
                    ],
                }
                .is(&error);
                all_free(&umem);
                assert_eq!(lab.near.xdp_program().unwrap(), Some(before), "left alone");
                lab.near.detach_xdp(theirs).unwrap();
            }
            works(&lab, &umem, 0);
        });
    });
}
