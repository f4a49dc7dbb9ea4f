//! That the bench sees what it is there to see.

use std::fs;

use xskit::{RingSize, UmemConfig};

use crate::bench::{alone, refused};

#[test]
fn what_an_attempt_leaves_is_seen() {
    alone(|| {
        let leaves = |leave: fn()| {
            let attempt = || {
                leave();
                RingSize::new(0)
            };
            std::panic::catch_unwind(|| refused(attempt)).is_err()
        };
        assert!(!leaves(|| ()));
        assert!(leaves(|| std::mem::forget(fs::File::open("/dev/null").unwrap())));
        assert!(leaves(|| std::mem::forget(UmemConfig::new(64).build().unwrap())));
    });
}
