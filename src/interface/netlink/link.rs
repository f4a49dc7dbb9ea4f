//! rtnetlink: what a link is, which links there are, and attaching an XDP program.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage, LinkXdp},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;

use super::{Answer, NetlinkRefusal, attributes, dump, number, request, text};
use crate::interface::facts::{XdpProgram, XdpProgramMode};

/// `struct ifinfomsg`.
const HEADER: usize = 16;

const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 1 << 6;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_XDP: u16 = 43;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;

const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// What rtnetlink says about a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// Up, with carrier, and not waiting for anything (`IFF_RUNNING`).
    pub(crate) running: bool,
    pub(crate) carrier: bool,
    pub(crate) mac: [u8; 6],
    pub(crate) max_rx_queues: u32,
    pub(crate) xdp: Option<XdpProgram>,
    /// The bus and the name there of the device behind it (Linux 5.14).
    pub(crate) parent: Option<(String, String)>,
}

impl Link {
    fn parse(answer: &Answer) -> Option<Self> {
        let header = answer.payload.first_chunk::<HEADER>()?;
        let flags = number(&header[8..])?;
        let mut link = Self {
            index: number(&header[4..])?,
            up: flags & IFF_UP != 0,
            running: flags & IFF_RUNNING != 0,
            ..Self::default()
        };
        let (mut bus, mut device) = (None, None);
        for attribute in answer.attributes(HEADER) {
            let value = attribute.value();
            match attribute.kind() {
                // Tunnels have addresses of other lengths, which are no MAC addresses.
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_IFNAME => link.name = text(value),
                IFLA_MTU => link.mtu = number(value)?,
                IFLA_NUM_RX_QUEUES => link.max_rx_queues = number(value)?,
                IFLA_CARRIER => link.carrier = value.first().is_some_and(|&carrier| carrier != 0),
                IFLA_XDP => link.xdp = xdp_program(value),
                IFLA_PARENT_DEV_NAME => device = Some(text(value)),
                IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
                _ => {}
            }
        }
        link.parent = bus.zip(device);
        Some(link)
    }
}

/// The attached program. Beside a program in hardware there may be one in software: then that one,
/// as it is in the way of another.
fn xdp_program(value: &[u8]) -> Option<XdpProgram> {
    let [mut native, mut generic, mut offloaded, mut any] = [None; 4];
    let mut attached = 0;
    for attribute in attributes(value) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_XDP_ATTACHED => attached = value.first().copied().unwrap_or_default(),
            IFLA_XDP_PROG_ID => any = number(value),
            IFLA_XDP_DRV_PROG_ID => native = number(value),
            IFLA_XDP_SKB_PROG_ID => generic = number(value),
            IFLA_XDP_HW_PROG_ID => offloaded = number(value),
            _ => {}
        }
    }
    // Before 4.19 only the mode and one id are told.
    match attached {
        1 => native = native.or(any),
        2 => generic = generic.or(any),
        3 => offloaded = offloaded.or(any),
        _ => {}
    }
    let program = |mode| move |id| XdpProgram { id, mode };
    native
        .map(program(XdpProgramMode::Native))
        .or(generic.map(program(XdpProgramMode::Generic)))
        .or(offloaded.map(program(XdpProgramMode::Offloaded)))
}

fn query() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

fn one(message: LinkMessage) -> Result<Link, NetlinkRefusal> {
    let answers = request(NETLINK_ROUTE, RouteNetlinkMessage::GetLink(message))?;
    answers.first().and_then(Link::parse).ok_or_else(|| Errno::EBADMSG.into())
}

/// The link of this name, or ENODEV.
pub(crate) fn link_by_name(name: &str) -> Result<Link, NetlinkRefusal> {
    let mut message = query();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    one(message)
}

/// The link of this index, or ENODEV.
pub(crate) fn link_by_index(index: u32) -> Result<Link, NetlinkRefusal> {
    let mut message = query();
    message.header.index = index;
    one(message)
}

/// The names of all links in this network namespace.
pub(crate) fn link_names() -> Result<Vec<String>, NetlinkRefusal> {
    let answers = dump(NETLINK_ROUTE, &RouteNetlinkMessage::GetLink(query()))?;
    Ok(answers.iter().filter_map(Link::parse).map(|link| link.name).collect())
}

