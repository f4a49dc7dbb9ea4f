//! Queues that are not there, are taken, or are asked for in a way that cannot be.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use xskit::{ErrorKind, PortConfig, Socket, SocketConfig, Step};
use xskit_lab::{Lab, LabConfig};

use crate::bench::{
    Expected, all_free, alone, near, nothing_attached, port, refused, rings, sends, umem, works,
};

const WITH_QUEUES: LabConfig = LabConfig { queues: 4, mtu: 1500, need: xskit_lab::Need::Bpf };

fn expected<'a>(step: Step, kind: ErrorKind, says: &'a [&'a str]) -> Expected<'a> {
    Expected { step, kind, interface: Some("near0"), queue: Some(0), errno: None, says }
}

#[test]
fn a_queue_at_and_past_the_active_count() {
    alone(|| {
        let Some(lab) = Lab::for_test_with(&WITH_QUEUES) else { return };
        lab.near.set_channels(2, 2).unwrap();
        lab.far.set_channels(2, 2).unwrap();
        lab.enter(|| {
            let umem = umem();
            let says = &["there is no such queue", "near0 has 2 active queues (0–1)"][..];
            // 2 and 3 are allocated and not in use.
            for queue in [2, 3, 4, u32::MAX] {
                let no_queue = Expected {
                    queue: Some(queue),
                    ..expected(Step::Configure, ErrorKind::NotFound, says)
                };
                no_queue.is(&refused(|| port(&umem).queues([0, queue]).open()));
                let error = refused(|| Socket::open(&umem, &near(), queue, &rings()));
                Expected { step: Step::Bind, ..no_queue }.is(&error);
                all_free(&umem);
                nothing_attached(&lab);
            }
            works(&lab, &umem, 0);
            works(&lab, &umem, 1);
            // Put to use, it is as good as the others.
            lab.far.set_channels(4, 3).unwrap();
            lab.near.set_channels(3, 3).unwrap();
            works(&lab, &umem, 2);
        });
    });
}

#[test]
fn a_queue_in_use_by_a_socket_of_the_same_umem() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let mut first = Socket::open(&umem, &near(), 0, &rings()).unwrap();
            let before = umem.audit();
            let busy = expected(
                Step::Bind,
                ErrorKind::Busy,
                &["a socket of this UMEM is bound to the queue already", "share_queue"],
            );
            busy.is(&refused(|| Socket::open(&umem, &near(), 0, &rings())));
            busy.is(&refused(|| port(&umem).open()));
            assert_eq!(umem.audit(), before);
            nothing_attached(&lab);
            // The first one is none the worse, and what the hint says works.
            sends(&lab, &mut first, &mut lab.raw().unwrap());
            let mut second = first.share_queue(&rings()).unwrap();
            sends(&lab, &mut second, &mut lab.raw().unwrap());
            drop((first, second));
            works(&lab, &umem, 0);
        });
    });
}

const BY_OTHERS: &[&str] = &["another socket has the queue", "another process", "share_queue"];

#[test]
fn a_queue_in_use_by_a_socket_of_another_umem() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let (theirs, ours) = (umem(), umem());
            let mut first = Socket::open(&theirs, &near(), 0, &rings()).unwrap();
            let busy = Expected {
                errno: Some(libc::EBUSY),
                ..expected(Step::Bind, ErrorKind::Busy, BY_OTHERS)
            };
            busy.is(&refused(|| Socket::open(&ours, &near(), 0, &rings())));
            all_free(&ours);
            busy.is(&refused(|| port(&ours).open()));
            all_free(&ours);
            nothing_attached(&lab);
            sends(&lab, &mut first, &mut lab.raw().unwrap());
            drop(first);
            works(&lab, &ours, 0);
        });
    });
}

