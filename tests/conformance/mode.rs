//! The modes in which every behaviour is tested.

use std::{io, net::UdpSocket, os::fd::AsRawFd, ptr};

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
    /// Why this kernel cannot do it.
    lacks: fn() -> Option<String>,
}

/// All of them.
pub(crate) const MODES: &[Mode] = &[
    Mode {
        name: "generic",
        about: "the program in the kernel's stack, soft interrupts",
        attach: AttachMode::Generic,
        configure: |config| config,
        lacks: || None,
    },
    Mode {
        name: "native",
        about: "the program in the driver, soft interrupts",
        attach: AttachMode::Native,
        configure: |config| config,
        lacks: || None,
    },
    Mode {
        name: "generic_busy_polling",
        about: "the program in the kernel's stack, busy polling",
        attach: AttachMode::Generic,
        configure: busy,
        lacks: lacks_busy_polling,
    },
    Mode {
        name: "native_busy_polling",
        about: "the program in the driver, busy polling",
        attach: AttachMode::Native,
        configure: busy,
        lacks: lacks_busy_polling,
    },
];

fn busy(config: SocketConfig) -> SocketConfig {
    config.busy_poll(BusyPoll::default())
}

/// By the option that was the last one to come, on a socket of any kind.
#[allow(unsafe_code, reason = "nix has no call for this option")]
fn lacks_busy_polling() -> Option<String> {
    const SO_PREFER_BUSY_POLL: libc::c_int = 69;
    let (on, socket) = (1_i32, UdpSocket::bind("127.0.0.1:0").unwrap());
    // SAFETY: the option's value lives through the call, and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PREFER_BUSY_POLL,
            ptr::from_ref(&on).cast(),
            4,
        )
    };
    let error = io::Error::last_os_error();
    (result < 0).then(|| format!("the kernel has no preferred busy polling (Linux 5.11): {error}"))
}

impl Mode {
    /// Why no case can run in this mode on this kernel.
    pub(crate) fn lacks(&self) -> Option<String> {
        (self.lacks)()
    }

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
