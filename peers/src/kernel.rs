//! The kernel's side of a socket's rings, played by us: the rings of a bound, idle socket mapped a second
//! time.
//!
//! The real kernel looks at the rings only when a packet comes or when it is called, neither of which
//! happens here, so that whoever uses the socket sees a kernel that does what the script says.

use std::{
    ffi::c_void,
    io,
    num::NonZeroUsize,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::sum::Sum;

/// What the kernel keeps before a received packet.
pub const HEADROOM: u64 = 256;

/// Bytes in a chunk, unless something else is said.
pub const CHUNK: u64 = 4096;

/// Lengths of received packets go round from here, in as many steps.
const LENGTH: u32 = 60;
const LENGTHS: u32 = 16;

/// A descriptor in a ring.
#[derive(Clone, Copy)]
#[repr(C)]
struct Desc {
    addr: u64,
    len: u32,
    options: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Offset {
    producer: u64,
    consumer: u64,
    desc: u64,
    flags: u64,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Offsets {
    rx: Offset,
    tx: Offset,
    fill: Offset,
    completion: Offset,
}

/// One ring, mapped.
struct Ring<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    slots: *mut T,
    mask: u32,
    /// Our own index, whichever side we are.
    own: u32,
    mapping: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping is ours alone in this process, but for the socket's own, and what is shared is
// atomic or handed over by the indices.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(fd: BorrowedFd<'_>, at: i64, offset: &Offset, size: u32) -> io::Result<Self> {
        let place = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let len = place(offset.desc)? + size as usize * size_of::<T>();
        let whole = NonZeroUsize::new(len).expect("a ring has slots");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping, which overlays nothing.
        let mapping = unsafe { mmap(None, whole, protection, flags, fd, at)? };
        let start = mapping.as_ptr().cast::<u8>();
        // SAFETY: the kernel lays out all four within the mapping, aligned.
        unsafe {
            Ok(Self {
                producer: start.add(place(offset.producer)?).cast(),
                consumer: start.add(place(offset.consumer)?).cast(),
                flags: start.add(place(offset.flags)?).cast(),
                slots: start.add(place(offset.desc)?).cast(),
                mask: size - 1,
                own: 0,
                mapping,
                len,
            })
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: in the mapping, which lives as long as we.
        unsafe { &*self.producer }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.consumer }
    }

    /// Tells the socket's user that nobody has to be called.
    fn stay_awake(&self) {
        // SAFETY: as above.
        unsafe { &*self.flags }.store(0, Ordering::Relaxed);
    }

    /// The slot of that index.
    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: masked, so that it is one of the slots.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }

    /// How many entries there are for us to take.
    fn filled(&self) -> u32 {
        self.producer().load(Ordering::Acquire).wrapping_sub(self.own)
    }

    /// How many slots are free for us to write.
    fn free(&self) -> u32 {
        self.mask + 1 - self.own.wrapping_sub(self.consumer().load(Ordering::Acquire))
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: what `map` mapped; no reference into it outlives us.
        if let Err(error) = unsafe { munmap(self.mapping, self.len) } {
            eprintln!("unmap a ring: {error}");
        }
    }
}

/// The kernel's side of all four rings.
pub struct Kernel {
    fill: Ring<u64>,
    rx: Option<Ring<Desc>>,
    tx: Option<Ring<Desc>>,
    completion: Ring<u64>,
    /// Bytes in a chunk.
    chunk: u64,
}

impl Kernel {
    /// Takes the kernel's side over. All rings have that many slots; `rx` and `tx` say which there are.
    pub fn new(fd: BorrowedFd<'_>, size: u32, [rx, tx]: [bool; 2]) -> io::Result<Self> {
        let offsets = offsets(fd)?;
        let rx = rx.then(|| Ring::map(fd, 0, &offsets.rx, size)).transpose()?;
        let tx = tx.then(|| Ring::map(fd, 0x8000_0000, &offsets.tx, size)).transpose()?;
        let fill = Ring::map(fd, 0x1_0000_0000, &offsets.fill, size)?;
        let completion = Ring::map(fd, 0x1_8000_0000, &offsets.completion, size)?;
        fill.stay_awake();
        if let Some(tx) = &tx {
            tx.stay_awake();
        }
        Ok(Self { fill, rx, tx, completion, chunk: CHUNK })
    }

    /// With chunks of another size.
    pub fn chunks_of(self, chunk: u32) -> Self {
        Self { chunk: chunk.into(), ..self }
    }

    /// Receives a batch: frames out of Fill, descriptors into RX; how many there were frames and room for.
    #[inline]
    pub fn receive(&mut self, batch: u32) -> u32 {
        let Some(rx) = &mut self.rx else { return 0 };
        let fill = &mut self.fill;
        let count = batch.min(fill.filled()).min(rx.free());
        for at in 0..count {
            let (from, to) = (fill.own.wrapping_add(at), rx.own.wrapping_add(at));
            // SAFETY: the slot has been published to us, and that of RX is free, by the counts above.
            unsafe {
                // As the kernel does: whatever the offset in the chunk.
                let addr = (fill.slot(from).read() & !(self.chunk - 1)) + HEADROOM;
                rx.slot(to).write(Desc { addr, len: LENGTH + to % LENGTHS, options: 0 });
            }
        }
        fill.own = fill.own.wrapping_add(count);
        fill.consumer().store(fill.own, Ordering::Release);
        rx.own = rx.own.wrapping_add(count);
        rx.producer().store(rx.own, Ordering::Release);
        count
    }

