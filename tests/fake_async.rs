//! Sockets on tokio: nothing is missed, nothing is lost by a dropped future. On the fake kernel.

use std::{
    os::fd::{AsFd, AsRawFd},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use tokio::{
    io::unix::AsyncFd,
    task::yield_now,
    time::{interval, sleep, timeout},
};
use xskit::{
    AsyncSocket, Batch, Error, ErrorKind, Interest, RingSize, Socket, SocketConfig, Step, Umem,
    UmemConfig, fake,
};

/// Long enough to see that nothing happens.
const MOMENT: Duration = Duration::from_millis(50);

/// Nothing that is to happen takes so long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(20);

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).unwrap();
    SocketConfig::default().rx(size(16)).tx(size(16)).fill(size(32)).completion(size(16))
}

fn world() -> (Socket, fake::Kernel, Batch, Umem) {
    let umem = UmemConfig::new(128).build().unwrap();
    let (socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 7).unwrap();
    (socket, kernel, umem.batch(16), umem)
}

/// `count` packets to send.
fn fill(batch: &mut Batch, count: usize) {
    let before = batch.packet_count();
    assert_eq!(batch.alloc(count), count);
    batch.packets_mut().skip(before).for_each(|mut packet| packet.write(&[7; 60]).unwrap());
}

#[track_caller]
fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

#[track_caller]
fn assert_link_down(error: &Error) {
    assert_eq!((error.step(), error.kind()), (Step::Wait, ErrorKind::LinkDown), "{error}");
}

