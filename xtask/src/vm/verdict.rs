//! What the console log says.

use std::fmt;

use super::{cases::Case, guest::MARK};

/// Words of the kernel by which it reports a fault of its own.
const GRAVE: &[&str] =
    &["Oops", "BUG: ", "general protection fault", "unable to handle", "Kernel panic"];

/// The same for what often ends in one of those, and says why.
const WARNING: &[&str] = &["WARNING: "];

/// Lines before a warning that are quoted: the kernel says its reason there.
const BEFORE: usize = 1;

/// Lines of the log that are quoted from a fault on.
const QUOTED: usize = 30;

/// How a case went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: u64,
    pub(super) skipped: u64,
    pub(super) seconds: Option<u64>,
    /// None: all is well.
    pub(super) failure: Option<String>,
}

/// How a guest went.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// In the order of the cases.
    pub(super) outcomes: Vec<Outcome>,
    /// What the kernel says of itself, or that the guest is not as it should be.
    pub(super) fault: Option<String>,
}

impl Verdict {
    /// Reads a log, which has to tell the end of each of these cases.
    pub(super) fn read(log: &str, cases: &[&Case]) -> Self {
        let log = log.replace('\r', "");
        let outcomes = cases.iter().map(|case| outcome(&log, case)).collect();
        Self { outcomes, fault: fault(&log) }
    }

    /// Whether all is well.
    pub(super) fn is_good(&self) -> bool {
        self.fault.is_none() && self.outcomes.iter().all(|outcome| outcome.failure.is_none())
    }
}

/// What a case printed, and the line at its end, if it came to one.
fn printed<'a>(log: &'a str, name: &str) -> Option<(&'a str, Option<&'a str>)> {
    let (_, rest) = log.split_once(&format!("{MARK} start {name}\n"))?;
    Some(match rest.split_once(&format!("{MARK} end {name} ")) {
        Some((text, end)) => (text, Some(end.lines().next().unwrap_or(""))),
        None => (rest, None),
    })
}

/// The same of a whole log, without what the kernel says.
pub(super) fn output(log: &str, name: &str) -> Option<String> {
    let log = log.replace('\r', "");
    let (text, _) = printed(&log, name)?;
    let lines = text.lines().filter(|line| !line.starts_with('[')).map(|line| format!("{line}\n"));
    Some(lines.collect())
}

fn outcome(log: &str, case: &Case) -> Outcome {
    let mut outcome = Outcome::default();
    let Some((text, end)) = printed(log, case.name) else {
        outcome.failure = Some("never started".into());
        return outcome;
    };
    for line in text.lines() {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let number = |word: &str| {
                let (before, _) = counts.split_once(word)?;
                before.split_whitespace().last()?.parse::<u64>().ok()
            };
            outcome.passed += number(" passed").unwrap_or(0);
        }
        outcome.skipped += u64::from(line.contains("SKIPPED: "));
    }
    let mut words = end.unwrap_or("").split(' ');
    let code = words.next().unwrap_or("");
    outcome.seconds = words.next().and_then(|seconds| seconds.parse().ok());
    outcome.failure = match code {
        "0" if case.harness && outcome.passed == 0 => Some("no test was run".into()),
        "0" if outcome.skipped > 0 => Some("a test was skipped".into()),
        "0" => None,
        "" => Some("never ended".into()),
        "137" => Some("took too long, or was killed".into()),
        code => Some(format!("failed with {code}: {}", failed(text))),
    };
    outcome
}

/// The names of the tests that failed: the harness lists them at the end.
fn failed(text: &str) -> String {
    let list = text.rsplit_once("failures:\n").map_or("", |(_, list)| list);
    let names: Vec<_> = list.lines().map_while(|line| line.strip_prefix("    ")).collect();
    names.join(", ")
}

