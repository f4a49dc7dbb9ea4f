//! The modes in which every behaviour is tested.

use xskit::{AttachMode, Attached, SocketConfig, socket::BusyPoll};

/// A way of running all cases.
#[derive(Debug)]
pub(crate) struct Mode {
    /// As in the tests' names.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) attach: AttachMode,
    /// What the mode makes of a socket's configuration.
    configure: fn(SocketConfig) -> SocketConfig,
}

/// All of them.
pub(crate) const MODES: &[Mode] = &[
    Mode {
        name: "generic",
        about: "the program in the kernel's stack, soft interrupts",
        attach: AttachMode::Generic,
        configure: |config| config,
    },
    Mode {
        name: "native",
        about: "the program in the driver, soft interrupts",
        attach: AttachMode::Native,
        configure: |config| config,
    },
    Mode {
        name: "generic_busy_polling",
        about: "the program in the kernel's stack, busy polling",
        attach: AttachMode::Generic,
        configure: busy,
    },
    Mode {
        name: "native_busy_polling",
        about: "the program in the driver, busy polling",
        attach: AttachMode::Native,
        configure: busy,
    },
];

fn busy(config: SocketConfig) -> SocketConfig {
    config.busy_poll(BusyPoll::default())
}

impl Mode {
    /// A socket's configuration in this mode.
    pub(crate) fn socket(&self, config: SocketConfig) -> SocketConfig {
        (self.configure)(config)
    }

    /// Where programs run.
    pub(crate) fn attached(&self) -> Attached {
        match self.attach {
            AttachMode::Generic => Attached::Generic,
            _ => Attached::Native,
        }
    }
}
