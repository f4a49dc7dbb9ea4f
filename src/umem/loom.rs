//! Frames on their way between threads, through the pool: every order in which two threads can take and
//! put. Run by `cargo xtask test loom`.
//!
//! A cell for each frame stands for its bytes: two threads that have the frame at once touch it at once.

use ::loom::thread;

use super::*;
use crate::sync::{UnsafeCell, model};

/// A UMEM of a few frames, and their bytes.
struct World {
    umem: Umem,
    frames: Arc<Frames>,
}

struct Frames(Vec<UnsafeCell<()>>);

// SAFETY: each cell says when two threads touch it at once, which is what it is for.
unsafe impl Sync for Frames {}

impl Frames {
    /// Writes into a frame, as whoever has it may.
    fn touch(&self, umem: &Umem, address: u64) {
        self.0[umem.geometry().chunk(address)].with_mut(|_| ());
    }
}

impl World {
    fn new(chunks: u32) -> Self {
        let umem = UmemConfig::new(chunks).build().unwrap();
        let frames = (0..chunks).map(|_| UnsafeCell::new(())).collect();
        Self { umem, frames: Arc::new(Frames(frames)) }
    }

    /// All frames are back, each once, and the pool knows how many it has.
    fn check(&self) {
        let Self { umem, .. } = self;
        let mut back = Vec::new();
        umem.pool().for_each(|frame| back.push(*frame));
        back.sort_unstable();
        assert!(umem.geometry().addresses().eq(back), "each frame once");
        assert_eq!(umem.pool().len(), umem.chunks());
    }
}

/// Takes frames out of a cache, writes into them, and puts them back.
fn use_cache(umem: &Umem, frames: &Frames, config: FrameCache, wanted: usize) {
    let mut cache = Cache::new(umem, Some(config), 0);
    for _ in 0..2 {
        let list = cache.with(wanted, umem.pool());
        let taken = list.last(wanted.min(list.len())).to_vec();
        list.forget_last(taken.len());
        for frame in taken {
            frames.touch(umem, frame);
            list.push(frame);
        }
        cache.trim(umem.pool());
    }
    cache.flush(umem.pool());
}

fn two_caches(chunks: u32, config: FrameCache, wanted: usize) {
    model(None, move || {
        let world = World::new(chunks);
        let (umem, frames) = (world.umem.clone(), world.frames.clone());
        let other = thread::spawn(move || use_cache(&umem, &frames, config, wanted));
        use_cache(&world.umem, &world.frames, config, wanted);
        other.join().unwrap();
        world.check();
    });
}

#[test]
fn caches_that_share_a_pool() {
    two_caches(4, FrameCache::new(2).bulk(2).flush(1), 1);
    two_caches(4, FrameCache::NONE, 2);
}

#[test]
fn caches_that_want_more_than_there_is() {
    two_caches(1, FrameCache::new(2).bulk(1).flush(2), 2);
    two_caches(3, FrameCache::new(1).bulk(1).flush(1), 2);
}

/// What one thread's batch gives up, another's finds, and an audit in between disturbs neither.
#[test]
fn batches_that_share_a_pool() {
    model(Some(3), || {
        let world = World::new(2);
        let (umem, frames) = (world.umem.clone(), world.frames.clone());
        let work = move || {
            let mut batch = umem.batch(2);
            for _ in 0..2 {
                batch.alloc(2);
                for desc in batch.descs() {
                    frames.touch(&umem, desc.addr);
                }
                batch.clear();
                batch.release_spare();
            }
        };
        let other = thread::spawn(work.clone());
        work();
        world.umem.audit();
        other.join().unwrap();
        let audit = world.umem.audit();
        assert_eq!((audit.free, audit.is_complete()), (2, true), "{audit}");
        world.check();
    });
}
