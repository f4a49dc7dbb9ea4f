//! Sending on a socket by itself and on two that share UMEM and queue: one descriptor at a time, and in batches
//!
//! In zero-copy mode a kernel takes descriptors in batches from a socket that has its queue for itself, and one
//! at a time from sockets that share one; in copy mode always one at a time. What it costs to hand over
//! batches all the same is nothing, and what it saves is shown here. On a veth pair in copy mode, or on interfaces
//! with zero-copy that `XSKIT_TEST_NICS` names (two that hear each other): `cargo xtask bench seed` runs it so in a
//! virtual machine.

use std::{
    env,
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

use xskit::{
    Batch, CopyMode, Interest, Port, PortConfig, RingSize, Rules, Socket, SocketConfig, UmemConfig,
};
use xskit_lab::{Lab, LabConfig, Pair};
use xskit_report::{Comparison, Metric, Options, Report, measure};

const NICS: &str = "XSKIT_TEST_NICS";
const LENGTH: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(10);
/// No ring stays full for so long.
const WAIT: Duration = Duration::from_millis(20);
const FRAMES: u32 = 4096;
const RING: u32 = 1024;
/// Bytes of a packet, its payload without the headers.
const PAYLOAD: usize = 64 - 42;
const PORT: u16 = 4242;
const BATCHES: [usize; 2] = [1, 64];
const NAMES: [&str; 2] = ["one at a time", "batches of 64"];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    xskit_report::run("shared_queue", "Sending on sockets that share a queue", run)
}

fn run(options: &Options) -> Result<()> {
    let report = if env::var_os(NICS).is_some() {
        let pair = Pair::lent(NICS).ok_or("no interfaces")?;
        let frame = pair.flow(PORT).reflected().frame(&[0; PAYLOAD]);
        compare(options, pair.near.name(), CopyMode::ZeroCopy, &frame)?
    } else {
        let lab = Lab::new(&LabConfig::default()).map_err(|error| {
            format!("a veth pair in network namespaces of its own: run as root: {error}")
        })?;
        let frame = lab.flow(PORT).reflected().frame(&[0; PAYLOAD]);
        lab.enter(|| compare(options, lab.near.name(), CopyMode::Copy, &frame))?
    };
    report.print(options)?;
    Ok(())
}

fn compare(options: &Options, interface: &str, mode: CopyMode, frame: &[u8]) -> Result<Report> {
    let ring = RingSize::new(RING)?;
    let config = SocketConfig::default().rx(ring).tx(ring).fill(ring).completion(ring);
    let config = config.copy_mode(mode);
    let port = PortConfig::new(interface).rules(Rules::udp_port(PORT)).queues([0]);
    let mut port = port.socket(config.clone()).umem_config(UmemConfig::new(FRAMES)).open()?;
    let mut sockets = vec![port.take_queue(0)?];
    let mode = sockets[0].mode().to_string();
    let alone = sending(options, "a socket by itself", &port, &mut sockets, frame)?;
    let other = sockets[0].share_queue(&config)?;
    sockets.push(other);
    let title = "two sockets that share UMEM and queue";
    let shared = sending(options, title, &port, &mut sockets, frame)?;
    let mut report = Report::new("shared_queue");
    report.note(format!("txonly, packets of 64 bytes; the sockets' mode: {mode}"));
    let increases: Vec<_> = [&alone, &shared].into_iter().map(increase).collect();
    report.note(increases.join("\n"));
    report.add(alone);
    report.add(shared);
    Ok(report)
}

/// All sockets send in turns, one at a time or in batches.
fn sending(
    options: &Options,
    title: &str,
    port: &Port,
    sockets: &mut [Socket],
    frame: &[u8],
) -> Result<Comparison> {
    let mut batches = BATCHES.map(|size| port.umem().batch(size));
    let plan = options.plan(11).tolerating(0.05).without_repeats().patient_for(PATIENCE);
    let metrics =
        [Metric::higher("rate", "Kpps").digits(1), Metric::lower("calls", "per packet").beside()];
    let length = options.length(LENGTH);
    let comparison = measure(&plan, title, &NAMES, &metrics, |number| {
        send(sockets, &mut batches[number], BATCHES[number], frame, length)
    })?;
    Ok(comparison.against(NAMES[0]))
}

/// Thousand packets a second, and system calls for each.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn send(
    sockets: &mut [Socket],
    batch: &mut Batch,
    size: usize,
    frame: &[u8],
    length: Duration,
) -> Result<Vec<f64>> {
    let before = calls(sockets)?;
    let (started, mut packets) = (Instant::now(), 0);
    while started.elapsed() < length {
        // A clock is not read for each packet.
        for _ in 0..64 / size {
            for socket in &mut *sockets {
                let kept = batch.packet_count();
                batch.alloc(size - kept);
                for mut packet in batch.packets_mut().skip(kept) {
                    packet.write(frame)?;
                }
                let sent = socket.send(batch)?;
                if sent == 0 {
                    // The ring is full. Asking again and again would only keep the kernel from its work.
                    socket.wait(Interest::WRITABLE, WAIT)?;
                }
                packets += sent;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let calls = calls(sockets)? - before;
    Ok(vec![packets as f64 / seconds / 1e3, calls as f64 / packets.max(1) as f64])
}

fn calls(sockets: &[Socket]) -> Result<u64> {
    let mut calls = 0;
    for socket in sockets {
        calls += socket.statistics()?.wakeups_tx;
    }
    Ok(calls)
}

/// In per cent, as the seed printed it.
fn increase(comparison: &Comparison) -> String {
    let rate = |subject: &str| comparison.summary(subject, "rate").median;
    let ratio = comparison.ratio(NAMES[1], &[NAMES[0]], "rate").map_or(1.0, |ratio| ratio.median);
    let [one, many] = NAMES;
    let (title, before, after) = (comparison.title(), rate(one), rate(many));
    let more = 100.0 * (ratio - 1.0);
    format!("{title}: {one} {before:.1} Kpps, {many} {after:.1} Kpps, {more:+.0} %")
}
