//! From the first packet to the last: a thread for each piece of work, the report, the end.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::{Failure, Opened, Stop, cli::RunOptions, numbers::Sample, report::Report};

/// What a thread does.
pub(crate) trait Work: Send {
    /// Works until somebody wants the end, or there is no more to do.
    fn run(&mut self, stop: &Stop) -> xskit::Result<()>;
}

impl<W: Work + ?Sized> Work for Box<W> {
    fn run(&mut self, stop: &Stop) -> xskit::Result<()> {
        (**self).run(stop)
    }
}

/// Runs each piece of work on a thread of its own and tells what happens, until the end is wanted, the
/// time is up or all work is done.
pub(crate) fn run<W: Work>(
    opened: &Opened,
    mut work: Vec<W>,
    options: &RunOptions,
    stop: &Stop,
) -> Result<(), Failure> {
    let report = Report::new(opened, options.json);
    let working = AtomicUsize::new(work.len());
    thread::scope(|scope| -> Result<(), Failure> {
        for (index, work) in work.iter_mut().enumerate() {
            let cpu = options.cpu.iter().copied().cycle().nth(index);
            let working = &working;
            let spawned = thread::Builder::new().name(format!("work-{index}")).spawn_scoped(
                scope,
                move || {
                    pinned(work, cpu, stop);
                    if working.fetch_sub(1, Ordering::Relaxed) == 1 {
                        stop.now();
                    }
                },
            );
            if let Err(error) = spawned {
                stop.now();
                return Err(error.into());
            }
        }
        let told = report.start().and_then(|()| report.follow(stop, options.duration));
        stop.now();
        told
    })
    .unwrap_or_else(|failure| stop.fail(failure));

    // No thread of ours moves a frame any more: the places add up exactly, or a frame is lost. So they
    // do once more when all sockets are closed.
    let umem = &opened.umem;
    let total = Sample::take(opened);
    let audit = umem.audit();
    drop(work);
    let closed = umem.audit();
    let audit_ok = [&audit, &closed].iter().all(|audit| audit.is_complete() && audit.lost == 0);
    let told = total.and_then(|total| report.end(&total, &audit, audit_ok));
    if let Some(failure) = stop.take_failure() {
        return Err(failure);
    }
    told?;
    if !audit_ok {
        return Err(format!("frames are missing: {audit}; after closing: {closed}").into());
    }
    Ok(())
}

fn pinned(work: &mut impl Work, cpu: Option<usize>, stop: &Stop) {
    let pinned = cpu.map_or(Ok(()), pin);
    if let Err(failure) = pinned.and_then(|()| Ok(work.run(stop)?)) {
        stop.fail(failure);
    }
}

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}
