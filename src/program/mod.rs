//! The embedded XDP program: which packets go to which socket, and what became of them.
//!
//! A packet that matches the [`Rules`] is redirected to the socket of the queue it arrived on; all
//! others, and those of a queue without a socket, pass to the kernel's network stack as if there was
//! no program, or on other CPUs: [`StackCpus`].
//!
//! [`Program::attach`] loads and attaches it, [`Program::set_rules`] exchanges the rules while packets
//! flow: a program with the new rules is loaded beside the one in force, on the same map of sockets
//! and the same counters, and then takes its place in the interface's link in one step
//! (`BPF_LINK_UPDATE`). So each packet is judged by the old rules or by the new ones, never by a
//! mixture, and the code for fields that no rule uses is absent, whatever the rules were before.
//!
//! A process that ends takes its program with it, unless it was [pinned](Program::pin): then the next
//! process takes it over, and no packet meets the interface without one.
//!
//! With an XDP program of your own, the [`SocketMap`] alone is enough: from aya, a pin, or a descriptor.

mod counters;
mod cpumap;
mod errors;
mod flows;
mod letting_go;
mod load;
mod map;
mod pin;
mod rules;
mod stack;
mod tables;
mod vlan;

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

pub use self::{
    counters::{Counters, QueueCounters, RedirectErrors},
    cpumap::{CpuCounters, CpuQueueCounters, CpuThreadCounters},
    flows::FlowRules,
    load::{Loaded, ProgramInfo},
    map::{MapEntry, SocketMap},
    rules::{MAX_RULES, Prefix, Rule, Rules},
    stack::{CpuSpread, StackCpus},
    vlan::VlanTags,
};
use self::{letting_go::LettingGo, vlan::show_tags};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    interface::{
        DisabledOffload, Interface,
        netlink::{self, NetlinkRefusal},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError, lock},
    sys,
};

/// How a program is asked to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttachMode {
    /// Native where the driver has it, else generic. [`Program::attached`] says which it was.
    #[default]
    Auto,
    /// In the driver, before the kernel makes an skb of the packet.
    #[doc(alias = "XDP_FLAGS_DRV_MODE")]
    Native,
    /// In the kernel's stack, on every interface: slower, and never with zero-copy.
    #[doc(alias = "XDP_FLAGS_SKB_MODE")]
    Generic,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attached {
    /// In the driver.
    Native,
    /// In the kernel's stack.
    Generic,
}

impl Attached {
    /// The kernel's `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE`.
    fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// What the program is loaded with, besides its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOptions {
    /// Whether packets may span several buffers, as they do on an MTU above about 3.4 KB. Linux 6.6
    /// for sockets that receive them.
    pub frags: bool,
    /// How many queues can have a socket, counted from queue 0: at least 1.
    pub sockets: u32,
    /// What rules on VLANs may take for granted.
    pub vlan_tags: VlanTags,
    /// CPUs on which the kernel's stack gets what no socket takes; `None`: the CPU that receives it.
    pub stack_cpus: Option<StackCpus>,
}

impl Default for ProgramOptions {
    /// 64 queues, each packet in one buffer.
    fn default() -> Self {
        Self { frags: false, sockets: 64, vlan_tags: VlanTags::Check, stack_cpus: None }
    }
}

/// The embedded XDP program, attached to an interface.
///
/// It stays attached until this and all clones of its [`attachment`](Self::attachment) are dropped;
/// a killed process leaves nothing attached, as the kernel detaches it with the last descriptor, unless
/// the program was [pinned](Self::pin).
pub struct Program {
    interface: Interface,
    loaded: Mutex<Loaded>,
    socket_map: SocketMap,
    attachment: Attachment,
    attached: Attached,
    vlan_tags: VlanTags,
}

impl Program {
    /// Loads the embedded program with these rules and attaches it. Linux 5.9.
    ///
    /// Count the interface's queues before: some drivers add queues when a program is attached.
    ///
    /// # Errors
    ///
    /// `Busy` where the interface has an XDP program already, `Unsupported` where the driver has no
    /// native mode and it was asked for, where the MTU needs frags, or where rules are on VLANs and
    /// the NIC takes the tags off, `Permission` without CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON,
    /// `InvalidInput` for rules that contradict themselves. Where the driver gives a reason, the error has it.
    pub fn attach(
        interface: &Interface,
        rules: &Rules,
        mode: AttachMode,
        options: &ProgramOptions,
    ) -> Result<Self> {
        Loaded::new(rules, options)
            .map_err(|error| error.on(interface.name()))?
            .attach(interface, mode)
    }

