//! The `netdev` generic netlink family: what a driver can do with XDP, and its active queues. A kernel
//! before 6.3 has no such family, one before 6.7 no queues in it: it is asked, not its version.

use netlink_packet_core::{DefaultNla, Emitable};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;

use super::{NetlinkRefusal, bits, dump, number, request};

/// `struct genlmsghdr`.
const HEADER: usize = 4;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;

const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;

/// The answer to `dev-get`, as bit masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetdevFeatures {
    pub(crate) xdp: u64,
    pub(crate) zc_max_segments: Option<u32>,
    pub(crate) rx_metadata: u64,
    pub(crate) xsk: u64,
}

/// Attributes for a generic netlink command. The family's number is in the message.
#[derive(Clone, Debug)]
struct Attributes {
    command: u8,
    list: Vec<DefaultNla>,
}

impl GenlFamily for Attributes {
    fn family_name() -> &'static str {
        "netdev"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Attributes {
    fn buffer_len(&self) -> usize {
        self.list.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.list.as_slice().emit(buffer);
    }
}

fn command(family: u16, command: u8, attribute: DefaultNla) -> GenlMessage<Attributes> {
    let payload = Attributes { command, list: vec![attribute] };
    GenlMessage::new(GenlHeader { cmd: command, version: payload.version() }, payload, family)
}

/// `None` where the kernel has no generic netlink, no such family or no such command.
fn known<T>(answer: Result<T, NetlinkRefusal>) -> Result<Option<T>, NetlinkRefusal> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(refusal) => match refusal.errno {
            Errno::EPROTONOSUPPORT | Errno::ENOENT | Errno::EOPNOTSUPP => Ok(None),
            _ => Err(refusal),
        },
    }
}

/// The number that the running kernel gave the family.
fn family() -> Result<Option<u16>, NetlinkRefusal> {
    let name = [Attributes::family_name().as_bytes(), b"\0"].concat();
    let ask =
        command(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, DefaultNla::new(CTRL_ATTR_FAMILY_NAME, name));
    let answers = known(request(NETLINK_GENERIC, ask))?.unwrap_or_default();
    Ok(answers.first().and_then(|answer| {
        let id = answer.attributes(HEADER).find(|a| a.kind() == CTRL_ATTR_FAMILY_ID)?;
        id.value().first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
    }))
}

/// What the driver can do with XDP; `None` where the kernel cannot say.
pub(crate) fn netdev_features(index: u32) -> Result<Option<NetdevFeatures>, NetlinkRefusal> {
    let Some(family) = family()? else { return Ok(None) };
    let ask = command(
        family,
        NETDEV_CMD_DEV_GET,
        DefaultNla::new(NETDEV_A_DEV_IFINDEX, index.to_ne_bytes().to_vec()),
    );
    let Some(answers) = known(request(NETLINK_GENERIC, ask))? else { return Ok(None) };
    let mut features = NetdevFeatures::default();
    for attribute in answers.iter().flat_map(|answer| answer.attributes(HEADER)) {
        let value = attribute.value();
        match attribute.kind() {
            NETDEV_A_DEV_XDP_FEATURES => features.xdp = bits(value).unwrap_or_default(),
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => features.zc_max_segments = number(value),
            NETDEV_A_DEV_XDP_RX_METADATA_FEATURES => {
                features.rx_metadata = bits(value).unwrap_or_default();
            }
            NETDEV_A_DEV_XSK_FEATURES => features.xsk = bits(value).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Some(features))
}

/// The number of active RX queues; `None` where the kernel cannot say, and for an interface that is
/// down, whose queues are not listed.
pub(crate) fn active_rx_queues(index: u32) -> Result<Option<u32>, NetlinkRefusal> {
    let Some(family) = family()? else { return Ok(None) };
    let ask = command(
        family,
        NETDEV_CMD_QUEUE_GET,
        DefaultNla::new(NETDEV_A_QUEUE_IFINDEX, index.to_ne_bytes().to_vec()),
    );
    let Some(answers) = known(dump(NETLINK_GENERIC, &ask))? else { return Ok(None) };
    let highest = answers
        .iter()
        .filter_map(|answer| {
            let get = |kind| {
                let attribute = answer.attributes(HEADER).find(|a| a.kind() == kind)?;
                number(attribute.value())
            };
            let ours = get(NETDEV_A_QUEUE_IFINDEX)? == index;
            let rx = get(NETDEV_A_QUEUE_TYPE)? == NETDEV_QUEUE_TYPE_RX;
            (ours && rx).then(|| get(NETDEV_A_QUEUE_ID)).flatten()
        })
        .max();
    Ok(highest.map(|id| id + 1))
}
