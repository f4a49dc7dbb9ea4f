//! Several sockets on one UMEM and queue: still a batch per call, in every direction.

use xskit::{Socket, SocketConfig, Statistics};
use xskit_lab::{Checker, Lab, Numbered};

use crate::support::{
    PORT, adds_up, collect, comes_home, eventually, frames, near, near_interface, ring, to_near,
};

/// Packets of a batch; no more than one call of an older kernel sends in copy mode.
const BATCH: usize = 32;
const ROUNDS: u64 = 20;

fn statistics(socket: &Socket) -> Statistics {
    socket.statistics().unwrap()
}

#[test]
fn forwards_a_batch_per_call() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let config = SocketConfig::default().tx(ring(64));
        let mut port = near().socket(config.clone()).open().unwrap();
        let umem = port.umem().clone();
        let mut first = port.take_queue(0).unwrap();
        let mut senders: Vec<Socket> =
            (0..3).map(|_| first.share_queue(&config.clone().send_only()).unwrap()).collect();
        let mut batch = umem.batch(BATCH);
        let filled = statistics(&first).levels.fill as usize;
        for round in 0..ROUNDS {
            let length = 100 + usize::try_from(round).unwrap();
            let series = to_near(&lab, length);
            raw.send_all(&frames(&series, BATCH as u64)).unwrap();
            eventually("all packets are there", || {
                let levels = statistics(&first).levels;
                (levels.rx as usize, levels.fill as usize) == (BATCH, filled - BATCH)
            });

            // One call takes them all, and gives the kernel as many frames for them.
            assert_eq!(first.recv(&mut batch).unwrap(), BATCH);
            assert_eq!(statistics(&first).levels.fill as usize, filled);
            for mut packet in batch.packets_mut() {
                packet.head_mut()[..12].rotate_left(6);
            }

            // One call sends them all, by one call of the kernel, whichever socket of the queue it is.
            let index = usize::try_from(round).unwrap() % senders.len();
            let sender = &mut senders[index];
            let before = statistics(sender);
            assert_eq!(sender.send(&mut batch).unwrap(), BATCH);
            assert!(batch.is_empty());
            let after = statistics(sender);
            assert_eq!(after.wakeups_tx - before.wakeups_tx, 1);
            assert_eq!((after.sent - before.sent, after.levels.tx), (BATCH as u64, 0));
            let mut checker = Checker::new(Numbered::new(lab.flow(PORT).reflected(), length, 1));
            collect(&mut raw, &mut checker, BATCH as u64);
            assert!(checker.tally().is_perfect(BATCH as u64), "{:?}", checker.tally());

            // One call takes all that completed, by yet another of the sockets.
            let reaper = &mut senders[(index + 1) % 3];
            eventually("all completes", || statistics(reaper).levels.completion as usize == BATCH);
            assert_eq!(reaper.split_mut().1.reap().unwrap(), BATCH);
            adds_up(&umem);
        }
        drop((port, first, senders, batch));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}
