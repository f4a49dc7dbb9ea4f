//! Two processes: a broker with privileges and no packets, and a worker with packets and no privileges.
//!
//! The broker attaches the program, makes a socket, and gives it to the worker, which runs as nobody,
//! without any capability. The worker sends every UDP datagram for port 4242 on queue 0 back to where it
//! came from. Whatever a packet could do to it, it could not make a socket, a program or a rule.
//!
//! When the worker dies, its socket is closed and packets pass to the kernel's stack again.

use std::{
    env, fs,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use signal_hook::consts::{SIGINT, SIGTERM};
use xskit::{
    AttachMode, ChunkSize, Interest, Interface, Program, ProgramOptions, QueueId, RingSize, Rules,
    Socket, SocketConfig, UmemConfig,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The argument by which the broker starts itself again as a worker.
const WORKER: &str = "--worker";

/// The user and the group that own nothing.
const NOBODY: u32 = 65534;

const TICK: Duration = Duration::from_millis(100);

fn main() -> Result {
    match env::args().nth(1).as_deref() {
        None => Err("usage: broker INTERFACE".into()),
        Some(WORKER) => worker(),
        Some(interface) => broker(interface),
    }
}

fn broker(name: &str) -> Result {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, end.clone())?;
    }
    let queue = QueueId::new(0);
    let interface = Interface::by_name(name)?;
    let options = ProgramOptions::default();

    // 1. What takes CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: the program, with an empty map of sockets. All
    //    packets pass.
    let program = Program::attach(&interface, &Rules::udp_port(4242), AttachMode::Auto, &options)?;

    // 2. What takes CAP_NET_RAW: a socket. It is on no queue yet, and can be put on one of this
    //    interface only. Not a bound one: older kernels would not let another process map its rings.
    let socket = Socket::unbound(&interface)?;

    // 3. The worker, as nobody, with the other end of a Unix socket as its standard input. Changing the
    //    user took its capabilities away.
    let (mut stream, other) = UnixStream::pair()?;
    let mut worker = Command::new("/proc/self/exe")
        .arg(WORKER)
        .stdin(OwnedFd::from(other))
        .uid(NOBODY)
        .gid(NOBODY)
        .spawn()?;

    // 4. The socket goes over, with the place that it is for.
    send_fd(stream.as_fd(), &format!("{queue} {name}"), socket.as_fd())?;

    // 5. The worker has bound it. Only now does it belong into the map: older kernels refuse a socket
    //    without rings, and packets for one that nobody reads would be lost.
    if stream.read_exact(&mut [0]).is_err() {
        return Err(format!("the worker bound nothing: {}", worker.wait()?).into());
    }
    let entry = program.socket_map().insert(queue, socket.as_fd())?;

    // 6. Closed here, the socket is closed altogether when the worker ends, and the queue free again.
    drop(socket);
    println!("queue {queue} of {interface}: {}, worker {}", program.attached(), worker.id());

    wait(&mut worker, &end)?;
    // 7. No more packets for the worker; then it is told to end, by the end of its standard input.
    drop(entry);
    drop(stream);
    println!("the worker has ended: {}", worker.wait()?);
    Ok(())
}

/// Until a signal, or the end of the worker.
fn wait(worker: &mut Child, end: &AtomicBool) -> io::Result<()> {
    while !end.load(Ordering::Relaxed) && worker.try_wait()?.is_none() {
        thread::sleep(TICK);
    }
    Ok(())
}

fn worker() -> Result {
    // No program that it starts gets privileges from a file either.
    nix::sys::prctl::set_no_new_privs()?;
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (place, fd) = receive_fd(stream.as_fd())?;
    let (queue, name) = place.split_once(' ').ok_or("no place in the broker's message")?;

    // Its own memory, which the broker cannot see. Without CAP_IPC_LOCK it counts against
    // RLIMIT_MEMLOCK, so that it is little: 1 MiB.
    let umem = UmemConfig::new(512).chunk_size(ChunkSize::K2).build()?;
    let size = RingSize::new(128)?;
    let config = SocketConfig::default().rx(size).tx(size).fill(size).completion(size);
    let interface = Interface::by_name(name)?;
    let mut socket = Socket::from_fd(fd, &umem, &interface, queue.parse::<u32>()?, &config)?;
    println!("worker: capabilities {}, {}", capabilities()?, socket.mode());

    stream.write_all(b"!")?;
    stream.set_nonblocking(true)?;
    let mut batch = umem.batch(64);
    loop {
        if socket.wait(Interest::for_batch(&batch), TICK)?.timed_out() {
            match stream.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                _ => continue,
            }
        }
        if batch.is_empty() {
            socket.recv(&mut batch)?;
            for mut packet in batch.packets_mut() {
                // Destination and source; what the rule matches is longer.
                packet.head_mut()[..12].rotate_left(6);
            }
        }
        socket.send(&mut batch)?;
    }
}

/// The effective ones, as the kernel prints them: each is a bit.
fn capabilities() -> Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    Ok(line.ok_or("no CapEff")?.trim().to_owned())
}

fn send_fd(stream: BorrowedFd<'_>, message: &str, fd: BorrowedFd<'_>) -> Result {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err("no room for a descriptor".into());
    }
    sendmsg(stream, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive_fd(stream: BorrowedFd<'_>) -> Result<(String, OwnedFd)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0; 64];
    let slices = &mut [IoSliceMut::new(&mut message)];
    let length = recvmsg(stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.next().and_then(|mut fds| fds.next()).ok_or("the broker sent no socket")?;
    Ok((String::from_utf8_lossy(&message[..length]).into_owned(), fd))
}