    /// Sends everything: descriptors out of TX, their frames into Completion; how many.
    #[inline]
    pub fn transmit(&mut self) -> u32 {
        let Some(tx) = &mut self.tx else { return 0 };
        let completion = &mut self.completion;
        let count = tx.filled().min(completion.free());
        for at in 0..count {
            let (from, to) = (tx.own.wrapping_add(at), completion.own.wrapping_add(at));
            // SAFETY: as in `receive`.
            unsafe { completion.slot(to).write(tx.slot(from).read().addr) };
        }
        tx.own = tx.own.wrapping_add(count);
        tx.consumer().store(tx.own, Ordering::Release);
        completion.own = completion.own.wrapping_add(count);
        completion.producer().store(completion.own, Ordering::Release);
        count
    }

    /// What a batch that lies in RX comes to, to check others' sums by.
    pub fn received(&self, batch: u32) -> Sum {
        let mut sum = Sum::default();
        if let Some(rx) = &self.rx {
            for at in 0..batch {
                // SAFETY: the last ones that we wrote, which nobody else writes.
                let desc = unsafe { rx.slot(rx.own.wrapping_sub(batch).wrapping_add(at)).read() };
                sum.add(desc.addr, desc.len);
            }
        }
        sum
    }

    /// What lies in TX comes to, by the chunks: peers begin packets where they like.
    pub fn to_transmit(&self) -> Sum {
        let mut sum = Sum::default();
        if let Some(tx) = &self.tx {
            for at in 0..tx.filled() {
                // SAFETY: published to us, and not given back yet.
                let desc = unsafe { tx.slot(tx.own.wrapping_add(at)).read() };
                sum.add(desc.addr & !(CHUNK - 1), desc.len);
            }
        }
        sum
    }
}

/// The user's side, without any work: the indices alone move, so that what is left of the time is the
/// script's.
pub struct Idle(Kernel);

impl Idle {
    /// Takes the user's side over, with those frames in the Fill ring or the TX ring, as many as slots.
    pub fn new(fd: BorrowedFd<'_>, size: u32, sides: [bool; 2]) -> io::Result<Self> {
        let mut idle = Kernel::new(fd, size, sides)?;
        for slot in 0..size {
            let addr = u64::from(slot) * CHUNK;
            // SAFETY: slots of rings that nobody else writes yet.
            unsafe {
                idle.fill.slot(slot).write(addr);
                if let Some(tx) = &idle.tx {
                    tx.slot(slot).write(Desc { addr, len: LENGTH, options: 0 });
                }
            }
        }
        if idle.rx.is_some() {
            idle.fill.own = size;
            idle.fill.producer().store(size, Ordering::Release);
        }
        Ok(Self(idle))
    }

    /// As if a batch had been received and its frames given back.
    pub fn receive(&mut self, batch: u32) {
        self.take_rx(batch);
        self.give_fill(batch);
    }

    /// As if a batch had been sent, and one had completed.
    pub fn transmit(&mut self, batch: u32) {
        self.give_tx(batch);
        self.take_completion(batch);
    }

    /// As if a batch had been forwarded.
    pub fn forward(&mut self, batch: u32) {
        if self.take_completion(batch) > 0 {
            self.give_fill(batch);
        }
        self.take_rx(batch);
        self.give_tx(batch);
    }

    fn take_rx(&mut self, batch: u32) {
        let rx = self.0.rx.as_mut().expect("a socket that receives");
        rx.own = rx.own.wrapping_add(batch);
        rx.consumer().store(rx.own, Ordering::Release);
    }

    fn give_fill(&mut self, batch: u32) {
        let fill = &mut self.0.fill;
        fill.own = fill.own.wrapping_add(batch);
        fill.producer().store(fill.own, Ordering::Release);
    }

    fn give_tx(&mut self, batch: u32) {
        let tx = self.0.tx.as_mut().expect("a socket that sends");
        tx.own = tx.own.wrapping_add(batch);
        tx.producer().store(tx.own, Ordering::Release);
    }

    fn take_completion(&mut self, batch: u32) -> u32 {
        let completion = &mut self.0.completion;
        let count = completion.filled().min(batch);
        completion.own = completion.own.wrapping_add(count);
        completion.consumer().store(completion.own, Ordering::Release);
        count
    }
}

fn offsets(fd: BorrowedFd<'_>) -> io::Result<Offsets> {
    use std::os::fd::AsRawFd;
    const XDP_MMAP_OFFSETS: libc::c_int = 1;
    let mut offsets = Offsets::default();
    let mut len = libc::socklen_t::try_from(size_of::<Offsets>()).expect("a small struct");
    // SAFETY: the kernel writes at most `len` bytes of plain numbers.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(offsets) }
}
