//! Forwards Ethernet frames over AF_XDP: `cargo run --release --example l2fwd -- --help`.

mod cli;
mod numbers;
mod path;
mod report;
mod setup;
mod stop;

use std::{process::ExitCode, thread};

use clap::Parser;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use self::{
    cli::Options, numbers::Sample, path::Path, report::Report, setup::Forwarder, stop::Stop,
};

/// Whatever goes wrong: it is only ever shown.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("l2fwd: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let mut forwarder = Forwarder::open(options, &stop)?;
    let mut paths = std::mem::take(&mut forwarder.paths);
    let report = Report::new((&forwarder).into(), options.running.json);
    thread::scope(|scope| -> Result<(), Failure> {
        for (index, path) in paths.iter_mut().enumerate() {
            let cpu = options.running.cpu.iter().copied().cycle().nth(index);
            let stop = &stop;
            let spawned = thread::Builder::new()
                .name(format!("path-{index}"))
                .spawn_scoped(scope, move || forward(path, cpu, stop));
            if let Err(error) = spawned {
                stop.now();
                return Err(error.into());
            }
        }
        let told = report.start().and_then(|()| report.follow(&stop, options.running.duration));
        stop.now();
        told
    })
    .unwrap_or_else(|failure| stop.fail(failure));

    // No thread of ours moves a frame any more: the places add up exactly, or a frame is lost. So they
    // do once more when all sockets are closed.
    let umem = forwarder.umem.clone();
    let total = Sample::take(&(&forwarder).into());
    let audit = umem.audit();
    drop(paths);
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

/// A path's thread.
fn forward(path: &mut Path, cpu: Option<usize>, stop: &Stop) {
    let pinned = cpu.map_or(Ok(()), pin);
    if let Err(failure) = pinned.and_then(|()| Ok(path.run(stop)?)) {
        stop.fail(failure);
    }
}

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}
