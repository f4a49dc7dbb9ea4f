//! [`Error`]: which step failed, on which interface and queue, what was asked, what the kernel said,
//! and what to do next.

use std::{borrow::Cow, fmt, io};

use crate::interface::QueueId;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A step that failed, in the words of the person who hit it.
///
/// [`Display`](fmt::Display) prints one line: the step, interface and queue, what was asked, the
/// reason, the errno with its name, and what to do next. [`source`](std::error::Error::source) gives
/// the [`io::Error`] where the kernel refused something; [`kind`](Self::kind) is for programs that
/// decide by the cause.
pub struct Error(Box<Inner>);

struct Inner {
    step: Step,
    kind: ErrorKind,
    interface: Option<String>,
    queue: Option<QueueId>,
    asked: Option<Cow<'static, str>>,
    reason: Cow<'static, str>,
    source: Option<io::Error>,
    hint: Option<Cow<'static, str>>,
}

/// The step at which an [`Error`] arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Validating what the caller asked for, before any system call.
    Configure,
    /// Finding an interface or asking what it is and has.
    Interface,
    /// Mapping or adopting the UMEM's memory.
    AllocateUmem,
    /// `XDP_UMEM_REG`: giving the memory to the kernel.
    RegisterUmem,
    /// Creating an AF_XDP socket.
    OpenSocket,
    /// Setting a socket option.
    SocketOption,
    /// Creating or mapping one of the four rings.
    MapRings,
    /// Binding a socket to an interface and queue.
    Bind,
    /// Loading the XDP program into the kernel.
    LoadProgram,
    /// Attaching the XDP program to the interface.
    AttachProgram,
    /// Pinning an attached program, or taking over one that is.
    Pin,
    /// Reading or changing a BPF map.
    Map,
    /// Compiling or exchanging rules.
    Rules,
    /// Spreading packets for the kernel's stack over CPUs.
    StackCpus,
    /// Receiving packets.
    Receive,
    /// Sending packets.
    Send,
    /// Waiting for packets or for room.
    Wait,
    /// Reading statistics or options of a socket.
    Statistics,
    /// Changing an interface's offload, and back.
    Offload,
    /// Holding an interface's interrupts back, and no more.
    Defer,
    /// Bringing packets to an interface or to a queue of it, and no more.
    Steer,
    /// Restoring what a killed process has changed.
    Restore,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Interface => "look at interface",
            Self::AllocateUmem => "allocate UMEM",
            Self::RegisterUmem => "register UMEM",
            Self::OpenSocket => "open AF_XDP socket",
            Self::SocketOption => "set socket option",
            Self::MapRings => "map rings",
            Self::Bind => "bind",
            Self::LoadProgram => "load XDP program",
            Self::AttachProgram => "attach XDP program",
            Self::Pin => "pin XDP program",
            Self::Map => "access BPF map",
            Self::Rules => "set rules",
            Self::StackCpus => "spread packets over CPUs",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Wait => "wait",
            Self::Statistics => "read socket statistics",
            Self::Offload => "change offload",
            Self::Defer => "defer interrupts",
            Self::Steer => "steer packets",
            Self::Restore => "restore what a killed process has changed",
        })
    }
}

/// The cause of an [`Error`], for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value is outside its range, or two values do not go together.
    InvalidInput,
    /// An interface, a queue, a pinned object or a map that does not exist.
    NotFound,
    /// Taken by somebody else: a queue with a socket, an interface with a program.
    Busy,
    /// The kernel, driver or device cannot do what was asked.
    Unsupported,
    /// A capability is missing.
    Permission,
    /// A limit on memory, locked memory or file descriptors was reached.
    Limit,
    /// The interface is down.
    LinkDown,
    /// The interface was deleted, or moved to another network namespace. It is set down first, so that
    /// a call made meanwhile says [`LinkDown`](Self::LinkDown), and the next one this.
    LinkGone,
    /// A batch was given to a socket of another [`Umem`](crate::umem::Umem).
    WrongUmem,
    /// An object that is not what it claims to be: a corrupt program, a map of another type.
    Corrupt,
    /// Anything else the kernel said.
    Os,
}

