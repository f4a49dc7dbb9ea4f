//! Packets of several frames, and of chunks of any size: sent and received whole.

use xskit::{Batch, ErrorKind, Interest, Interface, Socket, SocketConfig, UmemConfig};
use xskit_lab::Numbered;

use crate::{
    Outcome,
    bench::{Bench, End, Redirect, windows},
    support::{LIMIT, rings, settle},
};

/// What the kernel keeps before a received frame.
const XDP_HEADROOM: usize = 256;

/// Rings for packets of several frames.
pub(crate) fn several() -> SocketConfig {
    rings(512).multi_buffer(true)
}

impl Bench {
    /// Why this kernel has no packets of several frames, if it has none.
    pub(crate) fn lacks_several(&self) -> Option<Outcome> {
        let far = &self.lab.far;
        far.netns().enter(|| {
            let umem = UmemConfig::new(8).build().unwrap();
            let interface = Interface::by_name(far.name()).unwrap();
            match Socket::open(&umem, &interface, 0, &several().send_only()) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    Some(Outcome::CannotRun(error.to_string()))
                }
                opened => {
                    drop(opened.unwrap());
                    None
                }
            }
        })
    }

    /// A receiver of packets of several frames.
    pub(crate) fn receiver_of_several(&self, umem: UmemConfig) -> End {
        let redirect = Redirect::LibraryFrags;
        End::open(self.mode, &self.lab.near, umem, several().receive_only(), redirect)
    }
}

/// Sends all of a batch.
#[track_caller]
pub(crate) fn send_batch(socket: &mut Socket, batch: &mut Batch) {
    socket.send(batch).unwrap();
    while !batch.is_empty() || socket.split_mut().1.unsent() > 0 {
        let ready = socket.wait(Interest::WRITABLE, LIMIT).unwrap();
        assert!(ready.writable(), "{:?}", socket.statistics());
        socket.send(batch).unwrap();
    }
}

/// What a receiver gets, whole.
pub(crate) struct Whole {
    chunk: usize,
    /// Where in a chunk received frames begin, counted like `first`.
    offset: usize,
    /// A chunk's first address in memory.
    first: usize,
}

impl Whole {
    /// For the frames of the socket's UMEM.
    #[track_caller]
    pub(crate) fn new(socket: &Socket) -> Self {
        let umem = socket.umem();
        let mut batch = umem.batch(1);
        batch.alloc_packet(1).unwrap().write(&[0]).unwrap();
        let first = batch.packets().next().unwrap().head().as_ptr().addr();
        let headroom = umem.headroom() as usize;
        let chunk = umem.chunk_size().bytes() as usize;
        Self { chunk, offset: XDP_HEADROOM + headroom, first: first - headroom.max(chunk % 2) }
    }

    /// Receives a batch of packets: each one's frames joined, and how many of them straddle a page.
    #[track_caller]
    pub(crate) fn take(&self, socket: &mut Socket) -> Vec<(Vec<u8>, usize)> {
        const PAGE: usize = 4096;
        let mut batch = socket.umem().batch(256);
        let ready = socket.wait(Interest::READABLE, LIMIT).unwrap();
        assert!(ready.readable(), "{:?}", socket.statistics());
        assert!(socket.recv(&mut batch).unwrap() > 0, "wait said that there are packets");
        let packets = batch.packets().map(|packet| {
            let (mut content, mut straddling) = (Vec::new(), 0);
            for frame in packet.frames() {
                let at = frame.as_ptr().addr();
                let offset = at.cast_signed().wrapping_sub_unsigned(self.first);
                let offset = offset.rem_euclid(self.chunk.cast_signed());
                assert_eq!(offset, self.offset.cast_signed(), "the offset in the chunk");
                straddling += usize::from(at % PAGE + frame.len() > PAGE);
                content.extend_from_slice(frame);
            }
            (content, straddling)
        });
        packets.collect()
    }

    /// Receives exactly these packets, in this order and intact; returns how many of their frames straddle
    /// a page.
    #[track_caller]
    pub(crate) fn receive(&self, socket: &mut Socket, expected: &[Vec<u8>]) -> usize {
        let (mut expected, mut straddling) = (expected.iter(), 0);
        while expected.len() > 0 {
            for (content, frames) in self.take(socket) {
                assert!(Some(&content) == expected.next(), "a packet is not the one that was sent");
                straddling += frames;
            }
        }
        straddling
    }
}

/// Sends the packets of the series with these numbers, each of as many frames as it takes, and receives
/// them.
#[track_caller]
pub(crate) fn stream_whole(
    (from, to): (&mut Socket, &mut Socket),
    series: &Numbered,
    numbers: std::ops::Range<u64>,
) {
    let whole = Whole::new(to);
    for numbers in windows(numbers) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        let mut batch = from.umem().batch(512);
        for packet in &packets {
            batch.alloc_packet(packet.len()).unwrap().write(packet).unwrap();
        }
        send_batch(from, &mut batch);
        whole.receive(to, &packets);
    }
    settle(from);
}
