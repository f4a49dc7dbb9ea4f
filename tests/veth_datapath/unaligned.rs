//! Chunks across the borders of pages.

use std::time::Duration;

use xskit::{AttachMode, ChunkSize, Interest, Pages, Socket, SocketConfig, UmemConfig};
use xskit_lab::{Checker, Lab, LabConfig, Need};

use crate::support::{
    MOMENT, adds_up, collect, comes_home, frames, near, near_interface, receive, send, settle,
    to_far, to_near,
};

/// The smallest, one that two of three straddle a page with, an odd one, and the largest.
const SIZES: [u32; 4] = [2048, 3000, 4001, 4096];
const LENGTHS: [usize; 4] = [60, 61, 512, 1514];

#[test]
fn unaligned_frames_are_received_whole() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            for bytes in SIZES {
                let size = ChunkSize::unaligned(bytes).unwrap();
                let umem = UmemConfig::default().chunk_size(size).headroom(14);
                let umem = umem.pages(Pages::HugeOrTransparent);
                let mut port = near().attach(mode).umem_config(umem).open().unwrap();
                let umem = port.umem().clone();
                let mut socket = port.take_queue(0).unwrap();
                for length in LENGTHS {
                    let series = to_near(&lab, length);
                    // More than the frames there are, in the end.
                    for _ in 0..4 {
                        let mut checker = Checker::new(series.clone());
                        raw.send_all(&frames(&series, 500)).unwrap();
                        receive(&mut socket, &mut checker, 500, 64);
                        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
                    }
                    adds_up(&umem);
                }
                let statistics = socket.statistics().unwrap();
                assert_eq!((statistics.received, statistics.lost), (8000, 0));
                drop((port, socket));
                comes_home(&umem, &[(&near_interface(), 0)]);
            }
        }
    });
}

#[test]
fn unaligned_frames_are_sent_whole() {
    let need = Need::Namespaces;
    let Some(lab) = Lab::for_test_with(&LabConfig { need, ..LabConfig::default() }) else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for bytes in SIZES {
            let size = ChunkSize::unaligned(bytes).unwrap();
            let umem = UmemConfig::new(4096).chunk_size(size).headroom(32).build().unwrap();
            let config = SocketConfig::default();
            let mut socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
            for length in LENGTHS {
                let series = to_far(&lab, length);
                let mut checker = Checker::new(series.clone());
                send(&mut socket, &series, 0..3000, 64);
                collect(&mut raw, &mut checker, 3000);
                assert!(checker.tally().is_perfect(3000), "{:?}", checker.tally());
            }
            settle(&mut socket);
            adds_up(&umem);
            let statistics = socket.statistics().unwrap();
            assert_eq!((statistics.lost, statistics.kernel.tx_invalid_descs), (0, 0));
            drop(socket);
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn unaligned_jumbo_frames_are_reflected_whole() {
    const COUNT: u64 = 500;
    let Some(lab) = Lab::for_test_with(&LabConfig { mtu: 9000, ..LabConfig::default() }) else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for bytes in [3000, 4001] {
            let size = ChunkSize::unaligned(bytes).unwrap();
            let mut port = near()
                .umem_config(UmemConfig::default().chunk_size(size))
                .multi_buffer(true)
                .open()
                .unwrap();
            let mut socket = port.take_queue(0).unwrap();
            let mut batch = port.umem().batch(64);
            let series = to_near(&lab, 9000);
            let mut checker = Checker::new(series.clone());
            for number in 0..COUNT {
                raw.send(&series.frame(number)).unwrap();
                while checker.tally().received() <= number {
                    let ready = socket.wait(Interest::for_batch(&batch), MOMENT).unwrap();
                    assert!(!ready.timed_out() || !batch.is_empty(), "{:?}", socket.statistics());
                    socket.recv(&mut batch).unwrap();
                    for mut packet in batch.packets_mut() {
                        // Off and on again, so that addresses move within their chunks.
                        packet.trim_front(100).unwrap();
                        packet.grow_front(100).unwrap();
                        packet.head_mut()[..12].rotate_left(6);
                    }
                    socket.send(&mut batch).unwrap();
                    let arrived = raw.recv_each(Duration::from_secs(5), |frame| {
                        let mut content = frame.to_vec();
                        content[..12].rotate_left(6);
                        checker.check(&content);
                    });
                    assert!(arrived.unwrap() > 0);
                }
            }
            assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
            settle(&mut socket);
            adds_up(port.umem());
        }
    });
}
