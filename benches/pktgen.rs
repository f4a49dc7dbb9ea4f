//! Sending one frame many times: counted per packet or per batch, written or not, TX rings of three sizes
//!
//! The table of the kernel's "pktgen: no atomic per packet", for this library. On a veth pair of its own,
//! whose far end drops what arrives, and on the rings alone, where there is no kernel whose work would
//! hide the difference.

use std::{
    error::Error,
    hint::black_box,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use xskit::{
    Batch, Clones, Interest, Interface, RingSize, Sender, Socket, SocketConfig, Umem, UmemConfig,
    fake,
};
use xskit_lab::{Lab, LabConfig, XdpAction, XdpMode};
use xskit_report::{Comparison, Metric, Options, Plan, Report, cpus, measure, pin};
use xskit_traffic::{Flows, Rng, Stamp, Template, Values};

type Failure = Box<dyn Error + Send + Sync>;

/// Measures how packets are sent many times.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// How long to send for each value, in milliseconds
    #[arg(long, value_name = "NUMBER", default_value = "250")]
    length: u64,
}

/// Packets that are given to the kernel at once: the TX ring's usual quarter.
const BURST: usize = 512;

/// How often one packet is sent before the next one is prepared: the series' own number.
const CLONE: u64 = 100_000;

/// Bytes of a packet, 64 with its check sequence.
const LEN: usize = 60;

const RINGS: [u32; 3] = [512, 1024, 2048];

/// Packets to give at once, as many as the largest ring has room for: what is left when the ring is full
/// takes another call. A veth empties the ring within each.
const LARGEST: usize = 2048;

const RATE: Metric = Metric::higher("rate", "kpps").digits(1);
const TIME: Metric = Metric::lower("time", "ns/packet").digits(2);
/// Of our own thread, which other work on the machine takes less from than from the time that passes.
const CPU: Metric = Metric::lower("CPU time", "ns/packet").digits(1);
const FULL: Metric = Metric::lower("ring full", "per million").digits(1).beside();

/// How the frame's users are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// One more and one less for each packet, atomically: as before.
    Packet,
    /// By the sender, once for all packets of a call.
    Batch,
}

const COUNTED: [&str; 2] = ["atomic per packet", "count per batch"];

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let options = &arguments.options;
    let length = options.length(Duration::from_millis(arguments.length));
    let plan = options.plan(7).patient_for(Duration::from_secs(15));
    let mut report = Report::new("pktgen");
    if let Some(cpu) = cpus().first() {
        pin(*cpu)?;
    }
    let lab = Lab::new(&LabConfig::default())?;
    lab.far.attach_xdp(XdpAction::Drop, XdpMode::Native)?;
    let veth = Veth { lab, length };
    report.note(format!(
        "packets of {LEN} bytes, {BURST} at a time, each prepared one sent {CLONE} times"
    ));
    report.add(veth.counted(&plan)?);
    report.add(rings_alone(&plan, length)?);
    report.add(veth.cloned(&plan)?);
    report.add(veth.rings(&plan)?);
    report.print(options)?;
    Ok(())
}

/// What was sent, and how long that took.
#[derive(Default)]
struct Run {
    packets: u64,
    /// Calls for which there was no room for all packets.
    full: u64,
    elapsed: Duration,
    cpu: Duration,
}

#[expect(clippy::cast_precision_loss, reason = "rates to be looked at")]
impl Run {
    fn rate(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64() / 1e3
    }

    fn time(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / self.packets as f64
    }

    fn cpu(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / self.packets as f64
    }

    fn full(&self) -> f64 {
        self.full as f64 * 1e6 / self.packets as f64
    }
}

/// The CPU time of this thread so far.
fn cpu_time() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// The users of a frame, as they were counted before.
static USERS: AtomicU32 = AtomicU32::new(1);

