//! When the kernel has to be called, and what this crate does about it.
//!
//! The rings are memory: putting a descriptor there is no system call, so that something else has to
//! make the kernel look. In zero-copy mode the driver looks by itself while it is busy with interrupts;
//! in copy mode nobody does, and sending always takes a call. With `XDP_USE_NEED_WAKEUP`, on by
//! default, the kernel says which of the two it is, by a flag beside the Fill ring and one beside the TX
//! ring: *I sleep, call me*.
//!
//! | flag of | set | cleared | the call |
//! |---|---|---|---|
//! | Fill | zero-copy: the driver found the ring empty | it has frames again | `recvfrom` of nothing, `poll` |
//! | TX, zero-copy | the driver has sent all and sleeps | it is working through the ring | `sendto` of nothing, `poll` |
//! | TX, copy mode | always | never | `sendto` of nothing, `poll` |
//!
//! **The rule.** The flags are read again on every `recv`, `send` and `wait`, even when nothing was put
//! into a ring. The kernel has no fence between setting a flag and looking at the ring a last time: it may
//! set the flag just after we looked and miss what we put there just before, and no fence of ours can
//! exclude that. The next call finds the flag. So a loop that waits in [`Socket::wait`](super::Socket::wait)
//! never hangs: `wait` reads the flags too, and `poll` calls by itself. A full fence between publishing and
//! reading, once per batch, makes the case rare.
//!
//! **Calls that fail.** In copy mode one call sends at most 32 packets (or the raised budget), and no more
//! than what SO_SNDBUF allows in flight. `EAGAIN` and `ENOBUFS` mean that the rest is still in the ring: the
//! crate calls again while that makes progress, then remembers that it owes a call, and the next `send`,
//! `reap` or `wait` pays it. `EBUSY` means that the kernel dropped one packet and completed its frame: it is
//! counted as [`tx_dropped`](super::Statistics::tx_dropped), and the kernel is called again for the rest.
//!
//! **Without the flag** (`need_wakeup(false)`) every `send` that leaves something in the TX ring calls the
//! kernel, and the receiving side is the driver's own business.
//!
//! **With busy polling** ([`BusyPoll`](super::BusyPoll)) every `recv`, `send` and `wait` calls it, whatever the
//! flags say: the call is what runs the driver's receive loop.
//!
//! ```
//! use xskit::{SocketConfig, UmemConfig, fake};
//!
//! let umem = UmemConfig::new(4096).build()?;
//! let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
//! let mut send = || -> Result<u64, xskit::Error> {
//!     let mut batch = umem.batch(1);
//!     batch.alloc(1);
//!     batch.packets_mut().for_each(|mut packet| packet.write(b"packet").expect("a chunk holds it"));
//!     let before = kernel.kicks().tx;
//!     socket.send(&mut batch)?;
//!     Ok(kernel.kicks().tx - before)
//! };
//! kernel.set_needs_wakeup_tx(false);
//! assert_eq!(send()?, 0, "the kernel looks by itself");
//! kernel.set_needs_wakeup_tx(true);
//! assert!(send()? > 0, "it sleeps, and is called");
//!
//! let statistics = socket.statistics()?;
//! println!("{} calls made, {} spared", statistics.wakeups_tx, statistics.wakeups_spared_tx);
//! # Ok::<(), xskit::Error>(())
//! ```
