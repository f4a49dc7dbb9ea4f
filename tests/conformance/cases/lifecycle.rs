//! Again from the start, and on other hardware rings.

use std::io;

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, stream},
    mode::Mode,
};

pub(super) const CASES: &[Case] = &[
    ("ten_times_created_and_destroyed", ten_times),
    ("the_smallest_and_the_largest_hardware_ring", hardware_rings),
];

fn ten_times(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    for _ in 0..10 {
        traffic(&bench);
    }
    Outcome::Passed
}

fn traffic(bench: &Bench) {
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    stream((&mut from.socket, &mut to.socket), &bench.to_near(LENGTH), 0..PACKETS);
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
}

fn hardware_rings(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let near = &bench.lab.near;
    let before = match near.hardware_rings() {
        Ok(rings) => rings,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return Outcome::CannotRun(format!(
                "the device has no hardware rings to set (ETHTOOL_GRINGPARAM: {error})"
            ));
        }
        Err(error) => panic!("{error}"),
    };
    // The smallest ring is whatever the driver does not refuse.
    let smallest = (0..12).map(|power| 1 << power).find(|size| set(&bench, *size).is_ok());
    let Some(smallest) = smallest else {
        return Outcome::CannotRun("the device has hardware rings, and none can be set".to_owned());
    };
    traffic(&bench);
    let largest = before.max_rx.min(before.max_tx);
    set(&bench, largest).unwrap();
    traffic(&bench);
    Outcome::Saw(format!("hardware rings of {smallest} and of {largest}"))
}

fn set(bench: &Bench, size: u32) -> io::Result<()> {
    bench.lab.near.set_hardware_rings(size, size)
}
