//! A program that outlives its process: its link and maps as files of a bpffs.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::{
    AttachMode, Attached, Attachment, Loaded, Program, ProgramOptions, Rules, StackCpus, errors,
    vlan::show_tags,
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    interface::{Interface, XdpProgramMode},
    sync::lock,
    sys,
};

const SOCKETS: &str = "sockets";
const QUEUES: &str = "queues";
/// Last: where it is, all are.
const LINK: &str = "link";

/// How to come by a bpffs.
const MOUNT: &str = "a bpffs is needed: mount -t bpf bpf /sys/fs/bpf; `ip netns exec` hides what is \
                     mounted below /sys, so that it has to be at another place there";

impl Program {
    /// Pins the program: its link and its maps become files of this directory of a bpffs, which is made
    /// if it is not there. From now on the program stays attached when the process ends, however it
    /// ends. Without a socket, packets pass to the kernel's stack; the next process puts its own into the
    /// map ([`from_pin`](Self::from_pin)).
    ///
    /// A VLAN offload that was switched off for the rules stays off from then on. Whatever else a port has
    /// changed (steering, deferred interrupts) is undone when the process ends, and the next port's to do
    /// again. Linux 5.9.
    ///
    /// ```no_run
    /// use xskit::{AttachMode, Interface, Program, ProgramOptions, Rules};
    ///
    /// let interface = Interface::by_name("eth0")?;
    /// let (rules, options) = (Rules::udp_port(4242), ProgramOptions::default());
    /// let program = Program::attach(&interface, &rules, AttachMode::Auto, &options)?;
    /// program.pin("/sys/fs/bpf/eth0")?;
    /// // In the next process:
    /// let program = Program::from_pin("/sys/fs/bpf/eth0", &rules, &options)?;
    /// # Ok::<(), xskit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` where no bpffs is mounted, or the directory above is missing, `Busy` if a program is
    /// pinned there already, or this one elsewhere, `Permission` without CAP_BPF or the right to write
    /// there. Nothing is pinned then.
    #[doc(alias = "BPF_OBJ_PIN")]
    pub fn pin(&self, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        let mut pinned = lock(&self.attachment.0.pinned);
        if let Some(elsewhere) = &*pinned {
            let reason = format!("the program is pinned in {} already", elsewhere.display());
            let error = Error::new(Step::Pin, ErrorKind::Busy, reason).hint("unpin it there first");
            return Err(self.named(error, directory));
        }
        let made = make_directory(directory).map_err(|error| self.named(error, directory))?;
        let loaded = self.loaded();
        let (sockets, queues) = loaded.kept_maps();
        let mut done = Vec::new();
        for (name, object) in
            [(SOCKETS, sockets), (QUEUES, queues), (LINK, self.attachment.as_fd())]
        {
            let path = directory.join(name);
            if let Err(error) = pin_object(object, &path) {
                for path in done {
                    fs::remove_file(path).ok();
                }
                if made {
                    fs::remove_dir(directory).ok();
                }
                return Err(self.named(error, directory));
            }
            done.push(path);
        }
        *pinned = Some(directory.to_owned());
        drop(pinned);
        self.attachment.0.note_offload();
        Ok(())
    }

