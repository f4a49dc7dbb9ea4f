//! Rules compiled to what the XDP program looks up: a 64-bit mask per value of each field.
//!
//! Bit *n* stands for rule *n*. An entry holds the rules that accept its value: those that ask for
//! it and those that leave the field open; an entry for a prefix also those of all prefixes around
//! it, as the longest match is the only one found. A packet's rules are the AND over all fields.

use std::{collections::BTreeMap, net::IpAddr};

use super::rules::{Prefix, Rule, Rules};
use crate::error::Result;

/// A field's entries, and the rules that leave it open, which hold where no entry does.
#[derive(Debug)]
pub(super) struct Table<K> {
    pub(super) entries: BTreeMap<K, u64>,
    pub(super) any: u64,
}

/// All tables of one set of rules.
#[derive(Debug)]
pub(super) struct Tables {
    /// Whether packets are looked at: [`Rules::all`] needs no look.
    pub(super) filter: bool,
    /// A bit per rule.
    pub(super) rules: u64,
    pub(super) ether_types: Table<u16>,
    pub(super) vlans: Table<u16>,
    pub(super) protocols: Table<u8>,
    pub(super) sources: Table<Prefix>,
    pub(super) destinations: Table<Prefix>,
    pub(super) source_ports: Table<u16>,
    pub(super) destination_ports: Table<u16>,
}

impl Tables {
    pub(super) fn compile(rules: &Rules) -> Result<Self> {
        rules.check()?;
        let list = rules.as_slice();
        Ok(Self {
            filter: !rules.is_all(),
            rules: mask(list, |_| true),
            ether_types: exact(list, |rule| rule.ether_type),
            vlans: exact(list, |rule| rule.vlan),
            protocols: exact(list, |rule| rule.protocol),
            sources: longest(list, |rule| rule.source),
            destinations: longest(list, |rule| rule.destination),
            source_ports: exact(list, |rule| rule.source_port),
            destination_ports: exact(list, |rule| rule.destination_port),
        })
    }
}

/// The bits of the rules that `accept`.
fn mask(rules: &[Rule], accept: impl Fn(&Rule) -> bool) -> u64 {
    rules.iter().enumerate().filter(|(_, rule)| accept(rule)).fold(0, |mask, (n, _)| mask | 1 << n)
}

fn table<K: Ord + Copy>(
    rules: &[Rule],
    field: impl Fn(&Rule) -> Option<K>,
    accepts: impl Fn(K, K) -> bool,
) -> Table<K> {
    let entries = rules
        .iter()
        .filter_map(&field)
        .map(|key| (key, mask(rules, |rule| field(rule).is_none_or(|asked| accepts(asked, key)))))
        .collect();
    Table { entries, any: mask(rules, |rule| field(rule).is_none()) }
}

fn exact<K: Ord + Copy>(rules: &[Rule], field: impl Fn(&Rule) -> Option<K>) -> Table<K> {
    table(rules, field, |asked, key| asked == key)
}

fn longest(rules: &[Rule], field: impl Fn(&Rule) -> Option<Prefix>) -> Table<Prefix> {
    table(rules, field, Prefix::covers)
}

impl Table<Prefix> {
    /// The entries of one IP version, as the kernel's tries take them.
    pub(super) fn v4(&self) -> impl Iterator<Item = (u32, [u8; 4], u64)> {
        self.entries.iter().filter_map(|(prefix, &mask)| match prefix.address() {
            IpAddr::V4(address) => Some((prefix.length().into(), address.octets(), mask)),
            IpAddr::V6(_) => None,
        })
    }

