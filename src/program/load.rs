//! [`Loaded`]: the program in the kernel, verified, with its rules and maps.

use std::{
    borrow::Cow,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, LpmTrie, Map, MapData, MapType, PerCpuArray, lpm_trie::Key},
    programs::{RawTracePoint, Xdp, raw_trace_point::RawTracePointLink},
};

use nix::errno::Errno;

use super::{
    AttachMode, Program, ProgramOptions,
    counters::{self, Counters, Row},
    cpumap::{self, CpuMap},
    errors,
    map::SocketMap,
    rules::Rules,
    tables::{Table, Tables},
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    interface::{Interface, netlink::NetlinkRefusal},
    sys,
};

static PLAIN: &[u8] = aya::include_bytes_aligned!("xskit.bpf.o");
static FRAGS: &[u8] = aya::include_bytes_aligned!("xskit_frags.bpf.o");

/// The program's name in both objects.
const PROGRAM: &str = "xskit";
const TRACEPOINT: &str = "xskit_redirect_err";
const SOCKETS: &str = "SOCKETS";
const QUEUES: &str = "QUEUES";
const ERRORS: &str = "ERRORS";
const SOCKETS_ID: &str = "SOCKETS_ID";

/// The XDP program, loaded into the kernel and so verified, but not attached to any interface.
///
/// Linux 5.9.
pub struct Loaded {
    object: Cow<'static, [u8]>,
    options: ProgramOptions,
    /// Whether the rules in force look at VLAN tags.
    vlans: bool,
    /// The program in force and its tables of rules: all that an exchange replaces.
    generation: Ebpf,
    // What outlives an exchange.
    kept: Kept,
    socket_map: SocketMap,
    queues: PerCpuArray<MapData, Row>,
    redirect_errors: Option<RedirectErrors>,
    cpumap: Option<CpuMap>,
}

/// The maps that a program leaves to the next one in its place.
struct Kept {
    sockets: OwnedFd,
    queues: OwnedFd,
}

impl Kept {
    /// Whether both are such maps; for how many sockets.
    fn check(&self) -> Result<u32> {
        let open = |fd: &OwnedFd| -> Result<(MapType, u32, u32)> {
            let fd = fd
                .try_clone()
                .map_err(|error| Error::os(Step::Pin, "cannot duplicate a descriptor", error))?;
            let asked = |error| errors::map(error, "cannot ask what the map is");
            let info = MapData::from_fd(fd).and_then(|map| map.info()).map_err(asked)?;
            Ok((info.map_type().map_err(asked)?, info.value_size(), info.max_entries()))
        };
        let (kind, _, sockets) = open(&self.sockets)?;
        let row = u32::try_from(size_of::<Row>()).unwrap_or(u32::MAX);
        // A row for each socket, and one for the other queues.
        let rows = (MapType::PerCpuArray, row, sockets.saturating_add(1));
        if kind != MapType::XskMap || open(&self.queues)? != rows {
            return Err(Error::new(
                Step::Pin,
                ErrorKind::Corrupt,
                "what is pinned there are not the maps of this version's program",
            )
            .hint("remove them, and attach anew"));
        }
        Ok(sockets)
    }

    /// Puts them in the place of those that were made for a program.
    fn replace_in(&self, program: &mut Ebpf) -> Result<()> {
        for (name, kept) in [(SOCKETS, &self.sockets), (QUEUES, &self.queues)] {
            let map = program.map_mut(name).ok_or_else(|| no_such_map(name))?;
            sys::bpf::replace_map(map, kept.as_fd())
                .map_err(|error| Error::os(Step::Rules, "cannot share a map", error))?;
        }
        Ok(())
    }
}

/// The kernel's tracepoint, listened to for as long as this lives.
struct RedirectErrors {
    counts: PerCpuArray<MapData, Row>,
    _link: RawTracePointLink,
}

