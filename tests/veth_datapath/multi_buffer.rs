//! Packets of several frames.

use std::time::Duration;

use xskit::{
    AttachMode, ChunkSize, ErrorKind, Interest, Packet, PortConfig, Rules, Socket, SocketConfig,
    UmemConfig,
};
use xskit_lab::{Checker, Lab, LabConfig, Need};

use crate::support::{
    LIMIT, MOMENT, PORT, adds_up, collect, comes_home, frames, near, near_interface, ring, settle,
    to_far, to_near,
};

fn jumbo_lab(need: Need) -> Option<Lab> {
    Lab::for_test_with(&LabConfig { mtu: 9000, need, ..LabConfig::default() })
}

fn whole(packet: Packet<'_>) -> Vec<u8> {
    packet.frames().collect::<Vec<_>>().concat()
}

fn lengths(packet: Packet<'_>) -> Vec<usize> {
    packet.frames().map(<[u8]>::len).collect()
}

/// From one byte more than a frame to the MTU with its header, and small ones between.
const LENGTHS: [usize; 6] = [9000, 60, 3840, 3841, 7681, 9014];

#[test]
fn jumbo_packets_come_and_go_as_one() {
    const EACH: u64 = 100;
    let Some(lab) = jumbo_lab(Need::Bpf) else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            for size in [3, 64] {
                let mut port = near().attach(mode).multi_buffer(true).open().unwrap();
                let umem = port.umem().clone();
                let mut socket = port.take_queue(0).unwrap();
                assert_eq!((socket.mode().multi_buffer, socket.mode().max_frames), (true, 18));
                let mut batch = umem.batch(size);
                for length in LENGTHS {
                    let series = to_near(&lab, length);
                    let mut here = Checker::new(series.clone());
                    // The same frames with the MAC addresses exchanged.
                    let mut there = Checker::new(series.clone());
                    raw.send_all(&frames(&series, EACH)).unwrap();
                    while there.tally().received() < EACH {
                        let ready = socket.wait(Interest::for_batch(&batch), MOMENT).unwrap();
                        if ready.readable() && socket.recv(&mut batch).unwrap() > 0 {
                            for mut packet in batch.packets_mut() {
                                packet.head_mut()[..12].rotate_left(6);
                            }
                            for packet in batch.packets() {
                                if length == 9000 {
                                    assert_eq!(lengths(packet), [3840, 3840, 1320]);
                                }
                                let mut content = whole(packet);
                                content[..12].rotate_left(6);
                                here.check(&content);
                            }
                        }
                        socket.send(&mut batch).unwrap();
                        let arrived = raw.recv_each(Duration::ZERO, |frame| {
                            let mut content = frame.to_vec();
                            content[..12].rotate_left(6);
                            there.check(&content);
                        });
                        assert!(
                            arrived.unwrap() > 0 || !ready.timed_out(),
                            "{mode:?} {length}: {here:?} {:?}",
                            socket.statistics()
                        );
                    }
                    let tallies = (here.tally(), there.tally());
                    assert!(
                        tallies.0.is_perfect(EACH) && tallies.1.is_perfect(EACH),
                        "{tallies:?}"
                    );
                    settle(&mut socket);
                    adds_up(&umem);
                }
                let statistics = socket.statistics().unwrap();
                assert_eq!(statistics.received, EACH * LENGTHS.len() as u64);
                assert_eq!((statistics.rx_oversized, statistics.tx_refused), (0, 0));
                assert_eq!(statistics.kernel.tx_invalid_descs, 0);
                drop((port, socket, batch));
                comes_home(&umem, &[(&near_interface(), 0)]);
            }
        }
    });
}