#[tokio::test]
async fn receives_what_is_there_and_what_comes() {
    let (socket, kernel, mut batch, umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    kernel.deliver(b"first");
    assert_eq!(socket.recv(&mut batch).await.unwrap(), 1);
    let other = kernel.clone();
    let task = tokio::spawn(async move {
        sleep(MOMENT).await;
        other.deliver(b"second")
    });
    assert_eq!(socket.recv(&mut batch).await.unwrap(), 1);
    assert!(task.await.unwrap());
    let heads: Vec<_> = batch.packets().map(|packet| packet.head().to_vec()).collect();
    assert_eq!(heads, [&b"first"[..], b"second"]);
    assert_complete(&umem);
}

#[tokio::test]
async fn dropped_futures_take_nothing() {
    let (socket, kernel, mut batch, umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    for number in 0..200_u8 {
        assert!(timeout(Duration::from_micros(50), socket.recv(&mut batch)).await.is_err());
        assert!(batch.is_empty());
        // A future that was looked at, is dropped, and the packet that had woken it is still there.
        {
            let mut future = pin!(socket.recv(&mut batch));
            tokio::select! {
                biased;
                _ = &mut future => panic!("there is nothing"),
                () = yield_now() => {}
            }
            assert!(kernel.deliver(&[number; 60]));
        }
        assert_eq!(timeout(LIMIT, socket.recv(&mut batch)).await.unwrap().unwrap(), 1);
        assert_eq!(batch.packets().next().unwrap().head(), [number; 60]);
        batch.clear();
    }
    assert_complete(&umem);
}

#[tokio::test]
async fn a_dropped_send_leaves_the_rest_in_the_batch() {
    let (socket, kernel, mut batch, umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    fill(&mut batch, 16);
    socket.send_all(&mut batch).await.unwrap();
    fill(&mut batch, 10);
    assert!(timeout(MOMENT, socket.send_all(&mut batch)).await.is_err());
    assert_eq!((batch.packet_count(), kernel.tx_level()), (10, 16));
    assert_eq!(kernel.transmit(4).len(), 4);
    assert!(timeout(MOMENT, socket.send_all(&mut batch)).await.is_err());
    assert_eq!((batch.packet_count(), kernel.tx_level()), (6, 16));
    let other = kernel.clone();
    let task = tokio::spawn(async move { other.transmit(16).len() });
    timeout(LIMIT, socket.send_all(&mut batch)).await.unwrap().unwrap();
    assert_eq!((task.await.unwrap(), kernel.transmit(16).len()), (16, 6));
    assert_complete(&umem);
}

#[test]
fn nothing_is_missed_whenever_it_comes() {
    const PACKETS: u64 = 20_000;
    let (socket, kernel, mut batch, umem) = world();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let got = AtomicU64::new(0);
    thread::scope(|scope| {
        let got = &got;
        scope.spawn(move || {
            for number in 0..PACKETS {
                while !kernel.deliver(&number.to_ne_bytes()) {
                    thread::yield_now();
                }
                // Each of some packets is waited for by both sides: it comes when the other one looks.
                while number % 8 == 0 && got.load(Ordering::Acquire) <= number {
                    std::hint::spin_loop();
                }
            }
        });
        runtime.block_on(async {
            let mut socket = AsyncSocket::new(socket).unwrap();
            let started = Instant::now();
            while got.load(Ordering::Relaxed) < PACKETS {
                socket.recv(&mut batch).await.unwrap();
                for packet in batch.packets() {
                    let number = u64::from_ne_bytes(packet.head().try_into().unwrap());
                    assert_eq!(number, got.fetch_add(1, Ordering::Release));
                }
                batch.clear();
            }
            // The look at the link, twice a second, would find a packet that no event told of.
            assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
        });
    });
    assert_complete(&umem);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_halves_in_two_tasks() {
    const PACKETS: usize = 2000;
    let (socket, kernel, mut batch, umem) = world();
    let (mut receiver, mut sender) = AsyncSocket::new(socket).unwrap().into_split();
    let receiving = tokio::spawn({
        let mut batch = umem.batch(8);
        async move {
            let mut count = 0;
            while count < PACKETS {
                count += receiver.recv(&mut batch).await.unwrap();
                batch.clear();
            }
            receiver
        }
    });
    let sending = tokio::spawn(async move {
        for _ in 0..PACKETS / 10 {
            fill(&mut batch, 10);
            sender.send_all(&mut batch).await.unwrap();
        }
        sender
    });
    let (mut delivered, mut transmitted) = (0, 0);
    let deadline = Instant::now() + LIMIT;
    while delivered < PACKETS || transmitted < PACKETS {
        delivered += usize::from(delivered < PACKETS && kernel.deliver(b"packet"));
        transmitted += kernel.transmit(3).len();
        assert!(Instant::now() < deadline, "{delivered} {transmitted}");
        yield_now().await;
    }
    let (receiver, sender) = (receiving.await.unwrap(), sending.await.unwrap());
    assert_eq!(receiver.get_ref().statistics().unwrap().received, PACKETS as u64);
    assert_eq!(sender.get_ref().statistics().unwrap().sent, PACKETS as u64);
    // One half goes on while the other is taken back.
    let mut receiver = receiver;
    let mut sender = sender.into_inner();
    let mut batch = umem.batch(1);
    assert!(timeout(MOMENT, receiver.recv(&mut batch)).await.is_err());
    assert!(kernel.deliver(b"packet"));
    assert_eq!(timeout(LIMIT, receiver.recv(&mut batch)).await.unwrap().unwrap(), 1);
    assert_eq!(sender.send(&mut batch).unwrap(), 1);
    assert_complete(&umem);
}

#[tokio::test]
async fn packets_that_the_kernel_could_not_take_are_seen_off() {
    let (socket, kernel, mut batch, umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    kernel.transmit_on_kick(3);
    for _ in 0..4 {
        kernel.refuse(fake::Call::KickTx, Errno::EAGAIN as i32);
    }
    fill(&mut batch, 16);
    socket.send_all(&mut batch).await.unwrap();
    assert!(kernel.tx_level() > 0);
    timeout(LIMIT, socket.flush()).await.unwrap().unwrap();
    assert_eq!((kernel.tx_level(), kernel.sent().len()), (0, 16));
    // The same while the task waits for packets, as nobody but it can call.
    kernel.refuse(fake::Call::KickTx, Errno::EAGAIN as i32);
    fill(&mut batch, 2);
    socket.send_all(&mut batch).await.unwrap();
    assert!(timeout(MOMENT, socket.readable()).await.is_err());
    assert_eq!((kernel.tx_level(), kernel.sent().len()), (0, 2));
    assert_complete(&umem);
}

#[tokio::test]
async fn whichever_comes_first() {
    let (socket, kernel, mut batch, _umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    let ready = socket.ready(Interest::BOTH).await.unwrap();
    assert!(ready.writable() && !ready.readable());
    fill(&mut batch, 16);
    socket.send_all(&mut batch).await.unwrap();
    assert!(timeout(MOMENT, socket.ready(Interest::BOTH)).await.is_err());
    assert!(kernel.deliver(b"packet"));
    let ready = timeout(LIMIT, socket.ready(Interest::BOTH)).await.unwrap().unwrap();
    assert!(ready.readable() && !ready.writable());
    // A batch without room takes nothing, and one without packets sends nothing: nobody waits for it.
    let mut full = socket.get_ref().umem().batch(1);
    full.alloc(1);
    assert_eq!(socket.recv(&mut full).await.unwrap(), 0);
    assert_eq!(socket.send(&mut batch).await.unwrap(), 0);
}

#[tokio::test]
async fn a_dead_link_is_told_within_a_second() {
    let (socket, kernel, mut batch, umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    kernel.set_link(fake::Link::Down);
    let started = Instant::now();
    assert_link_down(&socket.recv(&mut batch).await.unwrap_err());
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    // Also to a task that never waits for long.
    let started = Instant::now();
    let mut tick = interval(Duration::from_millis(20));
    let error = loop {
        tokio::select! {
            _ = tick.tick() => {}
            result = socket.recv(&mut batch) => break result.unwrap_err(),
        }
    };
    assert_link_down(&error);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    kernel.set_link(fake::Link::Up);
    assert!(kernel.deliver(b"again"));
    assert_eq!(socket.recv(&mut batch).await.unwrap(), 1);

    let (receiver, mut sender) = socket.into_split();
    fill(&mut batch, 15);
    sender.send_all(&mut batch).await.unwrap();
    kernel.set_link(fake::Link::Gone);
    fill(&mut batch, 1);
    let error = timeout(LIMIT, sender.send_all(&mut batch)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
    drop((receiver, sender, batch));
    assert_complete(&umem);
}

#[tokio::test(flavor = "current_thread")]
async fn a_busy_task_lets_others_have_their_turn() {
    let (socket, kernel, mut batch, _umem) = world();
    let mut socket = AsyncSocket::new(socket).unwrap();
    let other = tokio::spawn(async {});
    let mut turns = 0;
    while !other.is_finished() {
        assert!(kernel.deliver(b"packet"));
        socket.recv(&mut batch).await.unwrap();
        batch.clear();
        turns += 1;
        assert!(turns < 10_000, "it never comes to its end");
    }
}

#[tokio::test]
async fn what_cannot_come_is_not_waited_for() {
    let umem = UmemConfig::new(128).build().unwrap();
    let (socket, _kernel) = fake::socket(&umem, &config().send_only()).unwrap();
    let mut socket = AsyncSocket::new(socket).unwrap();
    let error = socket.readable().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let (mut receiver, _sender) = socket.into_split();
    assert_eq!(receiver.readable().await.unwrap_err().kind(), ErrorKind::Unsupported);

    let (socket, _kernel) = fake::socket(&umem, &config().receive_only()).unwrap();
    let mut socket = AsyncSocket::new(socket).unwrap();
    for error in [socket.writable().await, socket.flush().await].map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn outside_a_runtime() {
    let (socket, _kernel, _batch, umem) = world();
    let error = AsyncSocket::new(socket).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Wait, ErrorKind::Unsupported), "{error}");
    assert!(error.to_string().contains("#[tokio::main]"), "{error}");
    assert_complete(&umem);
}

#[tokio::test]
async fn halves_of_two_sockets() {
    let ((mut one, ..), (mut other, ..)) = (world(), world());
    std::mem::swap(one.split_mut().0, other.split_mut().0);
    let error = AsyncSocket::new(one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test]
#[allow(unsafe_code, reason = "tokio takes a descriptor's number on trust")]
async fn a_descriptor_that_is_watched_already() {
    let (socket, ..) = world();
    let number = socket.as_fd().as_raw_fd();
    // SAFETY: nobody uses the registration; its end, on a descriptor that is closed by then, is an
    // error that tokio takes in its stride.
    let mine = unsafe { AsyncFd::register(number) }.unwrap();
    let error = AsyncSocket::new(socket).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("it watches it already"), "{error}");
    drop(mine);
}

#[tokio::test]
async fn taken_back_it_is_a_socket_again() {
    let (mut socket, kernel, mut batch, _umem) = world();
    for _ in 0..3 {
        socket = AsyncSocket::new(socket).unwrap().into_inner();
        kernel.deliver(b"packet");
        assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
        assert_eq!(socket.recv(&mut batch).unwrap(), 1);
    }
}
