//! What is asked for packets to send, in copy mode.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xskit::{Socket, SocketConfig, Umem, UmemConfig, umem::TxRequest};
use xskit_lab::{Lab, LabConfig, Need, Offload};

use crate::support::{LIMIT, adds_up, near_interface, settle, to_far};

/// Where the checksum of UDP over IPv4 is: the header's start, and the field in it.
const UDP: (u16, u16) = (34, 6);

fn lab() -> Option<Lab> {
    Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..LabConfig::default() })
}

fn open(config: UmemConfig) -> (Umem, Socket) {
    let umem = config.build().unwrap();
    let socket = Socket::open(&umem, &near_interface(), 0, &SocketConfig::default()).unwrap();
    (umem, socket)
}

#[test]
fn sent_packets_have_a_time() {
    let Some(lab) = lab() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let (umem, mut socket) = open(UmemConfig::new(4096).tx_metadata(true));
        let series = to_far(&lab, 200);
        let mut batch = umem.batch(64);
        let now =
            || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos());
        let mut last = now().unwrap();
        for round in 0..100 {
            assert_eq!(batch.alloc(4), 4);
            for (number, mut packet) in (4 * round..).zip(batch.packets_mut()) {
                // From wherever in its chunk: the kernel may round an address when it tells of it.
                let front = usize::try_from(number % 7).unwrap();
                packet.set_len(front).unwrap();
                packet.trim_front(front).unwrap();
                packet.write(&series.frame(number)).unwrap();
                if number % 2 == 1 {
                    packet.request(TxRequest::new().timestamp(number)).unwrap();
                }
            }
            assert_eq!(socket.send(&mut batch).unwrap(), 4);
            for number in 4 * round..4 * round + 4 {
                assert_eq!(raw.recv(LIMIT).unwrap().unwrap(), series.frame(number));
            }
            settle(&mut socket);
            let stamps = socket.timestamps();
            let ids: Vec<u64> = stamps.iter().map(|stamp| stamp.id).collect();
            assert_eq!(ids, [4 * round + 1, 4 * round + 3]);
            for stamp in stamps {
                // TAI is ahead of the system's time by the leap seconds, where it knows them.
                let ahead = Duration::from_secs(60).as_nanos();
                assert!(stamp.nanoseconds >= last, "one after the other");
                assert!(u128::from(stamp.nanoseconds) <= u128::from(now().unwrap()) + ahead);
                last = stamp.nanoseconds;
            }
        }
        adds_up(&umem);
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.timestamps_lost, statistics.kernel.tx_invalid_descs), (0, 0));
    });
}

#[test]
fn checksums_are_computed_where_that_is_asked() {
    let Some(lab) = lab() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        // Asked of the kernel or left to the interface, which claims to compute checksums, or does not.
        for (software, offload) in [(true, true), (true, false), (false, false), (false, true)] {
            lab.near.set_offload(Offload::TxChecksum, offload).unwrap();
            let (umem, mut socket) =
                open(UmemConfig::new(4096).tx_metadata(true).software_checksums(software));
            for length in [60, 61, 500, 1514] {
                let frame = to_far(&lab, length).frame(1);
                let field = 40..42;
                assert_ne!(frame[field.clone()], [0, 0], "the lab computes it");
                // With the sum of the pseudo-header alone in the field.
                let mut partial = frame.clone();
                let address = |at: usize| -> std::net::IpAddr {
                    let bytes: [u8; 4] = frame[at..at + 4].try_into().unwrap();
                    bytes.into()
                };
                let udp = u32::from(u16::from_be_bytes([frame[38], frame[39]]));
                let sum = xskit::umem::pseudo_header(address(26), address(30), 17, udp).unwrap();
                partial[field].copy_from_slice(&sum.to_be_bytes());

                let mut batch = umem.batch(2);
                batch.alloc(2);
                let mut packets = batch.packets_mut();
                let mut packet = packets.next().unwrap();
                packet.write(&partial).unwrap();
                packet.request(TxRequest::new().checksum(UDP.0, UDP.1)).unwrap();
                // By ourselves.
                let mut packet = packets.next().unwrap();
                packet.write(&partial).unwrap();
                packet.fill_checksum(UDP.0.into(), UDP.1.into()).unwrap();
                drop(packets);
                socket.send(&mut batch).unwrap();
                let kernels = raw.recv(LIMIT).unwrap().unwrap();
                let ours = raw.recv(LIMIT).unwrap().unwrap();
                assert_eq!(ours, frame, "{length}");
                // A veth claims to, and passes the packet on as it is.
                let left = !software && offload;
                assert_eq!(kernels, if left { partial } else { frame }, "{length} {software}");
            }
            assert_eq!(socket.statistics().unwrap().kernel.tx_invalid_descs, 0);
            settle(&mut socket);
            adds_up(&umem);
        }
    });
}
