//! Sockets that somebody else made: with none of the capabilities, and with the wrong ones handed over.

use std::{
    fs::File,
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use xskit::{
    AttachMode, CopyMode, ErrorKind, Interface, Program, ProgramOptions, QueueId, Rules, Socket,
    Step, UmemConfig,
};
use xskit_lab::{Lab, VethEnd};

use crate::bench::{
    Expected, PORT, all_free, alone, in_turn, keep_capabilities, near, receives, refused, rings,
    sends, umem,
};

fn expected<'a>(
    step: Step,
    kind: ErrorKind,
    errno: Option<i32>,
    says: &'a [&'a str],
) -> Expected<'a> {
    Expected { step, kind, interface: Some("near0"), queue: Some(0), errno, says }
}

/// Opens queue 0 of the near end with a socket that was handed over.
fn open(fd: &OwnedFd, umem: &xskit::Umem) -> xskit::Result<Socket> {
    Socket::from_fd(fd.try_clone().unwrap(), umem, &near(), 0, &rings())
}

#[test]
fn no_capability_is_needed_for_what_was_handed_over() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let mut far = lab.raw().unwrap();
        let umem = UmemConfig::new(256).build().unwrap();
        lab.enter(|| {
            let rules = Rules::udp_port(PORT);
            let program = Program::attach(
                &near(),
                &rules,
                xskit::AttachMode::Auto,
                &xskit::ProgramOptions::default(),
            );
            let program = program.unwrap();
            let fd = Socket::unbound(&near()).unwrap();
            keep_capabilities(&[]);
            let config = rings().fill(xskit::RingSize::new(64).unwrap());
            let mut socket = Socket::from_fd(fd, &umem, &near(), 0, &config).unwrap();
            sends(&lab, &mut socket, &mut far);
            // The map is one that it was given.
            let map = program.socket_map().clone();
            socket.join(&map).unwrap();
            receives(&lab, &mut socket, &far);
            drop(socket);
            let audit = umem.audit();
            assert!(audit.is_complete() && audit.lost == 0, "{audit}");
            drop(program);
        });
    });
}

#[test]
fn making_one_takes_a_capability() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            keep_capabilities(&[]);
            let says = &["CAP_NET_RAW is missing"];
            let step = Step::OpenSocket;
            Expected {
                queue: None,
                ..expected(step, ErrorKind::Permission, Some(libc::EPERM), says)
            }
            .is(&refused(|| Socket::unbound(&near())));
        });
    });
}

#[test]
fn something_else_was_handed_over() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let wrong = |fd: OwnedFd, errno, says| {
                let error = refused(|| open(&fd, &umem));
                expected(Step::OpenSocket, ErrorKind::Corrupt, errno, says).is(&error);
                all_free(&umem);
            };
            let file = File::open("/dev/null").unwrap();
            wrong(file.into(), Some(libc::ENOTSOCK), &["not that of a socket", "Socket::unbound"]);
            let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
            wrong(udp.into(), None, &["another family than AF_XDP", "Socket::unbound"]);
        });
    });
}

#[test]
fn it_was_used_before() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let (first, second) = (umem(), umem());
            let fd = Socket::unbound(&near()).unwrap();
            let socket = open(&fd, &first).unwrap();
            let says = &["has memory or rings already", "Socket::unbound"];
            let error = refused(|| open(&fd, &second));
            expected(Step::RegisterUmem, ErrorKind::Busy, Some(libc::EBUSY), says).is(&error);
            all_free(&second);
            drop((socket, fd));
            // A free one, now that all descriptors of the first are closed.
            let fd = Socket::unbound(&near()).unwrap();
            drop(open(&fd, &second).unwrap());
        });
    });
}