/// Attaches an XDP program without a bpf_link, with the driver's own words on a refusal. The program
/// stays attached until [`detach_xdp`] or until the interface is gone.
///
/// `flags` are the kernel's `XDP_FLAGS_*`.
pub(crate) fn attach_xdp(
    index: u32,
    program: BorrowedFd<'_>,
    flags: u32,
) -> Result<(), NetlinkRefusal> {
    set_xdp(index, program.as_raw_fd(), flags)
}

/// Detaches whatever XDP program [`attach_xdp`] attached in the mode that `flags` name.
pub(crate) fn detach_xdp(index: u32, flags: u32) -> Result<(), NetlinkRefusal> {
    set_xdp(index, -1, flags)
}

fn set_xdp(index: u32, fd: i32, flags: u32) -> Result<(), NetlinkRefusal> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Xdp(vec![LinkXdp::Fd(fd), LinkXdp::Flags(flags)]));
    request(NETLINK_ROUTE, RouteNetlinkMessage::SetLink(message)).map(drop)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io::{self, Write},
        os::fd::{AsFd, OwnedFd},
        thread,
    };

    use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};
    use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkInfo};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::interface::netlink::{active_rx_queues, exchange};

    const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
    const XDP_FLAGS_SKB_MODE: u32 = 2;
    const XDP_FLAGS_DRV_MODE: u32 = 4;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn xdp(attached: u8, ids: &[(u16, u32)]) -> Option<XdpProgram> {
        let mut value = attribute(IFLA_XDP_ATTACHED, &[attached]);
        for &(kind, id) in ids {
            value.extend(attribute(kind, &id.to_ne_bytes()));
        }
        xdp_program(&value)
    }

    #[test]
    fn attached_program() {
        let program = |id, mode| Some(XdpProgram { id, mode });
        assert_eq!(xdp(0, &[]), None);
        let native = [(IFLA_XDP_DRV_PROG_ID, 5), (IFLA_XDP_PROG_ID, 5)];
        assert_eq!(xdp(1, &native), program(5, XdpProgramMode::Native));
        let generic = [(IFLA_XDP_SKB_PROG_ID, 6), (IFLA_XDP_PROG_ID, 6)];
        assert_eq!(xdp(2, &generic), program(6, XdpProgramMode::Generic));
        // An old kernel.
        assert_eq!(xdp(3, &[(IFLA_XDP_PROG_ID, 7)]), program(7, XdpProgramMode::Offloaded));
        // Two: the one in software.
        let two = [(IFLA_XDP_HW_PROG_ID, 8), (IFLA_XDP_SKB_PROG_ID, 9)];
        assert_eq!(xdp(4, &two), program(9, XdpProgramMode::Generic));
    }

    #[test]
    fn link_attributes() {
        let mut payload = vec![0, 0, 1, 0];
        payload.extend(7_u32.to_ne_bytes());
        payload.extend((IFF_UP | IFF_RUNNING).to_ne_bytes());
        payload.extend([0; 4]);
        payload.extend(attribute(IFLA_IFNAME, b"v0\0"));
        payload.extend(attribute(IFLA_MTU, &9000_u32.to_ne_bytes()));
        payload.extend(attribute(IFLA_ADDRESS, &[10, 0, 0, 1])); // a tunnel's
        payload.extend(attribute(IFLA_CARRIER, &[1]));
        payload.extend(attribute(IFLA_PARENT_DEV_NAME, b"0000:03:00.0\0"));
        payload.extend(attribute(IFLA_PARENT_DEV_BUS_NAME, b"pci\0"));
        payload.extend(attribute(999, b"from the future"));
        let link = Link::parse(&Answer { flags: 0, payload: payload.clone() }).unwrap();
        assert_eq!((link.index, link.name.as_str(), link.mtu), (7, "v0", 9000));
        assert_eq!((link.up, link.running, link.carrier), (true, true, true));
        assert_eq!(link.mac, [0; 6]);
        assert_eq!(link.parent, Some(("pci".into(), "0000:03:00.0".into())));
        // Cut anywhere, it is less, never a panic.
        for end in 0..payload.len() {
            let cut = Link::parse(&Answer { flags: 0, payload: payload[..end].to_vec() });
            assert_eq!(cut.is_none(), end < HEADER);
        }
    }

    /// On a thread and in a network namespace of its own, with a veth pair `va` and `vb` of two
    /// queues each. Skips aloud.
    pub(crate) fn with_veth(test: fn(OwnedFd)) {
        let name = thread::current().name().unwrap_or("test").to_owned();
        let skipped = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let program = crate::sys::bpf::pass_program()?;
            let end = |name: &str| {
                let mut end = LinkMessage::default();
                end.attributes = vec![
                    LinkAttribute::IfName(name.to_owned()),
                    LinkAttribute::NumRxQueues(2),
                    LinkAttribute::NumTxQueues(2),
                ];
                end
            };
            let mut near = end("va");
            near.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end("vb")))),
            ]));
            let message = RouteNetlinkMessage::NewLink(near);
            exchange(NETLINK_ROUTE, message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).unwrap();
            test(program);
            io::Result::Ok(())
        })
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Err(error) = skipped {
            let must = std::env::var_os("XSKIT_TEST_REQUIRE").is_some_and(|value| value == "all");
            assert!(!must, "{name} may not be skipped: {error}");
            writeln!(io::stderr(), "SKIPPED: {name}: {error}")
                .expect("standard error takes a line");
        }
    }

    #[test]
    fn attach_and_detach() {
        with_veth(|program| {
            let va = link_by_name("va").unwrap();
            for (flags, mode) in [
                (XDP_FLAGS_DRV_MODE, XdpProgramMode::Native),
                (XDP_FLAGS_SKB_MODE, XdpProgramMode::Generic),
            ] {
                let flags = flags | XDP_FLAGS_UPDATE_IF_NOEXIST;
                attach_xdp(va.index, program.as_fd(), flags).unwrap();
                let attached = link_by_index(va.index).unwrap().xdp.unwrap();
                assert_eq!(attached.mode, mode);
                assert_ne!(attached.id, 0);

                let refusal = attach_xdp(va.index, program.as_fd(), flags).unwrap_err();
                assert_eq!(refusal.errno, Errno::EBUSY);
                assert!(refusal.message.is_some(), "{refusal:?}");

                detach_xdp(va.index, flags & !XDP_FLAGS_UPDATE_IF_NOEXIST).unwrap();
                assert_eq!(link_by_index(va.index).unwrap().xdp, None);
            }
        });
    }

    #[test]
    fn a_refusal_comes_with_the_drivers_words() {
        with_veth(|program| {
            let va = link_by_name("va").unwrap();
            let vb = link_by_name("vb").unwrap();
            for index in [va.index, vb.index] {
                let mut message = LinkMessage::default();
                message.header.index = index;
                message.attributes.push(LinkAttribute::Mtu(9000));
                request(NETLINK_ROUTE, RouteNetlinkMessage::SetLink(message)).unwrap();
            }
            let refusal = attach_xdp(va.index, program.as_fd(), XDP_FLAGS_DRV_MODE).unwrap_err();
            assert_eq!(refusal.errno, Errno::ERANGE);
            let words = refusal.message.unwrap();
            assert!(words.contains("MTU"), "{words}");

            let refusal = attach_xdp(1, program.as_fd(), XDP_FLAGS_DRV_MODE).unwrap_err();
            assert_eq!(refusal.errno, Errno::EOPNOTSUPP);
            let words = refusal.message.unwrap();
            assert!(words.contains("native mode"), "{words}");

            let refusal = attach_xdp(4711, program.as_fd(), 0).unwrap_err();
            assert_eq!(refusal.errno, Errno::ENODEV);
        });
    }

    #[test]
    fn queues_by_netdev_family() {
        with_veth(|_| {
            let va = link_by_name("va").unwrap();
            // Down, none are listed.
            assert_eq!(active_rx_queues(va.index).unwrap(), None);
            for name in ["va", "vb"] {
                let mut message = LinkMessage::default();
                message.header.index = link_by_name(name).unwrap().index;
                message.header.flags = netlink_packet_route::link::LinkFlags::Up;
                message.header.change_mask = netlink_packet_route::link::LinkFlags::Up;
                request(NETLINK_ROUTE, RouteNetlinkMessage::SetLink(message)).unwrap();
            }
            // Kernels before 6.7 list none.
            let queues = active_rx_queues(va.index).unwrap();
            assert!(matches!(queues, Some(2) | None), "{queues:?}");
        });
    }
}
