//! What serves each queue: the NAPI instance, its interrupt, and the CPUs that take it.

use std::{fmt, fs, time::Duration};

use super::{Interface, QueueId, netlink};
use crate::{error::Result, sys::cpus::in_list};

/// A receive queue, and what serves it.
///
/// # Staleness
///
/// A snapshot, as [`Facts`](super::Facts) are: attaching a program and binding a socket make some drivers
/// set their queues up anew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueFacts {
    /// Its number.
    pub id: QueueId,
    /// The NAPI instance that runs its receive loop. `None` where the driver does not tell (veth), where the
    /// kernel cannot (before 6.8), and while the interface is down.
    pub napi: Option<Napi>,
    /// An AF_XDP socket is bound to it, by anybody. A kernel before 6.15 never says so, nor does one while
    /// the interface is down.
    #[doc(alias = "NETDEV_A_QUEUE_XSK")]
    pub socket: bool,
}

/// A NAPI instance: a receive loop of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Napi {
    /// The kernel's id of it, as `SO_INCOMING_NAPI_ID` gives it.
    #[doc(alias = "NETDEV_A_NAPI_ID")]
    pub id: u32,
    /// The interrupt that starts it. `None` where the driver does not tell.
    pub interrupt: Option<Interrupt>,
    /// Empty rounds before its interrupt is switched on again (Linux 6.13).
    #[doc(alias = "NETDEV_A_NAPI_DEFER_HARD_IRQS")]
    pub defer_hard_irqs: Option<u32>,
    /// After how long the next round begins by itself; zero for never (Linux 6.13).
    #[doc(alias = "NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT")]
    pub gro_flush_timeout: Option<Duration>,
}

/// An interrupt, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interrupt {
    /// Its number, as in `/proc/interrupts`.
    pub number: u32,
    /// The CPUs that take it: those in effect, or those that are allowed where the kernel does not tell
    /// these. Empty where `/proc/irq` does not say.
    #[doc(alias = "smp_affinity")]
    pub cpus: Vec<u32>,
}

impl Interface {
    /// The active receive queues, in order, and what serves each.
    ///
    /// ```
    /// # use xskit::Interface;
    /// for queue in Interface::by_name("lo")?.queue_facts()? {
    ///     println!("{queue}");
    /// }
    /// # Ok::<(), xskit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`](crate::ErrorKind::LinkGone) where it was deleted or moved to another
    /// namespace.
    pub fn queue_facts(&self) -> Result<Vec<QueueFacts>> {
        let active = self.facts()?.queues.active;
        let listed = netlink::rx_queues(self.index)
            .map_err(|refusal| self.failed("its queues cannot be listed", refusal))?
            .unwrap_or_default();
        let napis = self.napis()?;
        let facts = |id| {
            let listed = listed.iter().find(|queue| queue.id == id);
            let napi = listed.and_then(|queue| queue.napi);
            QueueFacts {
                id: QueueId::new(id),
                napi: napis.iter().find(|known| Some(known.id) == napi).cloned(),
                socket: listed.is_some_and(|queue| queue.socket),
            }
        };
        Ok((0..active).map(facts).collect())
    }

    /// Its NAPI instances, those included of which the driver does not tell which queue they serve. None on a
    /// kernel before 6.8, and while the interface is down.
    ///
    /// # Errors
    ///
    /// As [`queue_facts`](Self::queue_facts).
    pub fn napis(&self) -> Result<Vec<Napi>> {
        let napis = netlink::napis(self.index)
            .map_err(|refusal| self.failed("its NAPI instances cannot be listed", refusal))?;
        Ok(napis.into_iter().map(Napi::from).collect())
    }
}

impl From<netlink::Napi> for Napi {
    fn from(napi: netlink::Napi) -> Self {
        Self {
            id: napi.id,
            interrupt: napi.irq.map(Interrupt::new),
            defer_hard_irqs: napi.deferral.map(|(rounds, _)| rounds),
            gro_flush_timeout: napi.deferral.map(|(_, nanos)| Duration::from_nanos(nanos)),
        }
    }
}

impl Interrupt {
    fn new(number: u32) -> Self {
        // The same in all network namespaces.
        let list = |file: &str| {
            let text = fs::read_to_string(format!("/proc/irq/{number}/{file}")).ok()?;
            in_list(&text).filter(|cpus| !cpus.is_empty())
        };
        let cpus = list("effective_affinity_list").or_else(|| list("smp_affinity_list"));
        Self { number, cpus: cpus.unwrap_or_default() }
    }
}

impl fmt::Display for QueueFacts {
    /// For example `queue 0: NAPI 513, interrupt 34 on CPU 0, 2, an AF_XDP socket`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}: ", self.id)?;
        match &self.napi {
            Some(napi) => write!(f, "NAPI {}", napi.id)?,
            None => f.write_str("NAPI unknown")?,
        }
        if let Some(interrupt) = self.napi.as_ref().and_then(|napi| napi.interrupt.as_ref()) {
            write!(f, ", {interrupt}")?;
        }
        f.write_str(if self.socket { ", an AF_XDP socket" } else { "" })
    }
}

impl fmt::Display for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupt {}", self.number)?;
        for (index, cpu) in self.cpus.iter().enumerate() {
            f.write_str(if index == 0 { " on CPU " } else { ", " })?;
            write!(f, "{cpu}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_words() {
        let mut queue = QueueFacts { id: QueueId::new(3), napi: None, socket: true };
        assert_eq!(queue.to_string(), "queue 3: NAPI unknown, an AF_XDP socket");
        queue.socket = false;
        queue.napi = Some(Napi {
            id: 513,
            interrupt: Some(Interrupt { number: 34, cpus: vec![0, 2] }),
            defer_hard_irqs: None,
            gro_flush_timeout: None,
        });
        assert_eq!(queue.to_string(), "queue 3: NAPI 513, interrupt 34 on CPU 0, 2");
    }
}
