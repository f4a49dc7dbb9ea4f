//! What a worker has to do.

use clap::ValueEnum;

use crate::subject::Cycle;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    LibXdp,
    Xskit,
    XskRs,
    Xdpilone,
    Xdp,
    Blocks,
    AfPacket,
    Udp,
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the network stack, on finished skbs.
    Generic,
}

/// Where the packets to receive come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sender {
    /// An XDP program that runs on frames of its own making.
    #[default]
    Kernel,
    /// A program with AF_PACKET and sendmmsg, which is slower than its receiver.
    User,
}

/// Who does what, and how everything is set up.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub who: Who,
    pub cycle: Cycle,
    /// Packets at most in each step.
    pub batch: u32,
    pub sender: Sender,
    pub mode: Mode,
    /// Whether interrupts are held back.
    pub held_back: bool,
    /// Frames that xskit lets the kernel send in one call, instead of its own choice.
    pub budget: Option<u32>,
}

impl Who {
    /// Those with AF_XDP sockets, then those that most people use today.
    pub const ALL: [Self; 8] = [
        Self::LibXdp,
        Self::Xskit,
        Self::XskRs,
        Self::Xdpilone,
        Self::Xdp,
        Self::Blocks,
        Self::AfPacket,
        Self::Udp,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::LibXdp => "libxdp in C",
            Self::Xskit => "xskit",
            Self::XskRs => "xsk-rs",
            Self::Xdpilone => "xdpilone",
            Self::Xdp => "xdp",
            Self::Blocks => "AF_PACKET, TPACKET_V3",
            Self::AfPacket => "AF_PACKET, mmsg",
            Self::Udp => "UDP, mmsg",
        }
    }

    /// Whether it has an AF_XDP socket.
    pub fn is_xdp(self) -> bool {
        !matches!(self, Self::Blocks | Self::AfPacket | Self::Udp)
    }

    /// Nobody forwards with UDP.
    pub fn can(self, cycle: Cycle) -> bool {
        self != Self::Udp || cycle != Cycle::Forward
    }
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl Job {
    /// In native mode, with the in-kernel sender, and everything else as it is without being asked for.
    pub fn new(who: Who, cycle: Cycle, batch: u32) -> Self {
        let (sender, mode) = (Sender::Kernel, Mode::Native);
        Self { who, cycle, batch, sender, mode, held_back: false, budget: None }
    }

    /// Who it is, and what is not as usual.
    pub fn name(&self) -> String {
        let held_back = if self.held_back { ", held back" } else { "" };
        let budget = self.budget.map_or(String::new(), |frames| format!(", {frames} a call"));
        format!("{}{held_back}{budget}", self.who.name())
    }
}
