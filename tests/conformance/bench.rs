//! Two namespaces, a socket in each, and numbered packets from the one to the other.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xskit::{
    Interest, Interface, Program, ProgramOptions, Rules, Socket, SocketConfig, SocketMap, Umem,
    UmemConfig,
};
use xskit_lab::{Lab, LabConfig, Link, Numbered};

use crate::{
    bpf::{Assembler, Own},
    mode::Mode,
    support::{LIMIT, MOMENT, PORT, adds_up, comes_home, rings, settle},
};

/// Packets of a test that says nothing else.
pub(crate) const PACKETS: u64 = 4096;
/// Bytes of such a packet.
pub(crate) const LENGTH: usize = 64;
/// Packets on their way at most: fewer than veth's own ring holds.
pub(crate) const WINDOW: u64 = 64;

/// What the kernel keeps before a received packet.
const XDP_HEADROOM: usize = 256;

/// The pair of namespaces.
pub(crate) struct Bench {
    pub(crate) mode: &'static Mode,
    pub(crate) lab: Lab,
}

impl Bench {
    pub(crate) fn new(mode: &'static Mode) -> Self {
        Self::with_mtu(mode, 1500)
    }

    pub(crate) fn with_mtu(mode: &'static Mode, mtu: u32) -> Self {
        let lab = Lab::new(&LabConfig { mtu, ..LabConfig::default() }).unwrap();
        Self { mode, lab }
    }

    /// A socket on the far end that only sends: all frames of its UMEM are free.
    pub(crate) fn sender(&self) -> End {
        self.sender_of(UmemConfig::new(1024), rings(512))
    }

    pub(crate) fn sender_of(&self, umem: UmemConfig, socket: SocketConfig) -> End {
        End::open(self.mode, &self.lab.far, umem, socket.send_only(), Redirect::Nothing)
    }

    /// A socket on the near end that receives what comes, by the library's program.
    pub(crate) fn receiver(&self) -> End {
        self.receiver_of(UmemConfig::new(1024), rings(512))
    }

    pub(crate) fn receiver_of(&self, umem: UmemConfig, socket: SocketConfig) -> End {
        let socket = socket.receive_only();
        End::open(self.mode, &self.lab.near, umem, socket, Redirect::Library)
    }

    /// A socket on the near end that receives what a program of our own redirects.
    pub(crate) fn receiver_by(
        &self,
        sockets: u32,
        write: impl FnOnce(&mut Assembler, BorrowedFd<'_>) + Send,
    ) -> End {
        let redirect = Redirect::Own(sockets, Box::new(write));
        let socket = rings(512).receive_only();
        End::open(self.mode, &self.lab.near, UmemConfig::new(1024), socket, redirect)
    }

    /// A socket that sends and receives, by the library's program.
    pub(crate) fn both_ways(&self, link: &Link) -> End {
        End::open(self.mode, link, UmemConfig::new(1024), rings(512), Redirect::Library)
    }

    /// Packets to the near end.
    pub(crate) fn to_near(&self, length: usize) -> Numbered {
        Numbered::new(self.lab.flow(PORT), length, 1)
    }

    /// Packets to the far end.
    pub(crate) fn to_far(&self, length: usize) -> Numbered {
        Numbered::new(self.lab.flow(PORT).reflected(), length, 2)
    }
}

/// Who redirects packets to a socket.
pub(crate) enum Redirect<'a> {
    Nothing,
    Library,
    /// The library's program that takes packets of several buffers.
    LibraryFrags,
    Own(u32, Box<WriteProgram<'a>>),
}

/// Writes a program that uses the map.
type WriteProgram<'a> = dyn FnOnce(&mut Assembler, BorrowedFd<'_>) + Send + 'a;

/// Keeps a program attached.
enum Attachment {
    None,
    Library(Box<Program>),
    Own(Own),
}

/// A socket on one end, with a UMEM of its own.
pub(crate) struct End {
    // Before the program.
    pub(crate) socket: Socket,
    attachment: Attachment,
    pub(crate) umem: Umem,
    pub(crate) interface: Interface,
    link: Link,
}

impl End {
    pub(crate) fn open(
        mode: &Mode,
        link: &Link,
        umem: UmemConfig,
        socket: SocketConfig,
        redirect: Redirect<'_>,
    ) -> Self {
        let umem = umem.build().unwrap();
        let config = mode.socket(socket);
        let frags = matches!(redirect, Redirect::LibraryFrags);
        link.netns().enter(|| {
            let interface = Interface::by_name(link.name()).unwrap();
            let attachment = match redirect {
                Redirect::Nothing => Attachment::None,
                Redirect::Library | Redirect::LibraryFrags => {
                    let options = ProgramOptions { frags, ..ProgramOptions::default() };
                    let rules = Rules::udp_port(PORT);
                    let program = Program::attach(&interface, &rules, mode.attach, &options);
                    Attachment::Library(Box::new(program.unwrap()))
                }
                Redirect::Own(sockets, write) => {
                    let index = interface.index();
                    Attachment::Own(Own::attach(index, mode.attached(), sockets, write).unwrap())
                }
            };
            let mut socket = Socket::open(&umem, &interface, 0, &config).unwrap();
            if let Attachment::Library(program) = &attachment {
                assert_eq!(program.attached(), mode.attached());
                socket.join(program.socket_map()).unwrap();
            }
            if let Attachment::Own(own) = &attachment {
                socket.join(&own.map).unwrap();
            }
            Self { socket, attachment, umem, interface, link: link.clone() }
        })
    }

