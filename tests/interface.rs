//! What interfaces are and have, on veth pairs in network namespaces of the tests' own.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use xskit::{ErrorKind, Interface, Step, interface::Offload};

use self::bench::{Pair, in_namespace};

/// Long enough for anything that happens in the kernel.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    in_namespace(|| {
        Pair::new(1).make();
        let error = Interface::by_name("eth7").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.step(), Step::Interface);
        let text = error.to_string();
        assert!(text.contains("no interface `eth7` in this network namespace"), "{text}");
        let hint = error.next_step().unwrap();
        for name in ["lo", "va", "vb"] {
            assert!(hint.contains(name), "{hint}");
        }
        // The machine's interfaces are not those of this namespace.
        assert!(!hint.contains("eth0"), "{hint}");

        for index in [0, 4711, u32::MAX] {
            let error = Interface::by_index(index).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{index}: {error}");
        }
    });
}

#[test]
fn the_list_of_interfaces_is_bounded() {
    in_namespace(|| {
        for n in 0..12 {
            Pair { near: format!("a{n}"), far: format!("b{n}"), queues: Some(1) }.make();
        }
        let error = Interface::by_name("eth7").unwrap_err();
        let hint = error.next_step().unwrap();
        assert!(hint.ends_with("and 9 more"), "{hint}");
    });
}

#[test]
fn an_impossible_name_is_bad_input() {
    for name in ["", "..", "a/b", "a b", "a\0b", "longer-than-names-are"] {
        let error = Interface::by_name(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}: {error}");
    }
}

#[test]
fn loopback() {
    let lo = Interface::by_name("lo").unwrap();
    assert_eq!((lo.name(), lo.index()), ("lo", 1));
    assert_eq!(Interface::by_index(1).unwrap(), lo);
    let facts = lo.facts().unwrap();
    assert_eq!(facts.mac, [0; 6]);
    assert_eq!(facts.queues.active, 1);
    assert_eq!((facts.rx_ring, facts.tx_ring), (None, None));
    assert_eq!(facts.xdp_program, None);
    if let Some(xdp) = facts.xdp {
        assert!(!xdp.basic && !xdp.zero_copy, "{xdp:?}");
    }
}

#[test]
fn facts_of_a_veth() {
    in_namespace(|| {
        Pair::new(4).make();
        let va = Interface::by_name("va").unwrap();
        assert_eq!(Interface::by_index(va.index()).unwrap(), va);
        let facts = va.facts().unwrap();
        assert_eq!(facts.driver.as_deref(), Some("veth"));
        assert_eq!(facts.mtu, 1500);
        assert!(!facts.up && !facts.carrier);
        assert_ne!(facts.mac, [0; 6]);
        assert_eq!(facts.rx_vlan_offload, Some(true));
        assert_eq!(facts.xdp_program, None);
        if let Some(xdp) = facts.xdp {
            assert!(xdp.basic && xdp.redirect && xdp.rx_sg && !xdp.zero_copy, "{xdp:?}");
        }
        assert!(facts.to_string().starts_with("driver veth, down, MTU 1500, 4 active queues"));

        bench::set_mtu("va", 9000);
        bench::set_up("va", true);
        bench::set_up("vb", true);
        va.carrier_wait(SOON).unwrap();
        let facts = va.facts().unwrap();
        assert_eq!(facts.mtu, 9000);
        assert!(facts.up && facts.carrier);
    });
}

#[test]
fn queues_are_those_in_use_up_or_down() {
    in_namespace(|| {
        Pair::new(4).make();
        let va = Interface::by_name("va").unwrap();
        for up in [false, true] {
            bench::set_up("va", up);
            bench::set_up("vb", up);
            for active in [1, 2, 3, 4] {
                bench::set_channels("va", active);
                let queues = va.facts().unwrap().queues;
                assert_eq!((queues.active, queues.maximum), (active, Some(4)));
            }
        }
    });
}

#[test]
fn a_veth_has_more_queues_than_it_uses() {
    in_namespace(|| {
        // Without a number, a veth allocates one queue per CPU and uses one.
        Pair { queues: None, ..Pair::new(1) }.make();
        let queues = Interface::by_name("va").unwrap().facts().unwrap().queues;
        assert_eq!(queues.active, 1);
        assert!(queues.maximum >= Some(1));
    });
}

