//! All that a program works on, and each step on both sides.

use xskit::{ChunkSize, SocketConfig, Umem, UmemConfig, fake};

use crate::{
    held::{Held, pattern},
    memory::Memory,
    places::Places,
    program::{Chunk, Length, Op, Setup},
    queue::{Member, Queue},
};

/// Batches that there are at any time.
pub(crate) const BATCHES: usize = 4;

pub(crate) struct World {
    pub(crate) batches: Vec<Held>,
    pub(crate) queues: Vec<Queue>,
    /// Kernels of queues whose sockets are all closed.
    pub(crate) closed: Vec<fake::Kernel>,
    pub(crate) detached: Vec<u64>,
    pub(crate) places: Places,
    pub(crate) setup: Setup,
    /// Descriptors and completions that lead nowhere, so far.
    pub(crate) nonsense: usize,
    /// Packets so far, so that no two are alike.
    pub(crate) packets: usize,
    pub(crate) quarantine: u32,
    pub(crate) umem: Umem,
    /// Last: all that is above points into it.
    pub(crate) memory: Memory,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let size = match setup.chunk {
            Chunk::K2 => ChunkSize::K2,
            Chunk::K4 => ChunkSize::K4,
            Chunk::Odd => ChunkSize::unaligned(3001).expect("up to a page"),
            Chunk::Even => ChunkSize::unaligned(2500).expect("up to a page"),
        };
        let chunks = 16 + u32::from(setup.chunks);
        let memory = Memory::new(chunks, size.bytes());
        let headroom = u32::from(setup.headroom);
        let umem = memory.umem(UmemConfig::new(chunks).chunk_size(size).headroom(headroom));
        let batches = (0..BATCHES).map(|_| Held::new(&umem, 40)).collect();
        let mut world = Self {
            batches,
            queues: Vec::new(),
            closed: Vec::new(),
            detached: Vec::new(),
            places: Places::new(chunks),
            setup: setup.clone(),
            nonsense: 0,
            packets: 0,
            quarantine: 0,
            umem,
            memory,
        };
        for rings in setup.rings {
            world.open(0, false, rings);
        }
        world
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            Op::Flow(flow) | Op::Again(flow) => self.flow(flow),
            Op::Work(work) => self.work(work),
            Op::Whim(whim) => self.whim(whim),
            Op::Rare(luck, rare) if *luck < 32 => self.rare(rare),
            Op::Rare(..) => {}
        }
    }

    /// An open socket, by queue and place there.
    pub(crate) fn socket(&self, which: u8) -> Option<(usize, usize)> {
        let open: Vec<_> = (0..)
            .zip(&self.queues)
            .flat_map(|(queue, sockets)| {
                let members = (0..).zip(&sockets.members);
                members.filter(|(_, one)| one.socket.is_some()).map(move |(at, _)| (queue, at))
            })
            .collect();
        (!open.is_empty()).then(|| open[usize::from(which) % open.len()])
    }

    pub(crate) fn both(
        &mut self,
        queue: usize,
        member: usize,
    ) -> (&mut xskit::Socket, &fake::Kernel) {
        let Member { socket, kernel, .. } = &mut self.queues[queue].members[member];
        (socket.as_mut().expect("an open one was chosen"), kernel)
    }

    /// An error has to be one that the kernel was told to give.
    pub(crate) fn tolerate<T>(
        &self,
        (queue, member): (usize, usize),
        outcome: xskit::Result<T>,
    ) -> Option<T> {
        let Queue { up, gone, members, .. } = &self.queues[queue];
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let errno = error.raw_os_error().expect("the kernel's");
                let known = members[member].refusals.contains(&errno)
                    || !up && errno == libc::ENETDOWN
                    || *gone && errno == libc::ENXIO;
                assert!(known, "{error}");
                None
            }
        }
    }

    pub(crate) fn packet(&mut self, len: Length) -> Vec<u8> {
        let most = self.umem.max_packet_len() as usize;
        let len = match len {
            Length::Short(len) => usize::from(len).max(1),
            Length::Full(less) => most - usize::from(less),
            Length::Long(more) => most + usize::from(more % 9000),
        };
        self.packets += 1;
        pattern(len, self.packets)
    }

    pub(crate) fn check(&self) {
        let audit = self.umem.audit();
        let held: usize = self.batches.iter().map(Held::frames).sum();
        assert_eq!(audit.batch as usize, held, "{audit}");
        assert_eq!(audit.detached as usize, self.detached.len(), "{audit}");
        assert_eq!(audit.quarantine, self.quarantine, "{audit}");
        let members = self.queues.iter().flat_map(|queue| &queue.members);
        let open = members.filter(|member| member.socket.is_some());
        let received: usize = open.flat_map(|open| &open.rx).map(|packet| packet.descs).sum();
        assert_eq!(audit.rx as usize, received, "{audit}");
        // What leads nowhere leads to no frame: it can only be counted twice.
        let sum = usize::try_from(audit.sum()).expect("few");
        let total = self.umem.chunks() as usize;
        assert!((total..=total + self.nonsense).contains(&sum), "{audit}");
        assert!(audit.lost as usize <= self.nonsense, "{audit}");
        self.batches.iter().for_each(|held| held.check(&self.memory));
    }

    /// Everything is closed, and every frame comes home.
    pub(crate) fn end(mut self) {
        self.attach();
        while let Some(at) = self.socket(0) {
            self.close(at, false, false, 0);
            self.check();
        }
        for held in &mut self.batches {
            held.clear(&mut self.places);
        }
        self.batches.clear();
        for kernel in &self.closed {
            let config = SocketConfig::default().send_only();
            kernel.reopen(&self.umem, &config).expect("it is closed");
        }
        self.quarantine_shrinks();
        assert!(self.places.all_within());
        let audit = self.umem.audit();
        if self.nonsense == 0 {
            assert_eq!((audit.free, audit.quarantine), (audit.total, 0), "{audit}");
        }
        // Each once.
        let mut all = Held::new(&self.umem, 47);
        let mut batches = Vec::new();
        loop {
            all.alloc((39, 1), &self.memory, &mut self.places);
            if all.packets.is_empty() {
                break;
            }
            batches.push(std::mem::replace(&mut all, Held::new(&self.umem, 47)));
        }
        assert_eq!(batches.iter().map(Held::frames).sum::<usize>(), audit.free as usize);
        self.batches = batches;
    }
}