impl Error {
    /// An error found before any system call.
    pub(crate) fn new(step: Step, kind: ErrorKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            step,
            kind,
            interface: None,
            queue: None,
            asked: None,
            reason: reason.into(),
            source: None,
            hint: None,
        }))
    }

    /// A range or combination that breaks a rule, found before any system call.
    pub(crate) fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Step::Configure, ErrorKind::InvalidInput, reason)
    }

    /// What a system call said. The kind follows the errno until [`with_kind`](Self::with_kind).
    pub(crate) fn os(
        step: Step,
        reason: impl Into<Cow<'static, str>>,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = source.into();
        let mut error = Self::new(step, kind_of(&source), reason);
        if matches!(source.raw_os_error(), Some(libc::EMFILE)) {
            // Whichever call it is that meets the limit first.
            error.0.hint = Some("too many open files: raise RLIMIT_NOFILE (ulimit -n)".into());
        }
        error.0.source = Some(source);
        error
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Names the interface.
    pub(crate) fn on(mut self, interface: impl Into<String>) -> Self {
        self.0.interface = Some(interface.into());
        self
    }

    /// Names the queue.
    pub(crate) fn queue_is(mut self, queue: QueueId) -> Self {
        self.0.queue = Some(queue);
        self
    }

    /// Says what was asked for: flags, sizes, modes.
    pub(crate) fn asked(mut self, asked: impl Into<Cow<'static, str>>) -> Self {
        self.0.asked = Some(asked.into());
        self
    }

    /// Says what the user can do next.
    pub(crate) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The step that failed.
    pub fn step(&self) -> Step {
        self.0.step
    }

    /// The cause, for programs that decide by it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The interface on which it failed, where there was one.
    pub fn interface(&self) -> Option<&str> {
        self.0.interface.as_deref()
    }

    /// The queue on which it failed, where there was one.
    pub fn queue(&self) -> Option<QueueId> {
        self.0.queue
    }

    /// The errno that the kernel returned, where it did.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.as_ref().and_then(io::Error::raw_os_error)
    }

    /// What the user can do next, where we know.
    pub fn next_step(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

fn kind_of(source: &io::Error) -> ErrorKind {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ErrorKind::Permission,
        Some(libc::ENODEV | libc::ENOENT | libc::ENXIO) => ErrorKind::NotFound,
        Some(libc::EBUSY | libc::EEXIST) => ErrorKind::Busy,
        Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::EAFNOSUPPORT | libc::ENOSYS) => {
            ErrorKind::Unsupported
        }
        Some(libc::ENOMEM | libc::ENOBUFS | libc::EMFILE | libc::ENFILE) => ErrorKind::Limit,
        Some(libc::ENETDOWN) => ErrorKind::LinkDown,
        Some(libc::EINVAL) => ErrorKind::InvalidInput,
        _ => ErrorKind::Os,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { step, interface, queue, asked, reason, source, hint, .. } = &*self.0;
        write!(f, "{step}")?;
        match (interface, queue) {
            (Some(interface), Some(queue)) if *step == Step::Interface => {
                write!(f, " {interface} for queue {queue}")?;
            }
            (Some(interface), Some(queue)) => write!(f, " queue {queue} of {interface}")?,
            (Some(interface), None) if matches!(step, Step::Configure | Step::Interface) => {
                write!(f, " {interface}")?;
            }
            (Some(interface), None) => write!(f, " on {interface}")?,
            (None, Some(queue)) => write!(f, " queue {queue}")?,
            (None, None) => {}
        }
        if let Some(asked) = asked {
            write!(f, " ({asked})")?;
        }
        write!(f, ": {reason}")?;
        if let Some(source) = source {
            match source.raw_os_error() {
                Some(code) => {
                    let errno = nix::errno::Errno::from_raw(code);
                    write!(f, ": {errno:?} ({})", errno.desc())?;
                }
                None => write!(f, ": {source}")?,
            }
        }
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    // `fn main() -> Result<(), xskit::Error>` prints this one: it has to be readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} [{:?}]", self.0.kind)
    }
}

// No `source`: the line has the errno already, and whoever prints the chain would print it twice.
impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = error.0.source.as_ref().map_or(io::ErrorKind::Other, io::Error::kind);
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_everything() {
        let error = Error::os(Step::Bind, "the queue does not exist", nix::errno::Errno::EINVAL)
            .on("eth0")
            .queue_is(QueueId::new(5))
            .asked("copy")
            .hint("eth0 has 4 active queues (0–3)");
        assert_eq!(
            error.to_string(),
            "bind queue 5 of eth0 (copy): the queue does not exist: EINVAL (Invalid argument); \
             eth0 has 4 active queues (0–3)"
        );
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(std::error::Error::source(&error).is_none(), "the errno is in the line");
    }

    #[test]
    fn without_a_queue_it_reads_as_well() {
        let of = |step| Error::new(step, ErrorKind::LinkDown, "why").on("eth0").to_string();
        assert_eq!(of(Step::AttachProgram), "attach XDP program on eth0: why");
        assert_eq!(of(Step::Interface), "look at interface eth0: why");
        let error = Error::new(Step::Interface, ErrorKind::Limit, "why").on("eth0");
        let text = error.queue_is(QueueId::new(5)).to_string();
        assert_eq!(text, "look at interface eth0 for queue 5: why");
    }
}
