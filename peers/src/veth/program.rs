//! What is attached to a pair's near end.

use std::{os::fd::AsFd, time::Duration};

use anyhow::Result;
use xskit::{
    AttachMode, Interface, Program, ProgramOptions, QueueId, Rules,
    interface::{Deferral, Deferred},
    program::MapEntry,
};

use super::{Job, Mode};
use crate::subject::Cycle;

/// A program, and interrupts held back.
pub struct Attached {
    program: Program,
    redirects: bool,
    _deferred: Option<Deferred>,
}

impl Attached {
    /// For AF_XDP sockets the program that redirects everything: the same for all. For others the same one
    /// without rules, in the same mode, so that all packets pass.
    pub fn new(interface: &str, work: &Job) -> Result<Self> {
        let interface = Interface::by_name(interface)?;
        let redirects = work.who.is_xdp() && work.cycle != Cycle::Transmit;
        let rules = if redirects { Rules::all() } else { Rules::none() };
        let mode = match work.mode {
            Mode::Native => AttachMode::Native,
            Mode::Generic => AttachMode::Generic,
        };
        let program = Program::attach(&interface, &rules, mode, &ProgramOptions::default())?;
        let deferral = Deferral::default().hard_irqs(2).flush_timeout(Duration::from_micros(200));
        let deferred = work.held_back.then(|| deferral.apply(&interface)).transpose()?;
        Ok(Self { program, redirects, _deferred: deferred })
    }

    /// Puts a socket in the program's map.
    pub fn join(&self, socket: &impl AsFd) -> Result<Option<MapEntry>> {
        let map = self.program.socket_map();
        let entry = self.redirects.then(|| map.insert(QueueId::new(0), socket.as_fd()));
        Ok(entry.transpose()?)
    }
}
