//! This binary, started again as a process that can be stopped and killed.

use std::{
    env,
    io::{self, BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use xskit::{Interest, Port, Socket, UmemConfig};
use xskit_lab::die_with_parent;

use crate::{
    census::{Objects, held_by},
    support::{LIMIT, adds_up, near, rings, settle},
};

/// The RX ring's entries.
pub(crate) const RX: u64 = 64;

/// What a child does is set here.
const ROLE: &str = "XSKIT_TEST_ROLE";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Opens a port, sends back what it receives, closes it, and so on until it is killed; says which.
    Cycles,
    /// Sends back what it receives until its input ends.
    Reflects,
}

/// A running child. It is killed with the thread that has started it.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    said: mpsc::Receiver<(Instant, String)>,
    /// It has the pipe.
    reader: thread::JoinHandle<()>,
}

impl Child {
    /// Starts one in the calling thread's network namespace.
    pub(crate) fn start(role: Role) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", "child::started_again"])
            .env(ROLE, format!("{role:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = die_with_parent(&mut command).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (says, said) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                says.send((Instant::now(), line)).expect("it ends before its `Child` does");
            }
        });
        Self { process, said, reader }
    }

    /// Waits until it says this word; when it did.
    #[track_caller]
    pub(crate) fn says(&self, word: &str) -> Instant {
        loop {
            match self.said.recv_timeout(LIMIT) {
                Ok((when, line)) if line == word => return when,
                Ok(_) => {}
                Err(error) => panic!("the child does not say {word:?}: {error}"),
            }
        }
    }

    /// BPF objects that it has now.
    pub(crate) fn objects(&self) -> Objects {
        held_by(&self.process.id().to_string())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    /// The letter that stands for what it does: `T` for one that is stopped.
    pub(crate) fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.trim_start().chars().next().unwrap()
    }

    /// Kills it; returns the last word that it said.
    pub(crate) fn kill(mut self) -> Option<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.reader.join().unwrap();
        self.said.iter().last().map(|(_, line)| line)
    }

    /// Ends its input, and waits until it is done.
    #[track_caller]
    pub(crate) fn end(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
        self.reader.join().unwrap();
    }
}

/// Not a test by itself: what [`Child::start`] starts.
#[test]
fn started_again() {
    match env::var(ROLE).as_deref() {
        Ok("Cycles") => cycles(),
        Ok("Reflects") => reflects(),
        _ => {}
    }
}

fn say(word: &str) {
    // The harness may have begun a line.
    println!("\n{word}");
}

fn open() -> (Port, Socket) {
    let mut port = near()
        .umem_config(UmemConfig::new(512))
        .socket(rings(u32::try_from(RX).unwrap()))
        .open()
        .unwrap();
    let socket = port.take_queue(0).unwrap();
    (port, socket)
}

/// One turn of the loop that sends back what it receives.
fn turn(socket: &mut Socket, batch: &mut xskit::Batch) {
    socket.wait(Interest::for_batch(batch), Duration::from_millis(20)).unwrap();
    if batch.is_empty() {
        socket.recv(batch).unwrap();
        for mut packet in batch.packets_mut() {
            let (destination, rest) = packet.head_mut().split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
    }
    socket.send(batch).unwrap();
}

fn cycles() {
    loop {
        say("open");
        let (port, mut socket) = open();
        say("traffic");
        let started = Instant::now();
        let mut batch = port.umem().batch(64);
        while started.elapsed() < Duration::from_millis(10) {
            turn(&mut socket, &mut batch);
        }
        say("close");
        drop((batch, port, socket));
    }
}

fn reflects() {
    let (port, mut socket) = open();
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
        end.store(true, Ordering::Relaxed);
    });
    let umem = port.umem().clone();
    let mut batch = umem.batch(64);
    say("traffic");
    while !ended.load(Ordering::Relaxed) || !batch.is_empty() {
        turn(&mut socket, &mut batch);
    }
    settle(&mut socket);
    adds_up(&umem);
}
