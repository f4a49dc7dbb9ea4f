//! An example that runs, and traffic for it.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use xskit_lab::{Checker, Lab, Netns, Numbered, RawPort};

/// Longer than anything here takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const PORT: u16 = 4242;
/// Frames under way at most: a veth queues 256 for native XDP.
pub(crate) const WINDOW: u64 = 128;

/// An example that was started in a namespace. Dropped, it is killed.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(netns: &Netns, example: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary(example));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = netns.enter(|| command.spawn()).unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, lines, errors: Some(errors) }
    }

    /// Starts a tool with `--json`, and waits until it runs. Returns its ports.
    pub(crate) fn tool(netns: &Netns, example: &str, arguments: &[&str]) -> (Self, Value) {
        let mut running = Self::start(netns, example, &[arguments, &["--json"]].concat());
        let Some(event) = running.event("start") else { panic!("{}", running.words()) };
        let ports = event["ports"].clone();
        (running, ports)
    }

    pub(crate) fn line(&self) -> Option<String> {
        self.lines.recv_timeout(LIMIT).ok()
    }

    /// The next event of this name.
    pub(crate) fn event(&self, name: &str) -> Option<Value> {
        loop {
            let event: Value = serde_json::from_str(&self.line()?).expect("each line is JSON");
            if event["event"] == name {
                return Some(event);
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it wrote to standard error until its end.
    pub(crate) fn words(&mut self) -> String {
        self.status();
        self.errors.take().unwrap().join().unwrap()
    }

    /// Ends it as `kill` does; its totals, which have to be right.
    pub(crate) fn end(mut self) -> Value {
        let asked = Instant::now();
        self.signal(Signal::SIGTERM);
        let end = self.event("end").expect("totals at the end");
        assert!(self.status().success(), "{}", self.words());
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        assert_eq!(end["audit_ok"], true, "{end}");
        assert_eq!(end["audit"]["lost"], 0, "{end}");
        end
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Where cargo puts a finished example: beside the folder of this test's own binary.
fn binary(example: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(path.is_file(), "{} is missing: cargo build --examples", path.display());
    path
}

/// Sends frames, never more ahead of their arrival than the window, and checks each that arrives: at
/// `to`, or where they were sent.
pub(crate) fn exchange(
    sent: &Numbered,
    expected: Numbered,
    count: u64,
    from: &mut RawPort,
    to: Option<&mut RawPort>,
) {
    let mut checker = Checker::new(expected);
    let deadline = Instant::now() + LIMIT;
    let mut next = 0;
    let mut to = to;
    while checker.tally().received() < count {
        assert!(Instant::now() < deadline, "{next} sent: {:?}", checker.tally());
        while next < count && next < checker.tally().received() + WINDOW {
            from.send(&sent.frame(next)).unwrap();
            next += 1;
        }
        let arrive = to.as_deref_mut().unwrap_or(from);
        arrive
            .recv_each(Duration::from_millis(10), |frame| {
                checker.check(frame);
            })
            .unwrap();
    }
    assert!(checker.tally().is_perfect(count), "{:?}", checker.tally());
}

/// Frames from the lab's far end that must come back with swapped addresses.
pub(crate) fn reflects(lab: &Lab, raw: &mut RawPort, port: u16, count: u64) {
    let sent = Numbered::new(lab.flow(port), 200, 1);
    let expected = Numbered::new(lab.flow(port).reflected(), 200, 1);
    exchange(&sent, expected, count, raw, None);
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// It says why it does not start.
pub(crate) fn refused(netns: &Netns, example: &str, arguments: &[&str], expected: &[&str]) {
    let mut running = Running::start(netns, example, arguments);
    let status = running.status();
    let words = running.words();
    assert!(!status.success(), "{arguments:?}");
    for expected in expected {
        assert!(words.contains(expected), "{arguments:?}: {words}");
    }
    assert_eq!(running.line(), None);
}
