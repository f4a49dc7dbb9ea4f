//! The lab does what the other tests rely on.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use xskit_lab::{
    Chain, Checker, Lab, LabConfig, Link, Need, Netns, Numbered, Offload, RawPort, VethEnd,
    XdpAction, XdpMode, open_fds, require,
};

const SECOND: Duration = Duration::from_secs(1);

fn lab() -> Option<Lab> {
    lab_with(LabConfig::default())
}

/// Few of these tests need BPF.
fn lab_with(config: LabConfig) -> Option<Lab> {
    Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..config })
}

#[test]
fn frames_of_all_sizes_cross_the_pair_unharmed() {
    let Some(lab) = lab() else { return };
    let near = RawPort::open(&lab.near).unwrap();
    let mut far = lab.raw().unwrap();
    for length in [60, 64, 128, 1514] {
        let flow = lab.flow(4242).reflected();
        let series = Numbered::new(flow, length, 1);
        let frames: Vec<_> = (0..200).map(|number| series.frame(number)).collect();
        near.send_all(&frames).unwrap();
        let mut checker = Checker::new(series);
        while checker.tally().received() < 200 {
            let arrived = far.recv_each(SECOND, |frame| {
                checker.check(frame);
            });
            assert!(arrived.unwrap() > 0, "{length}: {:?}", checker.tally());
        }
        assert!(checker.tally().is_perfect(200), "{length}: {:?}", checker.tally());
    }
}

#[test]
fn nothing_flows_unasked_and_nobody_answers() {
    let Some(lab) = lab() else { return };
    let mut near = RawPort::open(&lab.near).unwrap();
    let mut far = lab.raw().unwrap();
    far.send(&lab.flow(4242).frame(b"anybody there?")).unwrap();
    assert!(near.recv(SECOND).unwrap().is_some());
    assert_eq!(near.recv(Duration::from_millis(300)).unwrap(), None);
    assert_eq!(far.recv(Duration::from_millis(300)).unwrap(), None);
}

#[test]
fn vlan_tags_arrive_where_they_were() {
    let Some(lab) = lab() else { return };
    let mut near = RawPort::open(&lab.near).unwrap();
    let far = lab.raw().unwrap();
    for flow in [lab.flow(1).vlan(7), lab.flow(1).vlan(7).vlan(4095)] {
        let frame = flow.frame(b"tagged");
        far.send(&frame).unwrap();
        assert_eq!(near.recv(SECOND).unwrap(), Some(frame));
    }
}

#[test]
fn a_jumbo_frame_crosses_a_jumbo_link_alone() {
    let Some(lab) = lab_with(LabConfig { mtu: 9000, ..LabConfig::default() }) else { return };
    let mut near = RawPort::open(&lab.near).unwrap();
    let frame = Numbered::new(lab.flow(1), 9014, 1).frame(0);
    lab.raw().unwrap().send(&frame).unwrap();
    assert_eq!(near.recv(SECOND).unwrap(), Some(frame.clone()));
    lab.far.set_mtu(1500).unwrap();
    assert!(lab.raw().unwrap().send(&frame).is_err());
}

#[test]
fn links_are_what_they_were_made_to_be() {
    let Some(lab) = lab_with(LabConfig { queues: 4, ..LabConfig::default() }) else { return };
    let channels = lab.near.channels().unwrap();
    assert_eq!((channels.rx, channels.tx), (4, 4));
    lab.near.set_channels(2, 3).unwrap();
    let channels = lab.near.channels().unwrap();
    assert_eq!((channels.rx, channels.tx), (2, 3));

    for offload in [Offload::TxChecksum, Offload::Tso, Offload::Gso, Offload::Gro, Offload::TxVlan]
    {
        assert!(!lab.near.offload(offload).unwrap(), "{offload:?}");
    }
    lab.near.set_offload(Offload::TxVlan, true).unwrap();
    assert!(lab.near.offload(Offload::TxVlan).unwrap());

    assert_eq!(lab.near.xdp_program().unwrap(), None);
    assert_eq!(lab.near.mac(), Link::named(lab.near.netns(), "near0").unwrap().mac());
    let missing = Link::named(lab.near.netns(), "far0").unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(nix::errno::Errno::ENODEV as i32));
}

#[test]
fn links_go_down_come_back_change_names_and_vanish() {
    let Some(lab) = lab() else { return };
    lab.near.down().unwrap();
    assert!(!lab.far.is_up().unwrap());
    let waited = lab.far.wait_up(Duration::from_millis(20)).unwrap_err();
    assert_eq!(waited.kind(), ErrorKind::TimedOut);
    let renamed = lab.near.clone().rename("other0").unwrap();
    renamed.up().unwrap();
    renamed.wait_up(SECOND).unwrap();
    assert_eq!(Link::named(renamed.netns(), "other0").unwrap().index(), renamed.index());
    lab.far.delete().unwrap();
    assert!(!lab.far.exists().unwrap());
    assert!(!renamed.exists().unwrap());
}

