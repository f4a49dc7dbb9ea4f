//! Holding interrupts back, and no more.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
    time::Duration,
};

use nix::errno::Errno;

use super::{
    Interface, QueueId,
    netlink::{self, NapiControl, NetlinkRefusal},
    record::Record,
    stale::{self, Change},
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::sysfs::Sysfs,
};

/// How long a driver's interrupts are held back while packets are few.
///
/// After a round of the driver's receive loop that found nothing, the interrupt is normally switched on
/// again, so that under load packets come in as many small rounds. With deferral it stays off for a number of
/// empty rounds, and a timer starts the next one: packets come in fewer, larger rounds. On veth this alone
/// raised reception by almost half. With [busy polling](crate::socket::BusyPoll) it is what lets your thread,
/// not the interrupt, run the loop.
///
/// The price is latency: a packet that arrives while the loop rests waits for the timer.
///
/// # Where it is set
///
/// For the queues' NAPI instances alone, through the netdev netlink family, where the kernel (6.13) and
/// the driver tell which these are; else for the whole device, through the `napi_defer_hard_irqs` and
/// `gro_flush_timeout` of sysfs (Linux 5.8), in the network namespace that the calling thread is in; and
/// without the CAP_SYS_ADMIN which that takes, for all NAPI instances of the device, where the kernel lists
/// them.
///
/// # When the process is killed
///
/// A killed process restores nothing: [`restore_stale`](super::restore_stale).
///
/// ```no_run
/// use std::time::Duration;
/// use xskit::{Interface, interface::Deferral};
///
/// let deferral = Deferral::default().hard_irqs(2).flush_timeout(Duration::from_micros(200));
/// let deferred = deferral.apply(&Interface::by_name("eth0")?)?;
/// // … until it is dropped, or restored.
/// deferred.restore()?;
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Deferral {
    hard_irqs: u32,
    flush_timeout: Duration,
}

impl Default for Deferral {
    /// 2 empty rounds, 200 microseconds.
    fn default() -> Self {
        Self { hard_irqs: 2, flush_timeout: Duration::from_micros(200) }
    }
}

/// Empty rounds, and nanoseconds.
type Values = (u32, u64);

impl Deferral {
    /// Empty rounds of the receive loop before the interrupt is switched on again: 1 to 2,147,483,647.
    #[doc(alias = "napi_defer_hard_irqs")]
    pub fn hard_irqs(mut self, rounds: u32) -> Self {
        self.hard_irqs = rounds;
        self
    }

    /// After how long the next round begins by itself, at least a nanosecond.
    #[doc(alias = "gro_flush_timeout")]
    pub fn flush_timeout(mut self, time: Duration) -> Self {
        self.flush_timeout = time;
        self
    }

    /// Holds the interrupts of all active queues back, until the guard is dropped.
    ///
    /// What a killed process has left in this network namespace is restored before.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for numbers out of range,
    /// [`Permission`](ErrorKind::Permission) without CAP_NET_ADMIN, and where the whole device has to be set,
    /// without CAP_SYS_ADMIN; [`Unsupported`](ErrorKind::Unsupported) before Linux 5.8,
    /// [`LinkGone`](ErrorKind::LinkGone) where the interface was deleted. Nothing is changed then.
    pub fn apply(self, interface: &Interface) -> Result<Deferred> {
        let active = interface.facts()?.queues.active;
        let queues: Vec<QueueId> = (0..active).map(QueueId::new).collect();
        self.apply_to(interface, &queues)
    }

    /// As [`apply`](Self::apply), for these queues, where they can be told apart; else for all.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn apply_to(self, interface: &Interface, queues: &[QueueId]) -> Result<Deferred> {
        let set =
            self.values().map_err(|error| error.on(interface.name()).asked(self.to_string()))?;
        stale::restore_first();
        let failed = |refusal| failed(interface, refusal);
        let (access, targets) = Access::open(interface, queues)?;
        let mut settings = Settings::default();
        for target in targets {
            // One that has gone meanwhile needs nothing.
            if let Some(before) = access.read(target).map_err(failed)? {
                settings.0.push(Setting { target, before, set });
            }
        }
        let record = stale::write_down(interface, &settings);
        // From here on dropping it undoes what was done.
        let deferred = Deferred { interface: interface.clone(), access, settings, record };
        for setting in &deferred.settings.0 {
            deferred.access.write(setting.target, set).map_err(failed)?;
        }
        Ok(deferred)
    }

    fn values(self) -> Result<Values> {
        if i32::try_from(self.hard_irqs).map_or(true, |rounds| rounds == 0) {
            return Err(Error::invalid("the number of rounds is out of range")
                .hint("1 to 2,147,483,647; no guard at all defers nothing"));
        }
        match u64::try_from(self.flush_timeout.as_nanos()) {
            Ok(nanos) if nanos > 0 => Ok((self.hard_irqs, nanos)),
            _ => Err(Error::invalid("the timeout is out of range").hint(
                "at least a nanosecond: without the timer, nothing would start the next round",
            )),
        }
    }
}

