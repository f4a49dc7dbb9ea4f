//! What an XDP program leaves before packets.

use xskit::{ChunkSize, Interest, SocketConfig, SocketMap, UmemConfig};
use xskit_lab::{METADATA, XdpMode};

use crate::{
    Case, Outcome,
    bench::{Bench, End, LENGTH, PACKETS, Redirect, nothing_comes, windows},
    mode::Mode,
    support::{LIMIT, rings, settle},
    whole::{send_batch, several},
};

pub(super) const CASES: &[Case] = &[
    ("metadata_before_the_packet", |mode| copied(mode, rings(512), LENGTH, 1)),
    ("metadata_before_the_packet_of_several_frames", |mode| copied(mode, several(), 3000, 2)),
];

/// Each packet arrives with the two numbers that the program writes: its length, and always the same one.
fn copied(mode: &'static Mode, socket: SocketConfig, length: usize, frames: usize) -> Outcome {
    // One buffer of the driver's, and two frames of 2048 bytes.
    let bench = Bench::with_mtu(mode, 3000);
    if let Some(cannot) = (frames > 1).then(|| bench.lacks_several()).flatten() {
        return cannot;
    }
    let xdp = match mode.attached() {
        xskit::Attached::Generic => XdpMode::Generic,
        _ => XdpMode::Native,
    };
    let umem = || UmemConfig::new(1024).chunk_size(ChunkSize::K2);
    let mut from = bench.sender_of(umem(), socket.clone());
    let near = &bench.lab.near;
    let map = SocketMap::from_fd(near.attach_metadata(xdp).unwrap()).unwrap();
    let config = socket.receive_only();
    let mut to = End::open(mode, near, umem().rx_metadata(8), config, Redirect::Nothing);
    to.socket.join(&map).unwrap();
    let series = bench.to_near(length);
    for numbers in windows(0..PACKETS) {
        let mut sending = from.umem.batch(256);
        for number in &numbers {
            sending.alloc_packet(length).unwrap().write(&series.frame(*number)).unwrap();
        }
        send_batch(&mut from.socket, &mut sending);
        let mut numbers = numbers.into_iter();
        while numbers.len() > 0 {
            let ready = to.socket.wait(Interest::READABLE, LIMIT).unwrap();
            assert!(ready.readable(), "{:?}", to.socket.statistics());
            let mut batch = to.umem.batch(256);
            to.socket.recv(&mut batch).unwrap();
            for packet in batch.packets() {
                let content = packet.frames().collect::<Vec<_>>().concat();
                assert!(Some(content) == numbers.next().map(|number| series.frame(number)));
                assert_eq!(packet.frames().len(), frames);
                let [len, mark]: [u32; 2] = packet.metadata().unwrap();
                assert_eq!((len as usize, mark), (length, METADATA));
            }
        }
    }
    settle(&mut from.socket);
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
    near.detach_xdp(xdp).unwrap();
    Outcome::Passed
}
