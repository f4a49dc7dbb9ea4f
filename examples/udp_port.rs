//! Receives UDP datagrams for port 4242 on queue 0; all other packets go to the kernel's stack.

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
    let interface = env::args().nth(1).ok_or("usage: udp_port INTERFACE")?;
    let end = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, end.clone())?;

    let mut port = PortConfig::new(interface).rules(Rules::udp_port(4242)).queues([0]).open()?;
    let mut socket = port.take_queue(0)?;
    let mut batch = port.umem().batch(64);
    println!("queue 0 of {}: {}, {}", port.interface(), port.attached(), socket.mode());

    while !end.load(Ordering::Relaxed) {
        if socket.wait(Interest::READABLE, Duration::from_millis(200))?.readable() {
            socket.recv(&mut batch)?;
            for packet in batch.packets() {
                println!("{} bytes: {:02x?}", packet.len(), packet.head());
            }
            batch.clear(); // Their frames go back to the kernel with the next `recv`.
        }
    }
    Ok(())
}
