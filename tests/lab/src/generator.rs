//! Load from within the kernel: an XDP program that runs on frames of its own making, over and over, and
//! sends each out of an interface. No user-space sender is as fast.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use crate::{link::Link, sys};

/// Frames that leave an interface as if its driver had been told to transmit them.
///
/// They reach the other end of a veth pair if that has an XDP program in native mode, or GRO on.
#[derive(Debug)]
pub struct Generator {
    program: OwnedFd,
    frame: Vec<u8>,
}

impl Generator {
    /// Out of `link`, copies of this frame. Needs CAP_BPF and CAP_NET_ADMIN; Linux 5.18.
    pub fn new(link: &Link, frame: Vec<u8>) -> io::Result<Self> {
        let code = |opcode: u64, to: u64, value: u32| opcode | to << 8 | u64::from(value) << 32;
        let program = sys::load_xdp_code(&[
            code(0xb7, 1, link.index()), // r1 = the interface
            code(0xb7, 2, 0),            // r2 = no flags
            code(0x85, 0, 23),           // bpf_redirect
            code(0x95, 0, 0),            // exit
        ])?;
        Ok(Self { program, frame })
    }

    /// Sends `count` frames, on the CPU of the calling thread, and returns when all are sent. The thread has
    /// to be in the link's namespace ([`Netns::spawn`](crate::Netns::spawn)).
    ///
    /// Queues that overflow drop what is too much, and nobody is told.
    ///
    /// # Errors
    ///
    /// [`Interrupted`](io::ErrorKind::Interrupted) if a signal came; some frames may have been sent.
    pub fn send(&self, count: u32) -> io::Result<()> {
        sys::run_live(self.program.as_fd(), &self.frame, count)
    }
}
