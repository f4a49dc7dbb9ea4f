//! On a veth pair, with as many queues as there are CPUs: what is left of it beside the kernel's copies.

use std::{sync::atomic::Ordering, time::Duration};

use xskit::{Batch, CopyMode, Interest, Interface, PortConfig, Rules, Socket, UmemConfig};
use xskit_lab::{Lab, LabConfig, Need, have};
use xskit_report::{Options, Series, cpus};

use crate::{BATCH, CACHES, Failure, Job, config, point, run, series, umem};

/// Sizes that pass a link of this MTU.
const SIZES: [usize; 2] = [64, 1532];
const MTU: u32 = 1600;

/// How long a thread waits for packets or room, before it looks whether to stop.
const PATIENCE: Duration = Duration::from_millis(10);

/// One thread per queue sends back what threads at the other end send it.
pub(crate) fn forwarding(options: &Options) -> Result<Series, Failure> {
    have(Need::Bpf).map_err(|missing| format!("{missing}: or say --no-veth"))?;
    let queues = cpus().len().clamp(1, 16);
    let title =
        format!("reflection on veth, {queues} queues, a thread for each, frame size / threads");
    let mut series = series(&title);
    for size in SIZES {
        let lab =
            Lab::new(&LabConfig { queues: u32::try_from(queues)?, mtu: MTU, need: Need::Bpf })?;
        let mut flood = lab.far.netns().enter(|| Flood::new(queues))?;
        let length = options.length(Duration::from_millis(400));
        series.add(point(options, &format!("{size}/{queues}"), |row| {
            let umem = umem(2 * queues)?;
            let config = PortConfig::new(lab.near.name())
                .rules(Rules::all())
                .umem(&umem)
                .socket(config(CACHES[row])?.copy_mode(CopyMode::Copy));
            let mut port = lab.enter(|| config.open())?;
            let ids = port.queues().to_vec();
            let mut sockets = ids
                .into_iter()
                .map(|id| port.take_queue(id))
                .collect::<xskit::Result<Vec<Socket>>>()?;
            let jobs = sockets
                .iter_mut()
                .map(|socket| reflect(socket))
                .chain(flood.sockets.iter_mut().map(|(socket, batch)| send(socket, batch, size)))
                .collect();
            run(&umem, length, jobs)
        })?);
    }
    Ok(series)
}

/// Sends back what it receives.
fn reflect(socket: &mut Socket) -> Job<'_> {
    Box::new(move |stop| {
        let mut batch = socket.umem().batch(BATCH);
        let mut packets = 0;
        while !stop.load(Ordering::Relaxed) {
            if batch.is_empty() && socket.recv(&mut batch)? == 0 {
                socket.wait(Interest::READABLE, PATIENCE)?;
            }
            packets += socket.send(&mut batch)? as u64;
        }
        Ok(packets)
    })
}

/// The other end: a socket that sends for each queue.
struct Flood {
    sockets: Vec<(Socket, Batch)>,
}

impl Flood {
    fn new(queues: usize) -> Result<Self, Failure> {
        let umem = UmemConfig::new(u32::try_from(queues * crate::FRAMES)?).build()?;
        let interface = Interface::by_name("far0")?;
        let config = config(None)?.send_only().copy_mode(CopyMode::Copy);
        let sockets = (0..queues)
            .map(|queue| {
                let queue = u32::try_from(queue)?;
                let socket = Socket::open(&umem, &interface, queue, &config)?;
                Ok((socket, umem.batch(BATCH)))
            })
            .collect::<Result<_, Failure>>()?;
        Ok(Self { sockets })
    }
}

/// Sends as fast as it can. Its packets do not count: those that come back do.
fn send<'a>(socket: &'a mut Socket, batch: &'a mut Batch, size: usize) -> Job<'a> {
    let frame = frame(size);
    Box::new(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            batch.alloc(BATCH - batch.len());
            for mut packet in batch.packets_mut() {
                packet.write(&frame)?;
            }
            if socket.send(batch)? == 0 {
                socket.wait(Interest::WRITABLE, PATIENCE)?;
            }
        }
        Ok(0)
    })
}

/// An Ethernet frame of a type for experiments, to nobody.
fn frame(size: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; size];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}
