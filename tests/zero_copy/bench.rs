//! The two interfaces, and how ports on them shall be.

use std::sync::{Mutex, MutexGuard, PoisonError};

use xskit::{CopyMode, Port, PortConfig, Rules, Socket};
use xskit_lab::{Link, Numbered, Pair};

use crate::support::{PORT, rings};

/// The interfaces, for one test at a time.
pub(crate) struct Bench {
    pub(crate) pair: Pair,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    /// `None` where there are none: the test has said that it is skipped.
    pub(crate) fn for_test() -> Option<Self> {
        Self::lent("XSKIT_TEST_NICS")
    }

    /// The same with interfaces that have two queues at least, and use that many now.
    pub(crate) fn with_queues(count: u32) -> Option<Self> {
        let bench = Self::lent("XSKIT_TEST_NICS_QUEUES")?;
        for link in [&bench.pair.near, &bench.pair.far] {
            link.set_combined_channels(count).unwrap();
        }
        Some(bench)
    }

    fn lent(variable: &str) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let pair = Pair::lent(variable)?;
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Self { pair, _alone: alone })
    }

    /// Frames from the far end to the near one, numbered.
    pub(crate) fn to_near(&self, length: usize) -> Numbered {
        Numbered::new(self.pair.flow(PORT), length, 1)
    }

    /// Frames from the near end to the far one, numbered.
    pub(crate) fn to_far(&self, length: usize) -> Numbered {
        Numbered::new(self.pair.flow(PORT).reflected(), length, 2)
    }
}

/// A port for UDP packets to [`PORT`] whose sockets are zero-copy or not at all.
pub(crate) fn zero_copy(link: &Link) -> PortConfig {
    PortConfig::new(link.name())
        .rules(Rules::udp_port(PORT))
        .socket(rings(256).copy_mode(CopyMode::ZeroCopy))
}

/// The port, and the socket on its first queue.
#[track_caller]
pub(crate) fn open(config: PortConfig) -> (Port, Socket) {
    let mut port = config.open().unwrap();
    let socket = port.take_queue(0).unwrap();
    (port, socket)
}
