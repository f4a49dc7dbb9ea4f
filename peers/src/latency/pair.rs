//! Two ends, one of which answers the other from a CPU of its own.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::unistd::{Pid, gettid};
use xskit_lab::Lab;
use xskit_report::{cpus, pin, prefer};

use super::{
    PORT, Way,
    end::End,
    waits::{Waits, disturbed},
};
use crate::pair::pair;

/// No packet takes so long.
const LOST: Duration = Duration::from_secs(2);
/// Pings of each burst that do not count: what the others left of the caches.
const COLD: usize = 8;

/// A pair with somebody who answers at its near end.
pub struct Pair {
    far: End,
    echo: Option<JoinHandle<()>>,
    state: Arc<State>,
    /// The thread that answers.
    thread: Pid,
    frame: Vec<u8>,
    _lab: Lab,
}

/// What whoever answers shall do, and does.
#[derive(Default)]
struct State {
    ended: AtomicBool,
    answering: AtomicBool,
    resting: AtomicBool,
}

/// Some round trips in a row.
pub struct Burst {
    pub times: Vec<Duration>,
    /// How long other work kept one of the ends from running.
    pub disturbed: Duration,
}

/// While this lives, pings are answered.
pub struct Answered<'a>(&'a mut Pair);

impl Pair {
    pub fn start(way: Way) -> Result<Self> {
        let lab = pair(1)?;
        let address = |last| Ipv4Addr::new(198, 18, 0, last);
        if way == Way::Udp {
            for (link, last, other) in [(&lab.far, 1, &lab.near), (&lab.near, 2, &lab.far)] {
                link.add_address(address(last), 24)?;
                link.add_neighbour(address(3 - last), other.mac())?;
            }
        }
        let far = lab.far.netns().enter(|| End::open(&lab.far, way, address(1)))?;
        let near = lab.near.netns().enter(|| End::open(&lab.near, way, address(2)))?;
        far.connect(address(2))?;
        let state = Arc::new(State::default());
        let (shared, (ready, thread)) = (state.clone(), mpsc::channel());
        let echo = std::thread::spawn(move || {
            ready.send(gettid()).ok();
            if let Err(error) = echo(near, &shared) {
                eprintln!("the echo: {error:#}");
            }
        });
        let thread = thread.recv().context("whoever answers has ended")?;
        // 64 bytes with the headers.
        let frame = match way {
            Way::Udp => vec![0; 64 - 42],
            _ => lab.flow(PORT).frame(&[0; 64 - 42]),
        };
        Ok(Self { far, echo: Some(echo), state, thread, frame, _lab: lab })
    }

    /// Has whoever answers begin.
    pub fn answered(&mut self) -> Result<Answered<'_>> {
        prefer();
        pin(cpus()[0])?;
        self.state.resting.store(false, Ordering::Relaxed);
        self.state.answering.store(true, Ordering::Relaxed);
        self.wake();
        Ok(Answered(self))
    }

    fn trip(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.far.send(&self.frame)?;
        self.far.receive(|| started.elapsed() < LOST)?;
        let took = started.elapsed();
        ensure!(took < LOST, "a packet was lost");
        Ok(took)
    }

    fn wake(&self) {
        if let Some(echo) = &self.echo {
            echo.thread().unpark();
        }
    }
}

impl Answered<'_> {
    /// That many round trips.
    pub fn ping(&mut self, trips: usize) -> Result<Burst> {
        for _ in 0..COLD {
            self.0.trip()?;
        }
        let threads = [gettid(), self.0.thread];
        let before = Waits::of(threads);
        let times = (0..trips).map(|_| self.0.trip()).collect::<Result<_>>()?;
        Ok(Burst { times, disturbed: disturbed(before, Waits::of(threads)) })
    }
}

impl Drop for Answered<'_> {
    /// Nobody spins any more while others are measured.
    fn drop(&mut self) {
        let Pair { state, echo, .. } = &*self.0;
        state.answering.store(false, Ordering::Relaxed);
        let over = || echo.as_ref().is_none_or(JoinHandle::is_finished);
        while !state.resting.load(Ordering::Relaxed) && !over() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(echo) = self.echo.take() {
            if echo.join().is_err() {
                eprintln!("the echo panicked");
            }
        }
    }
}

/// Sends back what comes, while it shall.
fn echo(mut end: End, state: &State) -> Result<()> {
    prefer();
    pin(cpus()[cpus().len() - 1])?;
    while !state.ended.load(Ordering::Relaxed) {
        if state.answering.load(Ordering::Relaxed) {
            end.answer(|| state.answering.load(Ordering::Relaxed))?;
        } else {
            state.resting.store(true, Ordering::Relaxed);
            std::thread::park();
        }
    }
    Ok(())
}
