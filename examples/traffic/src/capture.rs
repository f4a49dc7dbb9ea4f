//! Packets out of a capture.

use std::{fs::File, io::Read, path::Path};

use pcap_file::{
    DataLink,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader, blocks::interface_description::InterfaceDescriptionOption},
};

/// A captured Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Its bytes, as far as they were captured.
    pub frame: Vec<u8>,
    /// Whether it had more bytes than were captured.
    pub cut: bool,
}

/// The first four bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Reads a pcap or pcapng file.
///
/// # Errors
///
/// If it cannot be read, is neither, or has packets of another kind than Ethernet.
pub fn read(path: &Path) -> Result<Vec<Captured>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    let packets = if bytes.starts_with(&PCAPNG) { pcapng(&bytes) } else { pcap(&bytes) };
    packets.map_err(|error| format!("{}: {error}", path.display()))
}

fn pcap(bytes: &[u8]) -> Result<Vec<Captured>, String> {
    let mut reader = PcapReader::new(bytes).map_err(|error| error.to_string())?;
    ethernet(reader.header().datalink)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| number(packets.len(), error))?;
        packets.push(Captured {
            time: nanoseconds(packet.timestamp),
            cut: packet.orig_len as usize > packet.data.len(),
            frame: packet.data.into_owned(),
        });
    }
    Ok(packets)
}

fn pcapng(bytes: &[u8]) -> Result<Vec<Captured>, String> {
    let mut reader = PcapNgReader::new(bytes).map_err(|error| error.to_string())?;
    let mut packets: Vec<Captured> = Vec::new();
    loop {
        let Some(block) = reader.next_block() else { return Ok(packets) };
        // Its time is what the file says, in units of its interface.
        let (index, units, original, data) =
            match block.map_err(|error| number(packets.len(), error))? {
                Block::EnhancedPacket(packet) => {
                    let units = packet.timestamp.as_nanos();
                    (packet.interface_id, Some(units), packet.original_len, packet.data)
                }
                Block::SimplePacket(packet) => (0, None, packet.original_len, packet.data),
                _ => continue,
            };
        let cut = original as usize > data.len();
        let frame = data.into_owned();
        let interface = reader.interfaces().get(index as usize).ok_or_else(|| {
            number(packets.len(), format!("one of interface {index}, which is not described"))
        })?;
        ethernet(interface.linktype)?;
        let time = match units {
            Some(units) => {
                let time = units.saturating_mul(crate::SECOND) / per_second(&interface.options);
                u64::try_from(time).unwrap_or(u64::MAX)
            }
            // It has none: that of the one before.
            None => packets.last().map_or(0, |before| before.time),
        };
        packets.push(Captured { time, frame, cut });
    }
}

/// Units of time of an interface (`if_tsresol`): microseconds, if it says nothing.
fn per_second(options: &[InterfaceDescriptionOption<'_>]) -> u128 {
    let resolution = options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.saturating_pow(u32::from(resolution & 0x7f))
}

fn ethernet(link: DataLink) -> Result<(), String> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => Err(format!("packets of {other:?}: only those of Ethernet can be sent")),
    }
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn number(packets: usize, error: impl std::fmt::Display) -> String {
    format!("after {packets} packets: {error}")
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, time::Duration};

    use pcap_file::pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock, interface_description::InterfaceDescriptionBlock,
        },
    };

    use super::*;

    /// A file of two packets, in units of the interface's, one of them cut off.
    fn pcapng_file(resolution: Option<u8>, link: DataLink) -> Vec<u8> {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let mut interface = InterfaceDescriptionBlock::new(link, 0);
        interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
        writer.write_pcapng_block(interface).unwrap();
        for (units, len, original) in
            [(1_700_000_000_000_123, 60, 60), (1_700_000_000_000_456, 61, 99)]
        {
            writer
                .write_pcapng_block(EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: Duration::from_nanos(units),
                    original_len: original,
                    data: Cow::Owned(vec![7; len]),
                    options: Vec::new(),
                })
                .unwrap();
        }
        writer.into_inner()
    }

    #[test]
    fn times_are_in_units_of_the_interface() {
        let times = |resolution| -> Vec<u64> {
            let packets = pcapng(&pcapng_file(resolution, DataLink::ETHERNET)).unwrap();
            assert_eq!(packets.iter().map(|packet| packet.cut).collect::<Vec<_>>(), [false, true]);
            assert_eq!(
                packets.iter().map(|packet| packet.frame.len()).collect::<Vec<_>>(),
                [60, 61]
            );
            packets.iter().map(|packet| packet.time).collect()
        };
        for microseconds in [None, Some(6)] {
            assert_eq!(times(microseconds), [1_700_000_000_000_123_000, 1_700_000_000_000_456_000]);
        }
        assert_eq!(times(Some(9)), [1_700_000_000_000_123, 1_700_000_000_000_456]);
        assert_eq!(times(Some(0x94))[0], 1_621_246_337_890_742_301);
    }

    #[test]
    fn what_is_no_capture_of_ethernet() {
        assert!(pcapng(&pcapng_file(None, DataLink::RAW)).unwrap_err().contains("RAW"));
        assert!(pcap(b"no capture at all, but long enough to look at").is_err());
        let whole = pcapng_file(None, DataLink::ETHERNET);
        assert!(pcapng(&whole[..whole.len() - 30]).is_err(), "cut off in the middle");
        let error = read(Path::new("/nonexistent/capture")).unwrap_err();
        assert!(error.contains("/nonexistent/capture"), "{error}");
    }
}
