//! [`Link`]: an interface in a namespace, and how to make and change it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{
        RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
        RouteType,
    },
};

use crate::{flow::Mac, netns::Netns};

/// One end of a veth pair, as it should be.
#[derive(Clone, Debug)]
pub struct VethEnd {
    netns: Netns,
    name: String,
    mac: Mac,
    queues: u32,
}

impl VethEnd {
    /// An end in `netns`, with one queue each way.
    pub fn new(netns: &Netns, name: &str, mac: Mac) -> Self {
        Self { netns: netns.clone(), name: name.to_owned(), mac, queues: 1 }
    }

    /// The number of receive and send queues. Native XDP needs the other end to have no more.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Makes the pair, both ends down, each in its namespace.
    pub fn join(self, other: &Self) -> io::Result<(Link, Link)> {
        let mut peer = LinkMessage::default();
        peer.attributes = other.attributes();
        peer.attributes.push(LinkAttribute::NetNsFd(other.netns.raw_fd()));

        let mut near = LinkMessage::default();
        near.attributes = self.attributes();
        near.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.netns.change(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)?;
        Ok((Link::named(&self.netns, &self.name)?, Link::named(&other.netns, &other.name)?))
    }

    fn attributes(&self) -> Vec<LinkAttribute> {
        vec![
            LinkAttribute::IfName(self.name.clone()),
            LinkAttribute::Address(self.mac.to_vec()),
            LinkAttribute::NumTxQueues(self.queues),
            LinkAttribute::NumRxQueues(self.queues),
        ]
    }
}

/// An interface in a namespace of the lab.
#[derive(Clone, Debug)]
pub struct Link {
    netns: Netns,
    name: String,
    index: u32,
    mac: Mac,
}

impl Link {
    /// The interface of this name, `lo` for one.
    pub fn named(netns: &Netns, name: &str) -> io::Result<Self> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let message = get_link(netns, request)?;
        let mac = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok(),
                _ => None,
            })
            .unwrap_or_default();
        Ok(Self { netns: netns.clone(), name: name.to_owned(), index: message.header.index, mac })
    }

    /// The namespace in which it is.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Its name there.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index there.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its MAC address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Administratively up.
    pub fn up(&self) -> io::Result<()> {
        self.set_flags(LinkFlags::Up)
    }

    /// Administratively down.
    pub fn down(&self) -> io::Result<()> {
        self.set_flags(LinkFlags::empty())
    }

    /// Waits until it is operationally up, which takes its peer too.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] when it is not up by then.
    pub fn wait_up(&self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        while !self.is_up()? {
            if Instant::now() >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{} is not up after {limit:?}", self.name),
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether it is operationally up now.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self
            .get()?
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, LinkAttribute::OperState(State::Up))))
    }

    /// The largest packet, without the Ethernet header.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.set(LinkAttribute::Mtu(mtu))
    }

    /// The interface under a new name. It must be down.
    pub fn rename(self, name: &str) -> io::Result<Self> {
        self.set(LinkAttribute::IfName(name.to_owned()))?;
        Ok(Self { name: name.to_owned(), ..self })
    }

    /// The interface in another namespace, where it is down at first. Its index there may be another one.
    pub fn move_to(self, netns: &Netns) -> io::Result<Self> {
        self.set(LinkAttribute::NetNsFd(netns.raw_fd()))?;
        Self::named(netns, &self.name)
    }

    /// Deletes it, and with it the other end of its pair.
    pub fn delete(&self) -> io::Result<()> {
        self.netns.change(RouteNetlinkMessage::DelLink(self.request()), 0)
    }

    /// Whether it still exists.
    pub fn exists(&self) -> io::Result<bool> {
        match self.get() {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives it an IPv4 address; the subnet's route comes with it.
    pub fn add_address(&self, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        self.add_ip(address.into(), prefix)
    }

    /// Gives it an IPv6 address that nobody is asked for. IPv6 is off in the lab's namespaces: from now on it
    /// is on here, with no other addresses than such ones.
    pub fn add_ipv6_address(&self, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
        for (name, value) in [("addr_gen_mode", "1"), ("accept_dad", "0"), ("disable_ipv6", "0")] {
            self.netns.set_sysctl(&format!("net/ipv6/conf/{}/{name}", self.name), value)?;
        }
        self.add_ip(address.into(), prefix)
    }

    fn add_ip(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family =
            if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = prefix;
        message.header.index = self.index;
        message.attributes =
            vec![AddressAttribute::Address(address), AddressAttribute::Local(address)];
        self.netns.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a neighbour known for good, so that nobody asks for it.
    pub fn add_neighbour(&self, address: Ipv4Addr, mac: Mac) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = self.index;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.netns.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Sends what is for `destination` to `gateway`.
    pub fn add_route(
        &self,
        destination: Ipv4Addr,
        prefix: u8,
        gateway: Ipv4Addr,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet(destination)),
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)),
            RouteAttribute::Oif(self.index),
        ];
        self.netns.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn request(&self) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        message
    }

    pub(crate) fn get(&self) -> io::Result<LinkMessage> {
        get_link(&self.netns, self.request())
    }

    pub(crate) fn set(&self, attribute: LinkAttribute) -> io::Result<()> {
        let mut message = self.request();
        message.attributes.push(attribute);
        self.netns.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn set_flags(&self, flags: LinkFlags) -> io::Result<()> {
        let mut message = self.request();
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.netns.change(RouteNetlinkMessage::SetLink(message), 0)
    }
}

fn get_link(netns: &Netns, request: LinkMessage) -> io::Result<LinkMessage> {
    match netns.get(RouteNetlinkMessage::GetLink(request))? {
        RouteNetlinkMessage::NewLink(message) => Ok(message),
        other => Err(io::Error::other(format!("asked for a link, got {other:?}"))),
    }
}
