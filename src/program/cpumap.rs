//! The CPUMAP of a loaded program, and what it counts.

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, MapData, PerCpuArray},
    programs::{RawTracePoint, raw_trace_point::RawTracePointLink},
};

use super::{
    counters::{self, Row},
    errors,
    load::{counter_rows, duplicate, no_such_map},
    stack::{StackCpus, no_cpu},
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys,
};

const CPUS: &str = "CPUS";
const CPU_LIST: &str = "CPU_LIST";
const CPU_PLACES: &str = "CPU_PLACES";
const CPU_ROWS: &str = "CPU_ROWS";

/// What became of the packets for one of the [`StackCpus`]: sums over all receiving CPUs.
///
/// At rest, where all numbers are known: `redirected` = `enqueued` + `dropped`, and `enqueued` =
/// `processed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuCounters {
    /// The CPU, by the kernel's number.
    pub cpu: u32,
    /// Packets that the program sent there.
    pub redirected: u64,
    /// What the CPU's queue did with them. `None` where the kernel's tracepoint `xdp_cpumap_enqueue` is out
    /// of reach: without CAP_PERFMON.
    pub queue: Option<CpuQueueCounters>,
    /// What the CPU's kernel thread did with them. `None` where the kernel's tracepoint
    /// `xdp_cpumap_kthread` is out of reach: without CAP_PERFMON, or before Linux 5.9.
    pub thread: Option<CpuThreadCounters>,
}

/// What the queue of a CPU did with packets, as the kernel's tracepoint `xdp_cpumap_enqueue` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuQueueCounters {
    /// Packets that it took.
    pub enqueued: u64,
    /// Packets that it had no room for: the CPU is too slow.
    pub dropped: u64,
}

/// What the kernel thread of a CPU did with packets, as the kernel's tracepoint `xdp_cpumap_kthread` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuThreadCounters {
    /// Packets that it took out of the queue, for the stack.
    pub processed: u64,
    /// Of these, packets that did not become skbs, for want of memory; on old kernels also those that the
    /// stack dropped at once.
    pub lost: u64,
    /// Packets that the [second program](StackCpus::program) passed on to the stack; 0 without one, and on
    /// older kernels (6.1) in generic mode.
    pub program_passed: u64,
    /// Packets that it dropped.
    pub program_dropped: u64,
    /// Packets that it redirected.
    pub program_redirected: u64,
}

impl fmt::Display for CpuCounters {
    /// A line for a log: numbers that are 0 are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.unwrap_or_default();
        let thread = self.thread.unwrap_or_default();
        let numbers = [
            ("redirected", self.redirected),
            ("enqueued", queue.enqueued),
            ("dropped", queue.dropped),
            ("processed", thread.processed),
            ("lost", thread.lost),
            ("program_passed", thread.program_passed),
            ("program_dropped", thread.program_dropped),
            ("program_redirected", thread.program_redirected),
        ];
        write!(f, "cpu {}:", self.cpu)?;
        let mut separator = "";
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
            write!(f, "{separator} {name} {number}")?;
            separator = ",";
        }
        Ok(())
    }
}

/// What a loaded program has to spread packets with; it outlives an exchange of rules.
pub(super) struct CpuMap {
    cpus: Vec<u32>,
    map: OwnedFd,
    counts: OwnedFd,
    rows: PerCpuArray<MapData, Row>,
    /// The kernel's tracepoints, listened to for as long as these live.
    enqueue: Option<RawTracePointLink>,
    kthread: Option<RawTracePointLink>,
}

/// Sizes the maps before they are created, and says how to spread.
pub(super) fn prepare<'a>(loader: &mut EbpfLoader<'a>, options: &'a Prepared) {
    loader
        .map_max_entries(CPUS, options.highest + 1)
        .map_max_entries(CPU_LIST, options.count)
        .map_max_entries(CPU_PLACES, options.count)
        .map_max_entries(CPU_ROWS, options.count)
        .override_global("SPREAD", &options.spread, true)
        .override_global("CPU_COUNT", &options.count, true);
}

/// The numbers that go into the program.
pub(super) struct Prepared {
    spread: u32,
    count: u32,
    highest: u32,
}