    fn from_loaded(loaded: Loaded, interface: &Interface, mode: AttachMode) -> Result<Self> {
        let vlan_offload = show_tags(interface, loaded.uses_vlans(), loaded.options().vlan_tags)?;
        let program = loaded.program_fd()?;
        let attempt = |attached: Attached| {
            sys::bpf::xdp_link_create(program, interface.index(), attached.flags())
        };
        let generic = || {
            if loaded.options().stack_cpus.is_some() {
                StackCpus::check_mode(Attached::Generic)
                    .map_err(|error| error.on(interface.name()))?;
            }
            Ok((Attached::Generic, attempt(Attached::Generic)))
        };
        let (attached, result) = match mode {
            AttachMode::Native => (Attached::Native, attempt(Attached::Native)),
            AttachMode::Generic => generic()?,
            AttachMode::Auto => match attempt(Attached::Native) {
                // As the kernel itself would choose: any other refusal has a cause to be seen.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => generic()?,
                result => (Attached::Native, result),
            },
        };
        let link = result.map_err(|error| {
            let netlink = ask_why(interface, program, attached, &error);
            let native = attached == Attached::Native;
            load::attach_error(error, netlink, interface, native, loaded.options())
        })?;
        let attachment = Attachment::new(link, vlan_offload, None);
        Ok(Self::new(loaded, interface, attachment, attached))
    }

    fn new(
        loaded: Loaded,
        interface: &Interface,
        attachment: Attachment,
        attached: Attached,
    ) -> Self {
        Self {
            interface: interface.clone(),
            vlan_tags: loaded.options().vlan_tags,
            socket_map: loaded.socket_map().clone(),
            loaded: Mutex::new(loaded),
            attachment,
            attached,
        }
    }

    /// The interface that it is attached to.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The map that says which socket gets a queue's packets.
    pub fn socket_map(&self) -> &SocketMap {
        &self.socket_map
    }

    /// The mode that was obtained.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// A share of the attachment: the program stays attached for as long as any is held.
    pub fn attachment(&self) -> Attachment {
        self.attachment.clone()
    }

    /// Drops a guard once the program is detached.
    pub(crate) fn keep(&self, guard: impl fmt::Debug + Send + Sync + 'static) {
        let mut guards = lock(&self.attachment.0.guards);
        guards.push(Box::new(guard));
    }

    /// Exchanges the rules in one step: each packet is judged by the old ones or by the new ones.
    ///
    /// Sockets and counters stay. It takes 30 to 80 ms, during which the old rules hold.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for rules that contradict themselves, `Unsupported` for rules on VLANs where
    /// the NIC hides the tags, `NotFound` where somebody else has detached the program, or the interface was
    /// deleted. After any error, the old rules hold.
    pub fn set_rules(&self, rules: &Rules) -> Result<()> {
        // Before an offload is switched off for rules that cannot be.
        rules.check().map_err(|error| error.on(self.interface.name()))?;
        let mut vlan_offload = lock(&self.attachment.0.vlan_offload);
        if vlan_offload.is_none() {
            *vlan_offload = show_tags(&self.interface, rules.use_vlans(), self.vlan_tags)?;
        }
        drop(vlan_offload);
        self.attachment.0.note_offload();
        self.loaded()
            .exchange(rules, |program| {
                sys::bpf::link_update(self.attachment.as_fd(), program).map_err(refused_exchange)
            })
            .map_err(|error| error.on(self.interface.name()))
    }

    /// What became of the packets since the program was attached.
    pub fn counters(&self) -> Result<Counters> {
        self.loaded().counters().map_err(|error| error.on(self.interface.name()))
    }

    /// What the kernel says about the program in force.
    pub fn info(&self) -> Result<ProgramInfo> {
        self.loaded().info()
    }

    /// A panic elsewhere leaves the program as whole as it was: an exchange ends with one assignment.
    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        lock(&self.loaded)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("interface", &self.interface)
            .field("attached", &self.attached)
            .finish_non_exhaustive()
    }
}

/// Keeps a program attached: it is detached when the last clone is dropped.
#[derive(Clone, Debug)]
#[doc(alias = "bpf_link")]
pub struct Attachment(Arc<Attaching>);

