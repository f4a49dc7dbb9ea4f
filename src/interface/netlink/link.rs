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
                _ => {}
            }
        }
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