#[test]
fn jumbo_packets_are_built_and_sent_as_one() {
    let Some(lab) = jumbo_lab(Need::Namespaces) else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        // A TX ring of 8 that three frames do not divide.
        for (chunk, tx) in [(ChunkSize::K4, 8), (ChunkSize::K4, 1024), (ChunkSize::K2, 8)] {
            let umem = UmemConfig::new(4096).chunk_size(chunk).headroom(64).build().unwrap();
            let config = SocketConfig::default().tx(ring(tx)).multi_buffer(true);
            let mut socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
            let mut batch = umem.batch(256);
            for length in LENGTHS {
                let series = to_far(&lab, length);
                let mut checker = Checker::new(series.clone());
                let mut numbers = 0..200;
                while !(numbers.is_empty() && batch.is_empty()) {
                    while !numbers.is_empty() {
                        let Some(mut packet) = batch.alloc_packet(length) else { break };
                        packet.write(&series.frame(numbers.next().unwrap())).unwrap();
                    }
                    socket.wait(Interest::WRITABLE, LIMIT).unwrap();
                    assert!(socket.send(&mut batch).unwrap() > 0, "room for a packet, wait said");
                }
                collect(&mut raw, &mut checker, 200);
                assert!(checker.tally().is_perfect(200), "{length}: {:?}", checker.tally());
            }
            settle(&mut socket);
            adds_up(&umem);
            let statistics = socket.statistics().unwrap();
            assert_eq!((statistics.tx_dropped, statistics.tx_refused, statistics.lost), (0, 0, 0));
            assert_eq!(statistics.kernel.tx_invalid_descs, 0);
            drop((batch, socket));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn the_largest_number_of_frames_and_one_more() {
    let Some(lab) = Lab::for_test_with(&LabConfig { mtu: 65_000, ..LabConfig::default() }) else {
        return;
    };
    // Received there by a socket, too: of 18 frames and more.
    let mut far = lab.far.netns().enter(|| {
        let config = PortConfig::new("far0").rules(Rules::udp_port(PORT));
        config
            .umem_config(UmemConfig::default().chunk_size(ChunkSize::K2))
            .multi_buffer(true)
            .open()
            .unwrap()
    });
    let mut there = far.take_queue(0).unwrap();
    lab.enter(|| {
        let umem = UmemConfig::new(1024).chunk_size(ChunkSize::K2).build().unwrap();
        let config = SocketConfig::default().send_only().multi_buffer(true);
        let mut socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
        let most = socket.mode().max_frames as usize;
        assert_eq!(most, 18);
        let (longest, more, short) = (most * 2048, most * 2048 + 1, 100);
        let mut batch = umem.batch(64);
        for length in [longest, more, short] {
            let content = to_far(&lab, length).frame(7);
            batch.alloc_packet(length).unwrap().write(&content).unwrap();
        }
        assert_eq!(socket.send(&mut batch).unwrap(), 19);
        settle(&mut socket);
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.tx_refused, statistics.kernel.tx_invalid_descs), (1, 0));
        adds_up(&umem);

        let mut batch = far.umem().batch(64);
        let mut arrived = Vec::new();
        while arrived.len() < 2 {
            assert!(there.wait(Interest::READABLE, LIMIT).unwrap().readable());
            there.recv(&mut batch).unwrap();
            arrived.extend(batch.packets().map(|packet| (packet.frames().len(), whole(packet))));
            batch.clear();
        }
        let of = |length: usize| (length.div_ceil(1792), to_far(&lab, length).frame(7));
        assert!(arrived == [of(longest), of(short)]);
    });
}

#[test]
fn a_small_batch_does_not_stop_reception() {
    let Some(lab) = jumbo_lab(Need::Bpf) else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().multi_buffer(true).open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let (long, short) = (to_near(&lab, 9000), to_near(&lab, 200));
        let mut sent = Vec::new();
        for number in 0..50 {
            sent.extend([long.frame(number), short.frame(number)]);
        }
        raw.send_all(&sent).unwrap();
        let mut checker = Checker::new(short);
        let mut batch = port.umem().batch(2);
        while checker.tally().received() < 50 {
            assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
            socket.recv(&mut batch).unwrap();
            batch.packets().for_each(|packet| {
                checker.check(packet.head());
            });
            batch.clear();
        }
        assert!(checker.tally().is_perfect(50), "{:?}", checker.tally());
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.received, statistics.rx_oversized), (50, 50));
        adds_up(port.umem());
    });
}

#[test]
fn zero_copy_with_several_frames_says_what_the_device_can() {
    let Some(lab) = jumbo_lab(Need::Namespaces) else { return };
    lab.enter(|| {
        let umem = UmemConfig::new(64).build().unwrap();
        let config = SocketConfig::default()
            .multi_buffer(true)
            .copy_mode(xskit::CopyMode::ZeroCopy)
            .fill(ring(32));
        let error = Socket::open(&umem, &near_interface(), 0, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("multi-buffer: no"), "{error}");
        // With and without it on one UMEM: registered once for each.
        let config = SocketConfig::default().fill(ring(32));
        drop(Socket::open(&umem, &near_interface(), 0, &config).unwrap());
        let config = config.multi_buffer(true);
        let mut socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
        assert!(socket.share_queue(&SocketConfig::default()).unwrap().mode().multi_buffer);
    });
}
