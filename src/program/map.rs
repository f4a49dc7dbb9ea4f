//! [`SocketMap`]: which socket gets a queue's packets.

use std::{
    collections::HashMap,
    fmt,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use aya::maps::{Map, MapData, MapError, XskMap};

use super::errors;
use crate::{
    error::{Error, ErrorKind, Result, Step},
    interface::QueueId,
    sync::{self, Arc, Mutex, MutexGuard},
};

/// A BPF map of AF_XDP sockets, keyed by queue: that of the embedded program, or one of your own.
///
/// Cloning is cheap; all clones are one handle.
#[derive(Clone)]
#[doc(alias = "BPF_MAP_TYPE_XSKMAP")]
pub struct SocketMap(Arc<Shared>);

struct Shared {
    sockets: u32,
    state: Mutex<State>,
}

struct State {
    map: XskMap<MapData>,
    /// Which insertion a key holds, as far as this handle knows: the map cannot be read.
    current: HashMap<u32, u64>,
    insertions: u64,
}

impl SocketMap {
    /// The map that is pinned at this path of a bpffs.
    ///
    /// # Errors
    ///
    /// `NotFound` where nothing is pinned, `Corrupt` for a map that is no XSKMAP.
    pub fn from_pin(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = MapData::from_pin(path).map_err(|error| {
            let error = errors::map(error, "cannot open the pinned map");
            match error.kind() {
                ErrorKind::NotFound => error.hint("look for it: bpftool map show, with --bpffs"),
                _ => error,
            }
            .asked(path.display().to_string())
        })?;
        Self::from_data(map).map_err(|error| error.asked(path.display().to_string()))
    }

    /// The map behind this file descriptor, such as one received over a Unix socket.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a descriptor of anything but an XSKMAP.
    pub fn from_fd(map: OwnedFd) -> Result<Self> {
        let map = MapData::from_fd(map).map_err(|error| match errors::os_error(&error) {
            Some(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Error::os(Step::Map, "the file descriptor is not that of a BPF map", error)
                    .with_kind(ErrorKind::Corrupt)
                    .hint("AF_XDP sockets need a map of type XSKMAP")
            }
            _ => errors::map(error, "cannot ask what the map is"),
        })?;
        Self::from_data(map)
    }

    /// A map of your own program, as aya has it: `XskMap::try_from(ebpf.take_map("…")…)`.
    pub fn from_aya(map: XskMap<MapData>) -> Self {
        Self(Arc::new(Shared {
            sockets: map.len(),
            state: Mutex::new(State { map, current: HashMap::new(), insertions: 0 }),
        }))
    }

    pub(super) fn from_data(data: MapData) -> Result<Self> {
        let wrong = |what: String| {
            Error::new(Step::Map, ErrorKind::Corrupt, format!("this is a map of type {what}"))
                .hint("AF_XDP sockets need a map of type XSKMAP")
        };
        let map_type = data
            .info()
            .and_then(|info| info.map_type())
            .map_err(|error| errors::map(error, "cannot ask what the map is"))?;
        let map = Map::from_map_data(data).map_err(|_| wrong(format!("{map_type:?}")))?;
        XskMap::try_from(map).map(Self::from_aya).map_err(|error| match error {
            MapError::InvalidMapType { .. } => wrong(format!("{map_type:?}")),
            error => errors::map(error, "the map is not as an XSKMAP is"),
        })
    }

    /// How many keys the map has: keys, and so queues, count from 0.
    pub fn sockets(&self) -> u32 {
        self.0.sockets
    }

    /// Lets the packets that are redirected on this queue go to this socket, in place of the one
    /// before, for as long as the returned entry lives.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a queue at or past [`sockets`](Self::sockets).
    pub fn insert(&self, queue: QueueId, socket: BorrowedFd<'_>) -> Result<MapEntry> {
        if queue.get() >= self.0.sockets {
            return Err(Error::new(
                Step::Map,
                ErrorKind::InvalidInput,
                format!("the map has room for queues below {}", self.0.sockets),
            )
            .queue_is(queue)
            .hint("load the program with more sockets"));
        }
        let mut state = self.0.lock();
        state.map.set(queue.get(), socket.as_raw_fd(), 0).map_err(|error| {
            let error = errors::map(error, "the kernel did not take the socket").queue_is(queue);
            match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => {
                    error.hint("the descriptor is not that of an AF_XDP socket")
                }
                _ => error,
            }
        })?;
        state.insertions += 1;
        let insertion = state.insertions;
        state.current.insert(queue.get(), insertion);
        drop(state);
        Ok(MapEntry { map: self.clone(), queue, insertion })
    }
}

impl Shared {
    /// A panic elsewhere leaves the state as whole as it was: each change is one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl fmt::Debug for SocketMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketMap").field("sockets", &self.0.sockets).finish_non_exhaustive()
    }
}

/// A socket's place in a [`SocketMap`], given up when this is dropped.
///
/// If another socket was inserted for the queue since, through the same handle, that one stays.
#[derive(Debug)]
#[must_use = "dropping the entry takes the socket out of the map"]
pub struct MapEntry {
    map: SocketMap,
    queue: QueueId,
    insertion: u64,
}

impl MapEntry {
    /// Whether it was inserted through this handle.
    pub(crate) fn is_of(&self, map: &SocketMap) -> bool {
        Arc::ptr_eq(&self.map.0, &map.0)
    }

    /// The queue whose packets the socket gets.
    pub fn queue(&self) -> QueueId {
        self.queue
    }
}

impl Drop for MapEntry {
    fn drop(&mut self) {
        let mut state = self.map.0.lock();
        if state.current.get(&self.queue.get()) == Some(&self.insertion) {
            state.current.remove(&self.queue.get());
            // The one refusal is that the key is empty already: closing a socket empties it, too.
            drop(state.map.unset(self.queue.get()));
        }
    }
}