    /// Takes over the program that is pinned in this directory, of a process that has ended or is about
    /// to. No packet meets the interface without a program.
    ///
    /// The rules are exchanged as by [`set_rules`](Self::set_rules): this process' program, with these
    /// rules, takes the place of the one before, on the same map of sockets and the same counters. How
    /// many sockets there can be stays as it was, whatever `options` say. If the other process is still
    /// there, its sockets go on until it closes them; only then are their queues free for others.
    ///
    /// # Errors
    ///
    /// `NotFound` where nothing is pinned, or the interface is in another network namespace, `LinkGone`
    /// where it was deleted meanwhile, `Corrupt` for pinned objects of another make, and all of
    /// [`set_rules`](Self::set_rules). The program before stays in force then.
    #[doc(alias = "BPF_OBJ_GET")]
    pub fn from_pin(
        directory: impl AsRef<Path>,
        rules: &Rules,
        options: &ProgramOptions,
    ) -> Result<Self> {
        let directory = directory.as_ref();
        let at = |error: Error| error.asked(directory.display().to_string());
        let open = |name: &str| open_object(directory, name).map_err(at);
        let (link, sockets, queues) = (open(LINK)?, open(SOCKETS)?, open(QUEUES)?);
        let (interface, attached) =
            whereabouts(link.as_fd()).map_err(|error| at(gone(error, directory)))?;
        let named = |error: Error| error.on(interface.name());
        if options.stack_cpus.is_some() {
            StackCpus::check_mode(attached).map_err(named)?;
        }
        let vlan_offload = show_tags(&interface, rules.use_vlans(), options.vlan_tags)?;
        let loaded = Loaded::on_maps(rules, options, sockets, queues).map_err(named)?;
        sys::bpf::link_update(link.as_fd(), loaded.program_fd()?).map_err(|error| {
            let error = Error::os(Step::Rules, "the kernel refuses to exchange the program", error);
            named(errors::permitted(error))
        })?;
        let pinned = Some(directory.to_owned());
        let attachment = Attachment::new(link, vlan_offload, pinned);
        Ok(Self::new(loaded, &interface, attachment, attached))
    }

    /// Removes what [`pin`](Self::pin) made, by this process or the one it took over from: the program
    /// stays attached for as long as this process, or another one, holds it. Nothing if it is not pinned.
    ///
    /// # Errors
    ///
    /// `Permission` without the right to write there.
    pub fn unpin(&self) -> Result<()> {
        let mut pinned = lock(&self.attachment.0.pinned);
        let Some(directory) = &*pinned else { return Ok(()) };
        remove(directory).map_err(|error| self.named(error, directory))?;
        *pinned = None;
        drop(pinned);
        self.attachment.0.note_offload();
        Ok(())
    }

    /// The directory in which it is pinned.
    pub fn pinned(&self) -> Option<PathBuf> {
        lock(&self.attachment.0.pinned).clone()
    }

    /// Takes over what is pinned in the directory, or attaches a program and pins it there.
    pub(crate) fn attach_pinned(
        directory: &Path,
        interface: &Interface,
        rules: &Rules,
        mode: AttachMode,
        options: &ProgramOptions,
    ) -> Result<Self> {
        let refused = |reason: String, hint: &'static str| {
            let error = Error::new(Step::Pin, ErrorKind::InvalidInput, reason);
            Err(error.on(interface.name()).asked(directory.display().to_string()).hint(hint))
        };
        // Unreadable is not the same as absent: then `from_pin` says why.
        if directory.join(LINK).try_exists().unwrap_or(true) {
            match open_object(directory, LINK).and_then(|link| whereabouts(link.as_fd())) {
                // A link without an interface does nothing for anybody.
                Err(error) if error.kind() == ErrorKind::LinkGone => remove(directory)?,
                Ok((other, _)) if other.index() != interface.index() => {
                    let reason = format!("the program that is pinned there is that of {other}");
                    return refused(reason, "use a directory for each interface");
                }
                Ok((_, attached)) if !mode.allows(attached) => {
                    let reason = format!("the program that is pinned there is in {attached} mode");
                    return refused(reason, "use AttachMode::Auto, or unpin it first");
                }
                _ => return Self::from_pin(directory, rules, options),
            }
        }
        let program = Self::attach(interface, rules, mode, options)?;
        program.pin(directory)?;
        Ok(program)
    }

    fn named(&self, error: Error, directory: &Path) -> Error {
        error.on(self.interface.name()).asked(directory.display().to_string())
    }
}

impl AttachMode {
    fn allows(self, attached: Attached) -> bool {
        match self {
            Self::Auto => true,
            Self::Native => attached == Attached::Native,
            Self::Generic => attached == Attached::Generic,
        }
    }
}