/// What the kernel says about a loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// The kernel's number for the program, as `bpftool prog show id` takes it.
    pub id: u32,
    /// Bytes of BPF code after verification, with the code of unused fields gone.
    pub translated_bytes: Option<u32>,
    /// Bytes of machine code; 0 where the kernel interprets.
    pub jitted_bytes: u32,
    /// How many instructions the verifier walked through, all paths together. Linux 5.16.
    pub verified_instructions: Option<u32>,
}

impl Loaded {
    /// Loads the embedded program with these rules.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for rules that contradict themselves and for no sockets at all, `Permission`
    /// without CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    pub fn new(rules: &Rules, options: &ProgramOptions) -> Result<Self> {
        Self::load(embedded(options), rules, options, None)
    }

    /// Loads the embedded program on the maps of another one, whose size counts.
    pub(super) fn on_maps(
        rules: &Rules,
        options: &ProgramOptions,
        sockets: OwnedFd,
        queues: OwnedFd,
    ) -> Result<Self> {
        let kept = Kept { sockets, queues };
        let options = ProgramOptions { sockets: kept.check()?, ..options.clone() };
        Self::load(embedded(&options), rules, &options, Some(kept))
    }

    /// Loads an object that was built from a changed source of the program.
    ///
    /// It must have the maps and the program of the original, and `options` must say whether its
    /// program is one for frags.
    ///
    /// # Errors
    ///
    /// `Corrupt` for anything that is not such an object, and for a program that the kernel's
    /// verifier refuses; see also [`new`](Self::new).
    pub fn from_object(
        object: impl Into<Vec<u8>>,
        rules: &Rules,
        options: &ProgramOptions,
    ) -> Result<Self> {
        Self::load(Cow::Owned(object.into()), rules, options, None)
    }

    fn load(
        object: Cow<'static, [u8]>,
        rules: &Rules,
        options: &ProgramOptions,
        kept: Option<Kept>,
    ) -> Result<Self> {
        let tables = Tables::compile(rules)?;
        if options.sockets == 0 {
            return Err(Error::invalid("a program for 0 sockets redirects nothing")
                .hint("as many as the interface has queues"));
        }
        if let Some(cpus) = &options.stack_cpus {
            cpus.check()?;
        }
        let mut generation = prepare(&object, &tables, options)?;
        let kept = match kept {
            Some(kept) => {
                kept.replace_in(&mut generation)?;
                kept
            }
            None => Kept {
                sockets: duplicate(&generation, SOCKETS)?,
                queues: duplicate(&generation, QUEUES)?,
            },
        };
        finish(&mut generation)?;
        let socket_map = SocketMap::from_data(take(&mut generation, SOCKETS)?)?;
        let queues = counter_rows(&mut generation, QUEUES)?;
        let redirect_errors = listen(&mut generation, kept.sockets.as_fd())?;
        let cpus = options.stack_cpus.as_ref();
        let cpumap = cpus.map(|cpus| CpuMap::start(&mut generation, cpus)).transpose()?;
        Ok(Self {
            object,
            options: options.clone(),
            vlans: rules.use_vlans(),
            generation,
            kept,
            socket_map,
            queues,
            redirect_errors,
            cpumap,
        })
    }

    /// Attaches the program to an interface.
    ///
    /// # Errors
    ///
    /// See [`Program::attach`].
    pub fn attach(self, interface: &Interface, mode: AttachMode) -> Result<Program> {
        Program::from_loaded(self, interface, mode)
    }

    /// Exchanges the rules. Nothing is attached yet, so no packet sees the moment between.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); the rules in force stay then.
    pub fn set_rules(&mut self, rules: &Rules) -> Result<()> {
        self.exchange(rules, |_| Ok(()))
    }

    /// Loads a program with other rules on the same sockets and counters, and lets it take the place
    /// of the one in force with `put_in_place`.
    pub(super) fn exchange(
        &mut self,
        rules: &Rules,
        put_in_place: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
    ) -> Result<()> {
        let tables = Tables::compile(rules)?;
        let mut next = prepare(&self.object, &tables, &self.options)?;
        self.kept.replace_in(&mut next)?;
        if let Some(cpumap) = &self.cpumap {
            cpumap.replace_in(&mut next)?;
        }
        finish(&mut next)?;
        put_in_place(program_fd(&next)?)?;
        self.generation = next;
        self.vlans = rules.use_vlans();
        Ok(())
    }

    /// The map that says which socket gets a queue's packets.
    pub fn socket_map(&self) -> &SocketMap {
        &self.socket_map
    }

    /// What became of the packets so far.
    pub fn counters(&self) -> Result<Counters> {
        let errors = self.redirect_errors.as_ref().map(|errors| &errors.counts);
        let mut counters = counters::read(&self.queues, errors)?;
        if let Some(cpumap) = &self.cpumap {
            counters.stack_cpus = cpumap.counters()?;
        }
        Ok(counters)
    }

    /// What the kernel says about the program.
    pub fn info(&self) -> Result<ProgramInfo> {
        let info = xdp(&self.generation)?.info().map_err(errors::program)?;
        Ok(ProgramInfo {
            id: info.id(),
            translated_bytes: info.size_translated(),
            jitted_bytes: info.size_jitted(),
            verified_instructions: info.verified_instruction_count(),
        })
    }

    /// The map of sockets and the counters, which an exchange keeps.
    pub(super) fn kept_maps(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.kept.sockets.as_fd(), self.kept.queues.as_fd())
    }

    pub(super) fn program_fd(&self) -> Result<BorrowedFd<'_>> {
        program_fd(&self.generation)
    }

    pub(super) fn uses_vlans(&self) -> bool {
        self.vlans
    }

    pub(super) fn options(&self) -> &ProgramOptions {
        &self.options
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("options", &self.options).finish_non_exhaustive()
    }
}

