//! Opening a socket, step by step. What was made is unmade when a later step fails.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use super::{
    CopyMode, Mode, Receiver, Sender, Socket, SocketConfig,
    config::DEFAULT_BUDGET,
    core::Core,
    endpoint::Endpoint,
    queue::{Queue, Share},
};
use crate::{
    Error, ErrorKind, Facts, Interface, QueueId, Result, RingSize, Step,
    ring::{Consumer, Producer},
    sync::{Arc, lock},
    sys::{
        sysfs::{self, Namespace},
        uapi::{Desc, MmapOffsets},
        xsk::{self, RingKind},
    },
    umem::{DeviceQueue, Prefilled, Registration, Umem},
};

/// How long a bind is tried again on EBUSY: teardown of a queue's last socket is asynchronous, and takes
/// a driver longer that has to stop its hardware.
const BUSY_COPY: Duration = Duration::from_secs(1);
const BUSY_ZERO_COPY: Duration = Duration::from_secs(10);

/// How long a socket that was dropped may still be open: whoever counts frames or reads its statistics
/// on another thread has it in hand for that moment.
const IN_HAND: Duration = Duration::from_millis(250);

/// How long a registration is tried again on ENOBUFS: what a closed UMEM had locked is given back
/// asynchronously, after some 15 ms.
const STILL_CHARGED: Duration = Duration::from_millis(100);

/// What the kernel charges to SO_SNDBUF for a frame in flight, beside its chunk: a bound.
const FRAME_OVERHEAD: u32 = 1024;

/// What to do where AF_XDP sockets are not permitted.
const NET_RAW: &str = "CAP_NET_RAW is missing: run as root, or give the binary this capability";

/// What is wrong with a socket that was handed over after it had been used.
const USED: &str = "the socket that was handed over has memory or rings already";
const UNUSED: &str = "hand over a new one for every Socket: what Socket::unbound returned";

/// How a socket gets to its UMEM and queue.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// It registers the memory itself.
    Register(CopyMode),
    /// It shares the registration of a socket on another queue or device.
    OtherQueue(Registration, &'a OwnedFd),
}

struct Opening<'a> {
    umem: &'a Umem,
    interface: &'a Interface,
    queue: QueueId,
    /// The same two, for all namespaces.
    place: DeviceQueue,
    config: &'a SocketConfig,
    /// The socket, where it was made by somebody else; until it is used.
    handed: Cell<Option<OwnedFd>>,
    is_handed: bool,
}

/// The network namespace of the thread.
fn namespace() -> Result<Namespace> {
    sysfs::namespace().map_err(|source| {
        Error::os(
            Step::Interface,
            "which network namespace the thread is in cannot be told",
            source,
        )
    })
}

/// A socket on no queue yet, for somebody else to put on one of this interface.
pub(super) fn unbound(interface: &Interface) -> Result<OwnedFd> {
    let fd = xsk::socket().map_err(|source| explain_socket(source).on(interface.name()))?;
    xsk::bind_to_device(fd.as_fd(), interface.name()).map_err(|source| {
        Error::os(Step::SocketOption, "SO_BINDTODEVICE cannot be set", source).on(interface.name())
    })?;
    Ok(fd)
}

fn explain_socket(source: io::Error) -> Error {
    let error = Error::os(Step::OpenSocket, "AF_XDP", source);
    match error.raw_os_error() {
        Some(libc::EPERM) => error.hint(NET_RAW),
        Some(libc::EAFNOSUPPORT) => error.hint("the kernel lacks CONFIG_XDP_SOCKETS"),
        _ => error,
    }
}

