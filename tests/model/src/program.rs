//! What a program is made of.

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::RECORD;

/// A UMEM, its sockets, and what is done with them.
#[derive(Clone, Debug)]
pub struct Program {
    /// What there is.
    pub setup: Setup,
    /// What is done, in order.
    pub ops: Vec<Op>,
}

impl Program {
    /// Any bytes are a program: a record for the setup, one for each operation.
    pub fn of(bytes: &[u8]) -> Self {
        let mut records = bytes.chunks(RECORD);
        Self { setup: decode(records.next().unwrap_or(&[])), ops: records.map(decode).collect() }
    }
}

impl<'a> Arbitrary<'a> for Program {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        Self::arbitrary_take_rest(Unstructured::new(bytes.bytes(bytes.len())?))
    }

    fn arbitrary_take_rest(bytes: Unstructured<'a>) -> Result<Self> {
        Ok(Self::of(bytes.take_rest()))
    }
}

/// Where the bytes end, the rest is zeros.
fn decode<'a, T: Arbitrary<'a>>(record: &'a [u8]) -> T {
    Unstructured::new(record).arbitrary().expect("numbers and choices come out of any bytes")
}

/// What there is when a program begins.
#[derive(Arbitrary, Clone, Debug)]
pub struct Setup {
    /// How the memory is cut.
    pub chunk: Chunk,
    /// More chunks than the least.
    pub chunks: u8,
    /// Bytes of headroom.
    pub headroom: u8,
    /// Whether packets can have several frames.
    pub multi_buffer: bool,
    /// How far before `u32::MAX` the rings' indices begin.
    pub before_wrap: u8,
    /// Of the two first queues.
    pub rings: [Rings; 2],
}

/// The size of a chunk.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Chunk {
    /// 2048 bytes, aligned.
    K2,
    /// 4096 bytes, aligned.
    K4,
    /// 3001 bytes, across the borders of pages.
    Odd,
    /// 2500 bytes, across the borders of pages.
    Even,
}

/// The rings of a queue or socket: each a power of two.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Rings {
    /// RX and TX.
    pub own: (u8, u8),
    /// Fill and Completion.
    pub common: (u8, u8),
}

/// One step.
#[derive(Arbitrary, Clone, Debug)]
pub enum Op {
    /// What a program does all the time.
    Flow(Flow),
    /// The same again, since that is how often it is done.
    Again(Flow),
    /// Work on batches.
    Work(Work),
    /// What the kernel does without being asked.
    Whim(Whim),
    /// Done only where the first number is small.
    Rare(u8, Rare),
}

/// Packets in and out, by both sides. `socket` and `batch` choose among those there are.
#[derive(Arbitrary, Clone, Debug)]
pub enum Flow {
    /// The kernel delivers packets.
    Deliver { socket: u8, count: u8, len: Length },
    /// `recv`, by the whole socket or its half.
    Recv { socket: u8, batch: u8, half: bool },
    /// `send`, by the whole socket or its half.
    Send { socket: u8, batch: u8, half: bool },
    /// The kernel sends packets, and completes as many frames.
    Transmit { socket: u8, most: u8 },
    /// The kernel takes packets.
    Take { socket: u8, most: u8 },
    /// The kernel completes frames that it took.
    Complete { socket: u8, most: u8 },
    /// `wait` for as good as no time.
    Wait { socket: u8, readable: bool, writable: bool },
    /// `reap`.
    Reap { socket: u8 },
    /// Guards on the rings, dropped or forgotten.
    Guards { socket: u8, count: u8, forgets: bool },
}

/// How long a packet is.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Length {
    /// Up to 255 bytes.
    Short(u8),
    /// As many bytes less than a frame has.
    Full(u8),
    /// More than a frame has.
    Long(u16),
}

/// Work on batches and their packets.
#[derive(Arbitrary, Clone, Debug)]
pub enum Work {
    /// `alloc`, and packets of this length written, some of none.
    Alloc { batch: u8, count: u8, len: u8 },
    /// `alloc_packet`.
    AllocPacket { batch: u8, len: u16 },
    /// `append`.
    Append { to: u8, from: u8 },
    /// `split_off`; the rest takes the place of another batch.
    SplitOff { batch: u8, at: u8 },
    /// `truncate`.
    Truncate { batch: u8, to: u8 },
    /// `clear`.
    Clear { batch: u8 },
    /// `retain`, by a bit for each packet; a closure that panics at one of them.
    Retain { batch: u8, keep: u16, panics: Option<u8> },
    /// `route`, by four bits for each packet; a closure that panics at one of them.
    Route { batch: u8, choices: u32, panics: Option<u8> },
    /// One packet is changed.
    Change { batch: u8, packet: u8, change: Change },
    /// `release_spare`.
    ReleaseSpare { batch: u8 },
}

/// What is done to a packet, whether it can be or not.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Change {
    /// `set_len`.
    SetLen(u16),
    /// `trim_front`.
    Trim(u16),
    /// `grow_front`.
    Grow(u16),
    /// `write`.
    Write(u16),
    /// Every byte of every frame changes.
    Touch(u8),
}

/// The kernel's own ideas.
#[derive(Arbitrary, Clone, Debug)]
pub enum Whim {
    /// Calls fail.
    Refuse { socket: u8, call: Call, errno: Errno },
    /// The link goes down or comes up.
    Link { socket: u8, up: bool },
    /// It sleeps or wakes up.
    NeedWakeup { socket: u8, rx: bool, sleeps: bool },
    /// From now on calls to send take packets.
    OnKick { socket: u8, most: u8 },
    /// A descriptor that leads nowhere.
    Nonsense { socket: u8, wrong: Wrong },
    /// A packet with such a descriptor in it.
    Broken { socket: u8, len: Length, at: u8, wrong: Wrong },
    /// A completion of what is no frame.
    CompleteNonsense { socket: u8, beyond: u32 },
}

/// A call that fails.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Call {
    /// To look at the Fill ring.
    KickRx,
    /// To look at the TX ring.
    KickTx,
    /// To wait.
    Poll,
    /// To read counters.
    Statistics,
}

/// What it fails with.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Errno {
    /// Could not now.
    Eagain,
    /// A packet was dropped.
    Ebusy,
    /// A signal.
    Eintr,
    /// No memory for it.
    Enobufs,
    /// Anything.
    Other(u8),
}

/// How a descriptor is wrong.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Wrong {
    /// Past the memory.
    Address(u32),
    /// At the other end of all addresses.
    Huge(u16),
    /// Past its chunk.
    Length { chunk: u8, beyond: u16 },
}

/// What is done now and then.
#[derive(Arbitrary, Clone, Debug)]
pub enum Rare {
    /// A batch is dropped with all it holds, and one of this capacity takes its place.
    NewBatch { batch: u8, capacity: u8 },
    /// All frames of a batch become plain addresses.
    Detach { batch: u8 },
    /// And come back.
    Attach,
    /// Or go into a Fill ring.
    Fill { socket: u8 },
    /// A further socket on a queue.
    Share { socket: u8, rings: Rings },
    /// A socket is closed, under traffic.
    Close { socket: u8, sender_first: bool, gone: u8, late: u8 },
    /// A closed queue is bound again, or another one for the first time.
    Open { which: u8, again: bool, rings: Rings },
}