fn embedded(options: &ProgramOptions) -> Cow<'static, [u8]> {
    Cow::Borrowed(if options.frags { FRAGS } else { PLAIN })
}

pub(super) fn no_such_map(name: &str) -> Error {
    errors::corrupt(format!("no map {name}"))
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<MapData> {
    match ebpf.take_map(name) {
        Some(Map::XskMap(data)) => Ok(data),
        _ => Err(no_such_map(name)),
    }
}

pub(super) fn duplicate(ebpf: &Ebpf, name: &str) -> Result<OwnedFd> {
    match ebpf.map(name) {
        Some(Map::XskMap(data) | Map::PerCpuArray(data) | Map::CpuMap(data)) => {
            duplicate_fd(data.fd().as_fd())
        }
        _ => Err(no_such_map(name)),
    }
}

fn duplicate_fd(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned()
        .map_err(|error| Error::os(Step::LoadProgram, "cannot duplicate a descriptor", error))
}

pub(super) fn counter_rows(ebpf: &mut Ebpf, name: &str) -> Result<PerCpuArray<MapData, Row>> {
    let map = ebpf.take_map(name).ok_or_else(|| no_such_map(name))?;
    PerCpuArray::try_from(map).map_err(|error| errors::corrupt(format!("map {name}: {error}")))
}

fn xdp(ebpf: &Ebpf) -> Result<&Xdp> {
    let program = ebpf.program(PROGRAM).ok_or_else(|| errors::corrupt("no program xskit"))?;
    program.try_into().map_err(|_| errors::corrupt("xskit is no XDP program"))
}

fn program_fd(ebpf: &Ebpf) -> Result<BorrowedFd<'_>> {
    Ok(xdp(ebpf)?.fd().map_err(errors::program)?.as_fd())
}