pub(super) fn open(
    umem: &Umem,
    interface: &Interface,
    queue: QueueId,
    config: &SocketConfig,
    handed: Option<OwnedFd>,
) -> Result<Socket> {
    let is_handed = handed.is_some();
    let namespace = namespace().map_err(|error| error.on(interface.name()).queue_is(queue))?;
    let place =
        DeviceQueue { namespace: Some(namespace), ifindex: interface.index(), queue: queue.get() };
    let handed = Cell::new(handed);
    let opening = Opening { umem, interface, queue, place, config, handed, is_handed };
    let facts = opening.check()?;
    opening.check_handed()?;
    // Held throughout: whether to share or to register is decided by who else is bound.
    let mut registrations = lock(umem.registrations());
    let started = Instant::now();
    while registrations.has_queue(place) {
        if started.elapsed() < IN_HAND {
            drop(registrations);
            thread::sleep(Duration::from_millis(1));
            registrations = lock(umem.registrations());
            continue;
        }
        return Err(opening
            .name(Error::new(
                Step::Bind,
                ErrorKind::Busy,
                "a socket of this UMEM is bound to the queue already",
            ))
            .hint("open further sockets on the queue with `share_queue` on that one"));
    }
    let living = registrations.living();
    let (socket, fd, registration) = opening.try_ways(&facts, &living)?;
    registrations.add(&fd, place, registration);
    Ok(socket)
}

