//! Sends every UDP datagram for port 4242 on queue 0 back to where it came from, as `reflect` does, as
//! one of a program's tasks on tokio: another one prints, and Ctrl-C ends both.

use std::time::Duration;

use tokio::{signal::ctrl_c, time::interval};
use xskit::{AsyncSocket, PortConfig, Rules};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interface = std::env::args().nth(1).ok_or("usage: async_echo INTERFACE")?;
    let mut port = PortConfig::new(interface).rules(Rules::udp_port(4242)).queues([0]).open()?;
    let socket = port.take_queue(0)?;
    println!("queue 0 of {}: {}, {}", port.interface(), port.attached(), socket.mode());

    let statistics = socket.statistics_reader();
    tokio::spawn(async move {
        let mut second = interval(Duration::from_secs(1));
        let mut before = 0;
        while let Ok(Some(now)) = statistics.read() {
            if now.sent > before {
                println!("{} packets echoed", now.sent);
                before = now.sent;
            }
            second.tick().await;
        }
    });

    tokio::select! {
        result = echo(AsyncSocket::new(socket)?) => result?,
        result = ctrl_c() => result?, // The packets of the dropped future go back to the UMEM.
    }
    Ok(())
}

async fn echo(mut socket: AsyncSocket) -> Result<(), xskit::Error> {
    let mut batch = socket.get_ref().umem().batch(64);
    loop {
        socket.recv(&mut batch).await?;
        for mut packet in batch.packets_mut() {
            // Destination and source; what the rule matches is longer.
            packet.head_mut()[..12].rotate_left(6);
        }
        socket.send_all(&mut batch).await?; // Waits where the TX ring is full.
        socket.flush().await?; // Before a wait for packets, which may take long.
    }
}
