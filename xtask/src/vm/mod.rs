//! `cargo xtask vm`: the tests on other kernels, and on interfaces with zero-copy, in virtual machines.

mod archive;
mod bench;
mod cases;
mod guest;
mod image;
mod kernels;
mod modules;
mod programs;
mod qemu;
mod series;
mod verdict;
mod vmlinux;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

pub(crate) use self::bench::bench;
use self::{
    cases::Case, image::Image, kernels::Kernel, qemu::Host, series::Series, verdict::Verdict,
};
use crate::cargo;

/// The kernels that are tried unless others are named: Debian 12's own, its newer one, and the first that has
/// zero-copy in virtio_net.
const KERNELS: [&str; 3] = ["6.1", "6.12", "6.18+"];

/// What a guest takes to boot and to end, on a busy machine.
const BOOT: Duration = Duration::from_secs(60);

/// Runs the tests in virtual machines: on Debian's kernels 6.1, 6.12, and 6.18 or the next.
///
/// The kernels come through apt from the machine's Debian mirror, and stay in a cache folder
/// (`XSKIT_VM_CACHE`, else `~/.cache/xskit/kernels`). The console logs are `target/vm/KERNEL/console.log`.
#[derive(Args)]
pub(crate) struct Vm {
    /// The kernel to boot, several times for several: `6.12`, `6.18+` (or the next one that there is),
    /// `newest`.
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<Series>,
    /// The case to run, several times for several (`--list` shows them); none means all.
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// Only print the cases' names.
    #[arg(long)]
    list: bool,
    /// The folder whose tests are built: another copy of the workspace.
    #[arg(long, value_name = "FOLDER", hide = true)]
    tree: Option<PathBuf>,
}

/// A guest that has run.
struct Run {
    release: String,
    cases: Vec<&'static Case>,
    verdict: Verdict,
    console: PathBuf,
    took: Duration,
}

impl Vm {
    pub(crate) fn run(self) -> Result<()> {
        let cases = cases::chosen(&self.cases)?;
        if self.list {
            for case in cases {
                println!("{}", case.name);
            }
            return Ok(());
        }
        let series = if self.kernels.is_empty() {
            KERNELS.iter().map(|name| name.parse()).collect::<Result<_>>()?
        } else {
            self.kernels
        };
        if let Err(why) = programs::check().and_then(|()| Host::new()) {
            return skip("vm", &why);
        }
        let folder = cargo::target()?.join("vm");
        fs::create_dir_all(&folder)?;
        // The network and the processors are busy at the same time.
        let (kernels, tests) = thread::scope(|scope| {
            let kernels = scope.spawn(|| fetch(&series));
            let tree = self.tree.as_deref().unwrap_or_else(|| cargo::workspace());
            let tests = build(tree, &folder.join("build"), &cases);
            (kernels.join().map_err(|_| anyhow!("fetching panicked")), tests)
        });
        let (kernels, tests) = (kernels??, tests?);
        let guests = Guests { cases, tests, arguments: Vec::new(), folder };
        let runs = guests.boot_all(&kernels)?;
        println!("\n{}", table(&runs));
        let mut bad = Vec::new();
        for run in &runs {
            println!("{}: {}", run.release, run.console.display());
            if let Some(fault) = &run.verdict.fault {
                eprintln!("{}:\n{fault}", run.release);
            }
            if !run.verdict.is_good() {
                bad.push(run.release.as_str());
            }
        }
        if !bad.is_empty() {
            bail!("failed on {}", bad.join(", "));
        }
        Ok(())
    }
}

/// Says aloud what cannot be done here; an error where nothing may be skipped.
fn skip(what: &str, why: &anyhow::Error) -> Result<()> {
    if env::var_os("XSKIT_TEST_REQUIRE").is_some_and(|required| required == "all") {
        bail!("{what} may not be skipped (XSKIT_TEST_REQUIRE=all): {why:#}");
    }
    eprintln!("SKIPPED: {what}: {why:#}");
    Ok(())
}

/// The kernels that can be had, each once.
fn fetch(series: &[Series]) -> Result<Vec<Kernel>> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for series in series {
        match kernels::get(*series) {
            Ok(kernel) if kernels.iter().any(|known| known.release == kernel.release) => {}
            Ok(kernel) => kernels.push(kernel),
            Err(why) => skip(&format!("vm on {series}"), &why)?,
        }
    }
    Ok(kernels)
}

