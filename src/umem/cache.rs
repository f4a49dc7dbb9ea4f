//! The free frames that each half of a socket keeps at hand.

use std::fmt;

use super::{
    Umem,
    free::{FreeList, Pool},
};

/// Free frames that each half of a socket keeps at hand, so that the pool, which all sockets of a UMEM
/// share behind a lock, is asked once for many: the counterpart of the kernel's cache of skb heads.
///
/// A cache that runs empty takes at least [`bulk`](Self::bulk) frames from the pool, and one that holds
/// more than its [`size`](Self::new) gives back at least [`flush`](Self::flush), those that lay there
/// longest; neither is more than the size. Frames that are sent and come back feed the cache of the sending
/// half, and where one thread has both halves, as [`Socket`](crate::Socket), the next packets are received
/// into them: forwarding in balance never touches the pool.
///
/// Without one given, each cache has the share of its UMEM that measured best: see
/// [`for_chunks`](Self::for_chunks).
///
/// ```
/// use xskit::{FrameCache, SocketConfig};
///
/// // As `napi_build_skb` has it: 64 at most, 16 taken at once, half given back.
/// let config = SocketConfig::default().frame_cache(FrameCache::new(64).bulk(16).flush(32));
/// ```
#[doc(alias = "NAPI_SKB_CACHE_SIZE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct FrameCache {
    size: u32,
    bulk: u32,
    flush: u32,
}

impl FrameCache {
    /// No cache: every call takes from the pool what it needs and gives it what came back. For sockets
    /// that rest most of the time on a UMEM that has no frame to spare, and to measure against. A batch
    /// keeps the frames of packets that were dropped from it all the same.
    pub const NONE: Self = Self { size: 0, bulk: 0, flush: 0 };

    /// At most `size` frames, taken from the pool by quarters and given back by halves.
    ///
    /// Frames in a cache are not there for other sockets: `size` times twice the number of sockets
    /// should be a small part of the UMEM.
    pub const fn new(size: u32) -> Self {
        Self { size, bulk: size / 4, flush: size / 2 }
    }

    /// Frames taken from the pool at least when there are too few.
    #[doc(alias = "NAPI_SKB_CACHE_BULK")]
    pub const fn bulk(mut self, frames: u32) -> Self {
        self.bulk = frames;
        self
    }

    /// Frames given back to the pool at least when there are more than the cache's size.
    #[doc(alias = "NAPI_SKB_CACHE_HALF")]
    pub const fn flush(mut self, frames: u32) -> Self {
        self.flush = frames;
        self
    }

    /// What a socket on a UMEM of so many chunks has without a cache of its own choice: a 64th of the
    /// UMEM, at most 256 frames, is taken and given back at once, and twice that is kept.
    pub fn for_chunks(chunks: u32) -> Self {
        let bulk = (chunks / SHARE).min(BULK);
        Self { size: 2 * bulk, bulk, flush: bulk }
    }
}

/// An exchange with the pool costs a lock, so it is paid once for this many frames.
const BULK: u32 = 256;

/// The share of a UMEM that one cache exchanges at once: a cache that nobody uses for a while must not
/// starve the others.
const SHARE: u32 = 64;

impl fmt::Display for FrameCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, bulk, flush } = self;
        write!(f, "{size} cached frames, {bulk} taken and {flush} given back at once")
    }
}

/// Free frames at hand without a lock, last in, first out, so that hot ones are used again.
#[derive(Debug)]
pub(crate) struct Cache {
    list: FreeList,
    size: usize,
    bulk: usize,
    flush: usize,
    /// Whether batches may keep what comes back: not where somebody has asked for no cache at all.
    keeps: bool,
}

