//! Sending.

use std::time::{Duration, Instant};

use xskit_lab::{Lab, LabConfig};

use crate::running::{LIMIT, Running, number, refused};

const TO_FAR: [&str; 3] = ["near0", "--destination", "02:00:00:00:00:02"];

#[test]
fn sends_that_many_frames_and_no_more() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let styles: [&[&str]; 4] = [
        &["--size", "64"],
        &["--size", "1500", "--batch", "7"],
        &["--size", "60", "--tx-ring", "1", "--completion-ring", "1"],
        &["--size", "1000", "--chunk-size", "2048", "--headroom", "64", "--frames", "32"],
    ];
    for style in styles {
        let arguments = [&TO_FAR[..], &["--count", "2000"], style].concat();
        let (mut txonly, _) = Running::tool(lab.near.netns(), "txonly", &arguments);
        let size: usize = style[1].parse().unwrap();
        let (deadline, mut arrived) = (Instant::now() + LIMIT, 0);
        while arrived < 2000 {
            assert!(Instant::now() < deadline, "{style:?}: {arrived}");
            raw.recv_each(Duration::from_millis(10), |frame| {
                assert_eq!(frame.len(), size, "{style:?}");
                assert_eq!(frame[..6], lab.far.mac(), "{style:?}");
                assert_eq!(frame[26..34], [198, 18, 0, 1, 198, 18, 0, 2], "{style:?}");
                assert!(frame[42..].iter().all(|&byte| byte == 0), "{style:?}");
                arrived += 1;
            })
            .unwrap();
        }
        let end = txonly.event("end").unwrap();
        assert!(txonly.status().success(), "{}", txonly.words());
        assert_eq!(end["audit_ok"], true, "{end}");
        let queue = &end["queues"][0];
        // Counted when given to the kernel, and when they completed.
        assert_eq!((number(&queue["sent"]), number(&queue["completed"])), (2000, 2000), "{end}");
        assert_eq!(number(&queue["sent_bytes"]), 2000 * size as u64, "{end}");
        assert_eq!(raw.recv_each(Duration::from_millis(50), |_| ()).unwrap(), 0, "{style:?}");
    }
}

#[test]
fn sends_until_it_is_told_to_end_on_all_queues() {
    let config = LabConfig { queues: 2, ..LabConfig::default() };
    let Some(lab) = Lab::for_test_with(&config) else { return };
    let (txonly, ports) = Running::tool(lab.near.netns(), "txonly", &TO_FAR);
    assert_eq!(ports[0]["queues"], serde_json::json!([0, 1]));
    let second = txonly.event("second").unwrap();
    for queue in 0..2 {
        let queue = &second["queues"][queue];
        assert!(number(&queue["tx_pps"]) > 0 && number(&queue["completed_pps"]) > 0, "{second}");
    }
    let end = txonly.end();
    for queue in 0..2 {
        let queue = &end["queues"][queue];
        assert!(number(&queue["sent"]) > 0, "{end}");
        assert_eq!(queue["sent"], queue["completed"], "{end}");
    }
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}

#[test]
fn refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else {
        return;
    };
    let netns = lab.near.netns();
    refused(netns, "txonly", &["near0"], &["--destination"]);
    refused(netns, "txonly", &["near0", "--destination", "02:00"], &["six bytes"]);
    let long = [&TO_FAR[..], &["--size", "5000"]].concat();
    refused(netns, "txonly", &long, &["--size 5000", "4096"]);
    refused(netns, "txonly", &[&TO_FAR[..], &["--size", "10"]].concat(), &["60"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