impl Counted {
    #[inline]
    fn count(self, packets: usize) {
        if self == Self::Packet {
            // Two locked instructions for each packet: one when it is sent, one when it has been.
            for _ in 0..packets {
                USERS.fetch_add(1, Ordering::Relaxed);
            }
            for _ in 0..packets {
                USERS.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A pair of interfaces, and how long to send on them for each value.
struct Veth {
    lab: Lab,
    length: Duration,
}

impl Veth {
    /// A socket to send on, with a TX ring of that many entries.
    fn socket(&self, ring: u32) -> Result<(Socket, Umem), Failure> {
        let umem = UmemConfig::new(8192).clones(8).build()?;
        let size = RingSize::new(ring)?;
        let config = SocketConfig::default().send_only().tx(size).completion(RingSize::new(2048)?);
        let socket = self.lab.near.netns().enter(|| {
            Socket::open(&umem, &Interface::by_name(self.lab.near.name())?, 0, &config)
        })?;
        Ok((socket, umem))
    }

    /// The series' table.
    fn counted(&self, plan: &Plan) -> Result<Comparison, Failure> {
        let title = "clones on veth, their users counted";
        let comparison = measure(plan, title, &COUNTED, &[RATE, TIME, CPU, FULL], |subject| {
            let counted = [Counted::Packet, Counted::Batch][subject];
            let (socket, umem) = self.socket(2048)?;
            let run = self.send_clones(socket, &umem, counted, BURST)?;
            Ok::<_, Failure>(vec![run.rate(), run.time(), run.cpu(), run.full()])
        })?;
        Ok(comparison.against(COUNTED[0]))
    }

    /// Each packet written, or one of a hundred thousand.
    fn cloned(&self, plan: &Plan) -> Result<Comparison, Failure> {
        let subjects = ["clone 1", "clone 100000"];
        let metrics = [RATE, TIME, CPU, FULL];
        let title = "packets on veth, written each or prepared once";
        let comparison = measure(plan, title, &subjects, &metrics, |subject| {
            let (socket, umem) = self.socket(2048)?;
            let run = match subject {
                0 => self.send_written(socket, &umem)?,
                _ => self.send_clones(socket, &umem, Counted::Batch, BURST)?,
            };
            Ok::<_, Failure>(vec![run.rate(), run.time(), run.cpu(), run.full()])
        })?;
        Ok(comparison.against(subjects[0]))
    }

    fn rings(&self, plan: &Plan) -> Result<Comparison, Failure> {
        let subjects = RINGS.map(|ring| format!("TX ring of {ring}"));
        let title = format!("clones on veth, {LARGEST} at a time");
        let title = title.as_str();
        let metrics = [RATE, TIME, CPU, FULL];
        let comparison = measure(plan, title, &subjects, &metrics, |subject| {
            let (socket, umem) = self.socket(RINGS[subject])?;
            let run = self.send_clones(socket, &umem, Counted::Batch, LARGEST)?;
            Ok::<_, Failure>(vec![run.rate(), run.time(), run.cpu(), run.full()])
        })?;
        Ok(comparison.against(&subjects[0]))
    }

    fn send_clones(
        &self,
        mut socket: Socket,
        umem: &Umem,
        counted: Counted,
        burst: usize,
    ) -> Result<Run, Failure> {
        let mut prepared = Prepared::new(umem);
        self.run(&mut socket, |socket| {
            let (clones, count) = prepared.next(socket.split_mut().1, burst)?;
            let sent = socket.send_clones(clones, count)?;
            counted.count(sent);
            prepared.left -= sent as u64;
            Ok((sent, sent < count))
        })
    }

    /// Every packet with a number, a time and checksums of its own.
    fn send_written(&self, mut socket: Socket, umem: &Umem) -> Result<Run, Failure> {
        let mut batch = umem.batch(BURST);
        let (template, mut random, mut sequence) = (template(true), Rng::with_seed(1), 0);
        self.run(&mut socket, |socket| {
            write(&mut batch, &template, &mut random, &mut sequence);
            let sent = socket.send(&mut batch)?;
            Ok((sent, !batch.is_empty()))
        })
    }

    /// Sends until the time is up; `act` returns how many packets it sent, and whether there was no room.
    fn run(
        &self,
        socket: &mut Socket,
        mut act: impl FnMut(&mut Socket) -> Result<(usize, bool), Failure>,
    ) -> Result<Run, Failure> {
        let mut run = Run::default();
        let (started, worked) = (Instant::now(), cpu_time()?);
        while started.elapsed() < self.length {
            let (sent, full) = act(socket)?;
            run.packets += sent as u64;
            run.full += u64::from(full);
            if sent == 0 {
                socket.wait(Interest::WRITABLE, Duration::from_millis(10))?;
            }
        }
        run.elapsed = started.elapsed();
        run.cpu = cpu_time()?.saturating_sub(worked);
        Ok(run)
    }
}

/// The sender's side alone: the fake kernel takes and completes the packets while the time stands still.
fn rings_alone(plan: &Plan, length: Duration) -> Result<Comparison, Failure> {
    let title = "clones on rings without a kernel, their users counted";
    let comparison = measure(plan, title, &COUNTED, &[RATE, TIME], |subject| {
        let counted = [Counted::Packet, Counted::Batch][subject];
        let umem = UmemConfig::new(64).clones(8).build()?;
        let config = SocketConfig::default().send_only().tx(RingSize::new(1024)?);
        let (mut socket, kernel) = fake::socket(&umem, &config)?;
        kernel.set_needs_wakeup_tx(false);
        let mut prepared = Prepared::new(&umem);
        let mut run = Run::default();
        let started = Instant::now();
        while started.elapsed() < length {
            let (clones, count) = prepared.next(socket.split_mut().1, BURST)?;
            let before = Instant::now();
            let sent = socket.send_clones(clones, count)?;
            counted.count(sent);
            run.elapsed += before.elapsed();
            run.packets += sent as u64;
            prepared.left -= sent as u64;
            black_box(kernel.transmit(sent));
        }
        Ok::<_, Failure>(vec![run.rate(), run.time()])
    })?;
    Ok(comparison.against(COUNTED[0]))
}

/// Clones, prepared anew when they have been sent often enough.
struct Prepared<'a> {
    umem: &'a Umem,
    template: Template,
    random: Rng,
    clones: Option<Clones>,
    /// Times that the packet at hand is still to be sent.
    left: u64,
}

impl<'a> Prepared<'a> {
    fn new(umem: &'a Umem) -> Self {
        let (template, random) = (template(false), Rng::with_seed(1));
        Self { umem, template, random, clones: None, left: 0 }
    }

    /// What is to be sent next, and how often at most.
    fn next(&mut self, sender: &mut Sender, most: usize) -> Result<(&mut Clones, usize), Failure> {
        while self.left == 0 {
            let mut frame = [0; LEN];
            let stamp = Stamp { stream: 0, sequence: 0, time: 0 };
            self.template.write(&mut frame, 0, &mut self.random, stamp);
            match self.umem.clones([frame]) {
                Ok(clones) => (self.clones, self.left) = (Some(clones), CLONE),
                // Eight are under way: the kernel is to complete them first.
                Err(_) => drop(sender.reap()?),
            }
        }
        let clones = self.clones.as_mut().expect("prepared above");
        Ok((clones, usize::try_from(self.left).map_or(most, |left| left.min(most))))
    }
}

fn template(stamped: bool) -> Template {
    let flows = Flows {
        source_mac: Values::one(0x0200_0000_0001),
        destination_mac: Values::one(0x0200_0000_0002),
        vlan: None,
        source: "198.18.0.1".parse().expect("an address"),
        destination: "198.18.0.2".parse().expect("an address"),
        source_port: Values::one(9),
        destination_port: Values::one(9),
    };
    Template::new(flows, stamped).expect("addresses of one kind")
}

/// Fills the batch up with new packets.
fn write(batch: &mut Batch, template: &Template, random: &mut Rng, sequence: &mut u32) {
    let old = batch.packet_count();
    batch.alloc(BURST - old);
    for mut packet in batch.packets_mut().skip(old) {
        packet.set_len(LEN).expect("it fits a frame");
        let stamp = Stamp { stream: 0, sequence: *sequence, time: 0 };
        template.write(packet.head_mut(), u64::from(*sequence), random, stamp);
        *sequence = sequence.wrapping_add(1);
    }
}