#[test]
fn a_namespace_is_its_own_and_ipv6_is_off_there() {
    if !require(Need::Namespaces) {
        return;
    }
    let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
    let inode = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    assert_ne!(one.enter(inode), inode());
    assert_ne!(one.enter(inode), two.enter(inode));
    assert_eq!(one.enter(inode), one.spawn(inode).join().unwrap());
    assert_eq!(one.sysctl("net/ipv6/conf/all/disable_ipv6").unwrap(), "1");

    // A write in one shows in no other.
    one.set_sysctl("net/ipv4/ip_default_ttl", "17").unwrap();
    assert_eq!(one.sysctl("net/ipv4/ip_default_ttl").unwrap(), "17");
    assert_eq!(two.sysctl("net/ipv4/ip_default_ttl").unwrap(), "64");

    // Children start inside.
    let seen = one.enter(|| Command::new("readlink").arg("/proc/self/ns/net").output().unwrap());
    assert_eq!(String::from_utf8(seen.stdout).unwrap().trim(), one.enter(inode).to_str().unwrap());

    // What is switched off stays off on interfaces that come later.
    let (link, _peer) = VethEnd::new(&one, "v0", [2, 0, 0, 0, 0, 1])
        .join(&VethEnd::new(&two, "v1", [2, 0, 0, 0, 0, 2]))
        .unwrap();
    link.up().unwrap();
    assert_eq!(
        one.enter(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap()),
        ""
    );
}

#[test]
fn dropping_the_lab_removes_everything() {
    if !require(Need::Namespaces) {
        return;
    }
    let (kept, dropped) = (Netns::new().unwrap(), Netns::new().unwrap());
    let (link, peer) = VethEnd::new(&kept, "v0", [2, 0, 0, 0, 0, 1])
        .join(&VethEnd::new(&dropped, "v1", [2, 0, 0, 0, 0, 2]))
        .unwrap();
    assert!(link.exists().unwrap());
    drop((peer, dropped));
    // The kernel takes a namespace down on a worker of its own.
    let deadline = Instant::now() + 5 * SECOND;
    while link.exists().unwrap() {
        assert!(Instant::now() < deadline, "the peer keeps a namespace alive that nobody holds");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_stack_of_a_chain_is_quiet_until_something_forwards() {
    if !require(Need::Namespaces) {
        return;
    }
    let chain = Chain::new().unwrap();
    let mut ingress = RawPort::open(&chain.ingress).unwrap();
    let mut egress = RawPort::open(&chain.egress).unwrap();
    let source = chain.source.netns().enter(|| UdpSocket::bind((Chain::SOURCE, 0)).unwrap());
    let sink = chain.sink.netns().enter(|| UdpSocket::bind((Chain::SINK, 0)).unwrap());
    source.send_to(b"hello", sink.local_addr().unwrap()).unwrap();

    // No ARP first: the neighbour is known. The checksum is complete: the offload is off.
    let frame = ingress.recv(SECOND).unwrap().unwrap();
    assert_eq!(frame[..6], chain.sink.mac());
    assert_eq!(ingress.recv(Duration::from_millis(100)).unwrap(), None);
    assert_eq!(egress.recv(Duration::ZERO).unwrap(), None);
    egress.send(&frame).unwrap();
    sink.set_read_timeout(Some(SECOND)).unwrap();
    let mut bytes = [0; 16];
    assert_eq!(sink.recv(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");
}

#[test]
fn a_route_leads_through_a_gateway() {
    let Some(lab) = lab() else { return };
    let (near, far, beyond) =
        (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 1));
    lab.near.add_address(near, 24).unwrap();
    lab.near.add_neighbour(far, lab.far.mac()).unwrap();
    lab.near.add_route(Ipv4Addr::new(10, 2, 0, 0), 16, far).unwrap();
    lab.far.add_address(far, 24).unwrap();
    lab.far.add_address(beyond, 16).unwrap();
    lab.far.add_neighbour(near, lab.near.mac()).unwrap();
    let listener = lab.far.netns().enter(|| TcpListener::bind((beyond, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    lab.enter(|| TcpStream::connect_timeout(&address, SECOND)).unwrap();
}

#[test]
fn sockets_and_namespaces_are_counted_and_gone() {
    if !require(Need::Namespaces) {
        return;
    }
    // Other tests run beside: what belongs to this one is told apart by a process of its own.
    if std::env::var_os("XSKIT_LAB_ALONE").is_none() {
        // Its output would be counted as that of one more test.
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sockets_and_namespaces_are_counted_and_gone"])
            .env("XSKIT_LAB_ALONE", "1")
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
        return;
    }
    let before = open_fds().unwrap();
    let lab = Lab::new(&LabConfig::default()).unwrap();
    let raw = lab.raw().unwrap();
    assert!(raw.as_fd().try_clone_to_owned().is_ok());
    assert!(open_fds().unwrap() > before);
    drop((raw, lab));
    assert_eq!(open_fds().unwrap(), before);
}

#[test]
fn a_program_is_seen_and_what_it_returns_arrives_at_a_far_end_with_a_program() {
    let Some(lab) = Lab::for_test() else { return };
    let mut far = lab.raw().unwrap();
    let frame = lab.flow(1).frame(b"there and back");

    lab.near.attach_xdp(XdpAction::Tx, XdpMode::Native).unwrap();
    let program = lab.near.xdp_program().unwrap().unwrap();
    assert_eq!(program.mode, XdpMode::Native);
    let busy = lab.near.attach_xdp(XdpAction::Pass, XdpMode::Native).unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(nix::errno::Errno::EBUSY as i32));
    far.send(&frame).unwrap();
    assert_eq!(far.recv(Duration::from_millis(200)).unwrap(), None);
    lab.far.attach_xdp(XdpAction::Pass, XdpMode::Native).unwrap();
    far.send(&frame).unwrap();
    assert_eq!(far.recv(SECOND).unwrap(), Some(frame));

    lab.near.detach_xdp(XdpMode::Native).unwrap();
    assert_eq!(lab.near.xdp_program().unwrap(), None);
    lab.near.attach_xdp(XdpAction::Drop, XdpMode::Generic).unwrap();
    assert_eq!(lab.near.xdp_program().unwrap().unwrap().mode, XdpMode::Generic);
}
