//! What became of the packets, per CPU and queue: one lookup and one add for each of them.

use aya_ebpf::{
    Global,
    bindings::bpf_map_type::BPF_MAP_TYPE_XSKMAP,
    macros::map,
    maps::{Array, PerCpuArray},
    programs::RawTracePointContext,
};

/// What became of a packet: its place in a queue's row of counters.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Outcome {
    /// Handed to a socket; whether it got there is the tracepoint's business.
    Redirected = 0,
    /// No rule matches.
    NoRule = 1,
    /// No rule matches what could be read of a truncated or malformed packet.
    Malformed = 2,
    /// More VLAN tags or IPv6 extension headers than are followed.
    TooDeep = 3,
    /// No rule matches, and a fragment's ports are unknown.
    Fragment = 4,
    /// A rule matches, but the packet's queue has no socket.
    NoSocket = 5,
}

/// One cache line for a queue.
type Row = [u64; 8];

/// A row per queue, and a last one for the queues past the map's size. The loader sets the size.
#[map]
static QUEUES: PerCpuArray<Row> = PerCpuArray::with_max_entries(65, 0);

/// How many queues have a row of their own, and a place in `SOCKETS`.
#[unsafe(no_mangle)]
static QUEUE_COUNT: Global<u32> = Global::new(64);

#[inline(always)]
pub fn count(queue: u32, outcome: Outcome) {
    add(&QUEUES, queue, outcome as usize);
}

#[inline(always)]
fn add(rows: &PerCpuArray<Row>, queue: u32, column: usize) {
    if let Some(row) = rows.get_ptr_mut(queue.min(QUEUE_COUNT.load())) {
        // SAFETY: a per-CPU value belongs to this CPU, and all columns are below the row's length.
        unsafe { (*row)[column & 7] += 1 };
    }
}

/// A row per queue, as above, of the redirects that failed.
#[map]
static ERRORS: PerCpuArray<Row> = PerCpuArray::with_max_entries(65, 0);

/// The id of the map `SOCKETS`, which exists only after the read-only data is set.
#[map]
static SOCKETS_ID: Array<u32> = Array::with_max_entries(1, 0);

const ENXIO: i32 = -6;
const ENOMEM: i32 = -12;
const EINVAL: i32 = -22;
const ENOSPC: i32 = -28;
const ENOBUFS: i32 = -105;

/// `xdp_redirect_err(dev, prog, target, err, map_type, map_id, index)` since Linux 5.13; older
/// kernels have one argument less, and refuse to attach a program that reads the seventh.
#[inline(always)]
pub fn redirect_failed(ctx: &RawTracePointContext) -> i32 {
    let queue: u32 = ctx.arg(6);
    let map_type: u32 = ctx.arg(4);
    let map_id: u32 = ctx.arg(5);
    // The tracepoint tells of the whole machine's redirects.
    if map_type != BPF_MAP_TYPE_XSKMAP || SOCKETS_ID.get(0) != Some(&map_id) {
        return 0;
    }
    let column = match ctx.arg::<i32>(3) {
        ENOBUFS => 0,
        ENOMEM => 1,
        ENOSPC => 2,
        EINVAL => 3,
        ENXIO => 4,
        _ => 5,
    };
    add(&ERRORS, queue, column);
    0
}
