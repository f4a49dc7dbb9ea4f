//! One end of a pair: sends, receives, and answers.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use anyhow::{Result, ensure};
use xskit::{
    Batch, Interest, Port, PortConfig, RingSize, Rules, Socket, SocketConfig, socket::BusyPoll,
};
use xskit_lab::Link;

use super::{PORT, Way};

/// How long one waits at a time, to see whether it is over.
const WAIT: Duration = Duration::from_millis(5);

/// One end.
pub enum End {
    Xdp(Box<XdpEnd>),
    Udp(UdpSocket),
}

pub struct XdpEnd {
    batch: Batch,
    // Before its port, whose program it needs.
    socket: Socket,
    _port: Port,
    waits: bool,
}

impl End {
    pub fn open(link: &Link, way: Way, address: Ipv4Addr) -> Result<Self> {
        if way == Way::Udp {
            let socket = UdpSocket::bind((address, PORT))?;
            socket.set_read_timeout(Some(WAIT))?;
            return Ok(Self::Udp(socket));
        }
        let ring = RingSize::new(64)?;
        let mut config = SocketConfig::default().rx(ring).tx(ring).fill(ring).completion(ring);
        if way == Way::BusyPolling {
            config = config.busy_poll(BusyPoll::default());
        }
        let config = PortConfig::new(link.name()).rules(Rules::all()).socket(config);
        let mut port = config.open()?;
        let socket = port.take_queue(0)?;
        let batch = port.umem().batch(16);
        let waits = way == Way::Polling;
        Ok(Self::Xdp(Box::new(XdpEnd { batch, socket, _port: port, waits })))
    }

    /// Where all packets go that this end sends.
    pub fn connect(&self, to: Ipv4Addr) -> Result<()> {
        if let Self::Udp(socket) = self {
            socket.connect(SocketAddrV4::new(to, PORT))?;
        }
        Ok(())
    }

    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        match self {
            Self::Udp(socket) => {
                socket.send(frame)?;
            }
            Self::Xdp(end) => {
                end.batch.clear();
                ensure!(end.batch.alloc(1) == 1, "a free frame");
                for mut packet in end.batch.packets_mut() {
                    packet.write(frame)?;
                }
                end.socket.send(&mut end.batch)?;
            }
        }
        Ok(())
    }

    /// Waits for a packet, as long as it shall.
    pub fn receive(&mut self, go_on: impl Fn() -> bool) -> Result<bool> {
        match self {
            Self::Udp(socket) => {
                let mut buffer = [0; 256];
                while go_on() {
                    match socket.recv(&mut buffer) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        other => return Ok(other? > 0),
                    }
                }
            }
            Self::Xdp(end) => {
                while go_on() {
                    if end.waits {
                        end.socket.wait(Interest::READABLE, WAIT)?;
                    }
                    if end.socket.recv(&mut end.batch)? > 0 {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Waits for a packet, as long as it shall, and sends it back.
    pub fn answer(&mut self, go_on: impl Fn() -> bool) -> Result<()> {
        if let Self::Udp(socket) = self {
            let mut buffer = [0; 256];
            while go_on() {
                match socket.recv_from(&mut buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                    Ok((len, from)) => {
                        socket.send_to(&buffer[..len], from)?;
                    }
                }
            }
            return Ok(());
        }
        if !self.receive(go_on)? {
            return Ok(());
        }
        let Self::Xdp(end) = self else { return Ok(()) };
        for mut packet in end.batch.packets_mut() {
            packet.head_mut()[..12].rotate_left(6);
        }
        end.socket.send(&mut end.batch)?;
        Ok(())
    }
}
