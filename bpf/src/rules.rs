//! Which packets go to sockets: up to 64 rules, a bit each.
//!
//! A field's table gives the mask of the rules that accept the packet's value; the masks are ANDed.
//! A table's entry includes the rules that leave the field open, and an LPM entry those of all
//! shorter prefixes around it. Where a table has no entry, or the packet no such field, the field's
//! `…_ANY` mask holds: the rules that leave it open.
//!
//! Everything here that is not a map is read-only data, set before the program is loaded: the
//! verifier knows its value and removes the code of fields that no rule uses. Other rules may use
//! other fields, so they come as a freshly loaded program, which replaces this one in the link.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, HashMap, LpmTrie, lpm_trie::Key},
};

use crate::{
    counters::Outcome,
    packet::{self, Ethernet, Packet, Transport, Unknown},
};

#[map]
static ETHER_TYPES: HashMap<u16, u64> = HashMap::with_max_entries(64, 0);
#[map]
static VLANS: HashMap<u16, u64> = HashMap::with_max_entries(64, 0);
/// Every protocol has an entry: an array's lookup is no call.
#[map]
static PROTOCOLS: Array<u64> = Array::with_max_entries(256, 0);
#[map]
static SOURCES_V4: LpmTrie<[u8; 4], u64> = LpmTrie::with_max_entries(64, 0);
#[map]
static SOURCES_V6: LpmTrie<[u8; 16], u64> = LpmTrie::with_max_entries(64, 0);
#[map]
static DESTINATIONS_V4: LpmTrie<[u8; 4], u64> = LpmTrie::with_max_entries(64, 0);
#[map]
static DESTINATIONS_V6: LpmTrie<[u8; 16], u64> = LpmTrie::with_max_entries(64, 0);
#[map]
static SOURCE_PORTS: HashMap<u16, u64> = HashMap::with_max_entries(64, 0);
#[map]
static DESTINATION_PORTS: HashMap<u16, u64> = HashMap::with_max_entries(64, 0);

/// 0: every packet goes to a socket, unread.
#[unsafe(no_mangle)]
static FILTER: Global<u32> = Global::new(0);
/// A bit per rule.
#[unsafe(no_mangle)]
static RULES: Global<u64> = Global::new(0);
/// The rules that leave a field open.
#[unsafe(no_mangle)]
static ETHER_TYPE_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static VLAN_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static PROTOCOL_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static SOURCE_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static DESTINATION_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static SOURCE_PORT_ANY: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static DESTINATION_PORT_ANY: Global<u64> = Global::new(0);

#[inline(always)]
pub fn filtering() -> bool {
    FILTER.load() != 0
}

/// Whether some rule constrains the field with this mask: a constant to the verifier.
#[inline(always)]
fn used(any: &'static Global<u64>) -> bool {
    any.load() != RULES.load()
}

#[inline(always)]
fn lookup(table: &HashMap<u16, u64>, key: u16, any: &'static Global<u64>) -> u64 {
    // SAFETY: nothing changes a table once its program is loaded.
    unsafe { table.get(key) }.copied().unwrap_or(any.load())
}

#[inline(always)]
fn longest<const N: usize>(
    trie: &LpmTrie<[u8; N], u64>,
    address: [u8; N],
    any: &'static Global<u64>,
) -> u64 {
    trie.get(Key::new(N as u32 * 8, address)).copied().unwrap_or(any.load())
}

#[inline(always)]
pub fn classify(packet: Packet) -> Outcome {
    match matching(packet) {
        Ok(()) => Outcome::Redirected,
        Err(Unknown::Absent) => Outcome::NoRule,
        Err(Unknown::Malformed) => Outcome::Malformed,
        Err(Unknown::TooDeep) => Outcome::TooDeep,
        Err(Unknown::Fragment) => Outcome::Fragment,
    }
}

/// Whether any rule is left, and if none is, what made the last of them fail.
#[inline(always)]
fn left(rules: u64, why: Unknown) -> Result<u64, Unknown> {
    if rules == 0 { Err(why) } else { Ok(rules) }
}

