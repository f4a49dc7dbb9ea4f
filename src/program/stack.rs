//! [`StackCpus`]: the CPUs on which the kernel's stack gets what no socket takes.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::Attached;
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::cpus,
};

/// Packets that a CPU's queue holds, unless something else is asked for.
const QUEUE_SIZE: u32 = 2048;

/// The kernel's limit.
const MAX_QUEUE_SIZE: u32 = 16384;

/// Where the kernel can redirect packets to CPUs in generic mode.
const GENERIC: (u32, u32) = (5, 15);

/// CPUs for the packets that no socket takes, through a CPUMAP: the kernel's stack runs there, instead of on
/// the CPU that receives them.
///
/// The receiving CPU only reads the packet's headers and queues it; a kernel thread on the other one makes
/// an skb of it. So a flood for the stack does not take the time of packets for sockets, and one queue's
/// packets can be processed on several CPUs. It costs more in all: take it where a CPU is to spare.
///
/// What the NIC knows about a packet beside its bytes is lost on the way: a verified checksum (the stack
/// computes it, and drops packets that were sent with none, as veth leaves them unless its TX checksum
/// offload is off), a hash, and a VLAN tag that the NIC has taken off: switch that off where VLANs are used
/// ([`Offload::RxVlan`](crate::interface::Offload::RxVlan)).
///
/// ```no_run
/// use xskit::{PortConfig, Rules, program::{CpuSpread, StackCpus}};
///
/// let mut port = PortConfig::new("eth0").rules(Rules::udp_port(4242)).stack_cpus([2, 3]).open()?;
/// // With more to choose:
/// let cpus = StackCpus::new([2, 3]).queue_size(512).spread(CpuSpread::RoundRobin);
/// # drop(port);
/// let mut port = PortConfig::new("eth0").rules(Rules::udp_port(4242)).stack_cpus(cpus).open()?;
/// for cpu in port.counters()?.stack_cpus {
///     println!("{cpu}");
/// }
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "BPF_MAP_TYPE_CPUMAP")]
#[must_use]
pub struct StackCpus {
    cpus: Vec<u32>,
    queue_size: u32,
    spread: CpuSpread,
    program: Option<CpuProgram>,
}

/// How packets are spread over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuSpread {
    /// By a hash of addresses and ports, for IPv4 and IPv6, behind up to two VLAN tags: packets of a flow
    /// keep their order. Fragments go by their addresses alone, what has no ports too, and what is not IP
    /// by its MAC addresses.
    #[default]
    FlowHash,
    /// In turn, whatever they are: evenly, but those of one flow overtake each other. The packets are not
    /// even read.
    RoundRobin,
}

/// A program of the user's; equal to its copies.
#[derive(Clone, Debug)]
struct CpuProgram(Arc<OwnedFd>);

impl PartialEq for CpuProgram {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CpuProgram {}

impl StackCpus {
    /// These CPUs, by the kernel's numbers: spread by [flow](CpuSpread::FlowHash), 2048 packets in each
    /// queue.
    pub fn new(cpus: impl IntoIterator<Item = u32>) -> Self {
        Self {
            cpus: cpus.into_iter().collect(),
            queue_size: QUEUE_SIZE,
            spread: CpuSpread::default(),
            program: None,
        }
    }

    /// Packets that each CPU's queue holds, 1 to 16384: what arrives when it is full is dropped. The kernel
    /// brings them eight at a time.
    pub fn queue_size(mut self, packets: u32) -> Self {
        self.queue_size = packets;
        self
    }

    /// How the packets are spread.
    pub fn spread(mut self, spread: CpuSpread) -> Self {
        self.spread = spread;
        self
    }

    /// Runs an XDP program of yours on each of the CPUs, before the stack: it may still drop the packet, or
    /// redirect it.
    ///
    /// It has to be loaded for CPUMAPs (with aya: `#[xdp(map = "cpumap")]`, the section `xdp/cpumap`), and
    /// with frags exactly if this crate's program is: see [`PortConfig::frags`](crate::PortConfig::frags).
    /// Linux 5.9.
    #[doc(alias = "BPF_XDP_CPUMAP")]
    pub fn program(mut self, program: OwnedFd) -> Self {
        self.program = Some(CpuProgram(Arc::new(program)));
        self
    }

    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    pub(super) fn queue_len(&self) -> u32 {
        self.queue_size
    }

