//! Forwarding and reflecting.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use xskit_lab::{
    Chain, Lab, LabConfig, Link, Need, Netns, Numbered, RawPort, VethEnd, XdpMode, require,
};

use crate::running::{LIMIT, PORT, Running, WINDOW, exchange, number, reflects, refused};

fn start(netns: &Netns, arguments: &[&str]) -> (Running, Value) {
    Running::tool(netns, "l2fwd", arguments)
}

#[test]
fn reflects_on_one_interface() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    for mode in ["native", "generic"] {
        let (l2fwd, ports) = start(lab.near.netns(), &["near0", "--all", "--mode", mode]);
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
fn takes_what_rules_say_and_no_more() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let rule = format!("protocol=udp,destination-port={}", PORT + 1);
    let port = PORT.to_string();
    let arguments = ["near0", "--udp-port", port.as_str(), "--rule", rule.as_str()];
    let (l2fwd, _) = start(lab.near.netns(), &arguments);
    raw.send(&lab.flow(PORT + 2).frame(b"not for us, and long enough")).unwrap();
    reflects(&lab, &mut raw, PORT, 100);
    reflects(&lab, &mut raw, PORT + 1, 100);
    let end = l2fwd.end();
    assert_eq!(end["queues"][0]["received"], 200, "{end}");
    assert_eq!(end["queues"][0]["others"]["passed_no_rule"], 1, "{end}");
}

#[test]
fn runs_in_every_style() {
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
        let (l2fwd, ports) = start(lab.near.netns(), &[&["near0", "--all"], style].concat());
        assert_eq!(ports[0]["need_wakeup"], style[0] != "--need-wakeup", "{style:?}");
        assert_eq!(ports[0]["busy_poll"], style.contains(&"--busy-poll"), "{style:?}");
        reflects(&lab, &mut raw, PORT, 1000);
        let end = l2fwd.end();
        assert_eq!(end["queues"][0]["sent"], 1000, "{style:?}: {end}");
    }
}

#[test]
fn forwards_both_ways_between_two_interfaces() {
    if !require(Need::Bpf) {
        return;
    }
    let chain = Chain::new().unwrap();
    let (mut source, mut sink) =
        (RawPort::open(&chain.source).unwrap(), RawPort::open(&chain.sink).unwrap());
    let (l2fwd, ports) =
        start(chain.forwarder(), &["ingress0", "egress0", "--all", "--mode", "native"]);
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
fn uses_all_queues() {
    let config = LabConfig { queues: 2, ..LabConfig::default() };
    let Some(lab) = Lab::for_test_with(&config) else { return };
    let mut raw = lab.raw().unwrap();
    raw.spread_flows().unwrap();
    let (l2fwd, ports) = start(lab.near.netns(), &["near0", "--all", "--cpu", "0,1"]);
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
fn forwards_from_two_queues_to_one() {
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
    let (l2fwd, _) = start(&forwarder, &["two", "one", "--all"]);
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
fn accounts_for_a_flood() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let series = Numbered::new(lab.flow(PORT), 64, 1);
    let burst: Vec<Vec<u8>> = (0..64).map(|number| series.frame(number)).collect();
    // Small rings, so that packets are lost.
    let arguments = ["near0", "--all", "--rx-ring", "64", "--tx-ring", "64", "--batch", "256"];
    let (l2fwd, _) = start(lab.near.netns(), &arguments);
    let (started, mut returned) = (Instant::now(), 0);
    while returned <= 1000 || started.elapsed() < Duration::from_secs(2) {
        raw.send_all(&burst).unwrap();
        returned += raw.drain().unwrap() as u64;
        assert!(started.elapsed() < LIMIT, "{returned}");
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
fn tells_every_second_and_ends_in_time() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let arguments = ["near0", "--all", "--duration", "2.5"];
    let (mut l2fwd, _) = start(lab.near.netns(), &arguments);
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
        let (mut l2fwd, _) = start(lab.near.netns(), &["near0", "--all"]);
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
    let (l2fwd, _) = start(lab.near.netns(), &["near0", "--all"]);
    raw.drain().unwrap();
    reflects(&lab, &mut raw, PORT, 300);
    l2fwd.end();
}

/// Whatever happens to the interface while it runs, it says so and ends.
fn dies(act: impl FnOnce(&Lab), expected: &str) {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let (mut l2fwd, _) = start(lab.near.netns(), &["near0", "--all"]);
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
fn ends_when_the_interface_is_deleted() {
    dies(|lab| lab.near.delete().unwrap(), "deleted");
}

#[test]
fn ends_when_the_interface_goes_down() {
    dies(|lab| lab.near.down().unwrap(), "is down");
}

#[test]
fn ends_when_one_of_two_interfaces_is_deleted_under_traffic() {
    if !require(Need::Bpf) {
        return;
    }
    let chain = Chain::new().unwrap();
    let source = RawPort::open(&chain.source).unwrap();
    let (mut l2fwd, _) = start(chain.forwarder(), &["ingress0", "egress0", "--all"]);
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

#[test]
fn refuses_what_would_cut_somebody_off() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let (own, gateway) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    lab.near.add_address(own, 24).unwrap();
    lab.near.add_route(Ipv4Addr::UNSPECIFIED, 0, gateway).unwrap();
    refused(netns, "l2fwd", &["near0"], &["--all", "--udp-port", "--rule"]);
    refused(netns, "l2fwd", &["near0", "--all"], &["default route", "--take-default-route"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
    let (l2fwd, _) = start(netns, &["near0", "--udp-port", "4242"]);
    l2fwd.end();
    let (l2fwd, _) = start(netns, &["near0", "--all", "--take-default-route"]);
    l2fwd.end();
}

#[test]
fn refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let all = |arguments: &[&'static str]| [&["near0", "--all"], arguments].concat();
    refused(netns, "l2fwd", &all(&["near0"]), &["near0", "twice"]);
    refused(netns, "l2fwd", &["near9", "--all"], &["no interface `near9`", "near0"]);
    refused(netns, "l2fwd", &all(&["--queues", "1"]), &["queue 1 of near0", "1 active queue"]);
    refused(netns, "l2fwd", &all(&["--rx-ring", "511"]), &["power of two", "512"]);
    refused(netns, "l2fwd", &all(&["--chunk-size", "1000"]), &["2048 or 4096"]);
    refused(netns, "l2fwd", &all(&["--zero-copy"]), &["zero-copy", "near0"]);
    refused(netns, "l2fwd", &all(&["--zero-copy", "--mode", "generic"]), &["--mode generic"]);
    refused(netns, "l2fwd", &all(&["--cpu", "1000"]), &["--cpu 1000", "there are 0"]);
    refused(netns, "l2fwd", &["near0", "--rule", "port=1"], &["port", "destination-port"]);
    refused(netns, "l2fwd", &["lo", "--all", "--mode", "native"], &["lo"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}

#[test]
fn waits_for_a_carrier_until_it_is_told_to_end() {
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
fn attaches_where_the_user_knows_better() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    let vlan = ["near0", "--rule", "vlan=5"];
    refused(netns, "l2fwd", &vlan, &["VLAN"]);
    let (l2fwd, _) = start(netns, &[&vlan[..], &["--vlan-tags-visible"]].concat());
    l2fwd.end();
    for end in [&lab.near, &lab.far] {
        end.set_mtu(9000).unwrap();
    }
    let native = ["near0", "--udp-port", "4242", "--mode", "native"];
    refused(netns, "l2fwd", &native, &["MTU"]);
    let (l2fwd, _) = start(netns, &[&native[..], &["--frags"]].concat());
    l2fwd.end();
}
