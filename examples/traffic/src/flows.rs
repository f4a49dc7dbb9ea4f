//! Who talks to whom.

use std::net::IpAddr;

use crate::Values;

/// Addresses and ports of the packets to send.
#[derive(Clone, Debug)]
pub struct Flows {
    /// MAC addresses.
    pub source_mac: Values,
    /// MAC addresses.
    pub destination_mac: Values,
    /// VLAN ids, 0 to 4095, or no tag.
    pub vlan: Option<Values>,
    /// IP addresses, of the same kind as the destination's.
    pub source: Addresses,
    /// IP addresses.
    pub destination: Addresses,
    /// UDP ports.
    pub source_port: Values,
    /// UDP ports.
    pub destination_port: Values,
}

/// IP addresses of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Whether they are IPv6 addresses.
    pub v6: bool,
    /// The addresses as numbers.
    pub values: Values,
}

impl std::str::FromStr for Addresses {
    type Err = String;

    /// An address or a range of them: `10.0.0.1`, `10.0.0.1-10.0.0.9`, `fd00::1~fd00::ffff`.
    fn from_str(text: &str) -> Result<Self, String> {
        let address =
            |text: &str| text.parse::<IpAddr>().map_err(|error| format!("{text}: {error}"));
        let first = text.split(['-', '~']).next().unwrap_or(text);
        let v6 = address(first)?.is_ipv6();
        let values = Values::parse(text, |text| match address(text)? {
            IpAddr::V4(address) if !v6 => Ok(u32::from(address).into()),
            IpAddr::V6(address) if v6 => Ok(address.into()),
            _ => Err(format!("{text}: of another kind than the first address")),
        })?;
        Ok(Self { v6, values })
    }
}

/// MAC addresses: `02:00:00:00:00:01`, or a range of them.
pub fn parse_mac(text: &str) -> Result<Values, String> {
    Values::parse(text, |text| {
        let wrong = || format!("{text}: six bytes such as 02:00:00:00:00:01");
        let bytes: Vec<&str> = text.split(':').collect();
        let digits = |byte: &&str| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
        if bytes.len() != 6 || !bytes.iter().all(digits) {
            return Err(wrong());
        }
        u128::from_str_radix(&bytes.concat(), 16).map_err(|_| wrong())
    })
}

/// VLAN ids: `7`, or a range of them up to 4095.
pub fn parse_vlan(text: &str) -> Result<Values, String> {
    Values::parse(text, |text| number(text, 4095))
}

/// UDP ports: `9`, or a range of them.
pub fn parse_port(text: &str) -> Result<Values, String> {
    Values::parse(text, |text| number(text, 65535))
}

fn number(text: &str, most: u16) -> Result<u128, String> {
    let number: Option<u16> = text.parse().ok().filter(|number| *number <= most);
    number.map(u128::from).ok_or_else(|| format!("{text}: a number from 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ports_by_their_text() {
        let mac = parse_mac("02:00:00:00:00:01-02:00:00:00:01:00").unwrap();
        assert_eq!((mac.first(), mac.last()), (0x0200_0000_0001, 0x0200_0000_0100));
        for wrong in
            ["", "02:00:00:00:00", "2:0:0:0:0:1:", "02:00:00:00:00:0g", "+2:00:00:00:00:01"]
        {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
        let v4: Addresses = "10.0.0.1~10.0.0.9".parse().unwrap();
        assert!(!v4.v6 && v4.values.last() == 0x0a00_0009);
        let v6: Addresses = "fd00::1-fd00::ffff".parse().unwrap();
        assert!(v6.v6 && v6.values.last() & 0xffff == 0xffff);
        assert!("10.0.0.1-fd00::1".parse::<Addresses>().is_err());
        assert!("::1-10.0.0.1".parse::<Addresses>().is_err());
        assert!(parse_vlan("4096").is_err() && parse_vlan("0-4095").is_ok());
        assert!(parse_port("65536").is_err() && parse_port("0~65535").is_ok());
    }
}
