//! What is told: at the start, every second, at the end; for people or as JSON.

use std::{
    fmt::Write as _,
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use xskit::Audit;

use super::{
    Failure, Opened, Stop,
    numbers::{CpuSample, Named, QueueSample, Sample, Traffic, moved},
};

const SECOND: Duration = Duration::from_secs(1);
/// How soon an end is noticed.
const TICK: Duration = Duration::from_millis(50);

/// Tells the user.
pub(crate) struct Report<'a> {
    watched: &'a Opened,
    json: bool,
}

impl<'a> Report<'a> {
    pub(crate) fn new(watched: &'a Opened, json: bool) -> Self {
        Self { watched, json }
    }

    /// What was really got.
    pub(crate) fn start(&self) -> Result<(), Failure> {
        let ports = self.watched.ports.iter().enumerate().map(|(index, port)| {
            let queues: Vec<_> =
                self.watched.queues.iter().filter(|queue| queue.port == index).collect();
            (port, queues)
        });
        if self.json {
            let ports: Vec<Value> = ports
                .map(|(port, queues)| {
                    json!({
                        "interface": port.interface().name(),
                        "mode": port.attached().to_string(),
                        "zero_copy": queues.iter().all(|queue| queue.mode.zero_copy),
                        "need_wakeup": queues.iter().all(|queue| queue.mode.need_wakeup),
                        "busy_poll": queues.iter().all(|queue| queue.mode.busy_poll),
                        "queues": queues.iter().map(|queue| queue.id.get()).collect::<Vec<_>>(),
                    })
                })
                .collect();
            return print(&json!({ "event": "start", "ports": ports }).to_string());
        }
        for (port, queues) in ports {
            for queue in queues {
                let name = self.name(queue.port, Some(("queue", queue.id.get())));
                print(&format!("{name}  {}, {}", port.attached(), queue.mode))?;
            }
        }
        Ok(())
    }

