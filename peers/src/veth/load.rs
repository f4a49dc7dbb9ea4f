//! Packets to receive, from the pair's far end.

use std::{
    io,
    os::unix::thread::JoinHandleExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use nix::sys::{
    pthread::pthread_kill,
    signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};
use xskit_lab::{Generator, Lab, RawPort};
use xskit_report::{cpus, pin};

use super::{Sender, packet};

/// Frames of each call of the generator, which takes some 20 ms to begin and end: more than it sends before it
/// is interrupted.
const BURST: u32 = 1 << 22;

/// A thread that sends as fast as it can, while it is let.
pub struct Load {
    running: Arc<AtomicBool>,
    resting: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// While this lives, packets flow.
pub struct Running<'a>(&'a Load);

impl Load {
    pub fn start(lab: &Lab, sender: Sender) -> Result<Self> {
        let frame = lab.flow(packet::PORT).frame(&[0; 22]);
        interruptible()?;
        let [running, resting, ended] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let flags = (running.clone(), resting.clone(), ended.clone());
        let mut send: Box<dyn FnMut() -> io::Result<()> + Send> = match sender {
            Sender::Kernel => {
                let generator = Generator::new(&lab.far, frame)?;
                Box::new(move || generator.send(BURST))
            }
            Sender::User => {
                let port: RawPort = lab.raw()?;
                let frames = vec![frame; 64];
                Box::new(move || port.send_all(&frames))
            }
        };
        let thread = lab.far.netns().spawn(move || {
            let (running, resting, ended) = flags;
            // Not before others: the kernel's softirq thread, which hands the packets on, is one of them.
            if let Err(error) = pin(cpus()[0]) {
                eprintln!("the load: {error}");
            }
            while !ended.load(Ordering::Relaxed) {
                if !running.load(Ordering::Relaxed) {
                    resting.store(true, Ordering::Relaxed);
                    thread::park();
                    continue;
                }
                resting.store(false, Ordering::Relaxed);
                match send() {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                        eprintln!("the load: {error}");
                    }
                    _ => {}
                }
            }
        });
        Ok(Self { running, resting, ended, thread: Some(thread) })
    }

    /// Lets packets flow.
    pub fn run(&mut self) -> Running<'_> {
        self.resting.store(false, Ordering::Relaxed);
        self.running.store(true, Ordering::Relaxed);
        self.wake();
        Running(self)
    }

    /// Lets none flow any more, and waits until none does.
    fn rest(&self) {
        self.running.store(false, Ordering::Relaxed);
        let Some(thread) = &self.thread else { return };
        // Again, if it came before the call that it is to interrupt.
        while !self.resting.load(Ordering::Relaxed) && !thread.is_finished() {
            pthread_kill(thread.as_pthread_t(), Signal::SIGUSR1).ok();
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                eprintln!("the load panicked");
            }
        }
    }
}

/// From now on, SIGUSR1 does nothing but interrupt a call.
fn interruptible() -> Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action)? };
    Ok(())
}
