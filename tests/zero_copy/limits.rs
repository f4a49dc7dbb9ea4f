//! What drivers with zero-copy cannot do in that mode.

use xskit_lab::{Checker, Numbered, Pair, RawPort};

use crate::{
    bench::{Bench, open, zero_copy},
    refusals::{automatic, refused},
    support::{PORT, adds_up, frames, receive},
};

/// virtio_net takes packets of one frame in zero-copy mode.
#[test]
fn no_packets_of_several_frames() {
    let Some(bench) = Bench::for_test() else { return };
    let (port, socket) = open(zero_copy(&bench.pair.near));
    if port.interface().facts().unwrap().xdp.and_then(|xdp| xdp.zc_max_segments) != Some(1) {
        return;
    }
    drop((port, socket));
    let error = refused(zero_copy(&bench.pair.near).multi_buffer(true), libc::EOPNOTSUPP);
    assert!(error.to_string().contains("multi-buffer: 1 frames"), "{error}");
    let (_port, socket) = open(automatic(&bench.pair.near).multi_buffer(true));
    assert!(!socket.mode().zero_copy && socket.mode().multi_buffer, "{}", socket.mode());
}

/// An interface whose queues cannot be reset has no zero-copy: automatic mode falls back, and works.
#[test]
fn queues_that_cannot_be_reset() {
    let Some(pair) = Pair::lent("XSKIT_TEST_NICS_NO_RESET") else { return };
    refused(zero_copy(&pair.near), libc::ENOENT);
    let (port, mut socket) = open(automatic(&pair.near));
    assert!(!socket.mode().zero_copy, "{}", socket.mode());
    let series = Numbered::new(pair.flow(PORT), 300, 1);
    let raw = RawPort::open(&pair.far).unwrap();
    raw.send_all(&frames(&series, 100)).unwrap();
    receive(&mut socket, &mut Checker::new(series), 100, 16);
    adds_up(port.umem());
}