/// Reads the object and creates its maps; the program itself is not in the kernel yet.
fn prepare(object: &[u8], tables: &Tables, options: &ProgramOptions) -> Result<Ebpf> {
    let filter = u32::from(tables.filter);
    let rows = options.sockets.checked_add(1).ok_or_else(|| {
        Error::invalid(format!("{} sockets are more than a BPF map takes", options.sockets))
    })?;
    let mut loader = EbpfLoader::new();
    loader
        .btf(None)
        .map_max_entries(SOCKETS, options.sockets)
        .map_max_entries(QUEUES, rows)
        .map_max_entries(ERRORS, rows)
        .override_global("QUEUE_COUNT", &options.sockets, true)
        .override_global("FILTER", &filter, true)
        .override_global("RULES", &tables.rules, true)
        .override_global("ETHER_TYPE_ANY", &tables.ether_types.any, true)
        .override_global("VLAN_ANY", &tables.vlans.any, true)
        .override_global("PROTOCOL_ANY", &tables.protocols.any, true)
        .override_global("SOURCE_ANY", &tables.sources.any, true)
        .override_global("DESTINATION_ANY", &tables.destinations.any, true)
        .override_global("SOURCE_PORT_ANY", &tables.source_ports.any, true)
        .override_global("DESTINATION_PORT_ANY", &tables.destination_ports.any, true);
    let cpus = cpumap::Prepared::new(options.stack_cpus.as_ref());
    cpumap::prepare(&mut loader, &cpus);
    // aya slices by offsets that it finds in the object: a corrupt one makes it panic.
    let mut ebpf = panic::catch_unwind(panic::AssertUnwindSafe(|| loader.load(object)))
        .map_err(|_| errors::corrupt("its sections do not fit together"))?
        .map_err(errors::object)?;

    fill(&mut ebpf, "ETHER_TYPES", &tables.ether_types)?;
    fill(&mut ebpf, "VLANS", &tables.vlans)?;
    fill(&mut ebpf, "SOURCE_PORTS", &tables.source_ports)?;
    fill(&mut ebpf, "DESTINATION_PORTS", &tables.destination_ports)?;
    fill_protocols(&mut ebpf, "PROTOCOLS", &tables.protocols)?;
    fill_trie(&mut ebpf, "SOURCES_V4", tables.sources.v4())?;
    fill_trie(&mut ebpf, "SOURCES_V6", tables.sources.v6())?;
    fill_trie(&mut ebpf, "DESTINATIONS_V4", tables.destinations.v4())?;
    fill_trie(&mut ebpf, "DESTINATIONS_V6", tables.destinations.v6())?;
    if let Some(cpus) = &options.stack_cpus {
        cpumap::fill(&mut ebpf, cpus)?;
    }
    Ok(ebpf)
}

/// Has the kernel verify and take the program.
fn finish(ebpf: &mut Ebpf) -> Result<()> {
    let program = ebpf.program_mut(PROGRAM).ok_or_else(|| errors::corrupt("no program xskit"))?;
    let program: &mut Xdp =
        program.try_into().map_err(|_| errors::corrupt("xskit is no XDP program"))?;
    program.load().map_err(errors::program)
}

fn fill(ebpf: &mut Ebpf, name: &str, table: &Table<u16>) -> Result<()> {
    let map = ebpf.map_mut(name).ok_or_else(|| no_such_map(name))?;
    let mut map: HashMap<_, u16, u64> = map.try_into().map_err(errors::table)?;
    for (key, mask) in &table.entries {
        map.insert(key, mask, 0).map_err(errors::table)?;
    }
    Ok(())
}

/// An array has all its entries from the start, so each of them is set.
fn fill_protocols(ebpf: &mut Ebpf, name: &str, table: &Table<u8>) -> Result<()> {
    let map = ebpf.map_mut(name).ok_or_else(|| no_such_map(name))?;
    let mut map: Array<_, u64> = map.try_into().map_err(errors::table)?;
    for protocol in 0..=u8::MAX {
        let mask = table.entries.get(&protocol).unwrap_or(&table.any);
        map.set(protocol.into(), mask, 0).map_err(errors::table)?;
    }
    Ok(())
}

fn fill_trie<const N: usize>(
    ebpf: &mut Ebpf,
    name: &str,
    entries: impl Iterator<Item = (u32, [u8; N], u64)>,
) -> Result<()> {
    let map = ebpf.map_mut(name).ok_or_else(|| no_such_map(name))?;
    let mut map: LpmTrie<_, [u8; N], u64> = map.try_into().map_err(errors::table)?;
    for (length, address, mask) in entries {
        let key = Key::new(length, address);
        map.insert(&key, mask, 0).map_err(errors::table)?;
    }
    Ok(())
}