impl Opening<'_> {
    fn name(&self, error: Error) -> Error {
        error.on(self.interface.name()).queue_is(self.queue).asked(self.config.to_string())
    }

    fn failed(&self, step: Step, reason: &'static str, source: io::Error) -> Error {
        self.name(Error::os(step, reason, source))
    }

    /// Refuses what the kernel would refuse without a word.
    fn check(&self) -> Result<Facts> {
        let bad = |reason: &'static str, hint: &'static str| {
            Err(self.name(Error::new(Step::Configure, ErrorKind::InvalidInput, reason)).hint(hint))
        };
        if self.config.rx.is_none() && self.config.tx.is_none() {
            return bad("a socket without RX and TX ring", "leave one of them");
        }
        if let Some(busy_poll) = self.config.busy_poll {
            busy_poll.check().map_err(|error| self.name(error))?;
        }
        let tx = self.config.tx.map_or(0, RingSize::get);
        if self.config.tx_budget.is_some_and(|budget| !(DEFAULT_BUDGET..=tx).contains(&budget)) {
            return bad(
                "the budget of a call to send is outside its range",
                "32 to the size of the TX ring; leave it out for the most there is",
            );
        }
        let facts = self.interface.facts().map_err(|error| self.name(error))?;
        if !facts.up {
            let error = Error::new(Step::Bind, ErrorKind::LinkDown, "the interface is down");
            let name = self.interface.name();
            return Err(self
                .name(error)
                .hint(format!("set it up first: ip link set dev {name} up")));
        }
        let active = facts.queues.active;
        if self.queue.get() >= active {
            return Err(self
                .name(Error::new(Step::Bind, ErrorKind::NotFound, "there is no such queue"))
                .hint(format!("{} has {}", self.interface.name(), facts.queues)));
        }
        Ok(facts)
    }

    /// Refuses a descriptor of something else.
    fn check_handed(&self) -> Result<()> {
        let Some(fd) = self.handed.take() else { return Ok(()) };
        let (is_socket, namespace) = (xsk::is_xdp(fd.as_fd()), sysfs::namespace_of(fd.as_fd()));
        self.handed.set(Some(fd));
        let error = match is_socket {
            // It is bound there, where another interface has the number.
            Ok(true) if namespace.is_some() && namespace != self.place.namespace => {
                return Err(self
                    .name(Error::new(
                        Step::OpenSocket,
                        ErrorKind::InvalidInput,
                        "the socket was made in another network namespace than this thread's",
                    ))
                    .hint("enter the namespace in which Socket::unbound was called"));
            }
            Ok(true) => return Ok(()),
            Ok(false) => Error::new(
                Step::OpenSocket,
                ErrorKind::Corrupt,
                "the descriptor is that of a socket of another family than AF_XDP",
            ),
            Err(source) => {
                Error::os(Step::OpenSocket, "the descriptor is not that of a socket", source)
                    .with_kind(ErrorKind::Corrupt)
            }
        };
        Err(self.name(error).hint("hand over what Socket::unbound returned"))
    }

    /// Chooses between sharing a registration and making one, by the mode that is wanted.
    fn try_ways(
        &self,
        facts: &Facts,
        living: &[(Registration, Arc<OwnedFd>)],
    ) -> Result<(Socket, Arc<OwnedFd>, Registration)> {
        let matching = |zero_copy: bool| {
            let wanted = Registration {
                zero_copy,
                need_wakeup: self.config.need_wakeup,
                multi_buffer: self.config.multi_buffer,
            };
            living
                .iter()
                .find(|(registration, _)| *registration == wanted)
                .map(|(registration, fd)| Way::OtherQueue(*registration, fd))
        };
        // The kernel would give a zero-copy device silently what the registration's first socket had.
        let can = facts.xdp.as_ref().is_none_or(|xdp| xdp.zero_copy);
        let copy = || matching(false).unwrap_or(Way::Register(CopyMode::Copy));
        match self.config.copy_mode {
            CopyMode::Copy => self.bind(facts, copy()),
            CopyMode::ZeroCopy => self
                .bind(facts, matching(true).unwrap_or(Way::Register(CopyMode::ZeroCopy)))
                .map_err(|error| self.explain_zero_copy(error, facts)),
            CopyMode::Auto if !can => self.bind(facts, copy()),
            CopyMode::Auto => {
                if let Some(way) = matching(true) {
                    return self.bind(facts, way).or_else(|error| match error.kind() {
                        // What has been tried once with a socket cannot be undone, and another one
                        // may not be made here.
                        ErrorKind::Unsupported | ErrorKind::InvalidInput if !self.is_handed => {
                            self.bind(facts, copy())
                        }
                        _ => Err(error),
                    });
                }
                self.bind(facts, Way::Register(CopyMode::Auto))
            }
        }
    }

    fn explain_zero_copy(&self, error: Error, facts: &Facts) -> Error {
        if error.step() != Step::Bind {
            return error;
        }
        match (error.kind(), facts.xdp.as_ref()) {
            (ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::NotFound, _) => {
                let segments = match facts.xdp.as_ref().and_then(|xdp| xdp.zc_max_segments) {
                    _ if !self.config.multi_buffer => String::new(),
                    Some(most) => format!(", multi-buffer: {most} frames"),
                    None => ", multi-buffer: no".into(),
                };
                error.with_kind(ErrorKind::Unsupported).hint(format!(
                    "{}: {facts}{segments}; use CopyMode::Auto to fall back to copy",
                    self.interface.name()
                ))
            }
            _ => error,
        }
    }

    fn bind(&self, facts: &Facts, way: Way<'_>) -> Result<(Socket, Arc<OwnedFd>, Registration)> {
        let Self { umem, interface, place, config, .. } = *self;
        let fd = Arc::new(self.socket()?);
        if let Way::Register(_) = way {
            self.register(&fd)?;
        }
        let (rx, tx) = self.rx_tx(&fd)?;
        let tx_budget = self.tx_budget(&fd)?;
        let offsets = self.offsets(&fd)?;
        let ring = |kind, size: RingSize| self.size(&fd, kind, size);
        ring(RingKind::Fill, config.fill)?;
        ring(RingKind::Completion, config.completion)?;
        let mapped = |source| self.failed(Step::MapRings, "a ring cannot be mapped", source);
        let fill = Producer::<u64>::map(fd.as_fd(), RingKind::Fill, config.fill, &offsets.fill)
            .map_err(mapped)?;
        let completion = Consumer::<u64>::map(
            fd.as_fd(),
            RingKind::Completion,
            config.completion,
            &offsets.completion,
        )
        .map_err(mapped)?;
        let can_be_zero_copy = match way {
            Way::Register(mode) => mode != CopyMode::Copy,
            Way::OtherQueue(registration, _) => registration.zero_copy,
        };
        let frames = match (config.rx_size(), can_be_zero_copy) {
            (None, true) => config.fill.get().min(umem.pool().len() / 2),
            _ => config.fill_target(),
        };
        // Before bind: drivers lose or leak buffers where a zero-copy queue begins with an empty Fill ring.
        let mut prefilled = Prefilled::new(umem, fill, frames);
        let (flags, shared) = match way {
            Way::Register(mode) => {
                let mode = match mode {
                    CopyMode::Auto => 0,
                    CopyMode::Copy => libc::XDP_COPY,
                    CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
                };
                let wakeup = if config.need_wakeup { libc::XDP_USE_NEED_WAKEUP } else { 0 };
                let several = if config.multi_buffer { libc::XDP_USE_SG } else { 0 };
                (mode | wakeup | several, None)
            }
            Way::OtherQueue(_, fd) => (libc::XDP_SHARED_UMEM, Some(fd.as_fd())),
        };
        let patience = match way {
            Way::Register(CopyMode::Copy) => BUSY_COPY,
            Way::OtherQueue(registration, _) if !registration.zero_copy => BUSY_COPY,
            _ => BUSY_ZERO_COPY,
        };
        let started = Instant::now();
        loop {
            match xsk::bind(fd.as_fd(), place.ifindex, place.queue, flags, shared) {
                Ok(()) => break,
                Err(source)
                    if source.raw_os_error() == Some(libc::EBUSY)
                        && started.elapsed() < patience =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(source) => return Err(self.explain_bind(source, started.elapsed())),
            }
        }
        let zero_copy = match xsk::zero_copy(fd.as_fd()) {
            Ok(zero_copy) => zero_copy,
            Err(source) => {
                prefilled.quarantine(place);
                return Err(self.failed(Step::Statistics, "XDP_OPTIONS cannot be read", source));
            }
        };
        // Bound: nobody else has the queue, so that what an earlier socket left there is free.
        umem.queue_is_free(place, prefilled.frames());
        if config.rx_size().is_none() && !zero_copy {
            prefilled.withdraw();
        }
        let segments = facts.xdp.as_ref().and_then(|xdp| xdp.zc_max_segments);
        let tx_budget = tx_budget.filter(|_| !zero_copy);
        let mode =
            Mode { tx_budget, launch_time: launch_time(facts), ..config.mode(zero_copy, segments) };
        let registration = registration(mode);
        let endpoint = Endpoint::Kernel(fd.clone());
        let place = (interface.name(), place);
        let rings = (rx, tx, prefilled, completion);
        let socket = assemble(umem, config, mode, place, rings, endpoint);
        if self.is_handed {
            // Whoever made it may have a descriptor, too.
            socket.receiver.core.queue.expose();
        }
        Ok((socket, fd, registration))
    }

    /// Gives the memory to the kernel. That of a UMEM closed just before stays charged for a moment.
    fn register(&self, fd: &OwnedFd) -> Result<()> {
        let started = Instant::now();
        loop {
            match self.umem.register(fd.as_fd()) {
                Ok(()) => return Ok(()),
                Err(source)
                    if source.raw_os_error() == Some(libc::ENOBUFS)
                        && started.elapsed() < STILL_CHARGED =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(source) => return Err(self.explain_registration(source)),
            }
        }
    }

    fn socket(&self) -> Result<OwnedFd> {
        let socket = match self.handed.take() {
            Some(fd) => fd,
            None => xsk::socket().map_err(|source| self.name(explain_socket(source)))?,
        };
        if let Some(busy_poll) = self.config.busy_poll {
            busy_poll.set(socket.as_fd()).map_err(|error| self.name(error))?;
        }
        Ok(socket)
    }

    fn size(&self, fd: &OwnedFd, kind: RingKind, size: RingSize) -> Result<()> {
        xsk::set_ring_size(fd.as_fd(), kind, size.get()).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EBUSY | libc::EINVAL) if self.is_handed => self
                    .failed(Step::MapRings, USED, source)
                    .with_kind(ErrorKind::Busy)
                    .hint(UNUSED),
                _ => self
                    .failed(Step::MapRings, "the kernel has no memory for a ring", source)
                    .hint("use smaller rings"),
            }
        })
    }

    fn offsets(&self, fd: &OwnedFd) -> Result<MmapOffsets> {
        xsk::mmap_offsets(fd.as_fd())
            .map_err(|source| {
                self.failed(Step::MapRings, "XDP_MMAP_OFFSETS cannot be read", source)
            })?
            .ok_or_else(|| {
                self.name(Error::new(
                    Step::MapRings,
                    ErrorKind::Unsupported,
                    "the kernel's rings have no flags: it is older than 5.4",
                ))
            })
    }

    /// The socket's own two rings, and how much it may have in flight.
    fn rx_tx(&self, fd: &OwnedFd) -> Result<RxTx> {
        for (kind, size) in [(RingKind::Rx, self.config.rx), (RingKind::Tx, self.config.tx)] {
            if let Some(size) = size {
                self.size(fd, kind, size)?;
            }
        }
        let offsets = self.offsets(fd)?;
        let mapped = |source| self.failed(Step::MapRings, "a ring cannot be mapped", source);
        let rx = self
            .config
            .rx
            .map(|size| Consumer::map(fd.as_fd(), RingKind::Rx, size, &offsets.rx))
            .transpose()
            .map_err(mapped)?;
        let tx = self
            .config
            .tx
            .map(|size| Producer::map(fd.as_fd(), RingKind::Tx, size, &offsets.tx))
            .transpose()
            .map_err(mapped)?;
        if let Some(size) = self.config.tx {
            let frame = self.charge();
            xsk::set_send_buffer(fd.as_fd(), size.get().saturating_mul(frame)).map_err(
                |source| self.failed(Step::SocketOption, "SO_SNDBUF cannot be set", source),
            )?;
        }
        Ok((rx, tx))
    }

    /// Lets one call send all of the TX ring, or as much as was asked for; returns what it became.
    fn tx_budget(&self, fd: &OwnedFd) -> Result<Option<u32>> {
        let all = self.config.tx.map(RingSize::get).filter(|size| *size >= DEFAULT_BUDGET);
        let Some(budget) = self.config.tx_budget.or(all) else { return Ok(None) };
        match xsk::set_tx_budget(fd.as_fd(), budget) {
            Ok(()) => Ok(Some(budget)),
            Err(source) if self.config.tx_budget.is_some_and(|budget| budget != DEFAULT_BUDGET) => {
                Err(explain_budget(self.failed(
                    Step::SocketOption,
                    "XDP_MAX_TX_SKB_BUDGET cannot be set",
                    source,
                )))
            }
            Err(_) => Ok(None),
        }
    }

    /// What the kernel charges to SO_SNDBUF for a frame in flight: a bound. All but the first frame of a
    /// packet are copied to pages of their own.
    fn charge(&self) -> u32 {
        let chunk = self.umem.chunk_size().bytes();
        let page = u32::try_from(crate::sys::page_size()).unwrap_or(chunk);
        FRAME_OVERHEAD + if self.config.multi_buffer { chunk.max(page) } else { chunk }
    }

    fn explain_registration(&self, source: io::Error) -> Error {
        let bytes = u64::from(self.umem.chunks()) * u64::from(self.umem.chunk_size().bytes());
        if self.is_handed && source.raw_os_error() == Some(libc::EBUSY) {
            return self.failed(Step::RegisterUmem, USED, source).hint(UNUSED);
        }
        let error = self.failed(Step::RegisterUmem, "the kernel does not take the memory", source);
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => {
                let limit =
                    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
                let limit = limit.map_or_else(|_| "unknown".into(), |(soft, _)| soft.to_string());
                let inherited = if self.is_handed {
                    "; a privileged process can raise it for the one that it starts (setrlimit, prlimit)"
                } else {
                    ""
                };
                error.with_kind(ErrorKind::Limit).hint(format!(
                    "it has to lock {bytes} bytes, and RLIMIT_MEMLOCK allows {limit}, once per mode \
                     in which the memory is used: raise it (ulimit -l), use fewer chunks, or give the \
                     process CAP_IPC_LOCK{inherited}"
                ))
            }
            Some(libc::EINVAL) if self.umem.has_tx_metadata() => error
                .with_kind(ErrorKind::Unsupported)
                .hint("TX metadata takes Linux 6.8 with its stable updates, or 6.11"),
            Some(libc::EINVAL) if self.umem.chunk_size().is_unaligned() => {
                error.hint("unaligned chunks take Linux 5.4")
            }
            Some(libc::ENOMEM) => error
                .with_kind(ErrorKind::Limit)
                .hint(format!("{bytes} bytes of memory are not to be had; use fewer chunks")),
            _ => error,
        }
    }

    fn explain_bind(&self, source: io::Error, tried: Duration) -> Error {
        let error = self.failed(Step::Bind, "the kernel refused", source);
        match error.raw_os_error() {
            Some(libc::EBUSY) => error.hint(format!(
                "tried for {} ms: another socket has the queue, here or in another process; a queue \
                 has one, unless sockets share it with `share_queue`",
                tried.as_millis()
            )),
            Some(libc::EBADF) => error.hint(
                "the interface of another socket of this UMEM was deleted just now: try again",
            ),
            Some(libc::EOPNOTSUPP) => error.hint("the driver cannot do that"),
            Some(libc::EPERM) => error.hint(NET_RAW),
            Some(libc::EINVAL)
                if self.config.multi_buffer
                    && xsk::knows_multi_buffer().is_ok_and(|knows| !knows) =>
            {
                error
                    .with_kind(ErrorKind::Unsupported)
                    .hint("this kernel has no multi-buffer sockets: it takes Linux 6.6")
            }
            Some(libc::EINVAL | libc::ENODEV) if self.is_handed => error.hint(
                "a socket that was handed over goes to the interface and the network namespace that it \
                 was made for, and no other",
            ),
            _ => error,
        }
    }
}

