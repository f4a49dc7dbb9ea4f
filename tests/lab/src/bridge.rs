//! Bridges: a wire between interfaces that a virtual machine has in the host.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use crate::{link::Link, netns::Netns};

impl Link {
    /// Makes a bridge of this name, down.
    pub fn bridge(netns: &Netns, name: &str) -> io::Result<Self> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        netns.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        Self::named(netns, name)
    }

    /// Makes it a port of a bridge in its namespace.
    pub fn join_bridge(&self, bridge: &Self) -> io::Result<()> {
        self.set(LinkAttribute::Controller(bridge.index()))
    }
}
