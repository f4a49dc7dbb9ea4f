//! What the numbers come from.

use std::fs;

use serde::Serialize;

/// The version of the compiler that built this, as `rustc 1.95.0`.
pub fn rustc() -> &'static str {
    env!("REPORT_RUSTC").split(" (").next().unwrap_or_default()
}

/// The machine and the compilers.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    compilers: Vec<String>,
}

impl Machine {
    /// This one, and the compiler of this crate.
    pub(crate) fn here() -> Self {
        let uname = nix::sys::utsname::uname();
        let kernel = uname.map(|uname| uname.release().to_string_lossy().into_owned());
        let (rustc, level, target) =
            (env!("REPORT_RUSTC"), env!("REPORT_PROFILE"), env!("REPORT_TARGET"));
        Self {
            cpu: cpu_model().unwrap_or_else(|| "unknown CPU".to_owned()),
            cpus: cpu_count(),
            kernel: kernel.unwrap_or_else(|_| "unknown".to_owned()),
            compilers: vec![format!("{rustc}, opt-level {level}, {target}")],
        }
    }

    /// With another compiler that made a part of what is measured.
    pub(crate) fn add_compiler(&mut self, compiler: &str) {
        self.compilers.push(compiler.to_owned());
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cpus, kernel, compilers } = self;
        write!(f, "{cpu}, {cpus} CPUs, Linux {kernel}; {}", compilers.join("; "))
    }
}

/// Not those that this thread may run on: it may have been pinned.
fn cpu_count() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count().max(1)
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let (name, hypervisor) = (line.split_once(':')?.1.trim(), text.contains(" hypervisor"));
    Some(if hypervisor { format!("{name} (virtual)") } else { name.to_owned() })
}
