//! What steers and paces packets besides the program, on veth pairs: busy polling, interrupts held back,
//! promiscuous mode, and what an interface has no steering for. Needs root; says so and skips where it is
//! not.

mod support;

use support::frames;
use support::{
    adds_up, collect, comes_home, near, near_interface, receive, rings, send, settle, to_far,
    to_near,
};
use xskit::{AttachMode, socket::BusyPoll};
use xskit_lab::{Checker, Lab};

#[test]
fn busy_polling_moves_packets_and_calls_the_kernel_every_time() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            let config = rings(1024).busy_poll(BusyPoll::default());
            let mut port = near().attach(mode).socket(config).open().unwrap();
            let umem = port.umem().clone();
            let mut socket = port.take_queue(0).unwrap();
            assert!(socket.mode().busy_poll);

            let series = to_near(&lab, 64);
            raw.send_all(&frames(&series, 500)).unwrap();
            let mut checker = Checker::new(series);
            receive(&mut socket, &mut checker, 500, 64);
            assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());

            let series = to_far(&lab, 64);
            let mut checker = Checker::new(series.clone());
            send(&mut socket, &series, 0..500, 64);
            collect(&mut raw, &mut checker, 500);
            assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
            settle(&mut socket);

            // Calls for nothing are made all the same: in copy mode no flag asks for the first.
            let before = socket.statistics().unwrap();
            let mut batch = umem.batch(64);
            for _ in 0..10 {
                assert_eq!(socket.recv(&mut batch).unwrap(), 0);
                assert_eq!(socket.send(&mut batch).unwrap(), 0);
            }
            let after = socket.statistics().unwrap();
            assert_eq!(after.wakeups_rx - before.wakeups_rx, 10);
            assert_eq!(after.wakeups_tx - before.wakeups_tx, 10);
            adds_up(&umem);
            drop((port, socket, batch));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn sockets_that_share_a_queue_busy_poll_each_for_themselves() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let mut port = near().socket(rings(1024)).open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let config = rings(1024).send_only().busy_poll(BusyPoll::default());
        let mut sharer = socket.share_queue(&config).unwrap();
        assert_eq!((socket.mode().busy_poll, sharer.mode().busy_poll), (false, true));
        let mut batch = port.umem().batch(64);
        assert_eq!(sharer.send(&mut batch).unwrap(), 0);
        assert_eq!(socket.send(&mut batch).unwrap(), 0);
        assert_eq!(sharer.statistics().unwrap().wakeups_tx, 1);
        assert_eq!(socket.statistics().unwrap().wakeups_tx, 0);
    });
}
