//! The forwarder as a child process: what it is told, what it says, and its end.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use xskit_lab::Chain;

use super::{Mode, interrupt::Interrupt};

/// From its start until it forwards: loading the program, opening the sockets.
const START_LIMIT: Duration = Duration::from_secs(10);
/// From SIGTERM until it has said its totals and is gone.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// One line of what the forwarder prints; others than these are of no concern here.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Start(Started),
    End {
        audit_ok: bool,
    },
    #[serde(other)]
    Other,
}

/// What the forwarder got when it started.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Started {
    pub(super) ports: Vec<Port>,
}

/// One of its interfaces.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Port {
    pub(super) mode: String,
    pub(super) zero_copy: bool,
}

/// A running forwarder. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Forwarder {
    child: Child,
    started: Started,
    output: Output,
    /// The thread that started the child waits for this to be dropped: the child gets a signal when
    /// that thread ends, so that it cannot outlive this process.
    _keeper: Sender<()>,
}

impl Forwarder {
    /// Starts it between the two interfaces in the middle of the chain, and waits until it forwards.
    pub(super) fn start(
        program: &Path,
        chain: &Chain,
        mode: Mode,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args([chain.ingress.name(), chain.egress.name()])
            .args(["--all", "--mode", mode.name(), "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for us; we end the forwarder when its turn has come.
            .process_group(0);
        xskit_lab::die_with_parent(&mut command);

        let (spawned, child) = mpsc::channel();
        let (keeper, gone) = mpsc::channel::<()>();
        chain.forwarder().spawn(move || {
            if spawned.send(command.spawn()).is_ok() {
                // Ends with an error when the sender is dropped, which is what it waits for.
                gone.recv().ok();
            }
        });
        let mut child = child
            .recv()
            .context("the thread in the forwarder's namespace is gone")?
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = Output::of(&mut child)?;
        let nothing = Started { ports: Vec::new() };
        let mut forwarder = Self { child, started: nothing, output, _keeper: keeper };
        forwarder.started = forwarder.wait_until_started(interrupt)?;
        Ok(forwarder)
    }

    /// What it got.
    pub(super) fn started(&self) -> &Started {
        &self.started
    }

    /// An error, with what it had to say, when it has ended without being asked to.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(anyhow!("the forwarder ended early: {status}{}", self.words())),
        }
    }

    /// Asks it to end, and tells whether its audit of the UMEM added up.
    pub(super) fn stop(mut self) -> Result<bool> {
        self.check()?;
        kill(self.pid()?, Signal::SIGTERM).context("stop the forwarder")?;
        let deadline = Instant::now() + STOP_LIMIT;
        let audit_ok = loop {
            match self.output.next(deadline) {
                Ok(Event::End { audit_ok }) => break audit_ok,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the forwarder did not end within {STOP_LIMIT:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.child.wait()?;
                    bail!("the forwarder ended without its totals{}", self.words());
                }
            }
        };
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the forwarder did not end within {STOP_LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "the forwarder ended with {status}{}", self.words());
        Ok(audit_ok)
    }

    fn wait_until_started(&mut self, interrupt: &Interrupt) -> Result<Started> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            interrupt.check()?;
            match self.output.next(deadline.min(Instant::now() + Duration::from_millis(100))) {
                Ok(Event::Start(started)) => return Ok(started),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => self.check()?,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the forwarder did not start within {START_LIMIT:?}{}", self.words())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("the forwarder ended early: {status}{}", self.words());
                }
            }
        }
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.child.id())?))
    }

    /// What it wrote to standard error. It has ended, or is ended for this.
    fn words(&mut self) -> String {
        self.kill();
        let words = self.output.errors.take().and_then(|thread| thread.join().ok());
        match words.as_deref().map(str::trim) {
            None | Some("") => ", and said nothing".to_owned(),
            Some(words) => format!("; it said:\n{words}"),
        }
    }

    fn kill(&mut self) {
        // Both fail when it is gone already, which is what they are for.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Gently first, so that it can detach its program; then for certain.
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), self.pid()) {
            kill(pid, Signal::SIGTERM).ok();
            let deadline = Instant::now() + Duration::from_secs(1);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }
}

/// What the child prints, read by threads so that it never waits for us.
#[derive(Debug)]
struct Output {
    events: Receiver<Event>,
    errors: Option<JoinHandle<String>>,
}

impl Output {
    fn of(child: &mut Child) -> Result<Self> {
        let stdout = child.stdout.take().context("standard output was asked for")?;
        let mut stderr = child.stderr.take().context("standard error was asked for")?;
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A line that is no event is as good as one that we do not know.
                let event = serde_json::from_str(&line).unwrap_or(Event::Other);
                if sender.send(event).is_err() {
                    break;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read until an error is worth showing all the same.
            stderr.read_to_end(&mut bytes).ok();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self { events, errors: Some(errors) })
    }

    fn next(&self, deadline: Instant) -> Result<Event, RecvTimeoutError> {
        self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }
}
