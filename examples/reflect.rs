//! Sends every UDP datagram for port 4242 on queue 0 back to where it came from, MAC addresses swapped.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use signal_hook::consts::SIGINT;
use xskit::{Interest, PortConfig, Rules};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interface = env::args().nth(1).ok_or("usage: reflect INTERFACE")?;
    let end = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, end.clone())?;

    let mut port = PortConfig::new(interface).rules(Rules::udp_port(4242)).queues([0]).open()?;
    let mut socket = port.take_queue(0)?;
    let mut batch = port.umem().batch(64);
    println!("queue 0 of {}: {}, {}", port.interface(), port.attached(), socket.mode());

    while !end.load(Ordering::Relaxed) {
        // Packets to receive, or room to send those that are left.
        if socket.wait(Interest::for_batch(&batch), Duration::from_millis(200))?.timed_out() {
            continue;
        }
        if batch.is_empty() {
            socket.recv(&mut batch)?;
            for mut packet in batch.packets_mut() {
                // Destination and source; what the rule matches is longer.
                packet.head_mut()[..12].rotate_left(6);
            }
        }
        socket.send(&mut batch)?; // What the TX ring has no room for stays in the batch.
    }
    Ok(())
}