#[test]
fn carrier() {
    in_namespace(|| {
        Pair::new(1).make();
        let va = Interface::by_name("va").unwrap();

        // Down is an error at once, whatever the timeout.
        let start = Instant::now();
        let error = va.carrier_wait(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkDown);
        assert!(error.to_string().contains("set down"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(1));

        // Up without carrier is one after the timeout.
        bench::set_up("va", true);
        let facts = va.facts().unwrap();
        assert!(facts.up && !facts.carrier);
        let (start, timeout) = (Instant::now(), Duration::from_millis(100));
        let error = va.carrier_wait(timeout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkDown);
        assert!(error.to_string().contains("no carrier after 100ms"), "{error}");
        assert!((timeout..SOON).contains(&start.elapsed()));
        assert_eq!(va.carrier_wait(Duration::ZERO).unwrap_err().kind(), ErrorKind::LinkDown);

        // Carrier that comes meanwhile ends the wait. A thread begins in its parent's namespace.
        let other = thread::spawn(|| {
            thread::sleep(Duration::from_millis(100));
            bench::set_up("vb", true);
        });
        va.carrier_wait(SOON).unwrap();
        other.join().unwrap();
        va.carrier_wait(Duration::ZERO).unwrap();
        assert!(va.facts().unwrap().carrier);
    });
}

#[test]
fn default_routes() {
    in_namespace(|| {
        Pair::new(1).make();
        let [va, vb] = ["va", "vb"].map(|name| Interface::by_name(name).unwrap());
        let carry = || [&va, &vb].map(|i| i.carries_default_route().unwrap());
        for name in ["lo", "va", "vb"] {
            bench::set_up(name, true);
        }
        va.carrier_wait(SOON).unwrap();
        assert_eq!(carry(), [false, false]);

        let any4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let main = 254;

        // A route to a part of the world is no default route.
        let part =
            bench::Route { to: (Ipv4Addr::new(10, 0, 0, 0).into(), 8), via: &va, table: main };
        part.set(true);
        assert_eq!(carry(), [false, false]);
        part.set(false);

        for (to, table) in [(any4, main), (any6, main), (any4, 4242), (any6, 100)] {
            let route = bench::Route { to: (to, 0), via: &vb, table };
            route.set(true);
            assert_eq!(carry(), [false, true], "{to} in table {table}");
            route.set(false);
            assert_eq!(carry(), [false, false]);
        }
        bench::Route::multipath(&[&va, &vb]);
        assert_eq!(carry(), [true, true]);
    });
}

#[test]
fn vlan_offload_goes_off_and_comes_back() {
    in_namespace(|| {
        Pair::new(1).make();
        let va = Interface::by_name("va").unwrap();
        let state = || {
            let facts = ["va", "vb"].map(|name| Interface::by_name(name).unwrap().facts().unwrap());
            facts.map(|facts| facts.rx_vlan_offload.unwrap())
        };
        assert_eq!(state(), [true, true]);

        let guard = Offload::RxVlan.disable(&va).unwrap();
        assert!(guard.changed());
        assert_eq!(state(), [false, true]);

        // Where it is off there is nothing to switch back on.
        let second = Offload::RxVlan.disable(&va).unwrap();
        assert!(!second.changed());
        drop(second);
        assert_eq!(state(), [false, true]);

        drop(guard);
        assert_eq!(state(), [true, true]);

        Offload::RxVlan.disable(&va).unwrap().restore().unwrap();
        assert_eq!(state(), [true, true]);
    });
}

#[test]
fn vlan_offload_comes_back_from_another_namespace_and_under_another_name() {
    in_namespace(|| {
        Pair::new(1).make();
        let va = Interface::by_name("va").unwrap();
        let guard = Offload::RxVlan.disable(&va).unwrap();
        bench::rename("va", "other");
        // Of the same names and indices, as a trap.
        let trap = thread::spawn(move || {
            in_namespace(move || {
                Pair { near: "other".into(), ..Pair::new(1) }.make();
                drop(guard);
            });
        });
        trap.join().unwrap();
        assert_eq!(va.facts().unwrap().rx_vlan_offload, Some(true));
    });
}

#[test]
fn a_deleted_interface_is_gone() {
    in_namespace(|| {
        Pair::new(1).make();
        let va = Interface::by_name("va").unwrap();
        let guard = Offload::RxVlan.disable(&va).unwrap();
        bench::delete("va");
        for error in [
            va.facts().unwrap_err(),
            va.carrier_wait(Duration::from_secs(60)).unwrap_err(),
            va.carries_default_route().unwrap_err(),
            Offload::RxVlan.disable(&va).unwrap_err(),
            guard.restore().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
            assert_eq!(error.interface(), Some("va"));
        }
    });
}

#[test]
fn a_deleted_interface_ends_a_wait() {
    in_namespace(|| {
        Pair::new(1).make();
        bench::set_up("va", true);
        let va = Interface::by_name("va").unwrap();
        let other = thread::spawn(|| {
            thread::sleep(Duration::from_millis(100));
            bench::delete("va");
        });
        let start = Instant::now();
        let error = va.carrier_wait(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone);
        assert!(start.elapsed() < Duration::from_secs(1));
        other.join().unwrap();
    });
}

#[test]
fn a_renamed_interface_is_the_same() {
    in_namespace(|| {
        Pair::new(2).make();
        let va = Interface::by_name("va").unwrap();
        bench::rename("va", "other");
        assert_eq!(va.facts().unwrap().queues.active, 2);
        assert_eq!(Interface::by_index(va.index()).unwrap().name(), "other");
    });
}

/// Two namespaces in one thread: nothing is remembered from the first.
#[test]
fn answers_follow_the_thread_into_another_namespace() {
    in_namespace(|| {
        Pair::new(3).make();
        assert_eq!(Interface::by_name("va").unwrap().facts().unwrap().queues.active, 3);
        bench::unshare();
        assert_eq!(Interface::by_name("va").unwrap_err().kind(), ErrorKind::NotFound);
        Pair::new(2).make();
        assert_eq!(Interface::by_name("va").unwrap().facts().unwrap().queues.active, 2);
    });
}

/// Namespaces, veth pairs and routes, as much as these tests need.
mod bench {
    use std::{env, io::Write, net::IpAddr, os::fd::AsRawFd, thread};

    use netlink_packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
        NetlinkPayload,
    };
    use netlink_packet_route::{
        AddressFamily, RouteNetlinkMessage,
        link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
        route::{
            RouteAddress, RouteAttribute, RouteMessage, RouteNextHop, RouteProtocol, RouteScope,
            RouteType,
        },
    };
    use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
    use nix::sched::CloneFlags;
    use xskit::Interface;

    /// Runs the test on a thread of its own in an empty network namespace, which goes with the
    /// thread. Says so aloud where there can be none.
    pub(super) fn in_namespace(test: impl FnOnce() + Send + 'static) {
        let name = thread::current().name().unwrap_or("test").to_owned();
        let made = thread::spawn(|| match nix::sched::unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => {
                test();
                Ok(())
            }
            Err(errno) => Err(errno),
        })
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let Err(errno) = made else { return };
        assert!(
            env::var_os("XSKIT_TEST_REQUIRE").is_none_or(|required| required != "all"),
            "{name} may not be skipped: no network namespace: {errno}"
        );
        // Not `eprintln!`: the harness hides what passing tests print.
        writeln!(std::io::stderr(), "SKIPPED: {name}: no network namespace: {errno}")
            .expect("standard error takes a line");
    }

    pub(super) fn unshare() {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET).unwrap();
    }

    pub(super) struct Pair {
        pub(super) near: String,
        pub(super) far: String,
        pub(super) queues: Option<u32>,
    }

    impl Pair {
        pub(super) fn new(queues: u32) -> Self {
            Self { near: "va".into(), far: "vb".into(), queues: Some(queues) }
        }

        pub(super) fn make(&self) {
            let end = |name: &str| {
                let mut end = LinkMessage::default();
                end.attributes.push(LinkAttribute::IfName(name.to_owned()));
                if let Some(queues) = self.queues {
                    end.attributes.push(LinkAttribute::NumRxQueues(queues));
                    end.attributes.push(LinkAttribute::NumTxQueues(queues));
                }
                end
            };
            let mut near = end(&self.near);
            near.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end(&self.far)))),
            ]));
            tell(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL);
        }
    }

    fn change(name: &str, change: impl FnOnce(&mut LinkMessage)) {
        let mut link = LinkMessage::default();
        link.header.index = Interface::by_name(name).unwrap().index();
        change(&mut link);
        tell(RouteNetlinkMessage::SetLink(link), 0);
    }

    pub(super) fn set_up(name: &str, up: bool) {
        change(name, |link| {
            link.header.change_mask = LinkFlags::Up;
            if up {
                link.header.flags = LinkFlags::Up;
            }
        });
    }

    pub(super) fn set_mtu(name: &str, mtu: u32) {
        change(name, |link| link.attributes.push(LinkAttribute::Mtu(mtu)));
    }

    pub(super) fn rename(name: &str, to: &str) {
        change(name, |link| link.attributes.push(LinkAttribute::IfName(to.to_owned())));
    }

    pub(super) fn delete(name: &str) {
        let mut link = LinkMessage::default();
        link.header.index = Interface::by_name(name).unwrap().index();
        tell(RouteNetlinkMessage::DelLink(link), 0);
    }

    pub(super) struct Route<'a> {
        pub(super) to: (IpAddr, u8),
        pub(super) via: &'a Interface,
        pub(super) table: u32,
    }

    fn route(family: AddressFamily) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.address_family = family;
        route.header.protocol = RouteProtocol::Static;
        route.header.scope = RouteScope::Link;
        route.header.kind = RouteType::Unicast;
        route
    }

    impl Route<'_> {
        pub(super) fn set(&self, exists: bool) {
            let (address, length) = self.to;
            let (family, address) = match address {
                IpAddr::V4(address) => (AddressFamily::Inet, RouteAddress::Inet(address)),
                IpAddr::V6(address) => (AddressFamily::Inet6, RouteAddress::Inet6(address)),
            };
            let mut route = route(family);
            route.header.destination_prefix_length = length;
            if length > 0 {
                route.attributes.push(RouteAttribute::Destination(address));
            }
            route.attributes.push(RouteAttribute::Table(self.table));
            route.attributes.push(RouteAttribute::Oif(self.via.index()));
            if exists {
                tell(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL);
            } else {
                tell(RouteNetlinkMessage::DelRoute(route), 0);
            }
        }

        /// An IPv4 default route over all of these.
        pub(super) fn multipath(through: &[&Interface]) {
            let hops = through.iter().map(|interface| {
                let mut hop = RouteNextHop::default();
                hop.interface_index = interface.index();
                hop
            });
            let mut route = route(AddressFamily::Inet);
            route.header.table = 254;
            route.attributes.push(RouteAttribute::MultiPath(hops.collect()));
            tell(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL);
        }
    }

    fn tell(message: RouteNetlinkMessage, flags: u16) {
        let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
        socket.bind_auto().unwrap();
        socket.connect(&SocketAddr::new(0, 0)).unwrap();
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        socket.send(&bytes, 0).unwrap();
        let (answer, _) = socket.recv_from_full().unwrap();
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).unwrap();
        let NetlinkPayload::Error(error) = answer.payload else { panic!("{answer:?}") };
        assert_eq!(error.code, None, "{message:?}: {error}");
    }

    /// As many receive and transmit queues in use.
    #[allow(unsafe_code, reason = "ethtool's ioctls take a pointer inside `ifreq`")]
    pub(super) fn set_channels(name: &str, queues: u32) {
        const ETHTOOL_SCHANNELS: u32 = 0x3d;
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Datagram,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        // struct ethtool_channels: the command, four maxima, then rx, tx, other, combined.
        let mut channels = [ETHTOOL_SCHANNELS, 0, 0, 0, 0, queues, queues, 0, 0];
        // SAFETY: `ifreq` is integers and pointers, for all of which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
        // SAFETY: the command reads one `ethtool_channels`, which lives past the call.
        let code = unsafe {
            libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        nix::errno::Errno::result(code).unwrap();
    }
}
