//! What goes to the kernel's stack: on this CPU, or spread over others by a CPUMAP.
//!
//! How to spread is read-only data, as the rules are: where nothing is spread, the verifier removes all of
//! it from the program.

use aya_ebpf::{
    Global,
    bindings::xdp_action,
    helpers::{bpf_get_smp_processor_id, bpf_probe_read_kernel},
    macros::map,
    maps::{Array, CpuMap, HashMap, PerCpuArray},
    programs::{RawTracePointContext, XdpContext},
};

use crate::{flow, packet::Packet};

/// The queue and kernel thread of each CPU, by its number. The loader sets the size.
#[map]
static CPUS: CpuMap = CpuMap::with_max_entries(1, 0);

/// The CPUs to spread over.
#[map]
static CPU_LIST: Array<u32> = Array::with_max_entries(1, 0);

/// A CPU's place in that list.
#[map]
static CPU_PLACES: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

/// Where this CPU's next packet goes, in turn: a place in the list.
#[map]
static NEXT: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// How to spread: not at all, by flow, in turn.
#[unsafe(no_mangle)]
static SPREAD: Global<u32> = Global::new(NOT_AT_ALL);
const NOT_AT_ALL: u32 = 0;
const BY_FLOW: u32 = 1;

/// How many CPUs there are to spread over.
#[unsafe(no_mangle)]
static CPU_COUNT: Global<u32> = Global::new(1);

/// One cache line for a CPU.
type Row = [u64; 8];

/// A row per place in the list.
#[map]
static CPU_ROWS: PerCpuArray<Row> = PerCpuArray::with_max_entries(1, 0);

/// A place in a CPU's row.
#[derive(Clone, Copy)]
enum Column {
    /// Packets that the program sent there.
    Redirected = 0,
    /// Packets that its queue took.
    Enqueued = 1,
    /// Packets that its queue had no room for.
    Dropped = 2,
    /// Packets that its thread took out of the queue.
    Processed = 3,
    /// Of these, lost there: no memory for an skb.
    Lost = 4,
    /// What a second program there did.
    ProgramPassed = 5,
    ProgramDropped = 6,
    ProgramRedirected = 7,
}

/// The action for a packet that no socket gets.
#[inline(always)]
pub fn pass(ctx: &XdpContext) -> u32 {
    if SPREAD.load() == NOT_AT_ALL {
        return xdp_action::XDP_PASS;
    }
    let count = CPU_COUNT.load();
    let place = if SPREAD.load() == BY_FLOW {
        // As if the hash were a fraction of the list: no division.
        ((u64::from(flow::hash(Packet::new(ctx))) * u64::from(count)) >> 32) as u32
    } else {
        next(count)
    };
    let Some(&cpu) = CPU_LIST.get(place) else { return xdp_action::XDP_PASS };
    // The flag says what to do where the map has no such CPU.
    match CPUS.redirect(cpu, u64::from(xdp_action::XDP_PASS)) {
        Ok(redirect) => {
            add(place, Column::Redirected, 1);
            redirect
        }
        Err(pass) => pass,
    }
}

#[inline(always)]
fn next(count: u32) -> u32 {
    let Some(next) = NEXT.get_ptr_mut(0) else { return 0 };
    // SAFETY: a per-CPU value belongs to this CPU.
    unsafe {
        let place = *next;
        *next = if place + 1 < count { place + 1 } else { 0 };
        place
    }
}

#[inline(always)]
fn add(place: u32, column: Column, packets: u32) {
    if let Some(row) = CPU_ROWS.get_ptr_mut(place) {
        // SAFETY: a per-CPU value belongs to this CPU, and all columns are below the row's length.
        unsafe { (*row)[column as usize & 7] += u64::from(packets) };
    }
}

/// The id of the map `CPUS`, which exists only after the read-only data is set.
#[map]
static CPUS_ID: Array<u32> = Array::with_max_entries(1, 0);

/// The place of a CPU in the list, if this is about our map: the tracepoints tell of the whole machine's.
#[inline(always)]
fn place(map_id: u32, cpu: u32) -> Option<u32> {
    if CPUS_ID.get(0) != Some(&map_id) {
        return None;
    }
    // SAFETY: nothing changes the table once its program is loaded.
    unsafe { CPU_PLACES.get(cpu) }.copied()
}

/// `xdp_cpumap_enqueue(map_id, processed, drops, to_cpu)`: up to eight packets at once.
#[inline(always)]
pub fn enqueued(ctx: &RawTracePointContext) -> i32 {
    if let Some(place) = place(ctx.arg(0), ctx.arg(3)) {
        let (processed, drops): (u32, u32) = (ctx.arg(1), ctx.arg(2));
        // In native mode `processed` includes the drops; in generic mode, where packets come one by one,
        // it does not.
        add(place, Column::Enqueued, processed.saturating_sub(drops));
        add(place, Column::Dropped, drops);
    }
    0
}

/// `struct xdp_cpumap_stats`
#[derive(Clone, Copy)]
#[repr(C)]
struct Stats {
    redirect: u32,
    pass: u32,
    drop: u32,
}

/// `xdp_cpumap_kthread(map_id, processed, drops, sched, xdp_stats)` since Linux 5.9, on the CPU that the
/// packets were sent to.
#[inline(always)]
pub fn processed(ctx: &RawTracePointContext) -> i32 {
    // SAFETY: this helper has no precondition.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if let Some(place) = place(ctx.arg(0), cpu as u32) {
        add(place, Column::Processed, ctx.arg(1));
        add(place, Column::Lost, ctx.arg(2));
        let stats: *const Stats = ctx.arg::<u64>(4) as *const Stats;
        // SAFETY: the helper checks the address.
        if let Ok(stats) = unsafe { bpf_probe_read_kernel(stats) } {
            add(place, Column::ProgramPassed, stats.pass);
            add(place, Column::ProgramDropped, stats.drop);
            add(place, Column::ProgramRedirected, stats.redirect);
        }
    }
    0
}
