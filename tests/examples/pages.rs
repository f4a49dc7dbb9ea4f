//! Those that are a page of code.

use nix::sys::signal::Signal;
use xskit_lab::Lab;

use crate::running::{PORT, Running, reflects};

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
