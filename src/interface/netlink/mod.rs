//! Netlink: questions and answers, blocking, with the kernel's own words on a refusal.
//!
//! Requests are built by the netlink crates. Answers are taken apart here, and only the attributes
//! that we need, so that an attribute of a kernel newer than those crates cannot make an interface
//! unreadable.
//!
//! Every question opens a socket of its own: a socket belongs to the network namespace of the thread
//! that opened it, and a thread may change its namespace between two questions.

mod link;
mod netdev;
mod route;

use std::{fmt, io};

use netlink_packet_core::{
    ErrorBuffer, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR,
    NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlaBuffer, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

#[cfg(test)]
pub(crate) use self::link::tests::with_veth;
pub(crate) use self::{
    link::{Link, attach_xdp, detach_xdp, link_by_index, link_by_name, link_names},
    netdev::{
        Napi, NapiControl, NetdevFeatures, QueueWatch, active_rx_queues, napis, netdev_features,
        rx_queues,
    },
    route::carries_default_route,
};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_HEADER: usize = 16;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A refusal: the errno, and the sentence that the kernel or driver gave with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetlinkRefusal {
    pub(crate) errno: Errno,
    /// The extended acknowledgement's text.
    pub(crate) message: Option<String>,
}

impl From<Errno> for NetlinkRefusal {
    fn from(errno: Errno) -> Self {
        Self { errno, message: None }
    }
}

impl From<io::Error> for NetlinkRefusal {
    fn from(error: io::Error) -> Self {
        Self::from(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

impl fmt::Display for NetlinkRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(f, "{message}"),
            None => f.write_str(self.errno.desc()),
        }
    }
}

/// One answer: the header's flags, and what follows the header.
struct Answer {
    flags: u16,
    payload: Vec<u8>,
}

impl Answer {
    /// The attributes after a fixed header of this length.
    fn attributes(&self, header: usize) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
        attributes(self.payload.get(header..).unwrap_or_default())
    }
}

/// The attributes up to the first malformed one.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

/// Asks for one thing, or for something to be done.
fn request<M>(protocol: isize, message: M) -> Result<Vec<Answer>, NetlinkRefusal>
where
    NetlinkPayload<M>: From<M>,
    M: NetlinkSerializable,
{
    exchange(protocol, message, NLM_F_REQUEST | NLM_F_ACK).map(|(answers, _)| answers)
}

/// Asks for a list, again where it changed while it was read.
fn dump<M>(protocol: isize, message: &M) -> Result<Vec<Answer>, NetlinkRefusal>
where
    NetlinkPayload<M>: From<M>,
    M: NetlinkSerializable + Clone,
{
    const ATTEMPTS: u32 = 5;
    let mut last = Vec::new();
    for _ in 0..ATTEMPTS {
        let (answers, interrupted) =
            exchange(protocol, message.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
        if !interrupted {
            return Ok(answers);
        }
        last = answers;
    }
    // Somebody changes the list all the time: the last reading is as good as any.
    Ok(last)
}

fn exchange<M>(
    protocol: isize,
    message: M,
    flags: u16,
) -> Result<(Vec<Answer>, bool), NetlinkRefusal>
where
    NetlinkPayload<M>: From<M>,
    M: NetlinkSerializable,
{
    exchange_on(&open(protocol)?, message, flags)
}

/// A socket in the network namespace of the calling thread, wherever it is used later.
fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_ext_ack(true)?;
    // Before 4.20 there is no strict checking, and the kernel filters nothing: we do, too.
    match socket.set_netlink_get_strict_chk(true) {
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => Ok(socket),
    }
}

fn exchange_on<M>(
    socket: &Socket,
    message: M,
    flags: u16,
) -> Result<(Vec<Answer>, bool), NetlinkRefusal>
where
    NetlinkPayload<M>: From<M>,
    M: NetlinkSerializable,
{
    const SEQUENCE: u32 = 1;
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = SEQUENCE;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    let mut interrupted = false;
    loop {
        let datagram = match socket.recv_from_full() {
            Ok((datagram, _)) => datagram,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest)
                .map_err(|_| NetlinkRefusal::from(Errno::EBADMSG))?;
            let length = (message.length() as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            if message.sequence_number() != SEQUENCE {
                continue;
            }
            let (flags, payload) = (message.flags(), message.payload());
            interrupted |= flags & NLM_F_DUMP_INTR != 0;
            match message.message_type() {
                NLMSG_ERROR | NLMSG_DONE => {
                    return refusal(message.message_type(), flags, payload)
                        .map_or(Ok((answers, interrupted)), Err);
                }
                _ => answers.push(Answer { flags, payload: payload.to_vec() }),
            }
        }
    }
}

