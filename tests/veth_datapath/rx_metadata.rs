//! What an XDP program leaves before packets.

use xskit::{ChunkSize, Interest, Socket, SocketConfig, SocketMap, UmemConfig};
use xskit_lab::{Checker, Lab, METADATA, XdpMode};

use crate::support::{LIMIT, adds_up, frames, near_interface, ring, to_near};

#[test]
fn metadata_arrives_with_each_packet() {
    const COUNT: u64 = 300;
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let map = SocketMap::from_fd(lab.near.attach_metadata(mode).unwrap()).unwrap();
            for (size, headroom) in
                [(ChunkSize::K4, 0), (ChunkSize::K2, 64), (ChunkSize::unaligned(3001).unwrap(), 10)]
            {
                let config = UmemConfig::new(2048).chunk_size(size).headroom(headroom);
                let umem = config.rx_metadata(8).build().unwrap();
                let config = SocketConfig::default().fill(ring(1024));
                let mut socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
                socket.join(&map).unwrap();
                let mut batch = umem.batch(64);
                for length in [60, 61, 1514] {
                    let series = to_near(&lab, length);
                    raw.send_all(&frames(&series, COUNT)).unwrap();
                    let mut checker = Checker::new(series);
                    while checker.tally().received() < COUNT {
                        let ready = socket.wait(Interest::READABLE, LIMIT).unwrap();
                        assert!(ready.readable(), "{:?}", checker.tally());
                        socket.recv(&mut batch).unwrap();
                        for packet in batch.packets() {
                            let [len, mark]: [u32; 2] = packet.metadata().unwrap();
                            assert_eq!((len as usize, mark), (packet.len(), METADATA));
                            checker.check(packet.head());
                        }
                        let mut packet = batch.packets_mut().next().unwrap();
                        assert_eq!(packet.metadata::<[u32; 2]>().unwrap()[1], METADATA);
                        let error = packet.metadata::<u32>().unwrap_err();
                        assert_eq!((error.asked, error.possible), (4, 8));
                        packet.grow_front(256).unwrap();
                        assert!(headroom > 7 || packet.metadata::<u64>().is_err());
                        batch.clear();
                    }
                    assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
                }
                adds_up(&umem);
            }
            lab.near.detach_xdp(mode).unwrap();
        }
        // Without the configuration there is none.
        let umem = UmemConfig::new(8).build().unwrap();
        let mut batch = umem.batch(1);
        batch.alloc(1);
        let error = batch.packets().next().unwrap().metadata::<u64>().unwrap_err();
        assert_eq!((error.asked, error.possible), (8, 0));
        for bytes in [1, 6, 256, u32::MAX] {
            assert!(UmemConfig::new(8).rx_metadata(bytes).build().is_err(), "{bytes}");
        }
    });
}
