//! The kernel's stack on CPUs of its own.

use std::time::Duration;

use xskit_lab::{Lab, Numbered};

use crate::running::{PORT, Running, number, refused};

#[test]
fn tells_what_became_of_packets_on_each_cpu() {
    const COUNT: u64 = 1000;
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let (taken, others) =
        (Numbered::new(lab.flow(PORT), 80, 1), Numbered::new(lab.flow(PORT + 1), 90, 2));
    let port = PORT.to_string();
    for style in [&["--stack-cpus", "0,1"][..], &["--stack-cpus", "0", "--mode", "generic"]] {
        let round = ["--stack-spread", "round-robin", "--stack-queue", "1024"];
        let arguments = [&["near0", "--udp-port", &port], style, &round].concat();
        let (cpumap, _) = Running::tool(lab.near.netns(), "cpumap", &arguments);
        for number in 0..COUNT {
            raw.send(&taken.frame(number)).unwrap();
            raw.send(&others.frame(number)).unwrap();
            if number % 32 == 31 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Until all are where they shall be.
        loop {
            let second = cpumap.event("second").unwrap();
            let cpus = second["cpus"].as_array().unwrap();
            assert_eq!(cpus[0]["cpu"], 0, "{second}");
            if cpus.iter().all(|cpu| cpu["processed"] == 0) && second["queues"][0]["rx_pps"] == 0 {
                break;
            }
        }
        let end = cpumap.end();
        assert_eq!(end["queues"][0]["received"], COUNT, "{style:?}: {end}");
        let sum = |name: &str| -> u64 {
            end["cpus"].as_array().unwrap().iter().map(|cpu| number(&cpu[name])).sum()
        };
        assert_eq!(
            (sum("redirected"), sum("enqueued"), sum("dropped")),
            (COUNT, COUNT, 0),
            "{end}"
        );
        assert_eq!((sum("processed"), sum("lost")), (COUNT, 0), "{style:?}: {end}");
        assert_eq!(end["queues"][0]["others"]["passed_no_rule"], COUNT, "{end}");
        assert_eq!(lab.near.xdp_program().unwrap(), None);
    }
    // For people, and without any socket's packets.
    let arguments = ["near0", "--stack-cpus", "1", "--duration", "1.2"];
    let mut cpumap = Running::start(lab.near.netns(), "cpumap", &arguments);
    let lines: Vec<String> = std::iter::from_fn(|| cpumap.line()).collect();
    assert!(cpumap.status().success(), "{}", cpumap.words());
    assert!(lines.iter().any(|line| line.starts_with("near0 cpu 1   ")), "{lines:?}");
}

#[test]
fn refuses_what_cannot_be() {
    let Some(lab) = Lab::for_test() else { return };
    let netns = lab.near.netns();
    refused(netns, "cpumap", &["near0"], &["--stack-cpus"]);
    refused(netns, "cpumap", &["near0", "--stack-cpus", "4000"], &["CPU 4000", "online are 0"]);
    refused(netns, "cpumap", &["near0", "--stack-cpus", "0,0"], &["twice"]);
    let queue = ["near0", "--stack-cpus", "0", "--stack-queue", "0"];
    refused(netns, "cpumap", &queue, &["1 to 16384"]);
    assert_eq!(lab.near.xdp_program().unwrap(), None);
}
