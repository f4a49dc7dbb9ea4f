//! On the fake kernel: rings, copies and the pool, and nothing of the real one.

use std::{sync::atomic::Ordering, time::Duration};

use xskit::{Batch, Socket, Umem, fake};
use xskit_report::{Options, Series};

use crate::{BATCH, CACHES, Failure, Job, POINTS, config, point, run, series, umem};

/// One queue, and the batch of the thread that serves it.
struct Queue {
    socket: Socket,
    kernel: fake::Kernel,
    batch: Batch,
}

/// Each thread forwards what its own queue brings, in balance.
pub(crate) fn forwarding(options: &Options) -> Result<Series, Failure> {
    let mut series = series("forwarding on the fake kernel, frame size / threads");
    for (size, threads) in POINTS {
        let mut rows = CACHES
            .iter()
            .map(|cache| {
                let umem = umem(threads)?;
                let queues = (0..threads)
                    .map(|_| {
                        let (socket, kernel) = fake::socket(&umem, &config(*cache)?)?;
                        Ok(Queue { socket, kernel, batch: umem.batch(BATCH) })
                    })
                    .collect::<xskit::Result<Vec<_>>>()?;
                Ok((umem, queues))
            })
            .collect::<xskit::Result<Vec<(Umem, Vec<Queue>)>>>()?;
        let length = options.length(Duration::from_millis(100));
        let packet = vec![0x5a; size];
        series.add(point(options, &format!("{size}/{threads}"), |row| {
            let (umem, queues) = &mut rows[row];
            let jobs = queues.iter_mut().map(|queue| forward(queue, &packet)).collect();
            run(umem, length, jobs)
        })?);
    }
    Ok(series)
}

fn forward<'a>(queue: &'a mut Queue, packet: &'a [u8]) -> Job<'a> {
    Box::new(move |stop| {
        let Queue { socket, kernel, batch } = queue;
        let mut packets = 0;
        while !stop.load(Ordering::Relaxed) {
            kernel.deliver_many(packet, BATCH);
            socket.recv(batch)?;
            packets += socket.send(batch)? as u64;
            kernel.discard(usize::MAX);
        }
        Ok(packets)
    })
}
