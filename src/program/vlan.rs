//! Whether the program finds the VLAN tags that rules ask for.

use crate::{
    error::{Error, ErrorKind, Result, Step},
    interface::{DisabledOffload, Interface, Offload},
};

/// What rules on VLANs may take for granted.
///
/// Where a tag is taken off a packet before XDP sees it, they would match nothing, and tagged packets
/// would match rules without a VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VlanTags {
    /// Nothing: the interface's RX VLAN offload is switched off for as long as the program is attached.
    /// On veth the rules are refused, since there the other end decides.
    #[default]
    Check,
    /// Tags are part of packets, as the caller knows: on veth, TX VLAN offload is off at the other end.
    Visible,
}

/// Sees to it that tags are visible, if they have to be; what keeps them so.
pub(super) fn show_tags(
    interface: &Interface,
    needed: bool,
    tags: VlanTags,
) -> Result<Option<DisabledOffload>> {
    if !needed || tags == VlanTags::Visible {
        return Ok(None);
    }
    if interface.facts()?.driver.as_deref() == Some("veth") {
        return Err(Error::new(
            Step::Rules,
            ErrorKind::Unsupported,
            "rules on VLANs: on veth the tag stays outside the packet while TX VLAN offload is on at \
             the other end",
        )
        .on(interface.name())
        .hint(
            "switch it off there (ethtool -K PEER tx-vlan-hw-insert off), then say so with \
             VlanTags::Visible",
        ));
    }
    Offload::RxVlan.disable(interface).map(Some)
}