/// What the kernel reports of itself, with what follows; or what the guest lacks.
fn fault(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let first = |faults: &[&str]| {
        lines.iter().position(|line| {
            // The kernel's lines begin with their time, but not always a line of the log.
            let text = line.split_once("] ").filter(|(time, _)| time.contains('['));
            text.is_some_and(|(_, text)| faults.iter().any(|fault| text.starts_with(fault)))
        })
    };
    let quote = |at: usize| lines[at..].iter().take(QUOTED).copied().collect::<Vec<_>>().join("\n");
    let warning = first(WARNING).map(|at| quote(at.saturating_sub(BEFORE)));
    let grave = first(GRAVE).map(quote);
    if grave.is_some() || warning.is_some() {
        let quotes: Vec<String> = grave.into_iter().chain(warning).collect();
        return Some(quotes.join("\n[...] before it:\n"));
    }
    let lacks = |what: &str| {
        let mark = format!("{MARK} {what} ");
        let found: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(&mark)).collect();
        (!found.is_empty()).then(|| format!("{what}: {}", found.join(", ")))
    };
    lacks("missing").or_else(|| lacks("module")).or_else(|| {
        let done = lines.iter().any(|line| *line == format!("{MARK} done"));
        (!done).then(|| match lines.last() {
            Some(last) => format!("the guest did not come to its end; the last line is: {last}"),
            None => "the guest printed nothing".into(),
        })
    })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.failure.as_deref().unwrap_or("ok"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::cases;

    const GOOD: &str = "[    0.1] Linux\r\n\
        @@xskit release 6.18.1\r\n\
        @@xskit start rings\r\n\
        test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\r\n\
        @@xskit end rings 0 3\r\n\
        @@xskit done\r\n\
        [    9.1] reboot: Power down\r\n";

    fn read(log: &str) -> Verdict {
        Verdict::read(log, &cases::chosen(&["rings".to_owned()]).unwrap())
    }

    #[test]
    fn a_case_that_ran_is_good() {
        let verdict = read(GOOD);
        assert!(verdict.is_good(), "{verdict:?}");
        let expected = Outcome { passed: 5, skipped: 0, seconds: Some(3), failure: None };
        assert_eq!(verdict.outcomes, [expected]);
    }

    #[test]
    fn silence_is_no_success() {
        for (from, to, expected) in [
            ("start rings", "start other", "never started"),
            ("end rings 0", "end other 0", "never ended"),
            ("end rings 0", "end rings 101", "failed with 101"),
            ("end rings 0", "end rings 137", "too long"),
            (
                "@@xskit end rings 0",
                "failures:\r\n    a::b\r\n    c\r\n\r\n@@xskit end rings 1",
                "a::b, c",
            ),
            ("5 passed", "0 passed", "no test"),
            ("test result", "SKIPPED: x: no root\r\ntest result", "skipped"),
        ] {
            let verdict = read(&GOOD.replace(from, to));
            let failure = verdict.outcomes[0].failure.clone().unwrap_or_default();
            assert!(failure.contains(expected) && !verdict.is_good(), "{to}: {failure}");
        }
        for (from, to, expected) in [
            ("@@xskit done", "", "did not come to its end"),
            ("@@xskit done", "@@xskit missing virtio0\r\n@@xskit done", "missing: virtio0"),
        ] {
            let fault = read(&GOOD.replace(from, to)).fault.unwrap_or_default();
            assert!(fault.contains(expected), "{to}: {fault}");
        }
    }

    #[test]
    fn what_a_benchmark_printed_is_without_the_kernels_lines() {
        let bench = Case { harness: false, ..Case::new("bench", "bench", &[], &[], (0, 0)) };
        let log = "@@xskit start bench\r\na: 1\r\n[    1.0] virtio\r\nb: 2\r\n@@xskit end bench 0 1\r\n\
                   @@xskit done\r\n";
        assert!(Verdict::read(log, &[&bench]).is_good());
        assert_eq!(output(log, "bench").as_deref(), Some("a: 1\nb: 2\n"));
        assert_eq!(output(log, "other"), None);
        let failed = log.replace("end bench 0", "end bench 1");
        assert!(!Verdict::read(&failed, &[&bench]).is_good());
    }

    #[test]
    fn an_oops_is_quoted_although_the_case_ended_well() {
        let oops = "test x ... [    4.9] WARNING: CPU: 0\r\n\
                    [    5.0] BUG: kernel NULL pointer dereference, address: 0\r\n\
                    [    5.0] RIP: 0010:xsk_poll\r\n@@xskit done";
        let verdict = read(&GOOD.replace("@@xskit done", oops));
        assert!(!verdict.is_good());
        let fault = verdict.fault.unwrap();
        assert!(fault.starts_with("[    5.0] BUG") && fault.contains("RIP: 0010:xsk_poll"));
        assert!(fault.contains("before it:") && fault.contains("[    4.9] WARNING"), "{fault}");
    }
}
