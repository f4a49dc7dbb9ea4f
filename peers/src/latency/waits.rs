//! Whether other work kept threads of ours from running.

use std::{fs, time::Duration};

use nix::unistd::Pid;

/// What a thread that is woken waits for its CPU as a rule, and more than that.
const WAKING: Duration = Duration::from_micros(10);

/// How long threads of this process have waited for a CPU, and how often they gave theirs up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    waited: Duration,
    /// Themselves, to wait for a packet.
    voluntarily: u64,
    /// To others.
    preempted: u64,
}

impl Waits {
    /// Of these threads, so far. A kernel without `CONFIG_SCHED_INFO` does not say how long they waited.
    pub fn of(threads: [Pid; 2]) -> Self {
        let mut all = Self::default();
        for thread in threads {
            let read = |file| fs::read_to_string(format!("/proc/self/task/{thread}/{file}"));
            let schedstat = read("schedstat").unwrap_or_default();
            all.waited += Duration::from_nanos(number(schedstat.split_whitespace().nth(1)));
            let status = read("status").unwrap_or_default();
            let value = |name| number(status.lines().find_map(|line| line.strip_prefix(name)));
            all.voluntarily += value("voluntary_ctxt_switches:");
            all.preempted += value("nonvoluntary_ctxt_switches:");
        }
        all
    }
}

fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// How much longer they waited than it takes to wake them as often as they slept; at least something if they were
/// preempted.
pub fn disturbed(before: Waits, after: Waits) -> Duration {
    let waited = after.waited.saturating_sub(before.waited);
    let slept = u32::try_from(after.voluntarily - before.voluntarily).unwrap_or(u32::MAX);
    let preempted = after.preempted - before.preempted;
    waited.saturating_sub(WAKING * slept) + Duration::from_nanos(preempted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_waking_counts() {
        let before = Waits::default();
        let after = |micros, voluntarily, preempted| {
            let waited = Duration::from_micros(micros);
            disturbed(before, Waits { waited, voluntarily, preempted })
        };
        assert_eq!(after(900, 100, 0), Duration::ZERO);
        assert_eq!(after(1100, 100, 0), Duration::from_micros(100));
        assert_eq!(after(1, 0, 0), Duration::from_micros(1));
        assert!(after(0, 0, 1) > Duration::ZERO);
    }

    #[test]
    fn the_files_are_as_expected() {
        std::thread::sleep(Duration::from_millis(1));
        let thread = nix::unistd::gettid();
        assert!(Waits::of([thread; 2]).voluntarily >= 2, "a sleep is a switch");
    }
}