/// The interface that a pinned link is on, and how its program is attached.
fn whereabouts(link: BorrowedFd<'_>) -> Result<(Interface, Attached)> {
    let info = sys::bpf::link_info(link)
        .map_err(|error| Error::os(Step::Pin, "the link cannot be asked for its interface", error))?
        .ok_or_else(|| {
            Error::new(Step::Pin, ErrorKind::Corrupt, "what is pinned is no link of an XDP program")
                .hint("remove what is there, and pin a program there anew")
        })?;
    if info.interface == 0 {
        let reason = "the interface of the pinned program was deleted";
        return Err(Error::new(Step::Pin, ErrorKind::LinkGone, reason));
    }
    let elsewhere = || {
        Error::new(
            Step::Pin,
            ErrorKind::NotFound,
            "the interface of the pinned program is in another network namespace",
        )
        .hint("enter that namespace: ip netns exec, or nsenter --net")
    };
    let interface = Interface::by_index(info.interface).map_err(|error| match error.kind() {
        ErrorKind::NotFound => elsewhere(),
        _ => error,
    })?;
    match interface.facts()?.xdp_program {
        Some(program) if program.id == info.program => Ok((
            interface,
            match program.mode {
                XdpProgramMode::Generic => Attached::Generic,
                XdpProgramMode::Native | XdpProgramMode::Offloaded => Attached::Native,
            },
        )),
        // An interface of the same index, with another program or none.
        _ => Err(elsewhere()),
    }
}

fn gone(error: Error, directory: &Path) -> Error {
    if error.kind() == ErrorKind::LinkGone {
        return error.hint(format!("remove it, and attach anew: rm -r {}", directory.display()));
    }
    error
}

/// Whether this is, or would be, a file of a bpffs.
fn is_on_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Makes the directory if it is not there; whether it had to.
fn make_directory(directory: &Path) -> Result<bool> {
    let exists = directory.is_dir();
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty());
    if !is_on_bpffs(if exists { directory } else { above.unwrap_or(Path::new(".")) }) {
        let reason = "the directory is not on a bpffs";
        return Err(Error::new(Step::Pin, ErrorKind::NotFound, reason).hint(MOUNT));
    }
    if exists {
        return Ok(false);
    }
    fs::create_dir(directory)
        .map_err(|error| permitted(Error::os(Step::Pin, "the directory cannot be made", error)))?;
    Ok(true)
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Error::new(Step::Pin, ErrorKind::InvalidInput, "a path cannot have a NUL in it")
            .hint("use another path")
    })
}

fn pin_object(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    sys::bpf::pin(object, &c_path(path)?).map_err(|source| {
        let error = Error::os(Step::Pin, "the kernel does not pin the program", source);
        match error.raw_os_error() {
            Some(libc::EEXIST) => error.hint(
                "a program is pinned there: take it over with Program::from_pin, or remove the directory",
            ),
            _ => permitted(error),
        }
    })
}

fn open_object(directory: &Path, name: &str) -> Result<OwnedFd> {
    sys::bpf::pinned(&c_path(&directory.join(name))?).map_err(|source| {
        let error = Error::os(Step::Pin, "no program can be taken over", source);
        match error.raw_os_error() {
            _ if !directory.ancestors().any(is_on_bpffs) => {
                error.with_kind(ErrorKind::NotFound).hint(MOUNT)
            }
            Some(libc::ENOENT) => {
                error.hint("nothing is pinned there: attach one, and Program::pin it")
            }
            // A directory, or something else that is no BPF object.
            Some(libc::EINVAL) => error
                .with_kind(ErrorKind::Corrupt)
                .hint("remove what is there, and pin a program there anew"),
            _ => permitted(error),
        }
    })
}

fn remove(directory: &Path) -> Result<()> {
    let removed = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(permitted(Error::os(Step::Pin, "the program stays pinned", error)))
        }
        _ => Ok(()),
    };
    // The link first: without it there is nothing to take over.
    for name in [LINK, QUEUES, SOCKETS] {
        removed(fs::remove_file(directory.join(name)))?;
    }
    // It may have been there before, with other things in it.
    fs::remove_dir(directory).ok();
    Ok(())
}

fn permitted(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES) => error.hint("it belongs to another user: run as that one, or as root"),
        _ => errors::permitted(error),
    }
}