impl fmt::Display for Deferral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, {:?}", self.hard_irqs, self.flush_timeout)
    }
}

/// Keeps interrupts deferred. Dropping it restores what was before, in the network namespace in which it was
/// made, unless somebody else has changed it since.
///
/// Of two guards on one interface the first that is dropped leaves the other's values, and the other then
/// restores the first one's: keep one per interface.
#[derive(Debug)]
#[must_use = "dropping it ends the deferral"]
pub struct Deferred {
    interface: Interface,
    access: Access,
    /// Empty once restored.
    settings: Settings,
    record: Option<Record>,
}

impl Deferred {
    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether it is set for NAPI instances, not for the whole device.
    pub fn per_napi(&self) -> bool {
        self.settings.0.iter().all(|setting| setting.target != Target::Device)
    }

    /// The file in which it is written down what to restore if this process is killed. `None` where
    /// `/run/xskit` cannot be written.
    pub fn record(&self) -> Option<&Path> {
        self.record.as_ref().map(Record::path)
    }

    /// Restores what was before. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where the interface was deleted, [`ErrorKind::Permission`] where the
    /// process has lost CAP_NET_ADMIN: the record stays then.
    pub fn restore(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let undone = self.access.restore(&std::mem::take(&mut self.settings));
        stale::close(self.record.take(), undone.map_err(|refusal| failed(&self.interface, refusal)))
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // Nobody is left to be told: `restore` is for those who want to know.
        self.undo().ok();
    }
}

impl fmt::Display for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.per_napi() { "NAPI instances" } else { "device" };
        write!(f, "interrupts of {} deferred, per {whose}", self.interface)
    }
}

/// What carries the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Device,
    Napi(u32),
}

/// What was changed, from what to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    target: Target,
    before: Values,
    set: Values,
}

/// All that was changed of an interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings(Vec<Setting>);

impl Change for Settings {
    const WHAT: &'static str = "deferral";

    /// A line for each: the target, the values before, those that were set.
    fn write(&self) -> String {
        let line = |&Setting { target, before, set }: &Setting| {
            let target = match target {
                Target::Device => "device".into(),
                Target::Napi(id) => id.to_string(),
            };
            format!("{target} {} {} {} {}\n", before.0, before.1, set.0, set.1)
        };
        self.0.iter().map(line).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let settings = text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [target, irqs_before, nanos_before, irqs, nanos] = words[..] else { return None };
            let target = match target {
                "device" => Target::Device,
                id => Target::Napi(id.parse().ok()?),
            };
            let before = (irqs_before.parse().ok()?, nanos_before.parse().ok()?);
            let set = (irqs.parse().ok()?, nanos.parse().ok()?);
            Some(Setting { target, before, set })
        });
        settings.collect::<Option<_>>().map(Self)
    }

    fn undo(&self, interface: &Interface) -> Result<()> {
        let device = self.0.iter().any(|setting| setting.target == Target::Device);
        let access = Access::new(interface, device)?;
        access.restore(self).map_err(|refusal| failed(interface, refusal))
    }
}

/// The ways to an interface's numbers, usable from any network namespace.
#[derive(Debug)]
struct Access {
    index: u32,
    napis: Option<NapiControl>,
    device: Option<DeviceFiles>,
}

#[derive(Debug)]
struct DeviceFiles {
    hard_irqs: File,
    flush_timeout: File,
}

impl Access {
    /// The best way to these queues, and what carries their numbers.
    fn open(interface: &Interface, queues: &[QueueId]) -> Result<(Self, Vec<Target>)> {
        let napis = netlink::napis(interface.index).map_err(|r| failed(interface, r))?;
        let settable = |id: u32| napis.iter().any(|napi| napi.id == id && napi.deferral.is_some());
        let listed = netlink::rx_queues(interface.index)
            .map_err(|r| failed(interface, r))?
            .unwrap_or_default();
        let of_queues: Option<Vec<u32>> = queues
            .iter()
            .map(|queue| {
                let id = listed.iter().find(|listed| listed.id == queue.get())?.napi?;
                settable(id).then_some(id)
            })
            .collect();
        let all_settable = !napis.is_empty() && napis.iter().all(|napi| settable(napi.id));
        let mut targets: Vec<Target> = match of_queues {
            Some(ids) => ids.into_iter().map(Target::Napi).collect(),
            None => match Self::new(interface, true) {
                Ok(access) => return Ok((access, vec![Target::Device])),
                Err(error) if error.kind() == ErrorKind::Permission && all_settable => {
                    napis.iter().map(|napi| Target::Napi(napi.id)).collect()
                }
                Err(error) => return Err(error),
            },
        };
        // Queues may share one.
        targets.sort_by_key(|target| match target {
            Target::Device => 0,
            Target::Napi(id) => *id,
        });
        targets.dedup();
        Ok((Self::new(interface, false)?, targets))
    }

    fn new(interface: &Interface, device: bool) -> Result<Self> {
        let napis = NapiControl::open().map_err(|refusal| failed(interface, refusal))?;
        let device = device.then(|| DeviceFiles::open(interface)).transpose()?;
        Ok(Self { index: interface.index, napis, device })
    }