#[test]
fn a_queue_in_use_by_another_process() {
    const CHILD: &str = "XSKIT_TEST_HOLD_QUEUE";
    if env::var_os(CHILD).is_some() {
        let umem = umem();
        let _socket = Socket::open(&umem, &near(), 0, &rings()).unwrap();
        println!("bound");
        std::io::stdout().flush().unwrap();
        // Until the parent closes its end, or is gone.
        std::io::stdin().lines().for_each(drop);
        return;
    }
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "--nocapture", "queues::a_queue_in_use_by_another_process"])
                .env(CHILD, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("bound")));
            let error = refused(|| Socket::open(&umem, &near(), 0, &rings()));
            Expected {
                errno: Some(libc::EBUSY),
                ..expected(Step::Bind, ErrorKind::Busy, BY_OTHERS)
            }
            .is(&error);
            all_free(&umem);
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn an_interface_with_a_port_already() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let mut first = port(&umem).open().unwrap();
            let before = umem.audit();
            let busy = refused(|| port(&umem).open());
            let says = &["the interface has an XDP program already", "end the process"];
            Expected {
                queue: None,
                errno: Some(libc::EBUSY),
                ..expected(Step::AttachProgram, ErrorKind::Busy, says)
            }
            .is(&busy);
            assert_eq!(umem.audit(), before);
            sends(&lab, &mut first.take_queue(0).unwrap(), &mut lab.raw().unwrap());
            drop(first);
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn a_queue_taken_twice() {
    alone(|| {
        let Some(lab) = Lab::for_test_with(&WITH_QUEUES) else { return };
        lab.enter(|| {
            let umem = umem();
            let mut port = port(&umem).queues([1, 3]).open().unwrap();
            let socket = port.take_queue(3).unwrap();
            let twice = Expected {
                queue: Some(3),
                ..expected(
                    Step::Configure,
                    ErrorKind::NotFound,
                    &["its socket has been taken already", "the port has queues 1, 3"],
                )
            };
            twice.is(&refused(|| port.take_queue(3)));
            let says = &["the port was not opened on it", "the port has queues 1, 3"];
            let error = refused(|| port.take_queue(0));
            Expected { queue: Some(0), says, ..twice }.is(&error);
            // Not even when it was dropped: the port does not open it again.
            drop(socket);
            twice.is(&refused(|| port.take_queue(3)));
            drop(port);
            works(&lab, &umem, 3);
        });
    });
}

#[test]
fn queues_named_twice_or_not_at_all() {
    alone(|| {
        let Some(lab) = Lab::for_test_with(&WITH_QUEUES) else { return };
        lab.enter(|| {
            let umem = umem();
            let error = refused(|| port(&umem).queues([0, 2, 1, 2]).open());
            let twice = Expected {
                queue: Some(2),
                ..expected(
                    Step::Configure,
                    ErrorKind::InvalidInput,
                    &["the queue is named twice", "share_queue"],
                )
            };
            twice.is(&error);
            let error = refused(|| port(&umem).queues([0; 0]).open());
            let says = &["a port without queues", "name at least one"];
            Expected { queue: None, says, ..twice }.is(&error);
            all_free(&umem);
            nothing_attached(&lab);
            works(&lab, &umem, 2);
        });
    });
}

#[test]
fn directions_that_a_socket_does_not_have() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let neither: SocketConfig = rings().send_only().receive_only();
            let error = refused(|| Socket::open(&umem, &near(), 0, &neither));
            expected(
                Step::Configure,
                ErrorKind::InvalidInput,
                &["without RX and TX ring", "rx 0 tx 0"],
            )
            .is(&error);
            let open: PortConfig = port(&umem).socket(neither);
            assert_eq!(refused(|| open.clone().open()).kind(), ErrorKind::InvalidInput);
            nothing_attached(&lab);
            all_free(&umem);

            let mut batch = umem.batch(4);
            let mut sender = Socket::open(&umem, &near(), 0, &rings().send_only()).unwrap();
            let error = refused(|| sender.recv(&mut batch));
            expected(Step::Receive, ErrorKind::Unsupported, &["only sends", "send_only"])
                .is(&error);
            drop(sender);
            batch.alloc(2);
            let mut receiver = Socket::open(&umem, &near(), 0, &rings().receive_only()).unwrap();
            let error = refused(|| receiver.send(&mut batch));
            expected(Step::Send, ErrorKind::Unsupported, &["only receives", "receive_only"])
                .is(&error);
            assert_eq!(batch.packet_count(), 2);
            drop((receiver, batch));
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn a_batch_of_another_umem() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let (ours, theirs) = (umem(), umem());
            let mut socket = Socket::open(&ours, &near(), 0, &rings()).unwrap();
            let mut batch = theirs.batch(8);
            batch.alloc(3);
            for (number, mut packet) in (0..).zip(batch.packets_mut()) {
                packet.write(&[number; 60]).unwrap();
            }
            let before = (ours.audit(), theirs.audit());
            let wrong = expected(
                Step::Send,
                ErrorKind::WrongUmem,
                &["the batch belongs to another UMEM", "socket.umem().batch("],
            );
            wrong.is(&refused(|| socket.send(&mut batch)));
            let receive = Expected { step: Step::Receive, ..wrong };
            receive.is(&refused(|| socket.recv(&mut batch)));
            let (receiver, sender) = socket.split_mut();
            wrong.is(&refused(|| sender.send(&mut batch)));
            receive.is(&refused(|| receiver.recv(&mut batch)));
            let error = refused(|| ours.batch(8).append(&mut batch));
            assert_eq!(error.kind(), ErrorKind::WrongUmem, "{error}");

            assert_eq!((ours.audit(), theirs.audit()), before);
            let content: Vec<Vec<u8>> =
                batch.packets().map(|packet| packet.head().to_vec()).collect();
            assert_eq!(content, [[0; 60], [1; 60], [2; 60]]);
            drop(batch);
            all_free(&theirs);
            sends(&lab, &mut socket, &mut lab.raw().unwrap());
            drop(socket);
            works(&lab, &ours, 0);
        });
    });
}