/// Builds what the cases run, statically linked: the guest has no libraries. In a folder of its own, since
/// it is another target for cargo.
fn build(tree: &Path, folder: &Path, cases: &[&Case]) -> Result<BTreeMap<String, PathBuf>> {
    let folder = folder.to_str().context("cargo's folder is no text")?;
    // A target that is named, so that build scripts and macros are not linked so.
    let common = ["--package", "xskit", "--features", "audit", "--locked", "--profile", "vm"];
    let common = [&common[..], &["--target", "x86_64-unknown-linux-gnu", "--target-dir", folder]];
    let common = common.concat();
    let cargo = |command: &[&str], targets: &mut dyn Iterator<Item = &'static [&'static str]>| {
        let targets: Vec<_> = targets.flatten().copied().collect();
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let static_ = [("RUSTFLAGS", "-C target-feature=+crt-static")];
        cargo::build_in(tree, &[command, &common, &targets].concat(), &static_)
    };
    let tests = cargo(&["test", "--no-run"], &mut cases.iter().map(|case| case.build))?;
    let examples = cargo(&["build"], &mut cases.iter().map(|case| case.examples))?;
    Ok(tests.into_iter().chain(examples).map(|binary| (binary.name, binary.path)).collect())
}

/// What all guests have in common.
struct Guests {
    cases: Vec<&'static Case>,
    /// Executables by name.
    tests: BTreeMap<String, PathBuf>,
    /// For those that are no tests.
    arguments: Vec<String>,
    folder: PathBuf,
}

impl Guests {
    /// Runs a guest for each kernel, as many at a time as there are processors.
    fn boot_all(&self, kernels: &[Kernel]) -> Result<Vec<Run>> {
        // The last kernels have the most cases: they come first.
        let waiting = Mutex::new(kernels.iter().enumerate().collect::<Vec<_>>());
        let runs = Mutex::new(Vec::new());
        let work = || -> Result<()> {
            loop {
                let next = waiting.lock().expect("nobody panics with it").pop();
                let Some((index, kernel)) = next else { return Ok(()) };
                let run = self.boot(kernel);
                let run = run.with_context(|| format!("the guest with {}", kernel.release))?;
                runs.lock().expect("nobody panics with it").push((index, run));
            }
        };
        thread::scope(|scope| {
            let workers = thread::available_parallelism().map_or(1, usize::from).min(kernels.len());
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| anyhow!("a guest's thread panicked"))?
            })
        })?;
        let mut runs = runs.into_inner().expect("nobody panics with it");
        runs.sort_by_key(|(index, _)| *index);
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }

    fn boot(&self, kernel: &Kernel) -> Result<Run> {
        let started = Instant::now();
        let cases = self.cases.iter().copied().filter(|case| kernel.version >= case.since);
        let cases: Vec<_> = cases.collect();
        let folder = self.folder.join(&kernel.release);
        fs::create_dir_all(&folder)?;
        let image = folder.join("image.cpio");
        self.pack(&image, kernel, &cases).context("the guest's files")?;
        let console = folder.join("console.log");
        let seconds: u32 = cases.iter().map(|case| case.seconds).sum();
        let limit = BOOT + Duration::from_secs(seconds.into());
        eprintln!("{}: boots, {} cases", kernel.release, cases.len());
        let ended = qemu::boot(kernel, &image, &console, &Host::new()?, limit);
        fs::remove_file(&image)?;
        let log = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        let mut verdict = Verdict::read(&log, &cases);
        if let Err(error) = ended {
            verdict.fault.get_or_insert(format!("{error:#}"));
        }
        let release = kernel.release.clone();
        let took = started.elapsed();
        eprintln!("{release}: {}", if verdict.is_good() { "ok" } else { "FAILED" });
        Ok(Run { release, cases, verdict, console, took })
    }

    /// Everything that the guest has.
    fn pack(&self, image: &Path, kernel: &Kernel, cases: &[&Case]) -> Result<()> {
        let mut image = Image::create(image)?;
        for folder in ["proc", "sys", "dev", "tmp", "run", "mnt"] {
            image.folder(folder)?;
        }
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        image.file("init", guest::init(qemu::NICS, cases, &arguments).as_bytes())?;
        image.copy("bin/busybox", &programs::find("busybox")?)?;
        for module in &kernel.modules {
            let name = module.file_name().context("a module has a name")?.to_string_lossy();
            image.copy(&format!("modules/{name}"), module)?;
        }
        // As cargo has them: tests look for examples beside their own folder.
        for (name, path) in &self.tests {
            let is_example = path.parent().is_some_and(|folder| folder.ends_with("examples"));
            let folder = if is_example { "examples" } else { "deps" };
            image.copy(&format!("tests/{folder}/{name}"), path)?;
        }
        Ok(image.finish()?)
    }
}

fn table(runs: &[Run]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["kernel", "case", "", "passed", "seconds"]);
    for run in runs {
        for (case, outcome) in run.cases.iter().zip(&run.verdict.outcomes) {
            table.add_row([
                run.release.clone(),
                case.name.to_owned(),
                outcome.to_string(),
                outcome.passed.to_string(),
                outcome.seconds.map_or_else(String::new, |seconds| seconds.to_string()),
            ]);
        }
        let whole = if run.verdict.fault.is_some() { "FAULT, quoted below" } else { "" };
        let took = format!("{:.0}", run.took.as_secs_f64());
        table.add_row([&run.release, "(all)", whole, "", &took]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