    /// `None` where it is gone.
    fn read(&self, target: Target) -> Result<Option<Values>, NetlinkRefusal> {
        match (target, &self.device, &self.napis) {
            (Target::Device, Some(files), _) => Ok(Some(files.read()?)),
            (Target::Napi(id), _, Some(napis)) => {
                Ok(napis.get(self.index, id)?.and_then(|napi| napi.deferral))
            }
            _ => Ok(None),
        }
    }

    fn write(&self, target: Target, values: Values) -> Result<(), NetlinkRefusal> {
        match (target, &self.device, &self.napis) {
            (Target::Device, Some(files), _) => files.write(values)?,
            (Target::Napi(id), _, Some(napis)) => {
                let set = napis.set(id, values)?;
                if !set && napis.get(self.index, id)?.is_some() {
                    return Err(Errno::EOPNOTSUPP.into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Each number that is still what was set becomes what it was before.
    fn restore(&self, settings: &Settings) -> Result<(), NetlinkRefusal> {
        for &Setting { target, before, set } in &settings.0 {
            let Some(now) = self.read(target)? else { continue };
            let restored = (
                if now.0 == set.0 { before.0 } else { now.0 },
                if now.1 == set.1 { before.1 } else { now.1 },
            );
            if restored != now {
                self.write(target, restored)?;
            }
        }
        Ok(())
    }
}

impl DeviceFiles {
    fn open(interface: &Interface) -> Result<Self> {
        let refused = |source| out_of_reach(interface, source);
        let name = interface.link()?.name;
        let sysfs = Sysfs::mount().map_err(refused)?;
        let files = Self {
            hard_irqs: sysfs.attribute(&name, "napi_defer_hard_irqs").map_err(refused)?,
            flush_timeout: sysfs.attribute(&name, "gro_flush_timeout").map_err(refused)?,
        };
        // Renamed in between, and the name given to another one?
        match sysfs.index(&name).map_err(refused)? {
            Some(index) if index == interface.index => Ok(files),
            _ => Err(interface.gone()),
        }
    }

    fn read(&self) -> io::Result<Values> {
        Ok((number(&self.hard_irqs)?, number(&self.flush_timeout)?))
    }

    /// The timer first: interrupts without it would be deferred by nothing.
    fn write(&self, (hard_irqs, nanos): Values) -> io::Result<()> {
        let put = |mut file: &File, value: u64| {
            file.rewind()?;
            file.write_all(value.to_string().as_bytes())
        };
        put(&self.flush_timeout, nanos)?;
        put(&self.hard_irqs, hard_irqs.into())
    }
}

fn number<T: std::str::FromStr>(mut file: &File) -> io::Result<T> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Why the whole device cannot be set.
fn out_of_reach(interface: &Interface, source: io::Error) -> Error {
    let error = Error::os(Step::Defer, "its sysfs cannot be reached", source).on(interface.name());
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => error.hint(
            "the driver names no NAPI instances, so that the whole device has to be set: \
             CAP_SYS_ADMIN and CAP_NET_ADMIN are needed, and to be root",
        ),
        Some(libc::ENOSYS | libc::ENOENT) => error
            .with_kind(ErrorKind::Unsupported)
            .hint("holding interrupts back takes Linux 5.8, and sysfs in the kernel"),
        _ => error,
    }
}

fn failed(interface: &Interface, refusal: NetlinkRefusal) -> Error {
    match refusal.errno {
        Errno::ENODEV => interface.gone(),
        errno => {
            let error = Error::os(Step::Defer, "the kernel refused", errno).on(interface.name());
            match (errno, refusal.message) {
                (Errno::EPERM | Errno::EACCES, _) => error.hint("CAP_NET_ADMIN is needed"),
                (_, Some(message)) => error.hint(format!("the kernel says: {message}")),
                (_, None) => error,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let settings = Settings(vec![
            Setting { target: Target::Device, before: (0, 0), set: (2, 200_000) },
            Setting { target: Target::Napi(513), before: (1, u64::MAX), set: (2, 200_000) },
        ]);
        let text = settings.write();
        assert_eq!(text, "device 0 0 2 200000\n513 1 18446744073709551615 2 200000\n");
        assert_eq!(Settings::read(&text), Some(settings));
        for nonsense in ["x", "device 0", "\n", "device 0 0 0 x\n"] {
            assert_eq!(Settings::read(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_kernel_without_it_is_named() {
        let interface = Interface { name: "eth0".into(), index: 7 };
        for errno in [libc::ENOSYS, libc::ENOENT] {
            let error = out_of_reach(&interface, io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("Linux 5.8"), "{error}");
        }
    }

    #[test]
    fn numbers_are_checked() {
        let deferral = Deferral::default();
        assert_eq!(deferral.values().unwrap(), (2, 200_000));
        for wrong in [
            deferral.hard_irqs(0),
            deferral.hard_irqs(1 << 31),
            deferral.flush_timeout(Duration::ZERO),
            deferral.flush_timeout(Duration::MAX),
        ] {
            assert_eq!(wrong.values().unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
