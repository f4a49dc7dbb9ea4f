//! Waiting until an interface can carry packets.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::Interface;
use crate::error::{Error, ErrorKind, Result, Step};

impl Interface {
    /// Waits until the interface has a carrier and is operational. Attaching an XDP program resets
    /// the link of some NICs, for up to 30 seconds.
    ///
    /// The link is looked at every 20 milliseconds, and once more when the time is up.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkDown`] at once where the interface is set down, and after `timeout` where
    /// there is no carrier; [`ErrorKind::LinkGone`] where it was deleted.
    pub fn carrier_wait(&self, timeout: Duration) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(20);
        let start = Instant::now();
        loop {
            let link = self.link()?;
            if !link.up {
                return Err(Error::new(Step::Interface, ErrorKind::LinkDown, "it is set down")
                    .on(&self.name)
                    .hint("set it up"));
            }
            if link.carrier && link.running {
                return Ok(());
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::new(
                    Step::Interface,
                    ErrorKind::LinkDown,
                    format!("no carrier after {timeout:?}"),
                )
                .on(&self.name)
                .hint("is the cable in, and the other end up?"));
            }
            thread::sleep(left.min(PAUSE));
        }
    }
}
