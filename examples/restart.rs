//! Counts UDP datagrams for port 4242 on queue 0, and can be ended (or killed) and started again without
//! the interface ever being without its program: while it is away, all packets pass to the kernel's stack.
//!
//! The program stays attached after the last run as well: `rm -r DIRECTORY` detaches it.

use std::{
    env,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use signal_hook::consts::{SIGINT, SIGTERM};
use xskit::{Interest, PortConfig, Rules};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage =
        "usage: restart INTERFACE DIRECTORY (such as /sys/fs/bpf/restart, where a bpffs is)";
    let mut arguments = env::args().skip(1);
    let interface = arguments.next().ok_or(usage)?;
    let directory = arguments.next().ok_or(usage)?;
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, end.clone())?;
    }

    // A run before this one has left its program here, or this is the first.
    let how = if Path::new(&directory).exists() { "taken over" } else { "attached" };
    let mut port = PortConfig::new(interface)
        .rules(Rules::udp_port(4242))
        .queues([0])
        .pin(&directory)
        .open()?;
    // The counters are those of all runs.
    let passed = port.counters()?.total.passed_no_socket;
    println!("{how}; {passed} packets came while nobody was there, and passed");

    let mut socket = port.take_queue(0)?;
    let mut batch = port.umem().batch(64);
    while !end.load(Ordering::Relaxed) {
        socket.wait(Interest::READABLE, Duration::from_millis(200))?;
        if socket.recv(&mut batch)? > 0 {
            println!("{} packets", batch.packet_count());
            batch.clear();
        }
    }
    Ok(())
}