/// Whether the device sends at a given time: only then is it sure that the kernel knows that request, which
/// jams the TX ring otherwise.
fn launch_time(facts: &Facts) -> bool {
    facts.xdp.as_ref().is_some_and(|xdp| xdp.tx_metadata.launch_time)
}

fn explain_budget(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => {
            error.hint("it takes Linux 6.17; leave the budget out for the most there is")
        }
        _ => error,
    }
}

/// What the next socket of this mode can share.
fn registration(mode: Mode) -> Registration {
    let Mode { zero_copy, need_wakeup, multi_buffer, .. } = mode;
    Registration { zero_copy, need_wakeup, multi_buffer }
}

/// A socket's own two rings.
type RxTx = (Option<Consumer<Desc>>, Option<Producer<Desc>>);

/// RX, TX, Fill with what is in it, and Completion.
type FourRings<'a> = (Option<Consumer<Desc>>, Option<Producer<Desc>>, Prefilled<'a>, Consumer<u64>);

/// Puts a sole socket of a queue together, once it is bound.
pub(super) fn assemble(
    umem: &Umem,
    config: &SocketConfig,
    mode: Mode,
    (interface, place): (&str, DeviceQueue),
    (rx, tx, prefilled, completion): FourRings<'_>,
    endpoint: Endpoint,
) -> Socket {
    let (fill, filled) = prefilled.keep();
    let queue_id = QueueId::new(place.queue);
    let queue =
        Queue::new(umem, place, config, [fill.indices(), completion.indices()], endpoint.clone());
    queue.filled.add(filled);
    let levels =
        [rx.as_ref().map(|rx| rx.indices().clone()), tx.as_ref().map(|tx| tx.indices().clone())];
    let core = Core::new(umem, interface, queue_id, mode, levels, endpoint, queue);
    Socket {
        receiver: Receiver::new(core.clone(), rx, Share::Sole(fill), config),
        sender: Sender::new(core, tx, Share::Sole(completion), config),
    }
}