    pub(super) fn v6(&self) -> impl Iterator<Item = (u32, [u8; 16], u64)> {
        self.entries.iter().filter_map(|(prefix, &mask)| match prefix.address() {
            IpAddr::V6(address) => Some((prefix.length().into(), address.octets(), mask)),
            IpAddr::V4(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::{collection::vec, option, prelude::*, sample::select};

    use super::*;

    /// A packet's fields; `None` where it has none.
    #[derive(Clone, Debug)]
    struct Fields {
        ether_type: u16,
        vlan: Option<u16>,
        addresses: Option<(IpAddr, IpAddr)>,
        protocol: Option<u8>,
        ports: Option<(u16, u16)>,
    }

    /// The oracle: a rule read as its documentation says.
    fn matches(rule: &Rule, packet: &Fields) -> bool {
        fn field<T: PartialEq + Copy>(asked: Option<T>, has: Option<T>) -> bool {
            asked.is_none() || asked == has
        }
        let within = |asked: Option<Prefix>, address: Option<IpAddr>| {
            asked.is_none_or(|asked| address.is_some_and(|address| asked.covers(address.into())))
        };
        field(rule.ether_type, Some(packet.ether_type))
            && field(rule.vlan, packet.vlan)
            && field(rule.protocol, packet.protocol)
            && field(rule.source_port, packet.ports.map(|ports| ports.0))
            && field(rule.destination_port, packet.ports.map(|ports| ports.1))
            && within(rule.source, packet.addresses.map(|addresses| addresses.0))
            && within(rule.destination, packet.addresses.map(|addresses| addresses.1))
    }

    /// What the XDP program does with the tables.
    fn look_up(tables: &Tables, packet: &Fields) -> u64 {
        fn get<K: Ord>(table: &Table<K>, key: Option<K>) -> u64 {
            key.and_then(|key| table.entries.get(&key)).copied().unwrap_or(table.any)
        }
        let longest = |table: &Table<Prefix>, address: Option<IpAddr>| {
            let around = |address: IpAddr| {
                let found =
                    table.entries.iter().filter(|(prefix, _)| prefix.covers(address.into()));
                found.max_by_key(|(prefix, _)| prefix.length()).map(|(_, &mask)| mask)
            };
            address.and_then(around).unwrap_or(table.any)
        };
        tables.rules
            & get(&tables.ether_types, Some(packet.ether_type))
            & get(&tables.vlans, packet.vlan)
            & get(&tables.protocols, packet.protocol)
            & get(&tables.source_ports, packet.ports.map(|ports| ports.0))
            & get(&tables.destination_ports, packet.ports.map(|ports| ports.1))
            & longest(&tables.sources, packet.addresses.map(|addresses| addresses.0))
            & longest(&tables.destinations, packet.addresses.map(|addresses| addresses.1))
    }

    // Few values each, so that rules and packets meet.
    fn address(v4: bool) -> impl Strategy<Value = IpAddr> {
        select(vec![0u32, 1, 0x8000_0000, 0xc000_0001, u32::MAX]).prop_map(move |bits| {
            if v4 {
                Ipv4Addr::from_bits(bits).into()
            } else {
                Ipv6Addr::from_bits(u128::from(bits) << 96 | u128::from(bits)).into()
            }
        })
    }

    fn prefix(v4: bool) -> impl Strategy<Value = Prefix> {
        (address(v4), select(vec![0u8, 1, 2, 8, 31, 32]))
            .prop_filter_map("bits behind the prefix", |(address, length)| {
                Prefix::new(address, length).ok()
            })
    }

    fn port() -> impl Strategy<Value = u16> {
        select(vec![0u16, 53, 65535])
    }

    fn rule() -> impl Strategy<Value = Rule> {
        any::<bool>()
            .prop_flat_map(|v4| {
                (
                    option::of(select(vec![0x0800u16, 0x86dd, 0x0806])),
                    option::of(0u16..3),
                    option::of(select(vec![6u8, 17, 1])),
                    option::of(prefix(v4)),
                    option::of(prefix(v4)),
                    option::of(port()),
                    option::of(port()),
                )
            })
            .prop_map(|(ether_type, vlan, protocol, source, destination, from, to)| Rule {
                ether_type,
                vlan,
                protocol,
                source,
                destination,
                source_port: from,
                destination_port: to,
            })
            .prop_filter("refused", |rule| rule.check().is_ok())
    }

    fn packet() -> impl Strategy<Value = Fields> {
        (option::of(0u16..3), any::<Option<bool>>()).prop_flat_map(|(vlan, ip)| {
            let v4 = ip.unwrap_or_default();
            let fields = (address(v4), address(v4), select(vec![6u8, 17, 1]), port(), port());
            (fields, any::<bool>()).prop_map(
                move |((source, destination, protocol, from, to), fragment)| match ip {
                    None => Fields {
                        ether_type: 0x0806,
                        vlan,
                        addresses: None,
                        protocol: None,
                        ports: None,
                    },
                    Some(v4) => Fields {
                        ether_type: if v4 { 0x0800 } else { 0x86dd },
                        vlan,
                        addresses: Some((source, destination)),
                        protocol: Some(protocol),
                        ports: (protocol != 1 && !fragment).then_some((from, to)),
                    },
                },
            )
        })
    }

    proptest! {
        #[test]
        fn tables_say_what_the_rules_say(
            rules in vec(rule(), 0..=64),
            packets in vec(packet(), 32),
        ) {
            let tables = Tables::compile(&rules.iter().cloned().collect()).unwrap();
            for packet in packets {
                let expected = mask(&rules, |rule| matches(rule, &packet));
                prop_assert_eq!(look_up(&tables, &packet), expected, "{:?}", packet);
            }
        }
    }

    #[test]
    fn a_longer_prefix_keeps_the_rules_of_the_shorter_ones() {
        let source = |text: &str| Rule::new().source(text.parse().unwrap());
        let rules = Rules::from(vec![
            source("10.0.0.0/8"),
            source("10.1.0.0/16"),
            source("10.2.0.0/16"),
            source("::/0"),
            Rule::new().vlan(1),
        ]);
        let tables = Tables::compile(&rules).unwrap();
        let v4: Vec<_> = tables.sources.v4().collect();
        assert_eq!(
            v4,
            [
                (8, [10, 0, 0, 0], 0b1_0001),
                (16, [10, 1, 0, 0], 0b1_0011),
                (16, [10, 2, 0, 0], 0b1_0101),
            ]
        );
        assert_eq!(tables.sources.v6().collect::<Vec<_>>(), [(0, [0; 16], 0b1_1000)]);
        assert_eq!(tables.sources.any, 0b1_0000);
        assert_eq!(tables.protocols.any, tables.rules);
    }

    #[test]
    fn all_needs_no_look_and_none_has_no_rule() {
        assert!(!Tables::compile(&Rules::all()).unwrap().filter);
        let none = Tables::compile(&Rules::none()).unwrap();
        assert!(none.filter);
        assert_eq!(none.rules, 0);
    }
}
