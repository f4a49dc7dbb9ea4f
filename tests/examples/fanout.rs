//! Batches for other threads.

use std::time::Duration;

use xskit_lab::{Lab, Numbered};

use crate::running::{PORT, Running, number, refused};

#[test]
fn workers_get_all_packets_and_the_frames_come_back() {
    const COUNT: u64 = 6000;
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = Numbered::new(lab.flow(PORT), 200, 1);
    let styles: [&[&str]; 4] = [
        &["--workers", "3"],
        &["--workers", "1", "--depth", "1", "--batch", "16"],
        &["--through-pool", "--spin"],
        // Far fewer frames than packets: without their return it would soon stop.
        &[
            "--workers",
            "2",
            "--depth",
            "2",
            "--batch",
            "32",
            "--rx-ring",
            "256",
            "--fill-ring",
            "256",
            "--frames",
            "640",
        ],
    ];
    for style in styles {
        let (fanout, _) =
            Running::tool(lab.near.netns(), "fanout", &[&["near0", "--all"], style].concat());
        for number in 0..COUNT {
            raw.send(&series.frame(number)).unwrap();
            if number % 32 == 31 {
                // The link's own queue is short.
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        fanout.signal(nix::sys::signal::Signal::SIGTERM);
        let end = fanout.event("end").expect("totals at the end");
        let workers = fanout.event("workers").expect("the workers' totals");
        let queue = &end["queues"][0];
        let lost: u64 = ["rx_ring_full", "rx_fill_ring_empty_descs"]
            .iter()
            .map(|name| number(&queue["losses"][*name]))
            .sum();
        let received = number(&queue["received"]);
        let left = number(&end["audit"]["rx"]);
        assert_eq!(received + lost + left, COUNT, "{style:?}: {end}");
        assert!(received > COUNT / 2, "{style:?}: {end}");
        let by_worker: Vec<u64> =
            workers["packets"].as_array().unwrap().iter().map(number).collect();
        assert_eq!(by_worker.iter().sum::<u64>(), received, "{style:?}: {by_worker:?}");
        assert!(by_worker.iter().all(|&packets| packets > 0), "{style:?}: {by_worker:?}");
        assert_eq!(end["audit_ok"], true, "{style:?}: {end}");
    }
}

#[test]
fn workers_end_with_the_interface() {
    let Some(lab) = Lab::for_test() else { return };
    let (mut fanout, _) = Running::tool(lab.near.netns(), "fanout", &["near0", "--all"]);
    lab.near.delete().unwrap();
    assert!(!fanout.status().success());
    assert!(fanout.words().contains("near0"));
}

#[test]
fn refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    refused(netns, "fanout", &["near0"], &["--all", "--udp-port", "--rule"]);
    refused(netns, "fanout", &["near0", "--all", "--workers", "0"], &["--workers"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