impl Cache {
    /// An empty one, that never has to grow while at most `incoming` frames come back at once.
    pub(crate) fn new(umem: &Umem, config: Option<FrameCache>, incoming: u32) -> Self {
        let keeps = config.is_none_or(|config| config.size > 0);
        let FrameCache { size, bulk, flush } =
            config.unwrap_or_else(|| FrameCache::for_chunks(umem.chunks()));
        let [size, bulk, flush, incoming] = [size, bulk.min(size), flush.min(size), incoming]
            .map(|frames| frames.min(umem.chunks()) as usize);
        Self { list: FreeList::with_capacity(size + incoming), size, bulk, flush, keeps }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether frames that come back may be kept at all, by a batch or here.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// The frames as they are.
    #[inline]
    pub(crate) fn list_mut(&mut self) -> &mut FreeList {
        &mut self.list
    }

    /// The frames, at least `wanted` where the pool has as many. It is asked in bulk.
    #[inline]
    pub(crate) fn with(&mut self, wanted: usize, pool: &Pool) -> &mut FreeList {
        if self.list.len() < wanted {
            self.list.take_from(pool, (wanted - self.list.len()).max(self.bulk));
        }
        &mut self.list
    }

    /// Gives what is too much back to the pool, coldest first.
    #[inline]
    pub(crate) fn trim(&mut self, pool: &Pool) {
        let len = self.list.len();
        if len > self.size {
            self.list.give_to(pool, self.flush.max(len - self.size).min(len));
        }
    }

    /// Gives everything back to the pool.
    pub(crate) fn flush(&mut self, pool: &Pool) {
        self.list.give_to(pool, self.list.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UmemConfig;

    const CHUNKS: u32 = 512;

    fn umem() -> Umem {
        UmemConfig::new(CHUNKS).build().expect("memory for a UMEM")
    }

    fn frames(cache: &Cache) -> u32 {
        u32::try_from(cache.len()).expect("a small cache")
    }

    #[test]
    fn it_takes_and_gives_in_bulk() {
        let umem = umem();
        let mut cache = Cache::new(&umem, Some(FrameCache::new(64).bulk(16).flush(32)), 64);
        cache.with(1, umem.pool());
        assert_eq!(frames(&cache), 16, "as many as are taken at once");
        cache.with(16, umem.pool());
        assert_eq!(frames(&cache), 16, "nothing is missing");
        cache.with(64, umem.pool());
        cache.trim(umem.pool());
        assert_eq!(frames(&cache), 64, "as many as it holds");
        cache.list_mut().take_from(umem.pool(), 1);
        cache.trim(umem.pool());
        assert_eq!(frames(&cache), 33, "half is given back");
        cache.flush(umem.pool());
        assert_eq!((frames(&cache), umem.pool().len()), (0, CHUNKS));
    }

    #[test]
    fn without_one_nothing_stays() {
        let umem = umem();
        let mut cache = Cache::new(&umem, Some(FrameCache::NONE), 64);
        cache.with(3, umem.pool());
        assert_eq!(frames(&cache), 3, "what is needed");
        cache.trim(umem.pool());
        assert_eq!((frames(&cache), umem.pool().len()), (0, CHUNKS));
    }

    #[test]
    fn nonsense_is_kept_within_the_cache_and_the_umem() {
        let umem = umem();
        let greedy = FrameCache::new(u32::MAX).bulk(u32::MAX).flush(u32::MAX);
        let mut cache = Cache::new(&umem, Some(greedy), u32::MAX);
        cache.with(1, umem.pool());
        cache.trim(umem.pool());
        assert_eq!((frames(&cache), umem.pool().len()), (CHUNKS, 0));
        cache.flush(umem.pool());
        let mut wide = Cache::new(&umem, Some(FrameCache::new(8).bulk(100).flush(100)), 8);
        wide.with(1, umem.pool());
        assert_eq!(frames(&wide), 8, "no more at once than it holds");
    }

    /// Ten million exchanges by four threads, whose caches have all sorts of sizes: no frame is lost, none
    /// is in two places.
    #[test]
    #[cfg_attr(miri, ignore = "ten million steps")]
    fn ten_million_exchanges_lose_no_frame() {
        const THREADS: u32 = 4;
        const EXCHANGES: u32 = 10_000_000 / THREADS;
        let umem = umem();
        let start = |thread: u32| {
            let config = match thread {
                0 => None,
                1 => Some(FrameCache::NONE),
                2 => Some(FrameCache::new(64).bulk(16).flush(32)),
                _ => Some(FrameCache::new(7).bulk(7).flush(1)),
            };
            exchange(&umem, config, EXCHANGES, 0x9e37_79b9 ^ thread);
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || start(thread))));
        });
        let mut addresses = Vec::new();
        assert_eq!(umem.pool().take(usize::MAX, &mut addresses), CHUNKS as usize);
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), CHUNKS as usize, "each is there once");
        umem.pool().put(&addresses);
    }

    /// Random numbers of frames go out of a cache and come back to it, as with the kernel's rings.
    fn exchange(umem: &Umem, config: Option<FrameCache>, times: u32, mut random: u32) {
        let mut cache = Cache::new(umem, config, 64);
        let mut out = Vec::with_capacity(CHUNKS as usize);
        for _ in 0..times {
            // Xorshift: the test needs variety, not quality.
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let count = (random >> 8) as usize % 33;
            if random & 1 == 0 {
                let list = cache.with(count, umem.pool());
                let count = count.min(list.len()).min(64 - out.len().min(64));
                out.extend(list.last(count).iter().rev());
                list.forget_last(count);
            } else {
                let rest = out.len() - count.min(out.len());
                out.drain(rest..).for_each(|frame| cache.list_mut().push(frame));
                cache.trim(umem.pool());
            }
        }
        umem.pool().put(&out);
        cache.flush(umem.pool());
    }

    /// What TX completes feeds the next refill: the pool is asked when forwarding starts, and never again,
    /// though no two rounds are alike.
    #[cfg(feature = "fake")]
    #[test]
    fn balanced_forwarding_leaves_the_pool_alone() -> crate::Result<()> {
        let umem = umem();
        let size = crate::RingSize::new(64)?;
        let config = crate::SocketConfig::default().rx(size).tx(size).fill(size).completion(size);
        let config = config.frame_cache(FrameCache::new(128));
        let (mut socket, kernel) = crate::fake::socket(&umem, &config)?;
        let mut batch = umem.batch(32);
        let mut settled = 0;
        for round in 0..1_000 {
            for _ in 0..=round % 32 {
                kernel.deliver(b"a packet to forward");
            }
            socket.recv(&mut batch)?;
            socket.send(&mut batch)?;
            assert!(batch.is_empty(), "the ring has room");
            kernel.transmit(usize::MAX);
            if round == 100 {
                settled = umem.pool_exchanges();
            }
        }
        assert_eq!(umem.pool_exchanges(), settled);
        Ok(())
    }

    /// Nor where clones come back among the frames.
    #[cfg(feature = "fake")]
    #[test]
    fn without_one_nothing_stays_beside_clones() -> crate::Result<()> {
        let umem = UmemConfig::new(CHUNKS + 1).clones(1).build()?;
        let size = crate::RingSize::new(64)?;
        let config = crate::SocketConfig::default().rx(size).tx(size).fill(size).completion(size);
        let config = config.frame_cache(FrameCache::NONE);
        let (mut socket, kernel) = crate::fake::socket(&umem, &config)?;
        let mut clones = umem.clones([b"a packet to clone".as_slice()])?;
        let mut batch = umem.batch(8);
        assert_eq!(socket.send_clones(&mut clones, 3)?, 3);
        for (packets, completed) in [(4, 7), (1, 1)] {
            batch.alloc(packets);
            batch.packets_mut().for_each(|mut packet| packet.write(b"a packet").expect("it fits"));
            assert_eq!(socket.send(&mut batch)?, packets);
            assert_eq!(kernel.discard(usize::MAX), completed);
        }
        // All but what lies in the Fill ring and one that has completed just now.
        assert_eq!(umem.pool().len(), CHUNKS - 64 - 1);
        Ok(())
    }
}
