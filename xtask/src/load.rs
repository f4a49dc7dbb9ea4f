//! `load`: the XDP program as just built, verified by this machine's kernel and attached.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use xskit::{
    AttachMode, ErrorKind, Interface, Rule, Rules,
    program::{Loaded, ProgramOptions, VlanTags},
};

use crate::{cargo::Elevation, ebpf};

/// Builds the XDP program, has the kernel verify it, and attaches it until Ctrl-C.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Load {
    /// The interface to attach to; what the rules match has no socket, so all packets pass
    #[arg(required_unless_present = "check")]
    interface: Option<String>,
    /// How to attach
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// Only have the kernel verify the program; needs no interface
    #[arg(long)]
    check: bool,
    /// A rule, such as protocol=udp,destination-port=53; may be given many times
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<Rule>,
    /// Match every packet
    #[arg(long, conflicts_with = "rules")]
    all: bool,
    /// The object for packets of several buffers
    #[arg(long)]
    frags: bool,
    /// VLAN tags are part of the packets, as rules on VLANs need: on veth, TX VLAN offload is off at the
    /// other end
    #[arg(long)]
    vlan_tags_visible: bool,
    /// Load this object and build nothing
    #[arg(long, value_name = "FILE")]
    object: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Mode {
    /// Native where the driver has it, else generic
    #[default]
    Auto,
    Native,
    Generic,
}

impl From<Mode> for AttachMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Auto => Self::Auto,
            Mode::Native => Self::Native,
            Mode::Generic => Self::Generic,
        }
    }
}

impl Load {
    pub(crate) fn run(self) -> Result<()> {
        let object = match &self.object {
            Some(object) => object.clone(),
            None => self.build(),
        };
        let bytes = fs::read(&object).with_context(|| format!("read {}", object.display()))?;
        let rules = if self.all { Rules::all() } else { self.rules.iter().cloned().collect() };
        let vlan_tags =
            if self.vlan_tags_visible { VlanTags::Visible } else { VlanTags::default() };
        let options = ProgramOptions { frags: self.frags, vlan_tags, ..ProgramOptions::default() };

        let loaded = match Loaded::from_object(bytes, &rules, &options) {
            // What was built as the caller is loaded as root.
            Err(error)
                if error.kind() == ErrorKind::Permission && !nix::unistd::geteuid().is_root() =>
            {
                println!("{error}\nonce more through sudo:");
                return elevate(&object);
            }
            loaded => loaded?,
        };
        let info = loaded.info()?;
        println!("{}: verified", object.display());
        println!("  program id            {}", info.id);
        if let Some(instructions) = info.verified_instructions {
            println!("  verifier walked       {instructions} instructions");
        }
        if let Some(bytes) = info.translated_bytes {
            println!("  BPF code              {bytes} bytes");
        }
        match info.jitted_bytes {
            0 => println!("  machine code          none: this kernel interprets BPF"),
            bytes => println!("  machine code          {bytes} bytes"),
        }
        let (false, Some(interface)) = (self.check, &self.interface) else { return Ok(()) };

        // Blocked before the program is attached, so that no signal ends us without detaching.
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block().context("block Ctrl-C")?;
        let interface = Interface::by_name(interface)?;
        let program = loaded.attach(&interface, self.mode.into())?;
        println!(
            "attached to {} in {} mode; Ctrl-C detaches",
            interface.name(),
            program.attached()
        );
        signals.wait().context("wait for Ctrl-C")?;
        let counters = program.counters()?;
        drop(program);
        println!("\ndetached\n{:#?}", counters.total);
        match counters.redirect_errors {
            Some(errors) => println!("failed redirects: {errors:#?}"),
            None => println!("failed redirects: not to be had from this kernel"),
        }
        Ok(())
    }

    /// The object to load: as just built, or the committed one where nothing builds it.
    fn build(&self) -> PathBuf {
        match ebpf::build() {
            Ok(built) => {
                let [plain, frags] = built.objects;
                if self.frags { frags } else { plain }
            }
            Err(error) => {
                println!("{error:#}\nthe committed object is loaded instead");
                ebpf::committed(self.frags)
            }
        }
    }
}

/// Runs this command again as root, on the object that is built already.
fn elevate(object: &Path) -> Result<()> {
    let program = env::current_exe().context("find this program")?;
    let mut command = Elevation::find()?.command(&program);
    command.args(env::args_os().skip(1)).arg("--object").arg(object);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    // Ctrl-C goes to the whole foreground group: the child ends by it, and we wait for that.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("block Ctrl-C")?;
    let status = child.wait().context("wait for sudo")?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