/// Counts redirects that fail, where the kernel lets us: it needs CAP_PERFMON and Linux 5.13.
/// Where it does not, the counter is absent, and everything else works. A limit that was reached is no such
/// place: whoever has room finds the counter.
fn listen(ebpf: &mut Ebpf, sockets: BorrowedFd<'_>) -> Result<Option<RedirectErrors>> {
    match try_listen(ebpf, sockets) {
        Ok(errors) => Ok(Some(errors)),
        Err(error) if error.kind() == ErrorKind::Limit => Err(error),
        Err(_) => Ok(None),
    }
}

fn try_listen(ebpf: &mut Ebpf, sockets: BorrowedFd<'_>) -> Result<RedirectErrors> {
    let asked = |error| errors::map(error, "cannot ask what the map is");
    let sockets = MapData::from_fd(duplicate_fd(sockets)?).map_err(asked)?;
    let id = sockets.info().map_err(asked)?.id();
    let own = ebpf.map_mut(SOCKETS_ID).ok_or_else(|| no_such_map(SOCKETS_ID))?;
    let mut own: Array<_, u32> = own.try_into().map_err(errors::table)?;
    own.set(0, id, 0).map_err(errors::table)?;
    let program = ebpf
        .program_mut(TRACEPOINT)
        .ok_or_else(|| errors::corrupt("no program for the tracepoint"))?;
    let program: &mut RawTracePoint = program.try_into().map_err(errors::program)?;
    program.load().map_err(errors::program)?;
    let link = program.attach("xdp_redirect_err").map_err(errors::program)?;
    let link = program.take_link(link).map_err(errors::program)?;
    Ok(RedirectErrors { counts: counter_rows(ebpf, ERRORS)?, _link: link })
}

/// The refusal of an attachment, with what the kernel says in its netlink answer and what to do.
pub(super) fn attach_error(
    source: io::Error,
    netlink: Option<NetlinkRefusal>,
    interface: &Interface,
    native: bool,
    options: &ProgramOptions,
) -> Error {
    // A bpf_link calls an interface that is gone an invalid argument.
    let gone = netlink.as_ref().is_some_and(|refusal| refusal.errno == Errno::ENODEV);
    let code = if gone { Some(libc::ENODEV) } else { source.raw_os_error() };
    let reason = match code {
        Some(libc::EBUSY | libc::EEXIST) => "the interface has an XDP program already",
        Some(libc::EOPNOTSUPP) if native => "the driver cannot run XDP programs natively",
        Some(libc::ERANGE) if !options.frags => {
            "the interface's MTU is too large for a program without frags"
        }
        Some(libc::ENODEV) => "the interface is gone",
        _ => "the kernel refuses to attach the program",
    };
    let reason = match netlink.and_then(|refusal| refusal.message) {
        Some(words) => format!("{reason} (the kernel says: {words})"),
        None => reason.to_owned(),
    };
    let error = Error::os(Step::AttachProgram, reason, source)
        .on(interface.name())
        .asked(if native { "native mode" } else { "generic mode" });
    match code {
        Some(libc::EBUSY | libc::EEXIST) => error.with_kind(ErrorKind::Busy).hint(format!(
            "end the process that attached it; if it was left without one: ip link set dev {} xdp off",
            interface.name()
        )),
        Some(libc::EOPNOTSUPP) if native => error
            .hint("generic mode works everywhere: AttachMode::Generic, or Auto to fall back to it"),
        Some(libc::ERANGE) if !options.frags => error
            .with_kind(ErrorKind::Unsupported)
            .hint("ask for frags (multi-buffer, Linux 6.6), or lower the MTU"),
        Some(libc::ENOSPC) => error
            .with_kind(ErrorKind::Limit)
            .hint("a veth needs at least as many RX queues as its peer has TX queues (ethtool -L)"),
        Some(libc::ENODEV) => error.with_kind(ErrorKind::LinkGone),
        Some(libc::EINVAL) => error.hint("links of XDP programs need Linux 5.9"),
        _ => errors::permitted(error),
    }
}