/// What an `NLMSG_ERROR` or `NLMSG_DONE` says, if it is a refusal.
fn refusal(kind: u16, flags: u16, payload: &[u8]) -> Option<NetlinkRefusal> {
    let Ok(error) = ErrorBuffer::new_checked(payload) else {
        // An old kernel's NLMSG_DONE may be empty.
        return (kind == NLMSG_ERROR).then(|| Errno::EBADMSG.into());
    };
    let code = error.code()?.get();
    let rest = error.payload();
    // An error repeats the request, or with NLM_F_CAPPED its header alone, before the attributes.
    let skip = match kind {
        NLMSG_DONE => 0,
        _ if flags & NLM_F_CAPPED != 0 => NLMSG_HEADER,
        _ => {
            let length = rest.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
            (length as usize).max(NLMSG_HEADER).next_multiple_of(4)
        }
    };
    let message = (flags & NLM_F_ACK_TLVS != 0)
        .then(|| {
            attributes(rest.get(skip..).unwrap_or_default())
                .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
                .map(|attribute| text(attribute.value()))
        })
        .flatten();
    Some(NetlinkRefusal { errno: Errno::from_raw(code.wrapping_abs()), message })
}

/// A string attribute, without its NUL.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The netlink type `uint`: 4 bytes where they do, else 8.
fn uint(value: &[u8]) -> Option<u64> {
    if value.len() < 8 { number(value).map(u64::from) } else { bits(value) }
}

fn bits(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An `NLMSG_ERROR`'s payload: errno, the request (its header, and what follows where it is not
    /// capped), attributes.
    fn error_payload(errno: Errno, request: &[u8], attributes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(NLMSG_HEADER + request.len()).unwrap();
        let mut payload = (-(errno as i32)).to_ne_bytes().to_vec();
        payload.extend_from_slice(&length.to_ne_bytes());
        payload.extend_from_slice(&[0; 12]);
        payload.extend_from_slice(request);
        payload.resize(payload.len().next_multiple_of(4), 0);
        payload.extend_from_slice(attributes);
        payload
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn message_after_a_whole_request() {
        let offset = attribute(2, &20_u32.to_ne_bytes());
        let message = attribute(NLMSGERR_ATTR_MSG, b"MTU too large\0");
        // 13 bytes: the request is padded before the attributes.
        let payload = error_payload(Errno::ERANGE, &[7; 13], &[offset, message].concat());
        assert_eq!(
            refusal(NLMSG_ERROR, NLM_F_ACK_TLVS, &payload),
            Some(NetlinkRefusal {
                errno: Errno::ERANGE,
                message: Some("MTU too large".to_owned())
            })
        );
    }

    #[test]
    fn message_after_a_capped_request() {
        let message = attribute(NLMSGERR_ATTR_MSG, b"no\0");
        let mut payload = error_payload(Errno::EINVAL, &[], &message);
        // The length in the repeated header is that of the whole request all the same.
        payload[4..8].copy_from_slice(&400_u32.to_ne_bytes());
        let refusal = refusal(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &payload).unwrap();
        assert_eq!(refusal.message.as_deref(), Some("no"));
    }

    #[test]
    fn message_at_the_end_of_a_dump() {
        let message = attribute(NLMSGERR_ATTR_MSG, b"no dump\0");
        let payload = [&(-libc::EOPNOTSUPP).to_ne_bytes()[..], &message].concat();
        let refusal = refusal(NLMSG_DONE, NLM_F_ACK_TLVS, &payload).unwrap();
        assert_eq!(refusal.errno, Errno::EOPNOTSUPP);
        assert_eq!(refusal.message.as_deref(), Some("no dump"));
    }

    #[test]
    fn without_the_flag_there_is_no_message() {
        let message = attribute(NLMSGERR_ATTR_MSG, b"payload, not a message\0");
        let payload = error_payload(Errno::EPERM, &[], &message);
        assert_eq!(refusal(NLMSG_ERROR, 0, &payload), Some(Errno::EPERM.into()));
    }

    #[test]
    fn success_and_truncation() {
        assert_eq!(refusal(NLMSG_ERROR, 0, &[0; 20]), None);
        assert_eq!(refusal(NLMSG_DONE, 0, &[]), None);
        assert_eq!(refusal(NLMSG_ERROR, 0, &[]), Some(Errno::EBADMSG.into()));
        // Every prefix of a refusal is one, or is malformed; none panics.
        let message = attribute(NLMSGERR_ATTR_MSG, b"cut\0");
        let payload = error_payload(Errno::EBUSY, &[1; 8], &message);
        for end in 0..payload.len() {
            assert!(refusal(NLMSG_ERROR, NLM_F_ACK_TLVS, &payload[..end]).is_some());
        }
    }

    #[test]
    fn a_refusal_by_the_running_kernel() {
        // A question that no kernel accepts, and that needs no privileges: neither index nor name.
        let mut message = netlink_packet_route::link::LinkMessage::default();
        message.header.index = 0;
        let message = netlink_packet_route::RouteNetlinkMessage::GetLink(message);
        let refusal = request(netlink_sys::protocols::NETLINK_ROUTE, message).err().unwrap();
        assert_eq!(refusal.errno, Errno::EINVAL);
    }
}
