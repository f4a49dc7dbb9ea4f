//! `cargo xtask ci`: everything that a change has to pass, in the order of cost.

use std::{env, fs::File, io::Read, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flate2::read::GzDecoder;

use crate::cargo::{cargo, run, target, workspace};

/// Runs all checks in order, and stops at the first that fails.
#[derive(Args)]
pub(crate) struct Ci {
    /// Run the others, too, when one fails.
    #[arg(long)]
    keep_going: bool,
}

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", format),
    ("clippy", clippy),
    ("docs", docs),
    ("XDP objects are those of their source", || xtask(&["build-ebpf", "--check"])),
    ("tests", tests),
    ("deliberate faults are caught", || xtask(&["mutants"])),
    ("demo, native", || xtask(&["demo", "--mode", "native"])),
    ("demo, generic", || xtask(&["demo", "--mode", "generic"])),
    ("virtual machines", || run(own(&["vm"])?.env("XSKIT_TEST_REQUIRE", "all"))),
    ("sanitizers", || run(own(&["sanitize"])?.env("XSKIT_TEST_REQUIRE", "all"))),
    ("fuzzing, two minutes", || xtask(&["fuzz", "--seconds", "120"])),
    ("benchmarks, in a short form", benchmarks),
    ("package", package),
];

impl Ci {
    pub(crate) fn run(self) -> Result<()> {
        let mut failed = Vec::new();
        for (name, step) in STEPS {
            eprintln!("\n==== {name} ====");
            let started = Instant::now();
            let outcome = step().with_context(|| format!("step `{name}` failed"));
            let seconds = started.elapsed().as_secs_f64();
            match outcome {
                Ok(()) => eprintln!("==== {name}: ok, {seconds:.0} s ===="),
                Err(error) if self.keep_going => {
                    eprintln!("==== {name}: failed, {seconds:.0} s: {error:#} ====");
                    failed.push(*name);
                }
                Err(error) => return Err(error),
            }
        }
        ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
        Ok(())
    }
}

fn format() -> Result<()> {
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    run(&mut cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))?;
    run(&mut cargo(["fmt", "--manifest-path", "peers/Cargo.toml", "--check"]))
}

/// All there is, the library as most users build it, the models, and what stands beside other libraries.
fn clippy() -> Result<()> {
    let library = ["clippy", "--package", "xskit", "--lib", "--locked"];
    run(cargo(library).args(["--", "--deny", "warnings"]))?;
    let what = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
    run(cargo(what).args(["--", "--deny", "warnings"]))?;
    let models = ["clippy", "--package", "xskit", "--lib", "--profile", "test", "--all-features"];
    run(cargo(models).args(["--locked", "--", "--cfg", "loom", "--deny", "warnings"]))?;
    let peers = ["clippy", "--manifest-path", "peers/Cargo.toml", "--all-targets", "--locked"];
    run(cargo(peers)
        .arg("--target-dir")
        .arg(target()?.join("peers"))
        .args(["--", "--deny", "warnings"]))
}

fn docs() -> Result<()> {
    let what = ["doc", "--workspace", "--no-deps", "--all-features", "--locked"];
    run(cargo(what).env("RUSTDOCFLAGS", "--deny warnings"))
}

/// In CI nothing may be skipped.
fn tests() -> Result<()> {
    run(own(&["test"])?.env("XSKIT_TEST_REQUIRE", "all"))
}

/// No time is checked, only that they run; and that a packet takes no more instructions than it did.
fn benchmarks() -> Result<()> {
    let peers = ["test", "--release", "--manifest-path", "peers/Cargo.toml", "--locked"];
    run(cargo(peers).arg("--target-dir").arg(target()?.join("peers")))?;
    xtask(&["bench", "instructions", "--check"])?;
    for name in ["ring", "seed", "latency", "pktgen", "cache", "cpumap", "fanout", "shared_queue"] {
        xtask(&["bench", name, "--quick"])?;
    }
    xtask(&["bench", "veth", "--quick", "--batches", "64"])?;
    xtask(&["bench", "scale", "--quick", "--frames", "65536"])
}

/// Another of our own commands, in a process of its own, as a user would run it.
fn xtask(arguments: &[&str]) -> Result<()> {
    run(&mut own(arguments)?)
}

fn own(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(arguments).current_dir(workspace());
    Ok(command)
}

/// Packages the library; cargo then builds what it packaged, by itself. The XDP objects in it must be
/// objects, not pointers to them.
fn package() -> Result<()> {
    // The tree need not be committed for the check.
    run(&mut cargo(["package", "--package", "xskit", "--allow-dirty", "--locked"]))?;
    let folder = target()?.join("package");
    let name = format!("xskit-{}", env!("CARGO_PKG_VERSION"));
    let path = folder.join(format!("{name}.crate"));
    let file = File::open(&path).with_context(|| format!("no package at {}", path.display()))?;
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let mut objects = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let inner = path.strip_prefix(&name).unwrap_or(&path).to_owned();
        if !(inner.starts_with("src") && inner.extension().is_some_and(|end| end == "o")) {
            continue;
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        ensure!(is_bpf_object(&bytes), "{} is not a BPF object", inner.display());
        println!("{}: a BPF object of {} bytes", inner.display(), bytes.len());
        objects += 1;
    }
    ensure!(objects > 0, "the package has no object under src/");
    Ok(())
}

/// An ELF header, 64 bits, little-endian, for the machine "BPF".
fn is_bpf_object(bytes: &[u8]) -> bool {
    const MACHINE_BPF: [u8; 2] = 247_u16.to_le_bytes();
    bytes.starts_with(b"\x7fELF\x02\x01") && bytes.get(18..20) == Some(&MACHINE_BPF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bpf_object_is_one() {
        let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0";
        assert!(is_bpf_object(&header));
        header[18] = 62;
        assert!(!is_bpf_object(&header));
        assert!(!is_bpf_object(b"version https://git-lfs.github.com/spec/v1"));
        assert!(!is_bpf_object(b""));
    }
}