/// `Ok` where a rule matches. A field that cannot be read fails only the rules that constrain it,
/// so that what a rule means does not depend on the other rules.
#[inline(always)]
fn matching(packet: Packet) -> Result<(), Unknown> {
    let mut rules = left(RULES.load(), Unknown::Absent)?;
    let Ethernet { ether_type, vlan, payload } = packet::ethernet(packet)?;

    if used(&VLAN_ANY) {
        rules &= match vlan {
            Some(id) => lookup(&VLANS, id, &VLAN_ANY),
            None => VLAN_ANY.load(),
        };
        rules = left(rules, Unknown::Absent)?;
    }
    if used(&ETHER_TYPE_ANY) {
        rules &= lookup(&ETHER_TYPES, ether_type, &ETHER_TYPE_ANY);
        rules = left(rules, Unknown::Absent)?;
    }
    let transport_used =
        used(&PROTOCOL_ANY) || used(&SOURCE_PORT_ANY) || used(&DESTINATION_PORT_ANY);
    if !used(&SOURCE_ANY) && !used(&DESTINATION_ANY) && !transport_used {
        return Ok(());
    }

    let transport = match ether_type {
        packet::IPV4 => match packet::ipv4(packet, payload) {
            Ok(ip) => {
                if used(&SOURCE_ANY) {
                    rules &= longest(&SOURCES_V4, ip.source, &SOURCE_ANY);
                }
                if used(&DESTINATION_ANY) {
                    rules &= longest(&DESTINATIONS_V4, ip.destination, &DESTINATION_ANY);
                }
                Ok(ip.transport)
            }
            Err(why) => return without_ip(rules, why),
        },
        packet::IPV6 => match packet::ipv6(packet, payload) {
            Ok(ip) => {
                if used(&SOURCE_ANY) {
                    rules &= longest(&SOURCES_V6, ip.source, &SOURCE_ANY);
                }
                if used(&DESTINATION_ANY) {
                    rules &= longest(&DESTINATIONS_V6, ip.destination, &DESTINATION_ANY);
                }
                if !transport_used {
                    return left(rules, Unknown::Absent).map(drop);
                }
                packet::ipv6_transport(packet, &ip)
            }
            Err(why) => return without_ip(rules, why),
        },
        _ => return without_ip(rules, Unknown::Absent),
    };
    rules = left(rules, Unknown::Absent)?;
    if !transport_used {
        return Ok(());
    }
    match transport {
        Ok(transport) => with_transport(packet, rules, &transport),
        Err(why) => left(rules & PROTOCOL_ANY.load() & ports_any(), why).map(drop),
    }
}

#[inline(always)]
fn with_transport(packet: Packet, mut rules: u64, transport: &Transport) -> Result<(), Unknown> {
    if used(&PROTOCOL_ANY) {
        rules &= PROTOCOLS.get(u32::from(transport.protocol)).copied().unwrap_or(0);
        rules = left(rules, Unknown::Absent)?;
    }
    if !used(&SOURCE_PORT_ANY) && !used(&DESTINATION_PORT_ANY) {
        return Ok(());
    }
    match packet::ports(packet, transport) {
        Ok((source, destination)) => {
            if used(&SOURCE_PORT_ANY) {
                rules &= lookup(&SOURCE_PORTS, source, &SOURCE_PORT_ANY);
            }
            if used(&DESTINATION_PORT_ANY) {
                rules &= lookup(&DESTINATION_PORTS, destination, &DESTINATION_PORT_ANY);
            }
            left(rules, Unknown::Absent).map(drop)
        }
        Err(why) => left(rules & ports_any(), why).map(drop),
    }
}

/// No usable IP header: only rules without any field of IP are left.
#[inline(always)]
fn without_ip(rules: u64, why: Unknown) -> Result<(), Unknown> {
    let any = SOURCE_ANY.load() & DESTINATION_ANY.load() & PROTOCOL_ANY.load();
    left(rules & any & ports_any(), why).map(drop)
}

#[inline(always)]
fn ports_any() -> u64 {
    SOURCE_PORT_ANY.load() & DESTINATION_PORT_ANY.load()
}