#[test]
fn it_was_made_for_another_interface() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let other = VethEnd::new(lab.near.netns(), "other0", [2, 0, 0, 0, 0, 9])
            .join(&VethEnd::new(lab.far.netns(), "otherfar0", [2, 0, 0, 0, 0, 10]));
        other.unwrap();
        lab.enter(|| {
            let umem = umem();
            let fd = Socket::unbound(&Interface::by_name("other0").unwrap()).unwrap();
            let says = &["the interface and the network namespace that it was made for"];
            let error = refused(|| open(&fd, &umem));
            expected(Step::Bind, ErrorKind::InvalidInput, Some(libc::EINVAL), says).is(&error);
            let error = refused(|| {
                let config = rings().copy_mode(CopyMode::ZeroCopy);
                let fd = Socket::unbound(&near()).unwrap();
                Socket::from_fd(fd, &umem, &near(), 0, &config)
            });
            let says = &["use CopyMode::Auto"];
            expected(Step::Bind, ErrorKind::Unsupported, Some(libc::EOPNOTSUPP), says).is(&error);
            all_free(&umem);
        });
    });
}

/// There an interface of the same number is another one, whose frames are not ours to count.
#[test]
fn it_was_made_in_another_namespace() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let far = lab.far.netns().enter(|| {
            let interface = Interface::by_name(lab.far.name()).unwrap();
            Socket::unbound(&interface).unwrap()
        });
        lab.enter(|| {
            let umem = umem();
            let says = &["another network namespace", "Socket::unbound"];
            let error = refused(|| open(&far, &umem));
            expected(Step::OpenSocket, ErrorKind::InvalidInput, None, says).is(&error);
            all_free(&umem);
        });
    });
}

#[test]
fn more_than_the_worker_may_lock() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let fd = Socket::unbound(&near()).unwrap();
            keep_capabilities(&[]);
            let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
            setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, hard).unwrap();
            let says = &["RLIMIT_MEMLOCK allows 65536", "CAP_IPC_LOCK", "a privileged process can"];
            let error = refused(|| open(&fd, &umem));
            expected(Step::RegisterUmem, ErrorKind::Limit, Some(libc::ENOBUFS), says).is(&error);
            all_free(&umem);
        });
    });
}

/// Whoever handed the socket over binds it after all: the frames that lay in its Fill ring when that failed for
/// us are somebody else's by then.
#[test]
fn bound_behind_our_back() {
    let _turn = in_turn();
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        let far = lab.raw().unwrap();
        lab.enter(|| {
            let (ours, others) = (umem(), umem());
            let rules = Rules::udp_port(PORT);
            let options = ProgramOptions::default();
            let program = Program::attach(&near(), &rules, AttachMode::Auto, &options).unwrap();
            let blocker = Socket::open(&others, &near(), 0, &rings()).unwrap();
            let fd = Socket::unbound(&near()).unwrap();
            let error = open(&fd, &ours).unwrap_err();
            assert_eq!((error.step(), error.kind()), (Step::Bind, ErrorKind::Busy), "{error}");
            all_free(&ours);
            drop(blocker);
            bind(&fd, near().index());
            let _entry = program.socket_map().insert(QueueId::new(0), fd.as_fd()).unwrap();
            let mut batch = ours.batch(1024);
            assert_eq!(batch.alloc(1024), 1024);
            batch.packets_mut().for_each(|mut packet| packet.write(&[7; 4096]).unwrap());
            for _ in 0..10 {
                far.send(&lab.flow(PORT).frame(b"into whose frame?")).unwrap();
            }
            let deadline = Instant::now() + Duration::from_secs(5);
            while program.counters().unwrap().total.redirected < 10 {
                assert!(Instant::now() < deadline, "the packets do not arrive");
            }
            thread::sleep(Duration::from_millis(50));
            assert!(batch.packets().all(|packet| packet.head() == [7; 4096]), "into ours");
        });
    });
}

/// As anybody can who has a descriptor.
#[expect(unsafe_code, reason = "nix has no address of AF_XDP")]
fn bind(fd: &OwnedFd, interface: u32) {
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap(),
        sxdp_flags: libc::XDP_COPY,
        sxdp_ifindex: interface,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    // The last socket's end is asynchronous.
    loop {
        // SAFETY: the kernel reads the address, which is as long as we say.
        let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        if result == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{}", std::io::Error::last_os_error());
        thread::sleep(Duration::from_millis(5));
    }
}