impl Prepared {
    /// Of these options, which were checked; the least possible where nothing is spread.
    pub(super) fn new(options: Option<&StackCpus>) -> Self {
        let Some(options) = options else { return Self { spread: 0, count: 1, highest: 0 } };
        let cpus = options.cpus();
        Self {
            spread: options.number(),
            count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
            highest: cpus.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Tells a program that is not loaded yet which CPUs there are.
pub(super) fn fill(ebpf: &mut Ebpf, options: &StackCpus) -> Result<()> {
    let map = ebpf.map_mut(CPU_LIST).ok_or_else(|| no_such_map(CPU_LIST))?;
    let mut list: Array<_, u32> = map.try_into().map_err(errors::table)?;
    for (place, cpu) in (0..).zip(options.cpus()) {
        list.set(place, cpu, 0).map_err(errors::table)?;
    }
    let map = ebpf.map_mut(CPU_PLACES).ok_or_else(|| no_such_map(CPU_PLACES))?;
    let mut places: HashMap<_, u32, u32> = map.try_into().map_err(errors::table)?;
    for (place, cpu) in (0..).zip(options.cpus()) {
        places.insert(cpu, place, 0).map_err(errors::table)?;
    }
    Ok(())
}

impl CpuMap {
    /// Starts the CPUs' kernel threads for a program that is loaded, and not attached yet.
    pub(super) fn start(ebpf: &mut Ebpf, options: &StackCpus) -> Result<Self> {
        let map = duplicate(ebpf, CPUS)?;
        let counts = duplicate(ebpf, CPU_ROWS)?;
        let info = |fd: &OwnedFd| {
            let fd = fd.try_clone().map_err(|error| {
                Error::os(Step::StackCpus, "cannot duplicate a descriptor", error)
            })?;
            let info = MapData::from_fd(fd).and_then(|map| map.info());
            info.map_err(|error| errors::map(error, "cannot ask what the map is"))
        };
        let info = info(&map)?;
        if options.second_program().is_some() && info.value_size() < 8 {
            return Err(Error::new(
                Step::StackCpus,
                ErrorKind::Unsupported,
                "this kernel runs no program on the other CPUs",
            )
            .hint("it takes Linux 5.9; leave the program out"));
        }
        for &cpu in options.cpus() {
            let program = options.second_program();
            sys::bpf::cpumap_set(map.as_fd(), cpu, options.queue_len(), program)
                .map_err(|source| refusal(cpu, source, options))?;
        }
        let [enqueue, kthread] = listen(ebpf, info.id());
        let rows = counter_rows(ebpf, CPU_ROWS)?;
        Ok(Self { cpus: options.cpus().to_vec(), map, counts, rows, enqueue, kthread })
    }

    /// Puts the maps in the place of those that were made for another program.
    pub(super) fn replace_in(&self, program: &mut Ebpf) -> Result<()> {
        for (name, kept) in [(CPUS, &self.map), (CPU_ROWS, &self.counts)] {
            let map = program.map_mut(name).ok_or_else(|| no_such_map(name))?;
            sys::bpf::replace_map(map, kept.as_fd())
                .map_err(|error| Error::os(Step::Rules, "cannot share a map", error))?;
        }
        Ok(())
    }

    pub(super) fn counters(&self) -> Result<Vec<CpuCounters>> {
        let rows = counters::rows(&self.rows);
        self.cpus
            .iter()
            .zip(rows)
            .map(|(&cpu, row)| {
                // In the program's order.
                let [redirected, enqueued, dropped, processed, lost, passed, refused, elsewhere] =
                    row?;
                Ok(CpuCounters {
                    cpu,
                    redirected,
                    queue: self.enqueue.is_some().then_some(CpuQueueCounters { enqueued, dropped }),
                    thread: self.kthread.is_some().then_some(CpuThreadCounters {
                        processed,
                        lost,
                        program_passed: passed,
                        program_dropped: refused,
                        program_redirected: elsewhere,
                    }),
                })
            })
            .collect()
    }
}

/// Why the kernel gives a CPU no queue.
fn refusal(cpu: u32, source: std::io::Error, options: &StackCpus) -> Error {
    match source.raw_os_error() {
        Some(libc::ENODEV | libc::E2BIG) => no_cpu(cpu),
        // What it says to everything that is wrong with a program, too.
        Some(libc::ENOMEM | libc::EINVAL | libc::EBADF) if options.second_program().is_some() => {
            Error::os(Step::StackCpus, "the kernel does not take the second program", source)
                .with_kind(ErrorKind::InvalidInput)
                .asked(format!("CPU {cpu}"))
                .hint(
                    "it has to be loaded for CPUMAPs (section xdp/cpumap, or xdp.frags/cpumap), with \
                     frags exactly if the port has frags or multi-buffer",
                )
        }
        _ => errors::permitted(
            Error::os(Step::StackCpus, "the kernel gives the CPU no queue", source)
                .asked(format!("CPU {cpu}")),
        ),
    }
}

/// Counts what the kernel does with packets once they are redirected, where it lets us: it needs
/// CAP_PERFMON. Where it does not, the counters are absent, and everything else works.
fn listen(ebpf: &mut Ebpf, map: u32) -> [Option<RawTracePointLink>; 2] {
    let known = ebpf
        .map_mut("CPUS_ID")
        .and_then(|own| Array::<_, u32>::try_from(own).ok())
        .is_some_and(|mut own| own.set(0, map, 0).is_ok());
    ["xdp_cpumap_enqueue", "xdp_cpumap_kthread"].map(|tracepoint| {
        if !known {
            return None;
        }
        let program = ebpf.program_mut(&tracepoint.replace("xdp_", "xskit_"))?;
        let program: &mut RawTracePoint = program.try_into().ok()?;
        program.load().ok()?;
        let link = program.attach(tracepoint).ok()?;
        program.take_link(link).ok()
    })
}