/// A further socket on a queue: it has RX and TX of its own, and shares Fill and Completion.
pub(super) fn share_queue(socket: &mut Socket, config: &SocketConfig) -> Result<Socket> {
    let core = socket.receiver.core.clone();
    if !socket.is_whole() {
        return Err(core
            .error(Step::Configure, ErrorKind::InvalidInput, "its halves are those of two sockets")
            .hint("put back the half that `split_mut` let you take"));
    }
    let config = &SocketConfig {
        fill: core.queue.fill_size,
        completion: core.queue.completion_size,
        copy_mode: if core.mode.zero_copy { CopyMode::ZeroCopy } else { CopyMode::Copy },
        need_wakeup: core.mode.need_wakeup,
        multi_buffer: core.mode.multi_buffer,
        ..config.clone()
    };
    #[cfg(feature = "fake")]
    if let Endpoint::Fake(kernel) = &core.endpoint {
        let (rings, kernel) = kernel.share(config)?;
        let mode = config.mode(false, None);
        return Ok(assemble_sharing(socket, config, mode, rings, Endpoint::Fake(kernel)));
    }
    let place = core.queue.place;
    let here = namespace().map_err(|error| error.on(&core.interface).queue_is(core.queue_id))?;
    if place.namespace != Some(here) {
        let reason = "the thread is in another network namespace than the socket's interface";
        return Err(core
            .error(Step::Configure, ErrorKind::InvalidInput, reason)
            .hint("share the queue in the namespace where the socket was opened"));
    }
    let interface = Interface::by_index(place.ifindex)?;
    let opening = Opening {
        umem: &core.umem,
        interface: &interface,
        queue: core.queue_id,
        place,
        config,
        handed: Cell::new(None),
        is_handed: false,
    };
    let facts = opening.check()?;
    let fd = Arc::new(opening.socket()?);
    let (rx, tx) = opening.rx_tx(&fd)?;
    let tx_budget = opening.tx_budget(&fd)?.filter(|_| !core.mode.zero_copy);
    xsk::bind(
        fd.as_fd(),
        place.ifindex,
        place.queue,
        libc::XDP_SHARED_UMEM,
        Some(core.endpoint.as_fd()),
    )
    .map_err(|source| opening.explain_bind(source, Duration::ZERO))?;
    lock(core.umem.registrations()).add(&fd, place, registration(core.mode));
    let segments = facts.xdp.as_ref().and_then(|xdp| xdp.zc_max_segments);
    let mode = Mode {
        tx_budget,
        launch_time: launch_time(&facts),
        ..config.mode(core.mode.zero_copy, segments)
    };
    Ok(assemble_sharing(socket, config, mode, (rx, tx), Endpoint::Kernel(fd)))
}