    /// Tells every second what happened in it, until the end is wanted or the time is up.
    pub(crate) fn follow(&self, stop: &Stop, duration: Option<Duration>) -> Result<(), Failure> {
        let started = Instant::now();
        let end = duration.and_then(|duration| started.checked_add(duration));
        let mut before = Sample::take(self.watched)?;
        let mut next = started + SECOND;
        while !stop.wanted() {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                break;
            }
            if now < next {
                let until = end.map_or(next, |end| end.min(next));
                thread::sleep(until.saturating_duration_since(now).min(TICK));
                continue;
            }
            next += SECOND;
            let sample = Sample::take(self.watched)?;
            self.second(started.elapsed(), &sample, &before)?;
            before = sample;
        }
        Ok(())
    }

    fn second(&self, elapsed: Duration, now: &Sample, before: &Sample) -> Result<(), Failure> {
        let queues = self.watched.queues.iter().zip(now.queues.iter().zip(&before.queues));
        let outside = now.ports.iter().zip(&before.ports).map(|(now, before)| moved(now, before));
        let cpus = now.cpus.iter().zip(&before.cpus).map(|(now, before)| CpuSample {
            named: moved(&now.named, &before.named),
            ..now.clone()
        });
        if self.json {
            let queues: Vec<Value> = queues
                .map(|(queue, (now, before))| {
                    let [rx, tx, completed] = rates(now, before);
                    json!({
                        "interface": self.interface(queue.port),
                        "queue": queue.id.get(),
                        "rx_pps": rx.packets, "rx_bps": rx.bits,
                        "tx_pps": tx.packets, "tx_bps": tx.bits,
                        "completed_pps": completed.packets,
                        "losses": object(&moved(&now.losses, &before.losses)),
                        "others": object(&moved(&now.others, &before.others)),
                    })
                })
                .collect();
            let ports: Vec<Value> =
                outside.enumerate().map(|(port, named)| self.port(port, &named)).collect();
            let seconds = elapsed.as_secs_f64();
            let cpus: Vec<Value> = cpus.map(|cpu| self.cpu(&cpu)).collect();
            let event = json!({
                "event": "second", "at": seconds, "queues": queues, "ports": ports, "cpus": cpus,
            });
            return print(&event.to_string());
        }
        for (queue, (now, before)) in queues {
            let [rx, tx, completed] = rates(now, before);
            let mut line = self.name(queue.port, Some(("queue", queue.id.get())));
            if queue.receives {
                write!(line, "  rx {rx}")?;
            }
            if queue.sends {
                write!(line, "  tx {tx}  completed {:>8} pps", completed.packets)?;
            }
            append(&mut line, &moved(&now.losses, &before.losses));
            // Of the others, only what went to the stack tells where packets have gone.
            append(&mut line, &passed(&moved(&now.others, &before.others)));
            print(&line)?;
        }
        cpus.into_iter().try_for_each(|cpu| self.cpu_line(&cpu))?;
        self.outside(outside)
    }

    /// Totals, and where the frames are.
    pub(crate) fn end(&self, total: &Sample, audit: &Audit, audit_ok: bool) -> Result<(), Failure> {
        let queues = self.watched.queues.iter().zip(&total.queues);
        if self.json {
            let queues: Vec<Value> = queues
                .map(|(queue, total)| {
                    json!({
                        "interface": self.interface(queue.port),
                        "queue": queue.id.get(),
                        "received": total.received.packets, "received_bytes": total.received.bytes,
                        "sent": total.sent.packets, "sent_bytes": total.sent.bytes,
                        "completed": total.completed,
                        "losses": object(&total.losses),
                        "others": object(&total.others),
                    })
                })
                .collect();
            let ports: Vec<Value> = total
                .ports
                .iter()
                .enumerate()
                .map(|(port, named)| self.port(port, named))
                .collect();
            let event = json!({
                "event": "end",
                "audit_ok": audit_ok,
                "audit": {
                    "total": audit.total, "free": audit.free, "batch": audit.batch,
                    "fill": audit.fill, "rx": audit.rx, "tx": audit.tx,
                    "completion": audit.completion, "lost": audit.lost,
                    "quarantine": audit.quarantine, "cloned": audit.cloned,
                },
                "queues": queues,
                "ports": ports,
                "cpus": total.cpus.iter().map(|cpu| self.cpu(cpu)).collect::<Vec<_>>(),
            });
            return print(&event.to_string());
        }
        print("in all:")?;
        for (queue, total) in queues {
            let mut line = self.name(queue.port, Some(("queue", queue.id.get())));
            if queue.receives {
                let Traffic { packets, bytes } = total.received;
                write!(line, "  rx {packets} packets {bytes} bytes")?;
            }
            if queue.sends {
                let Traffic { packets, bytes } = total.sent;
                write!(line, "  tx {packets} packets {bytes} bytes")?;
                write!(line, "  completed {}", total.completed)?;
            }
            append(&mut line, &total.losses);
            append(&mut line, &total.others);
            print(&line)?;
        }
        total.cpus.iter().try_for_each(|cpu| self.cpu_line(cpu))?;
        self.outside(total.ports.iter().cloned())?;
        let verdict = if audit_ok { "all accounted for" } else { "NOT ALL ACCOUNTED FOR" };
        print(&format!("{audit}: {verdict}"))
    }

    /// What concerns no open queue in particular, where there is any.
    fn outside(&self, ports: impl Iterator<Item = Named>) -> Result<(), Failure> {
        for (port, named) in ports.enumerate() {
            if named.iter().any(|(_, count)| *count > 0) {
                let mut line = self.name(port, None);
                append(&mut line, &named);
                print(&line)?;
            }
        }
        Ok(())
    }

    /// All numbers: each says something by being 0, too.
    fn cpu_line(&self, sample: &CpuSample) -> Result<(), Failure> {
        let mut line = self.name(sample.port, Some(("cpu", sample.cpu)));
        for (name, count) in &sample.named {
            write!(line, "  {name} {count:>8}")?;
        }
        print(&line)
    }

    fn cpu(&self, sample: &CpuSample) -> Value {
        let mut cpu = object(&sample.named);
        cpu.insert("interface".to_owned(), self.interface(sample.port).into());
        cpu.insert("cpu".to_owned(), sample.cpu.into());
        cpu.into()
    }

    fn port(&self, port: usize, named: &Named) -> Value {
        json!({ "interface": self.interface(port), "program": object(named) })
    }

    fn interface(&self, port: usize) -> &str {
        self.watched.ports[port].interface().name()
    }

    /// The beginning of a line, as wide as the widest of them.
    fn name(&self, port: usize, part: Option<(&str, u32)>) -> String {
        let names = self.watched.ports.iter().map(|port| port.interface().name().len());
        let width = names.max().unwrap_or(0);
        let part = part.map_or(String::new(), |(what, number)| format!("{what} {number}"));
        format!("{:width$} {part:8}", self.interface(port))
    }
}

/// Not `println!`: it panics when nobody reads any more.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("standard output: {error}").into())
}

/// Traffic of one direction in a second.
struct Rate {
    packets: u64,
    bits: u64,
}

/// Received, given to the kernel to send, and completed: of the last, only the packets are known.
fn rates(now: &QueueSample, before: &QueueSample) -> [Rate; 3] {
    let nanoseconds = now.at.duration_since(before.at).as_nanos().max(1);
    let rate = |count: u64| {
        u64::try_from(u128::from(count) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
    };
    let completed = |sample: &QueueSample| Traffic { packets: sample.completed, bytes: 0 };
    [
        now.received.since(before.received),
        now.sent.since(before.sent),
        completed(now).since(completed(before)),
    ]
    .map(|traffic| Rate { packets: rate(traffic.packets), bits: rate(traffic.bytes * 8) })
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { packets, bits } = self;
        let (whole, tenth) = (bits / 1_000_000, bits / 100_000 % 10);
        write!(f, "{packets:>8} pps {whole:>5}.{tenth} Mbit/s")
    }
}

fn passed(named: &Named) -> Named {
    named.iter().filter(|(name, _)| name.starts_with("passed_")).copied().collect()
}

fn append(line: &mut String, named: &Named) {
    for (name, count) in named.iter().filter(|(_, count)| *count > 0) {
        line.push_str("  ");
        line.push_str(name);
        line.push(' ');
        line.push_str(&count.to_string());
    }
}

fn object(named: &Named) -> Map<String, Value> {
    named.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())).collect()
}