/// Dropped from top to bottom.
#[derive(Debug)]
struct Attaching {
    link: OwnedFd,
    vlan_offload: Mutex<Option<DisabledOffload>>,
    guards: Mutex<Vec<Box<dyn fmt::Debug + Send + Sync>>>,
    letting_go: LettingGo,
    /// The directory of a bpffs in which the link lives on.
    pinned: Mutex<Option<PathBuf>>,
}

impl Attachment {
    fn new(link: OwnedFd, vlan_offload: Option<DisabledOffload>, pinned: Option<PathBuf>) -> Self {
        let (vlan_offload, pinned) = (Mutex::new(vlan_offload), Mutex::new(pinned));
        let (guards, letting_go) = (Mutex::default(), LettingGo::default());
        let attaching = Attaching { link, vlan_offload, guards, letting_go, pinned };
        attaching.note_offload();
        Self(Arc::new(attaching))
    }

    /// A zero-copy socket has a share: the kernel has to have let go of its queue before the program is
    /// detached.
    pub(crate) fn expect_zero_copy(&self) {
        self.0.letting_go.expect();
    }

    /// A zero-copy socket that has a share is about to be closed. Where others may have a descriptor of it,
    /// its end is not sure.
    pub(crate) fn zero_copy_ends(&self, ifindex: u32, queue: u32, is_shared: bool) {
        self.0.letting_go.begin(ifindex, queue, is_shared);
    }
}

impl Attaching {
    /// While the program is pinned, it stays when the process is killed, and with it the rules that need
    /// the tags: then nobody shall switch the offload on again.
    fn note_offload(&self) {
        if let Some(offload) = &mut *lock(&self.vlan_offload) {
            offload.set_recorded(lock(&self.pinned).is_none());
        }
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        let vlan_offload = self.vlan_offload.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The program stays, and with it the rules that need the tags.
        if pinned.is_some() {
            vlan_offload.take().into_iter().for_each(DisabledOffload::leave_off);
        } else {
            self.letting_go.wait();
        }
    }
}

impl AsFd for Attachment {
    /// The descriptor of the kernel's bpf_link.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.link.as_fd()
    }
}

fn refused_exchange(source: io::Error) -> Error {
    if source.raw_os_error() == Some(libc::ENOLINK) {
        return Error::os(
            Step::Rules,
            "the program was detached by somebody else, or its interface was deleted",
            source,
        )
        .with_kind(ErrorKind::NotFound)
        .hint("drop it and its sockets, and open anew");
    }
    Error::os(Step::Rules, "the kernel refuses to exchange the program", source)
}

/// Asks again in the older way of attaching, which tells the kernel's or the driver's own words: a
/// bpf_link does not.
fn ask_why(
    interface: &Interface,
    program: BorrowedFd<'_>,
    attached: Attached,
    refusal: &io::Error,
) -> Option<NetlinkRefusal> {
    /// Never in the place of somebody else's program.
    const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;

    if refusal.raw_os_error() == Some(libc::EPERM) {
        return None;
    }
    let flags = attached.flags() | XDP_FLAGS_UPDATE_IF_NOEXIST;
    if let Err(refusal) = netlink::attach_xdp(interface.index(), program, flags) {
        return Some(refusal);
    }
    // Refused a moment ago, accepted now; without a link it would outlive the process.
    drop(netlink::detach_xdp(interface.index(), attached.flags()));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::{Offload, netlink::with_veth};

    /// A pinned program stays when its process is killed, and needs the tags: then nobody shall switch the
    /// offload on again.
    #[test]
    fn an_offload_is_written_down_while_the_program_ends_with_its_process() {
        with_veth(|program| {
            let va = Interface::by_name("va").unwrap();
            let record = |attachment: &Attachment| {
                let offload = lock(&attachment.0.vlan_offload);
                offload.as_ref().unwrap().record().map(std::path::Path::to_owned)
            };
            let offload = Offload::RxVlan.disable(&va).unwrap();
            let written = offload.record().expect("root can").to_owned();
            let attachment = Attachment::new(program, Some(offload), Some("/pinned".into()));
            assert_eq!(record(&attachment), None);
            assert!(!written.exists());
            // Unpinned.
            *lock(&attachment.0.pinned) = None;
            attachment.0.note_offload();
            let written = record(&attachment).expect("as before");
            assert!(written.exists());
            // Pinned again, it is left off for good at the end.
            *lock(&attachment.0.pinned) = Some("/pinned".into());
            attachment.0.note_offload();
            assert!(!written.exists());
            drop(attachment);
            assert_eq!(va.facts().unwrap().rx_vlan_offload, Some(false));
        });
    }
}
