//! The embedded XDP program: which packets go to which socket, and what became of them.
//!
//! A packet that matches the [`Rules`] is redirected to the socket of the queue it arrived on; all
//! others, and those of a queue without a socket, pass to the kernel's network stack as if there was
//! no program.
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
mod errors;
mod flows;
mod load;
mod map;
mod pin;
mod rules;
mod tables;
mod vlan;

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use self::vlan::show_tags;
pub use self::{
    counters::{Counters, QueueCounters, RedirectErrors},
    flows::FlowRules,
    load::{Loaded, ProgramInfo},
    map::{MapEntry, SocketMap},
    rules::{MAX_RULES, Prefix, Rule, Rules},
    vlan::VlanTags,
};
use crate::{
    error::{Error, Result, Step},
    interface::{
        Interface, VlanOffload,
        netlink::{self, NetlinkRefusal},
    },
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
}

impl Default for ProgramOptions {
    /// 64 queues, each packet in one buffer.
    fn default() -> Self {
        Self { frags: false, sockets: 64, vlan_tags: VlanTags::Check }
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
        let (attached, result) = match mode {
            AttachMode::Native => (Attached::Native, attempt(Attached::Native)),
            AttachMode::Generic => (Attached::Generic, attempt(Attached::Generic)),
            AttachMode::Auto => match attempt(Attached::Native) {
                // As the kernel itself would choose: any other refusal has a cause to be seen.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    (Attached::Generic, attempt(Attached::Generic))
                }
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
        let mut guards = self.attachment.0.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.push(Box::new(guard));
    }

    /// Exchanges the rules in one step: each packet is judged by the old ones or by the new ones.
    ///
    /// Sockets and counters stay. It takes 30 to 80 ms, during which the old rules hold.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for rules that contradict themselves, `Unsupported` for rules on VLANs where
    /// the NIC hides the tags. After any error, the old rules hold.
    pub fn set_rules(&self, rules: &Rules) -> Result<()> {
        // Before an offload is switched off for rules that cannot be.
        rules.check().map_err(|error| error.on(self.interface.name()))?;
        let mut vlan_offload =
            self.attachment.0.vlan_offload.lock().unwrap_or_else(PoisonError::into_inner);
        if vlan_offload.is_none() {
            *vlan_offload = show_tags(&self.interface, rules.use_vlans(), self.vlan_tags)?;
        }
        self.loaded()
            .exchange(rules, |program| {
                sys::bpf::link_update(self.attachment.as_fd(), program).map_err(|error| {
                    Error::os(Step::Rules, "the kernel refuses to exchange the program", error)
                })
            })
            .map_err(|error| error.on(self.interface.name()))
    }

    /// What became of the packets since the program was attached.
    pub fn counters(&self) -> Result<Counters> {
        self.loaded().counters()
    }

    /// What the kernel says about the program in force.
    pub fn info(&self) -> Result<ProgramInfo> {
        self.loaded().info()
    }

    /// A panic elsewhere leaves the program as whole as it was: an exchange ends with one assignment.
    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
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
    vlan_offload: Mutex<Option<VlanOffload>>,
    guards: Mutex<Vec<Box<dyn fmt::Debug + Send + Sync>>>,
    /// The directory of a bpffs in which the link lives on.
    pinned: Mutex<Option<PathBuf>>,
}

impl Attachment {
    fn new(link: OwnedFd, vlan_offload: Option<VlanOffload>, pinned: Option<PathBuf>) -> Self {
        let (vlan_offload, pinned) = (Mutex::new(vlan_offload), Mutex::new(pinned));
        Self(Arc::new(Attaching { link, vlan_offload, guards: Mutex::default(), pinned }))
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        let vlan_offload = self.vlan_offload.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The program stays, and with it the rules that need the tags.
        if pinned.is_some() {
            vlan_offload.take().into_iter().for_each(VlanOffload::leave_off);
        }
    }
}

impl AsFd for Attachment {
    /// The descriptor of the kernel's bpf_link.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.link.as_fd()
    }
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
