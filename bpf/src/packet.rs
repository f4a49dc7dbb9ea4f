//! Reading headers, each read checked against the packet's end.

use core::hint::black_box;

use aya_ebpf::programs::XdpContext;

pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

/// How many IPv6 extension headers are followed.
const EXTENSION_HEADERS: usize = 6;

/// Covers every offset of a transport header: Ethernet with two tags, IPv6, and extension headers of
/// at most 2048 bytes each.
const OFFSET_MASK: usize = 0x3fff;
const _: () = assert!(22 + size_of::<Ipv6Header>() + EXTENSION_HEADERS * 2048 <= OFFSET_MASK);

/// The packet's first buffer.
#[derive(Clone, Copy)]
pub struct Packet {
    start: usize,
    end: usize,
}

impl Packet {
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        Self { start: ctx.data(), end: ctx.data_end() }
    }

    #[inline(always)]
    fn read<T: Copy>(self, offset: usize) -> Option<T> {
        let at = self.start + offset;
        if at + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: inside the packet, as the verifier checks once more; every `T` here is bytes.
        Some(unsafe { (at as *const T).read_unaligned() })
    }

    /// Destination and source, as three words.
    #[inline(always)]
    pub fn mac_addresses(self) -> Option<[[u8; 4]; 3]> {
        self.read(0)
    }

    /// `read` at an offset that lengths in the packet have made. The mask changes no value: it
    /// shows the verifier of Linux 6.1, which loses the bounds on the way here, that the offset is
    /// small. `black_box` keeps the compiler, which knows that too, from removing it.
    #[inline(always)]
    fn read_far<T: Copy>(self, offset: usize) -> Option<T> {
        self.read(black_box(offset) & OFFSET_MASK)
    }
}

