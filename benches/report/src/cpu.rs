//! Threads on CPUs.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs that this thread may run on.
pub fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// Keeps this thread on one CPU.
///
/// # Errors
///
/// Of the kernel: that CPU is not ours.
pub fn pin(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Has this thread run before all that is not as urgent: where others use the machine too, most of what they
/// would take. Whether it may: it takes CAP_SYS_NICE.
pub fn prefer() -> bool {
    rustix::process::nice(-20).is_ok()
}
