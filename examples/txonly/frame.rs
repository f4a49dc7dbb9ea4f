//! The frame that is sent.

use clap::Args;
use etherparse::PacketBuilder;
use xskit::Umem;

use crate::common::Failure;

/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// The discard protocol's.
const PORT: u16 = 9;
/// For benchmarks, by RFC 2544.
const ADDRESSES: [[u8; 4]; 2] = [[198, 18, 0, 1], [198, 18, 0, 2]];

/// What to send.
#[derive(Debug, Args)]
#[command(next_help_heading = "Frame")]
pub(crate) struct Frame {
    /// The MAC address to send to.
    #[arg(long, value_name = "MAC", value_parser = mac)]
    destination: [u8; 6],
    /// The MAC address to send from.
    #[arg(long, value_name = "MAC", value_parser = mac, default_value = "02:00:00:00:00:01")]
    source: [u8; 6],
    /// Bytes of a frame, without its checksum.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=9000))]
    size: u16,
}

impl Frame {
    pub(crate) fn len(&self) -> usize {
        self.size.into()
    }

    /// Writes it into every frame of the UMEM, all of which are free.
    pub(crate) fn write_everywhere(&self, umem: &Umem) -> Result<(), Failure> {
        let [from, to] = ADDRESSES;
        let mut content = Vec::new();
        PacketBuilder::ethernet2(self.source, self.destination)
            .ipv4(from, to, 64)
            .udp(PORT, PORT)
            .write(&mut content, &vec![0; self.len() - HEADERS])?;
        let mut all = umem.batch(usize::try_from(umem.audit().total)?);
        all.alloc(all.capacity());
        for mut packet in all.packets_mut() {
            packet.write(&content).map_err(|error| format!("--size {}: {error}", self.size))?;
        }
        Ok(())
    }
}

/// `02:00:00:00:00:01`
fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "six bytes such as 02:00:00:00:00:01".to_owned())
}
