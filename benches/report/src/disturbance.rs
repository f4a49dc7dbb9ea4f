//! Whether other work ran on our CPUs meanwhile.

use std::{fs, time::Instant};

/// Looks at how long our threads waited for a CPU that others had.
///
/// Reads `schedstat` (Linux with `CONFIG_SCHED_INFO`; without it nothing counts as disturbed). The
/// kernel's softirq threads work for the benchmark as a rule, and do not count as others.
#[derive(Debug)]
pub struct Watch {
    started: Instant,
    waited: u64,
    softirqs: u64,
    stolen: u64,
    kernel_threads: Vec<u32>,
}

/// A clock tick of `/proc/stat`, which Linux always gives in hundredths of a second.
const TICK: u64 = 10_000_000;

impl Watch {
    /// From now on.
    pub fn start() -> Self {
        let kernel_threads = softirq_threads();
        Self {
            softirqs: softirqs(&kernel_threads),
            stolen: stolen(),
            waited: waited(),
            kernel_threads,
            started: Instant::now(),
        }
    }

    /// The part of the time until now in which threads of this process that still live waited for
    /// others; 0 if none did, 1 if one did all the time.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn disturbed(&self) -> f64 {
        let elapsed = self.started.elapsed().as_nanos() as f64;
        let softirqs = softirqs(&self.kernel_threads).saturating_sub(self.softirqs);
        let waited = waited().saturating_sub(self.waited).saturating_sub(softirqs);
        let stolen = stolen().saturating_sub(self.stolen);
        (waited + stolen) as f64 / elapsed.max(1.0)
    }
}

/// Nanoseconds that all threads of this process have waited for a CPU.
fn waited() -> u64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| schedstat(&task.path().join("schedstat")))
        .map(|(_, waited)| waited)
        .sum()
}

/// Nanoseconds that the kernel's softirq threads have run.
fn softirqs(threads: &[u32]) -> u64 {
    let stat = |pid| schedstat(format!("/proc/{pid}/schedstat").as_ref());
    threads.iter().filter_map(stat).map(|(ran, _)| ran).sum()
}

/// The time run and the time waited, in nanoseconds.
fn schedstat(path: &std::path::Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.split_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

/// `ksoftirqd/0` and so on; its threads are among the first of a machine.
fn softirq_threads() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let softirq = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.starts_with("ksoftirqd/"))
    };
    pids.filter(softirq).collect()
}

/// Nanoseconds that the hypervisor gave to others while we could have run.
fn stolen() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/stat") else { return 0 };
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    ticks.unwrap_or(0) * TICK
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn sleep_is_no_disturbance() {
        let watch = Watch::start();
        thread::sleep(Duration::from_millis(50));
        // Other tests' threads are ours too, and may wait for each other.
        assert!(watch.disturbed() >= 0.0);
    }

    #[test]
    fn the_files_are_as_expected() {
        let own = "/proc/thread-self/schedstat";
        if fs::exists(own).is_ok_and(|exists| exists) {
            assert!(schedstat(own.as_ref()).is_some(), "two numbers");
        }
        assert_eq!(schedstat("/proc/self/comm".as_ref()), None);
    }
}
