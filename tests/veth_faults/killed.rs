//! Processes that are killed at random points of opening, of traffic and of closing, while packets arrive.

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use xskit::Umem;
use xskit_lab::{Lab, LabConfig};

use crate::{
    after::works_again,
    bench::{REPORT, alone_for, nothing_attached, umem, works},
    census::are_gone,
    child::{Child, Role},
    support::{frames, to_near},
};

const KILLS: u64 = 200;

/// Each with a lab of its own.
const WORKERS: u64 = 2;

/// In the order in which a child says them.
const PHASES: [&str; 3] = ["open", "traffic", "close"];

/// `XSKIT_FAULTS_SEED`, or another one each time.
fn seed() -> u64 {
    env::var("XSKIT_FAULTS_SEED").map_or_else(
        |_| RandomState::new().hash_one("a random seed"),
        |seed| seed.parse().expect("the seed is a number"),
    )
}

/// Ends the traffic, also when a worker panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How long a child takes for each phase, here and now.
fn phases() -> [Duration; 3] {
    let child = Child::start(Role::Cycles);
    child.says("close");
    let mut last = child.says("open");
    let mut took = [Duration::ZERO; 3];
    for (took, next) in took.iter_mut().zip(["traffic", "close", "open"]) {
        let now = child.says(next);
        *took = now - last;
        last = now;
    }
    child.kill();
    took
}

/// Kills a child at a random point of a random phase; returns the phase that it was in at last.
fn kill_one(lab: &Lab, random: &mut fastrand::Rng, took: [Duration; 3]) -> String {
    let child = Child::start(Role::Cycles);
    // In the first round, or in the second.
    for _ in 0..random.usize(0..2) {
        child.says("close");
    }
    let phase = random.usize(0..PHASES.len());
    child.says(PHASES[phase]);
    let took = took[phase].max(Duration::from_millis(5));
    thread::sleep(took.mul_f64(random.f64()));
    let objects = child.objects();
    let last = child.kill().unwrap_or_else(|| PHASES[phase].to_owned());
    nothing_attached(lab);
    are_gone(&objects);
    last
}

/// Kills that many, one after the other; after each, a port opens and works.
fn kill_many(lab: &Lab, umem: &Umem, seed: u64, count: u64, tally: &Mutex<BTreeMap<String, u64>>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let took = phases();
    for _ in 0..count {
        let phase = kill_one(lab, &mut random, took);
        *tally.lock().unwrap().entry(phase).or_default() += 1;
        works(lab, umem, 0);
    }
}

#[test]
fn at_random_points() {
    alone_for(Duration::from_secs(300), || {
        let seed = seed();
        eprintln!("{REPORT}{KILLS} processes are killed: XSKIT_FAULTS_SEED={seed}");
        let tally = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let tally = &tally;
                scope.spawn(move || {
                    let Some(lab) = Lab::for_test_with(&LabConfig::default()) else { return };
                    let packets = frames(&to_near(&lab, 100), 16);
                    let umem = umem();
                    let stop = AtomicBool::new(false);
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            let raw = lab.raw().unwrap();
                            while !stop.load(Ordering::Relaxed) {
                                raw.send_all(&packets).unwrap();
                                thread::sleep(Duration::from_millis(1));
                            }
                        });
                        let _stop = Stop(&stop);
                        let count = KILLS / WORKERS;
                        lab.enter(|| kill_many(&lab, &umem, seed ^ worker, count, tally));
                    });
                    works_again(&lab, &umem);
                });
            }
        });
        let tally = tally.into_inner().unwrap();
        eprintln!("{REPORT}killed while they did this: {tally:?}");
    });
}
