//! A file over an ordinary TCP connection from source to sink, its SHA-256 compared.

use std::{
    fs::File,
    io::{self, ErrorKind, Read, Seek, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use sha2::{Digest, Sha256};
use xskit_lab::Chain;

use super::{forwarder::Forwarder, interrupt::Interrupt, progress::Step};

/// The size of the file.
pub(super) const BYTES: u64 = 100_000_000;
/// A connection on which nothing moves for so long is broken.
const PATIENCE: Duration = Duration::from_secs(5);
const CHUNK: usize = 64 * 1024;

/// What the transfer came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Bytes that arrived.
    pub(super) bytes: u64,
    /// Whether they hash to what was sent.
    pub(super) sha256_ok: bool,
    pub(super) took: Duration,
}

/// Sends random bytes from a file in memory; the network stacks of both namespaces do the rest.
pub(super) fn run(
    chain: &Chain,
    forwarder: &mut Forwarder,
    interrupt: &Interrupt,
    progress: &Step,
) -> Result<Transfer> {
    let (mut file, sent_hash) = random_file().context("make the file")?;
    let listener = chain
        .sink
        .netns()
        .enter(|| TcpListener::bind((Chain::SINK, 0)))
        .context("listen at the sink")?;
    let address = listener.local_addr()?;
    let started = Instant::now();
    let sent = chain
        .source
        .netns()
        .enter(|| TcpStream::connect_timeout(&address, PATIENCE))
        .context("connect through the forwarder");
    let Ok(mut sender) = sent else {
        forwarder.check()?;
        return Err(sent.err().unwrap_or_else(|| anyhow!("no connection")));
    };
    sender.set_write_timeout(Some(PATIENCE))?;
    let (mut receiver, _) = listener.accept().context("accept at the sink")?;
    receiver.set_read_timeout(Some(PATIENCE))?;

    let (bytes, received_hash) = thread::scope(|scope| {
        let sending = scope.spawn(move || {
            pump(&mut file, &mut sender, |_| interrupt.check())?;
            Ok::<_, anyhow::Error>(())
        });
        let mut hash = Hashing { hash: Sha256::new(), bytes: 0 };
        let arrived = pump(&mut receiver, &mut hash, |bytes| {
            progress.at(bytes);
            interrupt.check()
        });
        // Else the sender would wait for a reader that is gone.
        drop(receiver);
        let sent = sending.join().map_err(|_| anyhow!("the sending thread panicked"))?;
        interrupt.check()?;
        forwarder.check()?;
        arrived.context("receive the file")?;
        sent.context("send the file")?;
        Ok::<_, anyhow::Error>((hash.bytes, hash.hash.finalize()))
    })?;
    let sha256_ok = bytes == BYTES && received_hash == sent_hash;
    Ok(Transfer { bytes, sha256_ok, took: started.elapsed() })
}

type Hash = sha2::digest::Output<Sha256>;

/// A file in memory, which is gone when it is closed, and its hash.
fn random_file() -> Result<(File, Hash)> {
    let mut file = File::from(memfd_create("xskit-demo", MFdFlags::MFD_CLOEXEC)?);
    let mut hash = Hashing { hash: Sha256::new(), bytes: 0 };
    let mut random = File::open("/dev/urandom")?.take(BYTES);
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = random.read(&mut chunk)?;
        if length == 0 {
            break;
        }
        file.write_all(&chunk[..length])?;
        hash.write_all(&chunk[..length])?;
    }
    file.rewind()?;
    Ok((file, hash.hash.finalize()))
}

/// Copies until the end, and asks `go_on` after every chunk, with the bytes so far.
fn pump(
    from: &mut impl Read,
    to: &mut impl Write,
    mut go_on: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let length = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(stalled(error)),
        };
        to.write_all(&chunk[..length]).map_err(stalled)?;
        bytes += length as u64;
        go_on(bytes)?;
    }
}

fn stalled(error: io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::WouldBlock {
        return anyhow!("nothing moved for {PATIENCE:?}");
    }
    error.into()
}

/// Hashes what is written to it.
struct Hashing {
    hash: Sha256,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