/// Puts a further socket of a queue together, once it is bound.
fn assemble_sharing(
    socket: &mut Socket,
    config: &SocketConfig,
    mode: Mode,
    (rx, tx): RxTx,
    endpoint: Endpoint,
) -> Socket {
    let first = socket.receiver.core.clone();
    let queue = first.queue.clone();
    // From here on the queue's rings are common property.
    socket.receiver.fill.ring.put(&queue);
    socket.sender.completion.put(&queue);
    let levels =
        [rx.as_ref().map(|rx| rx.indices().clone()), tx.as_ref().map(|tx| tx.indices().clone())];
    let (umem, interface) = (&first.umem, &first.interface);
    let core = Core::new(umem, interface, first.queue_id, mode, levels, endpoint, queue);
    // No program is detached under this socket either, whichever of the two is closed first.
    let attachment = lock(&first.attachment).clone();
    *lock(&core.attachment) = attachment;
    Socket {
        receiver: Receiver::new(core.clone(), rx, Share::Common, config),
        sender: Sender::new(core, tx, Share::Common, config),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_budget_is_named() {
        let source = io::Error::from_raw_os_error(libc::ENOPROTOOPT);
        let error = explain_budget(Error::os(Step::SocketOption, "a budget", source));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("6.17"), "{error}");
    }
}
