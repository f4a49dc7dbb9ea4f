//! What is refused on every kernel, and by which words.

use xskit::{CopyMode, Error, ErrorKind, PortConfig, Rules, Step};
use xskit_lab::{Checker, Lab, Link, lent};

use crate::{
    bench::{Bench, open, zero_copy},
    support::{PORT, adds_up, near, receive, rings},
};

/// Zero-copy was asked for, and the kernel refused to bind with this errno.
#[track_caller]
pub(crate) fn refused(config: PortConfig, errno: i32) -> Error {
    let error = config.open().unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Bind, ErrorKind::Unsupported), "{error}");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    assert!(error.to_string().contains("CopyMode::Auto"), "{error}");
    error
}

/// The same configuration that falls back by itself.
pub(crate) fn automatic(link: &Link) -> PortConfig {
    PortConfig::new(link.name())
        .rules(Rules::udp_port(PORT))
        .socket(rings(256).copy_mode(CopyMode::Auto))
}

#[test]
fn veth_has_no_zero_copy() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let config = near().socket(rings(256).copy_mode(CopyMode::ZeroCopy));
        let error = refused(config, libc::EOPNOTSUPP);
        assert!(error.to_string().contains("veth"), "{error}");
    });
}

#[test]
fn drivers_without_zero_copy_say_so_and_fall_back() {
    let Some(links) = lent("XSKIT_TEST_NICS_COPY_ONLY") else { return };
    for link in links {
        let error = refused(zero_copy(&link), libc::EOPNOTSUPP);
        assert!(error.to_string().contains(link.name()), "{error}");
        let (_port, socket) = open(automatic(&link));
        assert!(!socket.mode().zero_copy, "{}", socket.mode());
    }
}

/// Whatever this kernel's driver can: zero-copy is had by name where it is had by itself, and else refused.
#[test]
fn the_mode_is_the_one_that_there_is() {
    let Some(bench) = Bench::for_test() else { return };
    let (port, mut socket) = open(automatic(&bench.pair.near));
    let zero_copy_mode = socket.mode().zero_copy;
    let raw = bench.pair.raw().unwrap();
    let series = bench.to_near(100);
    raw.send_all(&crate::support::frames(&series, 100)).unwrap();
    receive(&mut socket, &mut Checker::new(series), 100, 16);
    adds_up(port.umem());
    drop((port, socket));
    if zero_copy_mode {
        assert!(open(zero_copy(&bench.pair.near)).1.mode().zero_copy);
    } else {
        refused(zero_copy(&bench.pair.near), libc::EOPNOTSUPP);
    }
}

/// A queue at the number of queues, and one beyond.
#[test]
fn a_queue_that_is_not_there() {
    let Some(bench) = Bench::for_test() else { return };
    let count = bench.pair.near.channels().unwrap().rx;
    for queue in [count, count + 1] {
        let error = zero_copy(&bench.pair.near).queues([queue]).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains(&format!("queue {queue}")), "{error}");
    }
}
