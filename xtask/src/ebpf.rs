//! `build-ebpf`: the XDP program's objects from their source, compared with the committed ones.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cargo::workspace;

/// Both objects: what cargo calls them, and the names under which they are committed.
const OBJECTS: [(&str, &str); 2] = [("xskit", "xskit.bpf.o"), ("xskit_frags", "xskit_frags.bpf.o")];

const TARGET: &str = "bpfel-unknown-none";

const TO_INSTALL: &str = "\
no toolchain for the XDP program was found; it needs two things:
  a compiler with `core` for BPF, either
    Debian 12: apt-get install --no-install-recommends rustc-web libstd-rust-web-dev-bpf
    rustup:    rustup toolchain install nightly --component rust-src
  and a linker that fits it (beside Debian's rustc-web: this version)
    CARGO_PROFILE_RELEASE_DEBUG=0 cargo install bpf-linker --version 0.10.3 --locked
Nobody needs them who does not change bpf/: the built objects are committed.";

/// Builds the XDP program.
#[derive(Args, Debug)]
pub(crate) struct BuildEbpf {
    /// Change nothing; fail where the committed objects are not what the source gives
    #[arg(long)]
    check: bool,
}

impl BuildEbpf {
    pub(crate) fn run(self) -> Result<()> {
        let built = build()?;
        let same_toolchain = built.is_recorded();
        if !same_toolchain {
            println!(
                "built with another toolchain than the committed objects:\n{}instead of\n{}",
                built.toolchain,
                fs::read_to_string(record()).unwrap_or_else(|_| "none recorded\n".into()),
            );
        }
        for object in &built.objects {
            let name = file_name(object);
            let new = fs::read(object).with_context(|| format!("read {}", object.display()))?;
            let target = committed_in().join(&name);
            let same = fs::read(&target).is_ok_and(|old| old == new);
            match (self.check, same) {
                (_, true) => println!("{name}: {} bytes, as committed", new.len()),
                (true, false) if same_toolchain => bail!(
                    "{name} is not what its source gives ({} is): run `cargo xtask build-ebpf`",
                    object.display()
                ),
                (true, false) => {
                    println!("{name}: not compared; {} is the new one", object.display());
                }
                (false, false) => {
                    fs::write(&target, &new)
                        .with_context(|| format!("write {}", target.display()))?;
                    println!("{name}: {} bytes, replaced", new.len());
                }
            }
        }
        if !self.check && !same_toolchain {
            fs::write(record(), &built.toolchain).context("write bpf/TOOLCHAIN")?;
            println!("bpf/TOOLCHAIN: replaced");
        }
        Ok(())
    }
}

/// What a build gave.
pub(crate) struct Built {
    /// The object for packets of one buffer, and the one for several.
    pub(crate) objects: [PathBuf; 2],
    /// Compiler and linker, a line each.
    toolchain: String,
}

impl Built {
    /// Whether the committed objects come from the same compiler and linker.
    fn is_recorded(&self) -> bool {
        fs::read_to_string(record()).is_ok_and(|recorded| recorded == self.toolchain)
    }
}

/// The folder of the XDP program.
pub(crate) fn folder() -> PathBuf {
    workspace().join("bpf")
}

fn record() -> PathBuf {
    folder().join("TOOLCHAIN")
}

/// In the library: cargo packages nothing of a folder that is a package of its own, as `bpf` is.
fn committed_in() -> PathBuf {
    workspace().join("src/program")
}

/// The committed object of the same kind as one that was built.
pub(crate) fn committed(frags: bool) -> PathBuf {
    committed_in().join(OBJECTS[usize::from(frags)].1)
}

/// Builds both objects under `bpf/target`; changes nothing else.
pub(crate) fn build() -> Result<Built> {
    let toolchain = Toolchain::find()?;
    let target_folder = folder().join("target");
    let mut cargo = toolchain.cargo();
    cargo
        .current_dir(folder())
        .args(["build", "--release", "--locked", "--quiet", "--target", TARGET, "--target-dir"])
        .arg(&target_folder)
        .env("PATH", with_folder_of(&toolchain.linker)?);
    // The object must not depend on what the caller builds other programs with.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_PROFILE_RELEASE_DEBUG",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        cargo.env_remove(name);
    }
    let status = cargo.status().with_context(|| format!("run {cargo:?}"))?;
    ensure!(status.success(), "the XDP program does not build: {status}");

    let mut objects = [PathBuf::new(), PathBuf::new()];
    for ((binary, object), path) in OBJECTS.into_iter().zip(&mut objects) {
        let from = target_folder.join(TARGET).join("release").join(binary);
        *path = target_folder.join(object);
        fs::copy(&from, &*path).with_context(|| format!("copy {}", from.display()))?;
    }
    Ok(Built { objects, toolchain: toolchain.to_string() })
}

/// What compiles and links for BPF.
struct Toolchain {
    compiler: Compiler,
    /// `rustc -V`.
    compiler_version: String,
    linker: PathBuf,
    /// `bpf-linker --version`.
    linker_version: String,
}

enum Compiler {
    /// A rustc that has `core` for BPF beside it, as Debian's has.
    WithCore(PathBuf),
    /// rustup's nightly, which builds `core` from its source.
    Nightly,
}

impl Toolchain {
    fn find() -> Result<Self> {
        let (linker, linker_version) = find_linker().context(TO_INSTALL)?;
        let compiler = find_compiler().context(TO_INSTALL)?;
        let mut version = match &compiler {
            Compiler::WithCore(rustc) => Command::new(rustc),
            Compiler::Nightly => nightly("rustc"),
        };
        let compiler_version = output(version.arg("-V")).context("the compiler has no version")?;
        Ok(Self { compiler, compiler_version, linker, linker_version })
    }

    fn cargo(&self) -> Command {
        match &self.compiler {
            Compiler::WithCore(rustc) => {
                let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
                // BPF is a target of nightly compilers only, officially.
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
            Compiler::Nightly => {
                let mut cargo = nightly("cargo");
                cargo.args(["-Z", "build-std=core"]).env_remove("RUSTC").env_remove("CARGO");
                cargo
            }
        }
    }
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}\n{}", self.compiler_version, self.linker_version)
    }
}

fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]);
    command
}

/// The first line that a program prints, if it runs and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

fn find_compiler() -> Option<Compiler> {
    let with_core = |rustc: PathBuf| {
        let sysroot = output(Command::new(&rustc).args(["--print", "sysroot"]))?;
        let core = Path::new(&sysroot).join("lib/rustlib").join(TARGET).join("lib");
        core.is_dir().then_some(Compiler::WithCore(rustc))
    };
    let nightly_with_source = || {
        let sysroot = output(nightly("rustc").args(["--print", "sysroot"]))?;
        let source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core");
        source.is_dir().then_some(Compiler::Nightly)
    };
    in_path("rustc").find_map(with_core).or_else(nightly_with_source)
}

fn find_linker() -> Option<(PathBuf, String)> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    in_path("bpf-linker")
        .chain(cargo_home.map(|home| home.join("bin/bpf-linker")))
        .find_map(|path| Some((path.clone(), output(Command::new(path).arg("--version"))?)))
}

/// Everything of this name in `PATH`.
fn in_path(program: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.into_iter().map(move |folder| folder.join(program)).filter(|path| path.is_file())
}

/// `PATH` with the linker's folder at its end, so that it hides nothing.
fn with_folder_of(linker: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(linker.parent().map(Path::to_owned));
    env::join_paths(folders).context("PATH cannot be extended")
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
