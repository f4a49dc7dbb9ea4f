//! How many frames one call to the kernel sends.

use xskit::{ErrorKind, Socket, SocketConfig, UmemConfig};
use xskit_lab::{Checker, Lab, LabConfig, Need};

use crate::support::{collect, near_interface, ring, settle, to_far, write};

/// Calls that it takes to send 256 frames with this configuration, and what it says the budget is.
fn calls(lab: &Lab, config: &SocketConfig) -> (u64, Option<u32>) {
    let umem = UmemConfig::new(4096).build().unwrap();
    let mut raw = lab.raw().unwrap();
    let mut socket = Socket::open(&umem, &near_interface(), 0, config).unwrap();
    let series = to_far(lab, 1514);
    let mut batch = umem.batch(256);
    write(&mut batch, &series, &mut (0..256));
    assert_eq!(socket.send(&mut batch).unwrap(), 256);
    let calls = socket.statistics().unwrap().wakeups_tx;
    let mut checker = Checker::new(series);
    collect(&mut raw, &mut checker, 256);
    assert!(checker.tally().is_perfect(256), "{:?}", checker.tally());
    settle(&mut socket);
    (calls, socket.mode().tx_budget)
}

#[test]
fn one_call_sends_all_of_the_ring() {
    let need = Need::Namespaces;
    let Some(lab) = Lab::for_test_with(&LabConfig { need, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        let config = SocketConfig::default().tx(ring(256));
        match calls(&lab, &config) {
            (calls, Some(budget)) => {
                assert_eq!((calls, budget), (1, 256));
                assert_eq!(self::calls(&lab, &config.clone().tx_budget(64)), (4, Some(64)));
                assert_eq!(self::calls(&lab, &config.clone().tx_budget(32)), (8, Some(32)));
            }
            // Before 6.17.
            (calls, None) => {
                assert_eq!(calls, 8);
                let umem = UmemConfig::new(256).build().unwrap();
                let config = config.clone().tx_budget(64);
                let error = Socket::open(&umem, &near_interface(), 0, &config).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("6.17"), "{error}");
            }
        }
        // A ring with fewer entries than the least budget.
        let umem = UmemConfig::new(256).build().unwrap();
        let config = SocketConfig::default().tx(ring(16)).fill(ring(64));
        let socket = Socket::open(&umem, &near_interface(), 0, &config).unwrap();
        assert_eq!(socket.mode().tx_budget, None);
        drop(socket);
        for (tx, budget) in [(64, 31), (64, 65), (64, 0), (16, 16)] {
            let config = SocketConfig::default().tx(ring(tx)).tx_budget(budget);
            let error = Socket::open(&umem, &near_interface(), 0, &config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{tx} {budget}");
        }
        let config = SocketConfig::default().receive_only().tx_budget(32);
        let error = Socket::open(&umem, &near_interface(), 0, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}
