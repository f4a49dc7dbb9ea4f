//! The `netdev` generic netlink family: what a driver can do with XDP, its active queues, and their NAPI
//! instances. A kernel before 6.3 has no such family, one before 6.7 no queues in it, one before 6.8 no NAPI
//! instances, and before 6.13 these have no settings: it is asked, not its version.

use std::fmt;

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_ACK, NLM_F_REQUEST};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::{Socket, protocols::NETLINK_GENERIC};
use nix::errno::Errno;

use super::{Answer, NetlinkRefusal, bits, dump, exchange_on, number, open, request, uint};

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
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_A_QUEUE_XSK: u16 = 7;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;

const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_DEFER_HARD_IRQS: u16 = 5;
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;

/// An RX queue, as `queue-get` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetdevQueue {
    pub(crate) id: u32,
    /// The NAPI instance that serves it, where the driver says so.
    pub(crate) napi: Option<u32>,
    /// An AF_XDP socket is bound to it; kernels before 6.15 never say so.
    pub(crate) socket: bool,
}

/// A NAPI instance, as `napi-get` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Napi {
    pub(crate) id: u32,
    pub(crate) irq: Option<u32>,
    /// How interrupts are held back: the number of empty rounds, and nanoseconds. Linux 6.13.
    pub(crate) deferral: Option<(u32, u64)>,
}

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

/// The active RX queues, in order; `None` where the kernel cannot say, and empty for an interface that is
/// down, whose queues are not listed.
pub(crate) fn rx_queues(index: u32) -> Result<Option<Vec<NetdevQueue>>, NetlinkRefusal> {
    let Some(family) = family()? else { return Ok(None) };
    let ask = command(
        family,
        NETDEV_CMD_QUEUE_GET,
        DefaultNla::new(NETDEV_A_QUEUE_IFINDEX, index.to_ne_bytes().to_vec()),
    );
    let Some(answers) = known(dump(NETLINK_GENERIC, &ask))? else { return Ok(None) };
    let mut queues: Vec<NetdevQueue> = answers
        .iter()
        .filter_map(|answer| {
            let ours = number_of(answer, NETDEV_A_QUEUE_IFINDEX)? == index;
            let rx = number_of(answer, NETDEV_A_QUEUE_TYPE)? == NETDEV_QUEUE_TYPE_RX;
            (ours && rx).then_some(())?;
            Some(NetdevQueue {
                id: number_of(answer, NETDEV_A_QUEUE_ID)?,
                napi: number_of(answer, NETDEV_A_QUEUE_NAPI_ID),
                socket: has_socket(answer),
            })
        })
        .collect();
    queues.sort_by_key(|queue| queue.id);
    Ok(Some(queues))
}

/// The number of active RX queues; `None` where the kernel cannot say, and for an interface that is
/// down, whose queues are not listed.
pub(crate) fn active_rx_queues(index: u32) -> Result<Option<u32>, NetlinkRefusal> {
    let queues = rx_queues(index)?.unwrap_or_default();
    Ok(queues.last().map(|queue| queue.id + 1))
}

/// The interface's NAPI instances; none where the kernel cannot say.
pub(crate) fn napis(index: u32) -> Result<Vec<Napi>, NetlinkRefusal> {
    let Some(family) = family()? else { return Ok(Vec::new()) };
    let ask = command(
        family,
        NETDEV_CMD_NAPI_GET,
        DefaultNla::new(NETDEV_A_NAPI_IFINDEX, index.to_ne_bytes().to_vec()),
    );
    let answers = known(dump(NETLINK_GENERIC, &ask))?.unwrap_or_default();
    let ours = |answer: &&Answer| number_of(answer, NETDEV_A_NAPI_IFINDEX) == Some(index);
    Ok(answers.iter().filter(ours).filter_map(napi).collect())
}

fn napi(answer: &Answer) -> Option<Napi> {
    let timeout = || {
        let attribute =
            answer.attributes(HEADER).find(|a| a.kind() == NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT)?;
        uint(attribute.value())
    };
    Some(Napi {
        id: number_of(answer, NETDEV_A_NAPI_ID)?,
        irq: number_of(answer, NETDEV_A_NAPI_IRQ),
        deferral: number_of(answer, NETDEV_A_NAPI_DEFER_HARD_IRQS).zip(timeout()),
    })
}

