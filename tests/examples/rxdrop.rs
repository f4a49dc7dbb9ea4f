//! Receiving and dropping.

use std::time::Duration;

use xskit_lab::{Lab, Numbered};

use crate::running::{PORT, Running, WINDOW, number, refused};

#[test]
fn counts_what_it_drops() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let series = Numbered::new(lab.flow(PORT), 200, 1);
    let port = PORT.to_string();
    for style in
        [&[][..], &["--spin", "--mode", "generic"], &["--frames", "512", "--rx-ring", "256"]]
    {
        let arguments = [&["near0", "--udp-port", &port], style].concat();
        let (rxdrop, ports) = Running::tool(lab.near.netns(), "rxdrop", &arguments);
        assert_eq!(ports[0]["queues"], serde_json::json!([0]));
        raw.send(&lab.flow(PORT + 1).frame(b"not for us, and long enough")).unwrap();
        for number in 0..2000 {
            raw.send(&series.frame(number)).unwrap();
            if number % (WINDOW / 2) == 0 {
                // The link's own queue is short.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let end = rxdrop.end();
        let queue = &end["queues"][0];
        // Whatever the machine is too busy for, the counters say, or it lies in the ring at the end.
        let lost: u64 = ["rx_ring_full", "rx_fill_ring_empty_descs"]
            .iter()
            .map(|name| number(&queue["losses"][*name]))
            .sum();
        let left = number(&end["audit"]["rx"]);
        assert_eq!(number(&queue["received"]) + lost + left, 2000, "{style:?}: {end}");
        assert!(number(&queue["received"]) > 1000, "{style:?}: {end}");
        assert_eq!(number(&queue["received_bytes"]), number(&queue["received"]) * 200, "{end}");
        assert_eq!((&queue["sent"], &queue["others"]["passed_no_rule"]), (&0.into(), &1.into()));
        assert_eq!(lab.near.xdp_program().unwrap(), None);
    }
}

#[test]
fn refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    refused(netns, "rxdrop", &["near0"], &["--all", "--udp-port", "--rule"]);
    refused(netns, "rxdrop", &["near0", "--all", "--tx-ring", "64"], &["--tx-ring"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