/// Why a field is unknown.
#[derive(Clone, Copy)]
pub enum Unknown {
    /// The packet ends before it, or a length in it is impossible.
    Malformed,
    /// It lies behind more tags or headers than are followed.
    TooDeep,
    /// A fragment: its ports are those of another packet.
    Fragment,
    /// The packet has no such field.
    Absent,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct EthernetHeader {
    addresses: [u8; 12],
    ether_type: [u8; 2],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct VlanTag {
    control: [u8; 2],
    ether_type: [u8; 2],
}

pub struct Ethernet {
    /// What follows the last VLAN tag.
    pub ether_type: u16,
    /// The id in the first VLAN tag.
    pub vlan: Option<u16>,
    /// Where the network header starts.
    pub payload: usize,
}

#[inline(always)]
fn is_tag(ether_type: u16) -> bool {
    ether_type == VLAN || ether_type == SERVICE_VLAN
}

/// The Ethernet header and up to two VLAN tags.
#[inline(always)]
pub fn ethernet(packet: Packet) -> Result<Ethernet, Unknown> {
    let header: EthernetHeader = packet.read(0).ok_or(Unknown::Malformed)?;
    let ether_type = u16::from_be_bytes(header.ether_type);
    if !is_tag(ether_type) {
        return Ok(Ethernet { ether_type, vlan: None, payload: 14 });
    }
    let tag: VlanTag = packet.read(14).ok_or(Unknown::Malformed)?;
    let vlan = Some(u16::from_be_bytes(tag.control) & 0xfff);
    let ether_type = u16::from_be_bytes(tag.ether_type);
    if !is_tag(ether_type) {
        return Ok(Ethernet { ether_type, vlan, payload: 18 });
    }
    let tag: VlanTag = packet.read(18).ok_or(Unknown::Malformed)?;
    let ether_type = u16::from_be_bytes(tag.ether_type);
    if is_tag(ether_type) {
        return Err(Unknown::TooDeep);
    }
    Ok(Ethernet { ether_type, vlan, payload: 22 })
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Ipv4Header {
    version_and_length: u8,
    service: u8,
    total_length: [u8; 2],
    id: [u8; 2],
    fragment: [u8; 2],
    time_to_live: u8,
    protocol: u8,
    checksum: [u8; 2],
    source: [u8; 4],
    destination: [u8; 4],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Ipv6Header {
    version: u8,
    class_and_flow: [u8; 3],
    payload_length: [u8; 2],
    next: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

pub struct Ipv4 {
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub transport: Transport,
}

pub struct Ipv6 {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    next: u8,
    start: usize,
    end: usize,
}

/// What the network header carries, and where.
pub struct Transport {
    pub protocol: u8,
    fragment: bool,
    start: usize,
    /// Where the network header says that the packet ends; what is behind it is padding.
    end: usize,
}

/// No end known: a length of 0 belongs to packets of more than 64 KB.
#[inline(always)]
fn end_of(start: usize, length: usize) -> usize {
    if length == 0 { usize::MAX } else { start + length }
}

#[inline(always)]
pub fn ipv4(packet: Packet, offset: usize) -> Result<Ipv4, Unknown> {
    let header: Ipv4Header = packet.read(offset).ok_or(Unknown::Malformed)?;
    let length = usize::from(header.version_and_length & 0xf) * 4;
    if header.version_and_length >> 4 != 4 || length < 20 {
        return Err(Unknown::Malformed);
    }
    Ok(Ipv4 {
        source: header.source,
        destination: header.destination,
        transport: Transport {
            protocol: header.protocol,
            // An offset, or more to come.
            fragment: u16::from_be_bytes(header.fragment) & 0x3fff != 0,
            start: offset + length,
            end: end_of(offset, usize::from(u16::from_be_bytes(header.total_length))),
        },
    })
}

#[inline(always)]
pub fn ipv6(packet: Packet, offset: usize) -> Result<Ipv6, Unknown> {
    let header: Ipv6Header = packet.read(offset).ok_or(Unknown::Malformed)?;
    if header.version >> 4 != 6 {
        return Err(Unknown::Malformed);
    }
    let start = offset + size_of::<Ipv6Header>();
    Ok(Ipv6 {
        source: header.source,
        destination: header.destination,
        next: header.next,
        start,
        end: end_of(start, usize::from(u16::from_be_bytes(header.payload_length))),
    })
}

/// Follows the extension headers to what the packet carries.
#[inline(always)]
pub fn ipv6_transport(packet: Packet, ip: &Ipv6) -> Result<Transport, Unknown> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;

    let mut next = ip.next;
    let mut start = ip.start;
    for _ in 0..EXTENSION_HEADERS {
        let unit = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => 8,
            AUTHENTICATION => 4,
            FRAGMENT => {
                let header: [u8; 8] = packet.read(start).ok_or(Unknown::Malformed)?;
                // What follows is the rest of some header, except in the first fragment.
                return Ok(Transport {
                    protocol: header[0],
                    fragment: true,
                    start: start + 8,
                    end: ip.end,
                });
            }
            protocol => return Ok(Transport { protocol, fragment: false, start, end: ip.end }),
        };
        let [following, length]: [u8; 2] = packet.read(start).ok_or(Unknown::Malformed)?;
        start +=
            if unit == 8 { (usize::from(length) + 1) * 8 } else { (usize::from(length) + 2) * 4 };
        next = following;
    }
    match next {
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION => Err(Unknown::TooDeep),
        protocol => Ok(Transport { protocol, fragment: false, start, end: ip.end }),
    }
}

/// Source and destination port of TCP, UDP and SCTP.
#[inline(always)]
pub fn ports(packet: Packet, transport: &Transport) -> Result<(u16, u16), Unknown> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const SCTP: u8 = 132;

    if transport.fragment {
        return Err(Unknown::Fragment);
    }
    if !matches!(transport.protocol, TCP | UDP | SCTP) {
        return Err(Unknown::Absent);
    }
    if transport.start + 4 > transport.end {
        return Err(Unknown::Malformed);
    }
    let [source, destination]: [[u8; 2]; 2] =
        packet.read_far(transport.start).ok_or(Unknown::Malformed)?;
    Ok((u16::from_be_bytes(source), u16::from_be_bytes(destination)))
}