    pub(super) fn second_program(&self) -> Option<BorrowedFd<'_>> {
        self.program.as_ref().map(|program| program.0.as_fd())
    }

    /// What the program calls it.
    pub(super) fn number(&self) -> u32 {
        match self.spread {
            CpuSpread::FlowHash => 1,
            CpuSpread::RoundRobin => 2,
        }
    }

    /// Refuses what the kernel would refuse without a word, and what it would do in silence.
    pub(super) fn check(&self) -> Result<()> {
        let refused = |kind, reason: String| Error::new(Step::StackCpus, kind, reason);
        if self.cpus.is_empty() {
            let reason = "no CPUs to spread packets over".to_owned();
            return Err(refused(ErrorKind::InvalidInput, reason)
                .hint("name some, or leave the option out: the receiving CPU does it all then"));
        }
        if !(1..=MAX_QUEUE_SIZE).contains(&self.queue_size) {
            let reason = format!("a queue of {} packets", self.queue_size);
            return Err(refused(ErrorKind::InvalidInput, reason).hint("1 to 16384"));
        }
        let online = cpus::online();
        let known = online.as_deref().and_then(cpus::in_list);
        for (place, cpu) in self.cpus.iter().enumerate() {
            if self.cpus[..place].contains(cpu) {
                let reason = format!("CPU {cpu} is named twice");
                return Err(refused(ErrorKind::InvalidInput, reason).hint("name each once"));
            }
            if known.as_ref().is_some_and(|known| !known.contains(cpu)) {
                return Err(no_cpu(*cpu));
            }
        }
        Ok(())
    }

    /// Refuses a mode in which this kernel would drop the packets.
    pub(super) fn check_mode(attached: Attached) -> Result<()> {
        Self::check_mode_on(attached, cpus::kernel_version())
    }

    fn check_mode_on(attached: Attached, kernel: Option<(u32, u32)>) -> Result<()> {
        match kernel {
            Some(version) if attached == Attached::Generic && version < GENERIC => Err(Error::new(
                Step::StackCpus,
                ErrorKind::Unsupported,
                "in generic mode this kernel drops packets that are redirected to a CPU",
            )
            .asked("generic mode")
            .hint("it takes Linux 5.15, or native mode")),
            _ => Ok(()),
        }
    }
}

pub(super) fn no_cpu(cpu: u32) -> Error {
    let error = Error::new(
        Step::StackCpus,
        ErrorKind::NotFound,
        format!("there is no CPU {cpu} that could take packets"),
    );
    match cpus::online() {
        Some(online) => error.hint(format!("online are {online}")),
        None => error.hint("nproc tells how many there are; they count from 0"),
    }
}

impl<const N: usize> From<[u32; N]> for StackCpus {
    fn from(cpus: [u32; N]) -> Self {
        Self::new(cpus)
    }
}

impl From<Vec<u32>> for StackCpus {
    fn from(cpus: Vec<u32>) -> Self {
        Self::new(cpus)
    }
}

impl fmt::Display for CpuSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FlowHash => "by flow",
            Self::RoundRobin => "round robin",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(cpus: &StackCpus, kind: ErrorKind, words: &str) {
        let error = cpus.check().unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::StackCpus, kind), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        StackCpus::new([0]).check().unwrap();
        StackCpus::new([0]).queue_size(16384).check().unwrap();
        refused(&StackCpus::new([]), ErrorKind::InvalidInput, "no CPUs");
        refused(&StackCpus::new([0, 0]), ErrorKind::InvalidInput, "CPU 0 is named twice");
        for size in [0, 16385, u32::MAX] {
            refused(&StackCpus::new([0]).queue_size(size), ErrorKind::InvalidInput, "1 to 16384");
        }
        refused(&StackCpus::new([0, u32::MAX]), ErrorKind::NotFound, "CPU 4294967295");
    }

    #[test]
    fn generic_mode_takes_a_kernel_that_can() {
        for kernel in [(5, 14), (4, 19)] {
            let error = StackCpus::check_mode_on(Attached::Generic, Some(kernel)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("5.15"), "{error}");
            StackCpus::check_mode_on(Attached::Native, Some(kernel)).unwrap();
        }
        for kernel in [Some((5, 15)), Some((6, 1)), None] {
            StackCpus::check_mode_on(Attached::Generic, kernel).unwrap();
        }
    }
}
