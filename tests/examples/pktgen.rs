//! Generating packets, and what becomes of them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nix::sys::signal::Signal;
use serde_json::Value;
use xskit_lab::{Lab, LabConfig, Need, RawPort};
use xskit_traffic::{Flows, Rng, Stamp, Template, Values};

use crate::running::{LIMIT, Running, number, refused};

const TO_FAR: [&str; 3] = ["near0", "--destination-mac", "02:00:00:00:00:02"];

/// How many a veth takes at once with room to spare.
const AT_ONCE: usize = 64;

/// A stamped packet as the generator makes it.
fn stamped(lab: &Lab, stream: u16, sequence: u32) -> Vec<u8> {
    let mac = |mac: [u8; 6]| {
        Values::one(mac.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
    };
    let flows = Flows {
        source_mac: mac(lab.far.mac()),
        destination_mac: mac(lab.near.mac()),
        vlan: None,
        source: "198.18.0.1".parse().unwrap(),
        destination: "198.18.0.2".parse().unwrap(),
        source_port: Values::one(9),
        destination_port: Values::one(9),
    };
    let mut frame = vec![0; 60];
    let template = Template::new(flows, true).unwrap();
    let stamp = Stamp { stream, sequence, time: 1 };
    template.write(&mut frame, 0, &mut Rng::with_seed(0), stamp);
    frame
}

/// Sends what a veth can take, and waits a little: what arrives is to be what was sent.
fn send_gently(raw: &RawPort, frames: &[Vec<u8>]) {
    for frames in frames.chunks(AT_ONCE) {
        raw.send_all(frames).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
}

/// The end of a tool that ends by itself, and the event that it tells last.
fn finished(mut tool: Running, last: &str) -> (Value, Value) {
    let end = tool.event("end").unwrap_or_else(|| panic!("{}", tool.words()));
    assert_eq!(end["audit_ok"], true, "{end}");
    let event = tool.event(last).unwrap_or_else(|| panic!("{}", tool.words()));
    assert!(tool.status().success(), "{}", tool.words());
    (end, event)
}

#[test]
fn the_receiver_finds_what_was_lost_moved_and_doubled() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    // One stream without a fault, and one with known ones, among packets without a number.
    let mut faulty: Vec<u32> = (3..500).collect();
    let lost = [10, 11, 12, 200, 333];
    faulty.retain(|number| !lost.contains(number));
    let at = |faulty: &[u32], number: u32| faulty.iter().position(|n| *n == number).unwrap();
    // Moved back by 5 and by 40, doubled at once and later, and once more.
    for (number, by) in [(50, 5), (60, 40)] {
        let from = at(&faulty, number);
        let number = faulty.remove(from);
        faulty.insert(from + by, number);
    }
    for (number, by) in [(300, 1), (310, 30), (310, 31)] {
        let from = at(&faulty, number);
        faulty.insert(from + by, number);
    }
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (index, sequence) in faulty.iter().enumerate() {
        frames.push(stamped(&lab, 7, *sequence));
        frames.push(stamped(&lab, 8, u32::try_from(index).unwrap()));
        if index % 100 == 0 {
            frames.push(lab.flow(9).frame(b"no number, and long enough to be a frame"));
        }
    }
    let count = frames.len().to_string();
    let arguments = ["near0", "--receive", "--count", &count, "--expect", "510"];
    let (receiver, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
    send_gently(&raw, &frames);
    let (_, event) = finished(receiver, "received");
    assert_eq!(number(&event["packets"]), frames.len() as u64);
    assert_eq!(number(&event["unstamped"]), 5, "{event}");
    let stream = |index: usize| {
        [
            "stream",
            "unique",
            "lost",
            "before_first",
            "reordered",
            "most_behind",
            "duplicates",
            "missing",
        ]
        .map(|name| number(&event["streams"][index][name]))
    };
    assert_eq!(stream(0), [7, 492, 5, 3, 2, 40, 3, 18], "{event}");
    let sound = faulty.len() as u64;
    assert_eq!(stream(1), [8, sound, 0, 0, 0, 0, 0, 510 - sound], "{event}");
    assert_eq!(number(&event["latency_ns"]["packets"]), 492 + sound, "{event}");
}

#[test]
fn what_is_sent_arrives_in_order_and_once() {
    let Some(lab) = Lab::for_test() else { return };
    let styles: [&[&str]; 4] = [
        &["--rate", "20kpps"],
        &["--rate", "10Mbps-l1", "--size", "imix", "--threads", "2"],
        &["--rate", "20Mbps", "--size", "60~300", "--burst", "7"],
        &[
            "--rate",
            "20kpps",
            "--size",
            "100",
            "--source",
            "fd00::1",
            "--destination",
            "fd00::2-fd00::9",
        ],
    ];
    for style in styles {
        let arguments = ["far0", "--receive", "--count", "2000"];
        let (receiver, _) = Running::tool(lab.far.netns(), "pktgen", &arguments);
        let arguments = [&TO_FAR[..], &["--count", "2000"], style].concat();
        let (sender, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
        let (_, sent) = finished(sender, "sent");
        assert_eq!((number(&sent["packets"]), &sent["asked"]), (2000, &style[1].into()), "{sent}");
        assert!(
            sent["pps"].as_f64().unwrap() > 0.0
                && sent["bps_l1"].as_f64() > sent["bps_l2"].as_f64()
        );
        let (_, account) = finished(receiver, "received");
        let streams = account["streams"].as_array().unwrap();
        let threads = if style.contains(&"--threads") { 2 } else { 1 };
        assert_eq!(streams.len(), threads, "{account}");
        for stream in streams {
            assert_eq!(number(&stream["unique"]), 2000 / threads as u64, "{style:?} {account}");
            for fault in ["lost", "before_first", "duplicates", "reordered", "stale"] {
                assert_eq!(number(&stream[fault]), 0, "{style:?} {fault} {account}");
            }
        }
        assert_eq!(number(&account["bytes"]), number(&sent["bytes"]), "{style:?}");
        assert_eq!(number(&account["latency_ns"]["packets"]), 2000, "{style:?}");
    }
}

/// As another parser sees them: ranges in turn and drawn, and checksums.
#[test]
fn packets_are_what_was_asked_for() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let arguments = [
        &TO_FAR[..],
        &["--count", "400", "--rate", "20kpps", "--size", "60-63", "--seed", "1"],
        &["--source", "10.0.0.1-10.0.0.50", "--destination", "10.1.0.1~10.1.0.9"],
        &["--source-port", "1000-1099", "--destination-port", "7~8"],
        &["--source-mac", "02:00:00:00:01:00-02:00:00:00:01:03"],
    ]
    .concat();
    let (sender, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
    let (deadline, mut frames) = (Instant::now() + LIMIT, Vec::new());
    while frames.len() < 400 {
        assert!(Instant::now() < deadline, "{}", frames.len());
        raw.recv_each(Duration::from_millis(10), |frame| frames.push(frame.to_vec())).unwrap();
    }
    finished(sender, "sent");
    let mut drawn = [0; 10];
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(frame.len(), 60 + number % 4);
        assert_eq!((&frame[..6], usize::from(frame[11])), (&lab.far.mac()[..], number % 4));
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) =
            (&packet.net, &packet.transport)
        else {
            panic!("{packet:?}")
        };
        let (ip, header) = (ip.header().to_header(), udp.to_header());
        assert_eq!(ip.source, [10, 0, 0, u8::try_from(1 + number % 50).unwrap()]);
        assert_eq!(usize::from(header.source_port), 1000 + number % 100);
        assert!([7, 8].contains(&header.destination_port));
        assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
        assert_eq!(header.calc_checksum_ipv4(&ip, udp.payload()).unwrap(), header.checksum);
        drawn[usize::from(ip.destination[3])] += 1;
    }
    assert!(drawn[0] == 0 && drawn[1..].iter().all(|count| *count > 10), "{drawn:?}");
}

#[test]
fn clones_arrive_as_often_as_they_were_sent() {
    let Some(lab) = Lab::for_test() else { return };
    // Of a mix all sizes are prepared together, and sent in turn.
    let styles: [(&[&str], usize); 4] = [
        (&["--clone", "100000"], 1),
        (&["--clone", "96"], 10),
        (&["--clone", "48", "--threads", "2"], 20),
        (&["--clone", "10", "--size", "imix"], 96),
    ];
    for (style, different) in styles {
        let arguments = ["far0", "--receive", "--count", "960"];
        let mut raw = lab.raw().unwrap();
        let (sender, _) = Running::tool(
            lab.near.netns(),
            "pktgen",
            &[
                &TO_FAR[..],
                &["--count", "960", "--rate", "20kpps", "--source-port", "1-1000"],
                style,
            ]
            .concat(),
        );
        let (deadline, mut frames) = (Instant::now() + LIMIT, Vec::new());
        while frames.len() < 960 {
            assert!(Instant::now() < deadline, "{style:?}: {}", frames.len());
            raw.recv_each(Duration::from_millis(10), |frame| frames.push(frame.to_vec())).unwrap();
        }
        let (end, sent) = finished(sender, "sent");
        assert_eq!((number(&sent["packets"]), number(&end["audit"]["cloned"])), (960, 0), "{end}");
        frames.sort();
        let each = frames.chunk_by(|one, other| one == other).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(each, vec![960 / different; different], "{style:?}");
        drop(raw);
        // Nobody can say more of them than their number.
        let (receiver, _) = Running::tool(lab.far.netns(), "pktgen", &arguments);
        let arguments = [&TO_FAR[..], &["--count", "960", "--rate", "20kpps"], style].concat();
        let (sender, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
        finished(sender, "sent");
        let (_, account) = finished(receiver, "received");
        assert_eq!(number(&account["unstamped"]), 960, "{account}");
        assert!(
            account["streams"].as_array().unwrap().is_empty() && account["latency_ns"].is_null()
        );
    }
}

/// Whatever it does, and whenever it is told to end, every frame is in its place.
#[test]
fn ends_cleanly_at_any_moment() {
    let config = LabConfig { queues: 2, ..LabConfig::default() };
    let Some(lab) = Lab::for_test_with(&config) else { return };
    let styles: [&[&str]; 5] = [
        &[],
        &["--clone", "100000"],
        &["--clone", "3", "--threads", "2", "--size", "imix"],
        &["--rate", "1pps"],
        &["--rate", "1Mpps", "--threads", "3", "--tx-ring", "64"],
    ];
    for style in styles {
        for (index, after) in [0, 1, 7, 40, 150].into_iter().enumerate() {
            let arguments = [&TO_FAR[..], style].concat();
            let (mut sender, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
            thread::sleep(Duration::from_millis(after));
            sender.signal([Signal::SIGINT, Signal::SIGTERM][index % 2]);
            let end = sender.event("end").unwrap_or_else(|| panic!("{}", sender.words()));
            assert_eq!(
                (&end["audit_ok"], number(&end["audit"]["lost"])),
                (&true.into(), 0),
                "{end}"
            );
            let sent = sender.event("sent").expect("what was sent");
            let total: u64 =
                end["queues"].as_array().unwrap().iter().map(|q| number(&q["sent"])).sum();
            assert_eq!(number(&sent["packets"]), total, "{style:?} {sent}");
            assert!(sender.status().success(), "{}", sender.words());
        }
    }
    let (receiver, _) = Running::tool(lab.near.netns(), "pktgen", &["near0", "--receive"]);
    receiver.end();
}

#[test]
fn says_what_does_not_work() {
    let Some(lab) = Lab::for_test() else { return };
    let near = lab.near.netns();
    let cases: [(&[&str], &[&str]); 8] = [
        (&["near0"], &["--destination-mac"]),
        (&[&TO_FAR[..], &["--size", "40"]].concat(), &["--size: 40 bytes", "at least 60"]),
        (&[&TO_FAR[..], &["--size", "60", "--vlan", "1"]].concat(), &["at least 62", "--no-stamp"]),
        (&[&TO_FAR[..], &["--size", "5000"]].concat(), &["--size: 5000 bytes", "room for"]),
        (&[&TO_FAR[..], &["--source", "::1"]].concat(), &["one is IPv4, the other IPv6"]),
        (&[&TO_FAR[..], &["--rate", "10"]].concat(), &["a number with a unit"]),
        (&["near0", "--replay", "/nonexistent"], &["/nonexistent: No such file"]),
        (&[&TO_FAR[..], &["--receive", "--clone", "2"]].concat(), &["cannot be used with"]),
    ];
    for (arguments, expected) in cases {
        refused(near, "pktgen", arguments, expected);
    }
}

/// Files of a test, gone with it.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xskit-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Packets of all sorts, microseconds apart: what pktgen would never make itself.
fn capture() -> Vec<(u64, Vec<u8>)> {
    let mut random = Rng::with_seed(7);
    (0..60_u64)
        .map(|index| {
            let len = [60, 61, 64, 100, 333, 1000, 1513, 1514, 14, 42]
                [usize::try_from(index % 10).unwrap()];
            let mut frame: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0xaa]);
            // Nothing that anybody answers: for local experiments.
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            // One has a time before that of the one before.
            let time = 1_700_000_000_000_000 + index * 2_000 - if index == 30 { 5_000 } else { 0 };
            (time, frame)
        })
        .collect()
}

fn pcap(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (time, frame) in packets {
        let len = u32::try_from(frame.len()).unwrap();
        let seconds = u32::try_from(time / 1_000_000).unwrap();
        let micros = u32::try_from(time % 1_000_000).unwrap();
        for word in [seconds, micros, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn pcapng(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let len = u32::try_from(12 + padded).unwrap();
        file.extend(kind.to_le_bytes());
        file.extend(len.to_le_bytes());
        file.extend(body);
        file.resize(file.len() + padded - body.len(), 0);
        file.extend(len.to_le_bytes());
    };
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    block(1, &words(&[1, 65535]));
    for (time, frame) in packets {
        let len = u32::try_from(frame.len()).unwrap();
        let (high, low) = (time >> 32, time & u64::from(u32::MAX));
        let [high, low] = [high, low].map(|half| u32::try_from(half).unwrap());
        block(6, &[words(&[0, high, low, len, len]), frame.clone()].concat());
    }
    file
}

/// A tcpdump that has begun to write what arrives at the far end.
fn tcpdump(lab: &Lab, file: &Path, packets: usize) -> Child {
    let mut command = Command::new("tcpdump");
    command
        .args(["-i", "far0", "-Q", "in", "-n", "-U", "--immediate-mode", "-s", "0", "-Z", "root"])
        .args(["-c", &packets.to_string(), "-w"])
        .arg(file)
        .args(["ether", "src", "02:00:00:00:00:aa"])
        .stderr(Stdio::piped());
    let mut child = lab.far.netns().enter(|| command.spawn()).unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("listening on")), "tcpdump does not begin");
    // Its last words are read too, so that it can say them.
    thread::spawn(move || lines.for_each(drop));
    child
}

/// Every byte of every packet, as tcpdump reads them.
fn read_by_tcpdump(file: &Path) -> String {
    let output =
        Command::new("tcpdump").args(["-t", "-n", "-e", "-xx", "-r"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_capture_arrives_byte_for_byte() {
    let Some(lab) = Lab::for_test_with(&LabConfig { need: Need::Tcpdump, ..LabConfig::default() })
    else {
        return;
    };
    let packets = capture();
    let files = Files::new("replay");
    let own_pace = 59 * 2_000_000;
    for (index, (content, style, loops, least)) in [
        (pcap(&packets), &["--speed", "1"][..], 1, own_pace),
        (pcapng(&packets), &["--speed", "2"], 1, own_pace / 2),
        (pcap(&packets), &["--speed", "max", "--batch", "16", "--loops", "3"], 3, 0),
        (pcapng(&packets), &["--rate", "2kpps", "--count", "60", "--loops", "9"], 1, 59 * 500_000),
    ]
    .into_iter()
    .enumerate()
    {
        let (original, arrived) = (files.path("original"), files.path(&format!("arrived-{index}")));
        fs::write(&original, content).unwrap();
        let mut witness = tcpdump(&lab, &arrived, loops * packets.len());
        let arguments = [&["near0", "--replay", original.to_str().unwrap()], style].concat();
        let (sender, _) = Running::tool(lab.near.netns(), "pktgen", &arguments);
        let (_, sent) = finished(sender, "sent");
        assert_eq!(number(&sent["packets"]), (loops * packets.len()) as u64, "{sent}");
        // However slow the machine is, it is never faster than the capture.
        assert!(number(&sent["nanoseconds"]) >= least, "{style:?} {sent}");
        let deadline = Instant::now() + LIMIT;
        while witness.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                witness.kill().unwrap();
                witness.wait().unwrap();
                panic!("{style:?}: not all arrived: {}", read_by_tcpdump(&arrived));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let expected = read_by_tcpdump(&original).repeat(loops);
        assert!(expected.lines().count() > 60 * loops, "{expected}");
        assert_eq!(read_by_tcpdump(&arrived), expected, "{style:?}");
    }
}