/// Whether an answer about a queue tells of an AF_XDP socket.
fn has_socket(answer: &Answer) -> bool {
    answer.attributes(HEADER).any(|attribute| attribute.kind() == NETDEV_A_QUEUE_XSK)
}

fn number_of(answer: &Answer, kind: u16) -> Option<u32> {
    number(answer.attributes(HEADER).find(|attribute| attribute.kind() == kind)?.value())
}

/// Asks whether queues have AF_XDP sockets, in the network namespace in which it was opened, from any other.
pub(crate) struct QueueWatch {
    socket: Socket,
    family: u16,
}

impl QueueWatch {
    /// `None` where the kernel has no such family.
    pub(crate) fn open() -> Result<Option<Self>, NetlinkRefusal> {
        let Some(family) = family()? else { return Ok(None) };
        Ok(Some(Self { socket: open(NETLINK_GENERIC)?, family }))
    }

    /// Whether the kernel says that a socket is bound to this RX queue; before 6.15 it never does.
    pub(crate) fn has_socket(&self, index: u32, queue: u32) -> Result<bool, NetlinkRefusal> {
        let attribute = |kind, value: u32| DefaultNla::new(kind, value.to_ne_bytes().to_vec());
        let index = attribute(NETDEV_A_QUEUE_IFINDEX, index);
        let mut ask = command(self.family, NETDEV_CMD_QUEUE_GET, index);
        ask.payload.list.extend([
            attribute(NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX),
            attribute(NETDEV_A_QUEUE_ID, queue),
        ]);
        let (answers, _) = exchange_on(&self.socket, ask, NLM_F_REQUEST | NLM_F_ACK)?;
        Ok(answers.iter().any(has_socket))
    }
}

/// Reads and changes NAPI instances of the network namespace in which it was opened, from any other.
pub(crate) struct NapiControl {
    socket: Socket,
    family: u16,
}

impl NapiControl {
    /// `None` where the kernel has no such family.
    pub(crate) fn open() -> Result<Option<Self>, NetlinkRefusal> {
        let Some(family) = family()? else { return Ok(None) };
        Ok(Some(Self { socket: open(NETLINK_GENERIC)?, family }))
    }

    /// The interface's instance of this id; `None` if it has none any more.
    pub(crate) fn get(&self, index: u32, id: u32) -> Result<Option<Napi>, NetlinkRefusal> {
        let ask = command(
            self.family,
            NETDEV_CMD_NAPI_GET,
            DefaultNla::new(NETDEV_A_NAPI_ID, id.to_ne_bytes().to_vec()),
        );
        let answers = known(self.tell(ask))?.unwrap_or_default();
        let ours = |answer: &&Answer| number_of(answer, NETDEV_A_NAPI_IFINDEX) == Some(index);
        Ok(answers.iter().find(ours).and_then(napi))
    }

    /// Sets how interrupts are held back; false where the kernel cannot, or the instance is gone.
    pub(crate) fn set(&self, id: u32, (irqs, nanos): (u32, u64)) -> Result<bool, NetlinkRefusal> {
        let mut message = command(
            self.family,
            NETDEV_CMD_NAPI_SET,
            DefaultNla::new(NETDEV_A_NAPI_ID, id.to_ne_bytes().to_vec()),
        );
        message.payload.list.extend([
            DefaultNla::new(NETDEV_A_NAPI_DEFER_HARD_IRQS, irqs.to_ne_bytes().to_vec()),
            DefaultNla::new(NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, nanos.to_ne_bytes().to_vec()),
        ]);
        Ok(known(self.tell(message))?.is_some())
    }

    fn tell(&self, message: GenlMessage<Attributes>) -> Result<Vec<Answer>, NetlinkRefusal> {
        exchange_on(&self.socket, message, NLM_F_REQUEST | NLM_F_ACK).map(|(answers, _)| answers)
    }
}

impl fmt::Debug for NapiControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NapiControl").finish_non_exhaustive()
    }
}