    /// The map of the program that redirects to the socket.
    pub(crate) fn map(&self) -> &SocketMap {
        match &self.attachment {
            Attachment::Library(program) => program.socket_map(),
            Attachment::Own(own) => &own.map,
            Attachment::None => panic!("it only sends"),
        }
    }

    /// A further socket on the same queue and UMEM.
    pub(crate) fn share(&mut self, config: &SocketConfig) -> Socket {
        let Self { socket, link, .. } = self;
        link.netns().enter(|| socket.share_queue(config).unwrap())
    }

    /// How many packets the library's program has redirected.
    pub(crate) fn redirected(&self) -> u64 {
        match &self.attachment {
            Attachment::Library(program) => program.counters().unwrap().total.redirected,
            _ => panic!("the library's program is not there"),
        }
    }

    /// Closes the socket: every frame has to be accounted for, and come home.
    #[track_caller]
    pub(crate) fn close(self) {
        adds_up(&self.umem);
        let Self { socket, attachment, umem, interface, link } = self;
        drop((socket, attachment));
        link.netns().enter(|| comes_home(&umem, &[(&interface, 0)]));
    }
}

/// The numbers, a window's worth at a time.
pub(crate) fn windows(numbers: std::ops::Range<u64>) -> impl Iterator<Item = Vec<u64>> {
    let mut numbers = numbers.peekable();
    std::iter::from_fn(move || {
        numbers.peek()?;
        Some(numbers.by_ref().take(usize::try_from(WINDOW).unwrap()).collect())
    })
}

/// Sends the packets, all of them, and gives the kernel no rest until it has taken them.
#[track_caller]
pub(crate) fn send(socket: &mut Socket, packets: &[Vec<u8>]) {
    let mut batch = socket.umem().batch(packets.len());
    assert_eq!(batch.alloc(packets.len()), packets.len(), "{}", socket.umem().audit());
    for (mut packet, content) in batch.packets_mut().zip(packets) {
        packet.write(content).unwrap();
    }
    socket.send(&mut batch).unwrap();
    while !batch.is_empty() || socket.split_mut().1.unsent() > 0 {
        let ready = socket.wait(Interest::WRITABLE, LIMIT).unwrap();
        assert!(ready.writable(), "{:?}", socket.statistics());
        socket.send(&mut batch).unwrap();
    }
}

/// Receives exactly these packets, in this order, intact and at the right place of their chunks.
#[track_caller]
pub(crate) fn receive(socket: &mut Socket, expected: &[Vec<u8>]) {
    let mut expected = expected.iter();
    while expected.len() > 0 {
        // What comes after them stays where it is.
        let mut batch = socket.umem().batch(expected.len().min(64));
        let ready = socket.wait(Interest::READABLE, LIMIT).unwrap();
        assert!(ready.readable(), "{} missing: {:?}", expected.len(), socket.statistics());
        assert!(socket.recv(&mut batch).unwrap() > 0, "wait said that there are packets");
        check(&mut batch, &mut expected);
    }
}

/// Checks the packets of a batch against the next expected ones, and empties it.
#[track_caller]
pub(crate) fn check<'a>(
    batch: &mut xskit::Batch,
    expected: &mut impl Iterator<Item = &'a Vec<u8>>,
) {
    let umem = batch.umem();
    let chunk = umem.chunk_size().bytes() as usize;
    let offset = XDP_HEADROOM + umem.headroom() as usize;
    for packet in batch.packets() {
        let head = packet.head();
        assert_eq!(Some(head), expected.next().map(Vec::as_slice));
        // The memory begins at a page's start, and no chunk is larger than a page.
        assert_eq!(head.as_ptr().addr() % chunk, offset, "the offset in the chunk");
    }
    batch.clear();
}

/// Nothing else arrives.
#[track_caller]
pub(crate) fn nothing_comes(socket: &mut Socket) {
    let ready = socket.wait(Interest::READABLE, MOMENT).unwrap();
    assert!(ready.timed_out(), "{:?}", socket.statistics());
}

/// Sends the packets of the series with these numbers, and receives those that shall arrive: `arrives`
/// says of each packet what becomes of it.
#[track_caller]
pub(crate) fn stream_through(
    (from, to): (&mut Socket, &mut Socket),
    series: &Numbered,
    numbers: std::ops::Range<u64>,
    arrives: impl Fn(u64, Vec<u8>) -> Option<Vec<u8>>,
) {
    for numbers in windows(numbers) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        send(from, &packets);
        let expected: Vec<_> = numbers
            .iter()
            .zip(packets)
            .filter_map(|(number, packet)| arrives(*number, packet))
            .collect();
        receive(to, &expected);
    }
    settle(from);
}

/// The same, and all arrive as they are.
#[track_caller]
pub(crate) fn stream(
    ends: (&mut Socket, &mut Socket),
    series: &Numbered,
    numbers: std::ops::Range<u64>,
) {
    stream_through(ends, series, numbers, |_, packet| Some(packet));
}

/// One `poll` of the socket, past the library; which events there were.
pub(crate) fn poll_once(socket: &impl AsFd, events: PollFlags, limit: Duration) -> PollFlags {
    let mut fds = [PollFd::new(socket.as_fd(), events)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap();
    fds[0].revents().unwrap()
}
