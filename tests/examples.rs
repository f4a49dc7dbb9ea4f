//! The examples as their users run them: finished programs, in namespaces, with real packets.

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
use xskit_lab::{
    Chain, Checker, Lab, LabConfig, Link, Need, Netns, Numbered, RawPort, VethEnd, XdpMode, require,
};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
const PORT: u16 = 4242;
/// Frames under way at most: a veth queues 256 for native XDP.
const WINDOW: u64 = 128;

/// An example that was started in a namespace. Dropped, it is killed.
struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Running {
    fn start(netns: &Netns, example: &str, arguments: &[&str]) -> Self {
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

    /// Starts `l2fwd --json`, and waits until it forwards. Returns its ports.
    fn l2fwd(netns: &Netns, arguments: &[&str]) -> (Self, Value) {
        let mut running = Self::start(netns, "l2fwd", &[arguments, &["--json"]].concat());
        let Some(event) = running.event("start") else { panic!("{}", running.words()) };
        let ports = event["ports"].clone();
        (running, ports)
    }

    fn line(&self) -> Option<String> {
        self.lines.recv_timeout(LIMIT).ok()
    }

    /// The next event of this name.
    fn event(&self, name: &str) -> Option<Value> {
        loop {
            let event: Value = serde_json::from_str(&self.line()?).expect("each line is JSON");
            if event["event"] == name {
                return Some(event);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn status(&mut self) -> ExitStatus {
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
    fn words(&mut self) -> String {
        self.status();
        self.errors.take().unwrap().join().unwrap()
    }

    /// Ends it as `kill` does; its totals, which have to be right.
    fn end(mut self) -> Value {
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
fn exchange(
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
fn reflects(lab: &Lab, raw: &mut RawPort, port: u16, count: u64) {
    let sent = Numbered::new(lab.flow(port), 200, 1);
    let expected = Numbered::new(lab.flow(port).reflected(), 200, 1);
    exchange(&sent, expected, count, raw, None);
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn l2fwd_reflects_on_one_interface() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    for mode in ["native", "generic"] {
        let (l2fwd, ports) = Running::l2fwd(lab.near.netns(), &["near0", "--all", "--mode", mode]);
        assert_eq!(ports[0]["interface"], "near0");
        assert_eq!(ports[0]["mode"], mode);
        assert_eq!(ports[0]["zero_copy"], false);
        assert_eq!(ports[0]["need_wakeup"], true);
        assert_eq!(ports[0]["queues"], serde_json::json!([0]));
        reflects(&lab, &mut raw, PORT, 2000);
        let end = l2fwd.end();
        let queue = &end["queues"][0];
        for (packets, bytes) in [("received", "received_bytes"), ("sent", "sent_bytes")] {
            assert_eq!(queue[packets], 2000, "{end}");
            assert_eq!(queue[bytes], 2000 * 200, "{end}");
        }
        assert_eq!(lab.near.xdp_program().unwrap(), None);
    }
}

#[test]
fn l2fwd_takes_what_rules_say_and_no_more() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let rule = format!("protocol=udp,destination-port={}", PORT + 1);
    let port = PORT.to_string();
    let arguments = ["near0", "--udp-port", port.as_str(), "--rule", rule.as_str()];
    let (l2fwd, _) = Running::l2fwd(lab.near.netns(), &arguments);
    raw.send(&lab.flow(PORT + 2).frame(b"not for us, and long enough")).unwrap();
    reflects(&lab, &mut raw, PORT, 100);
    reflects(&lab, &mut raw, PORT + 1, 100);
    let end = l2fwd.end();
    assert_eq!(end["queues"][0]["received"], 200, "{end}");
    assert_eq!(end["queues"][0]["others"]["passed_no_rule"], 1, "{end}");
}

#[test]
fn l2fwd_runs_in_every_style() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let styles: [&[&str]; 7] = [
        &["--spin"],
        &["--need-wakeup", "off"],
        &["--busy-poll", "--cpu", "0"],
        &["--defer", "--busy-poll"],
        // Rings that are full all the time, and no frame to spare.
        &["--tx-ring", "1", "--completion-ring", "1", "--batch", "16"],
        &["--rx-ring", "256", "--fill-ring", "512", "--frames", "1024", "--batch", "512"],
        &["--chunk-size", "2048", "--headroom", "128", "--copy", "--huge-pages"],
    ];
    for style in styles {
        let (l2fwd, ports) =
            Running::l2fwd(lab.near.netns(), &[&["near0", "--all"], style].concat());
        assert_eq!(ports[0]["need_wakeup"], style[0] != "--need-wakeup", "{style:?}");
        assert_eq!(ports[0]["busy_poll"], style.contains(&"--busy-poll"), "{style:?}");
        reflects(&lab, &mut raw, PORT, 1000);
        let end = l2fwd.end();
        assert_eq!(end["queues"][0]["sent"], 1000, "{style:?}: {end}");
    }
}

#[test]
fn l2fwd_forwards_both_ways_between_two_interfaces() {
    if !require(Need::Bpf) {
        return;
    }
    let chain = Chain::new().unwrap();
    let (mut source, mut sink) =
        (RawPort::open(&chain.source).unwrap(), RawPort::open(&chain.sink).unwrap());
    let (l2fwd, ports) =
        Running::l2fwd(chain.forwarder(), &["ingress0", "egress0", "--all", "--mode", "native"]);
    assert_eq!(ports.as_array().unwrap().len(), 2);
    let there = Numbered::new(chain.flow(PORT), 300, 1);
    let back = Numbered::new(chain.flow(PORT).reflected(), 100, 2);
    for _ in 0..3 {
        exchange(&there, there.clone(), 1000, &mut source, Some(&mut sink));
        exchange(&back, back.clone(), 1000, &mut sink, Some(&mut source));
    }
    let end = l2fwd.end();
    for queue in end["queues"].as_array().unwrap() {
        assert_eq!((number(&queue["received"]), number(&queue["sent"])), (3000, 3000), "{end}");
    }
    assert_eq!(chain.ingress.xdp_program().unwrap(), None);
    assert_eq!(chain.egress.xdp_program().unwrap(), None);
}

#[test]
fn l2fwd_uses_all_queues() {
    let config = LabConfig { queues: 2, ..LabConfig::default() };
    let Some(lab) = Lab::for_test_with(&config) else { return };
    let mut raw = lab.raw().unwrap();
    raw.spread_flows().unwrap();
    let (l2fwd, ports) = Running::l2fwd(lab.near.netns(), &["near0", "--all", "--cpu", "0,1"]);
    assert_eq!(ports[0]["queues"], serde_json::json!([0, 1]));
    for port in 0..32 {
        reflects(&lab, &mut raw, PORT + port, 50);
    }
    let end = l2fwd.end();
    let received: Vec<u64> =
        (0..2).map(|queue| number(&end["queues"][queue]["received"])).collect();
    assert_eq!(received.iter().sum::<u64>(), 32 * 50, "{end}");
    assert!(received.iter().all(|&received| received > 0), "{end}");
}

#[test]
fn l2fwd_forwards_from_two_queues_to_one() {
    if !require(Need::Bpf) {
        return;
    }
    let forwarder = Netns::new().unwrap();
    let mac = |last| [2, 0, 0, 0, 1, last];
    let join = |name, far, queues, last| {
        let (near, far) = VethEnd::new(&forwarder, name, mac(last))
            .queues(queues)
            .join(&VethEnd::new(&Netns::new().unwrap(), far, mac(last + 1)).queues(queues))
            .unwrap();
        for link in [&near, &far] {
            link.plain_packets().unwrap();
            link.up().unwrap();
        }
        near.wait_up(LIMIT).unwrap();
        far.wait_up(LIMIT).unwrap();
        far
    };
    let (wide, narrow): (Link, Link) = (join("two", "wide", 2, 1), join("one", "narrow", 1, 3));
    let (mut source, mut sink) = (RawPort::open(&wide).unwrap(), RawPort::open(&narrow).unwrap());
    source.spread_flows().unwrap();
    let (l2fwd, _) = Running::l2fwd(&forwarder, &["two", "one", "--all"]);
    let flow = |port| {
        let address =
            |last: u8, port: u16| (std::net::Ipv4Addr::new(198, 18, 1, last), port).into();
        let macs = (wide.mac(), narrow.mac());
        xskit_lab::Flow::new(xskit_lab::Protocol::Udp, macs, address(1, port), address(2, PORT))
    };
    for port in 1..=32 {
        let there = Numbered::new(flow(port), 128, u64::from(port));
        exchange(&there, there.clone(), 50, &mut source, Some(&mut sink));
        let back = Numbered::new(flow(port).reflected(), 128, u64::from(port));
        exchange(&back, back.clone(), 50, &mut sink, Some(&mut source));
    }
    let end = l2fwd.end();
    let of = |interface: &str, what: &str| -> Vec<u64> {
        let queues = end["queues"].as_array().unwrap();
        queues
            .iter()
            .filter(|queue| queue["interface"] == interface)
            .map(|queue| number(&queue[what]))
            .collect()
    };
    assert!(of("two", "received").iter().all(|&received| received > 0), "{end}");
    assert_eq!(of("two", "received").iter().sum::<u64>(), 1600, "{end}");
    assert_eq!(of("one", "sent"), [1600], "{end}");
    assert_eq!(of("one", "received"), [1600], "{end}");
    // Queue n of the one goes to queue n modulo their number of the other.
    assert_eq!(of("two", "sent"), [1600, 0], "{end}");
}

#[test]
fn l2fwd_accounts_for_a_flood() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let series = Numbered::new(lab.flow(PORT), 64, 1);
    let burst: Vec<Vec<u8>> = (0..64).map(|number| series.frame(number)).collect();
    // Small rings, so that packets are lost.
    let arguments = ["near0", "--all", "--rx-ring", "64", "--tx-ring", "64", "--batch", "256"];
    let (l2fwd, _) = Running::l2fwd(lab.near.netns(), &arguments);
    let (started, mut returned) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(2) {
        raw.send_all(&burst).unwrap();
        returned += raw.drain().unwrap() as u64;
    }
    loop {
        match raw.recv_each(Duration::from_millis(300), |_| ()).unwrap() {
            0 => break,
            count => returned += count as u64,
        }
    }
    let end = l2fwd.end();
    let (queue, program) = (&end["queues"][0], end["ports"][0]["program"].as_object().unwrap());
    let (received, sent) = (number(&queue["received"]), number(&queue["sent"]));
    assert!(received > 1000 && received == sent, "{end}");
    assert_eq!(sent - number(&queue["losses"]["tx_dropped"]), returned, "{end}");
    // What was redirected and did not arrive, the tracepoint and the kernel know of.
    let redirected = number(&queue["others"]["redirected"]);
    let failed = program.iter().filter(|(name, _)| name.starts_with("redirect_failed"));
    let failed: Vec<u64> = failed.map(|(_, count)| number(count)).collect();
    assert_eq!(redirected - received, failed.iter().sum::<u64>(), "{end}");
    assert_eq!(program["redirect_failed_rx_ring_full"], queue["losses"]["rx_ring_full"], "{end}");
}

#[test]
fn l2fwd_tells_every_second_and_ends_in_time() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let arguments = ["near0", "--all", "--duration", "2.5"];
    let (mut l2fwd, _) = Running::l2fwd(lab.near.netns(), &arguments);
    reflects(&lab, &mut raw, PORT, 500);
    let second = l2fwd.event("second").unwrap();
    let queue = &second["queues"][0];
    assert_eq!(queue["interface"], "near0");
    assert!(number(&queue["rx_pps"]) > 0 && number(&queue["tx_pps"]) > 0, "{second}");
    assert!(number(&queue["rx_bps"]) > number(&queue["rx_pps"]) * 8, "{second}");
    assert!(queue["losses"]["rx_ring_full"] == 0, "{second}");
    assert!(l2fwd.event("second").is_some());
    let end = l2fwd.event("end").unwrap();
    assert_eq!(end["audit_ok"], true, "{end}");
    assert!(l2fwd.status().success());

    // The same for people.
    let mut l2fwd =
        Running::start(lab.near.netns(), "l2fwd", &["near0", "--all", "--duration", "1.2"]);
    let lines: Vec<String> = std::iter::from_fn(|| l2fwd.line()).collect();
    assert!(l2fwd.status().success(), "{}", l2fwd.words());
    assert!(lines[0].contains("near0 queue 0") && lines[0].contains("native, copy"), "{lines:?}");
    assert!(lines[1].contains("pps") && lines[1].contains("Mbit/s"), "{lines:?}");
    assert!(lines.last().unwrap().ends_with("all accounted for"), "{lines:?}");
}

#[test]
fn a_killed_l2fwd_leaves_nothing_and_the_next_works_at_once() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    for _ in 0..5 {
        let (mut l2fwd, _) = Running::l2fwd(lab.near.netns(), &["near0", "--all"]);
        assert_eq!(lab.near.xdp_program().unwrap().unwrap().mode, XdpMode::Native);
        reflects(&lab, &mut raw, PORT, 300);
        // Frames are under way when it dies.
        let series = Numbered::new(lab.flow(PORT), 200, 1);
        for number in 0..WINDOW {
            raw.send(&series.frame(number)).unwrap();
        }
        l2fwd.signal(Signal::SIGKILL);
        assert!(!l2fwd.status().success());
        assert_eq!(lab.near.xdp_program().unwrap(), None);
        raw.drain().unwrap();
    }
    let (l2fwd, _) = Running::l2fwd(lab.near.netns(), &["near0", "--all"]);
    raw.drain().unwrap();
    reflects(&lab, &mut raw, PORT, 300);
    l2fwd.end();
}

/// Whatever happens to the interface while it runs, it says so and ends.
fn dies(act: impl FnOnce(&Lab), expected: &str) {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let (mut l2fwd, _) = Running::l2fwd(lab.near.netns(), &["near0", "--all"]);
    reflects(&lab, &mut raw, PORT, 300);
    let asked = Instant::now();
    act(&lab);
    let status = l2fwd.status();
    let took = asked.elapsed();
    let words = l2fwd.words();
    assert!(!status.success() && words.contains(expected), "{status}: {words}");
    assert!(words.contains("near0") && words.lines().count() == 1, "{words}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let end = l2fwd.event("end").expect("totals at the end");
    assert_eq!(end["audit_ok"], true, "{end}");
}

#[test]
fn l2fwd_ends_when_the_interface_is_deleted() {
    dies(|lab| lab.near.delete().unwrap(), "deleted");
}

#[test]
fn l2fwd_ends_when_the_interface_goes_down() {
    dies(|lab| lab.near.down().unwrap(), "is down");
}

#[test]
fn l2fwd_ends_when_one_of_two_interfaces_is_deleted_under_traffic() {
    if !require(Need::Bpf) {
        return;
    }
    let chain = Chain::new().unwrap();
    let source = RawPort::open(&chain.source).unwrap();
    let (mut l2fwd, _) = Running::l2fwd(chain.forwarder(), &["ingress0", "egress0", "--all"]);
    let frame = chain.flow(PORT).frame(&[0; 100]);
    let mut deleted = None;
    let started = Instant::now();
    while l2fwd.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < LIMIT, "it did not end");
        source.send(&frame).unwrap();
        if started.elapsed() > Duration::from_millis(300) {
            deleted.get_or_insert_with(|| {
                chain.egress.delete().unwrap();
                Instant::now()
            });
        }
    }
    let took = deleted.expect("it ran until then").elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(!l2fwd.status().success());
    let words = l2fwd.words();
    // The kernel takes an interface down before it deletes it, and traffic may notice in between.
    let why = words.contains("deleted") || words.contains("is down");
    assert!(words.contains("egress0") && why, "{words}");
    let end = l2fwd.event("end").expect("totals at the end");
    assert_eq!(end["audit_ok"], true, "{end}");
    assert_eq!(chain.ingress.xdp_program().unwrap(), None);
}

fn refused(netns: &Netns, arguments: &[&str], expected: &[&str]) {
    let mut l2fwd = Running::start(netns, "l2fwd", arguments);
    let status = l2fwd.status();
    let words = l2fwd.words();
    assert!(!status.success(), "{arguments:?}");
    for expected in expected {
        assert!(words.contains(expected), "{arguments:?}: {words}");
    }
    assert_eq!(l2fwd.line(), None);
}

#[test]
fn l2fwd_refuses_what_would_cut_somebody_off() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let (own, gateway) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    lab.near.add_address(own, 24).unwrap();
    lab.near.add_route([0, 0, 0, 0].into(), 0, gateway).unwrap();
    refused(netns, &["near0"], &["--all", "--udp-port", "--rule"]);
    refused(netns, &["near0", "--all"], &["default route", "--take-default-route"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
    let (l2fwd, _) = Running::l2fwd(netns, &["near0", "--udp-port", "4242"]);
    l2fwd.end();
    let (l2fwd, _) = Running::l2fwd(netns, &["near0", "--all", "--take-default-route"]);
    l2fwd.end();
}

#[test]
fn l2fwd_refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let all = |arguments: &[&'static str]| [&["near0", "--all"], arguments].concat();
    refused(netns, &all(&["near0"]), &["near0", "twice"]);
    refused(netns, &["near9", "--all"], &["no interface `near9`", "near0"]);
    refused(netns, &all(&["--queues", "1"]), &["queue 1 of near0", "1 active queue"]);
    refused(netns, &all(&["--rx-ring", "511"]), &["power of two", "512"]);
    refused(netns, &all(&["--chunk-size", "1000"]), &["2048 or 4096"]);
    refused(netns, &all(&["--zero-copy"]), &["zero-copy", "near0"]);
    refused(netns, &all(&["--zero-copy", "--mode", "generic"]), &["--mode generic"]);
    refused(netns, &all(&["--cpu", "1000"]), &["--cpu 1000", "there are 0"]);
    refused(netns, &["near0", "--rule", "port=1"], &["port", "destination-port"]);
    refused(netns, &["lo", "--all", "--mode", "native"], &["lo"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}

#[test]
fn l2fwd_waits_for_a_carrier_until_it_is_told_to_end() {
    let Some(lab) = Lab::for_test() else { return };
    lab.far.down().unwrap();
    let netns = lab.near.netns();
    let mut l2fwd = Running::start(netns, "l2fwd", &["near0", "--all", "--json"]);
    assert!(l2fwd.lines.recv_timeout(Duration::from_millis(500)).is_err(), "it has started");
    let asked = Instant::now();
    l2fwd.signal(Signal::SIGTERM);
    assert!(!l2fwd.status().success());
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let words = l2fwd.words();
    assert!(words.contains("near0 has no carrier") && words.contains("ended"), "{words}");
    let l2fwd = Running::start(netns, "l2fwd", &["near0", "--all", "--json"]);
    assert!(l2fwd.lines.recv_timeout(Duration::from_millis(500)).is_err(), "it has started");
    lab.far.up().unwrap();
    assert!(l2fwd.event("start").is_some());
    l2fwd.end();
}

#[test]
fn l2fwd_attaches_where_the_user_knows_better() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let vlan = ["near0", "--rule", "vlan=5"];
    refused(netns, &vlan, &["VLAN"]);
    let (l2fwd, _) = Running::l2fwd(netns, &[&vlan[..], &["--vlan-tags-visible"]].concat());
    l2fwd.end();
    for end in [&lab.near, &lab.far] {
        end.set_mtu(9000).unwrap();
    }
    let native = ["near0", "--udp-port", "4242", "--mode", "native"];
    refused(netns, &native, &["MTU"]);
    let (l2fwd, _) = Running::l2fwd(netns, &[&native[..], &["--frags"]].concat());
    l2fwd.end();
}

#[test]
fn udp_port_receives_its_port_and_leaves_the_rest() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let mut example = Running::start(lab.near.netns(), "udp_port", &["near0"]);
    assert_eq!(example.line().unwrap(), "queue 0 of near0: native, copy, need_wakeup");
    raw.send(&lab.flow(PORT + 1).frame(b"another port")).unwrap();
    raw.send(&lab.flow(PORT).frame(b"this port")).unwrap();
    assert!(example.line().unwrap().starts_with("51 bytes: [02, 00"));
    example.signal(Signal::SIGINT);
    assert!(example.status().success(), "{}", example.words());
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}

#[test]
fn reflect_sends_back_what_it_receives() {
    sends_back_what_it_receives("reflect");
}

#[test]
fn async_echo_sends_back_what_it_receives() {
    sends_back_what_it_receives("async_echo");
}

fn sends_back_what_it_receives(example: &str) {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let mut example = Running::start(lab.near.netns(), example, &["near0"]);
    assert_eq!(example.line().unwrap(), "queue 0 of near0: native, copy, need_wakeup");
    reflects(&lab, &mut raw, PORT, 1000);
    example.signal(Signal::SIGINT);
    assert!(example.status().success(), "{}", example.words());
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
