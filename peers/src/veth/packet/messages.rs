//! AF_PACKET and UDP sockets, many packets a call: recvmmsg and sendmmsg.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use anyhow::Result;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg},
};
use xskit_lab::Flow;

use super::{FAR, PORT, bind_to, frame, packet_socket};
use crate::{
    peer::Place,
    subject::{Cycle, LENGTH},
    veth::worker::Work,
};

/// Packets in and out of an AF_PACKET socket.
pub fn packets(place: &Place, cycle: Cycle, flow: &Flow) -> Result<Box<dyn Work>> {
    let socket = packet_socket()?;
    bind_to(&socket, place.index)?;
    let frame = frame(flow);
    Ok(Box::new(Messages::new(socket, place.batch, cycle, frame, None)))
}

/// Datagrams in and out of a UDP socket.
pub fn datagrams(place: &Place, cycle: Cycle) -> Result<Box<dyn Work>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    socket.set_nonblocking(true)?;
    let to = SocketAddrV4::new(FAR, 4000);
    let payload = vec![0; LENGTH as usize - 42];
    let socket = OwnedFd::from(socket);
    Ok(Box::new(Messages::new(socket, place.batch, cycle, payload, Some(to.into()))))
}

/// Many packets in each call.
struct Messages {
    socket: OwnedFd,
    cycle: Cycle,
    buffers: Vec<[u8; 256]>,
    headers: MultiHeaders<SockaddrIn>,
    out: Vec<u8>,
    to: Vec<Option<SockaddrIn>>,
    calls: u64,
}

impl Messages {
    fn new(
        socket: OwnedFd,
        batch: u32,
        cycle: Cycle,
        out: Vec<u8>,
        to: Option<SockaddrIn>,
    ) -> Self {
        let batch = batch as usize;
        Self {
            socket,
            cycle,
            buffers: vec![[0; 256]; batch],
            headers: MultiHeaders::preallocate(batch, None),
            out,
            to: vec![to; batch],
            calls: 0,
        }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Receives into the buffers; how many.
    fn receive(&mut self) -> Result<usize> {
        self.calls += 1;
        let fd = self.fd();
        let mut slices: Vec<_> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        match recvmmsg(fd, &mut self.headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
            Ok(messages) => Ok(messages.count()),
            Err(Errno::EAGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends that many; how many the kernel took.
    fn send(&mut self, count: usize) -> Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        self.calls += 1;
        let fd = self.fd();
        let slices: Vec<_> = match self.cycle {
            Cycle::Forward => {
                let length = LENGTH as usize;
                self.buffers[..count]
                    .iter()
                    .map(|buffer| [IoSlice::new(&buffer[..length])])
                    .collect()
            }
            _ => (0..count).map(|_| [IoSlice::new(&self.out)]).collect(),
        };
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmmsg(fd, &mut self.headers, &slices, &self.to[..count], [], flags) {
            Ok(messages) => Ok(messages.count()),
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl Work for Messages {
    fn step(&mut self) -> Result<u32> {
        let count = match self.cycle {
            Cycle::Receive => self.receive()?,
            Cycle::Transmit => self.send(self.buffers.len())?,
            Cycle::Forward => {
                let count = self.receive()?;
                self.send(count)?
            }
        };
        Ok(u32::try_from(count)?)
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}
