//! What is run in a guest: test binaries that `cargo xtask test` runs as well, or a part of them; or a benchmark.

use anyhow::{Context, Result};

/// One of them.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The target that cargo builds.
    pub(super) target: &'static str,
    /// How cargo is told to build it.
    pub(super) build: &'static [&'static str],
    /// The same for the examples that it runs.
    pub(super) examples: &'static [&'static str],
    /// Which tests of it, as the harness takes it.
    pub(super) filters: &'static [&'static str],
    /// Much longer than it takes in a guest on a busy machine.
    pub(super) seconds: u32,
    /// The oldest kernel that has what it needs.
    pub(super) since: (u32, u32),
    /// Whether it consists of tests, and tells how many passed.
    pub(super) harness: bool,
}

/// virtio_net has zero-copy in both directions.
pub(super) const ZERO_COPY: (u32, u32) = (6, 18);

const ANY: (u32, u32) = (0, 0);

/// All cases, in the order in which they run.
static CASES: &[Case] = &[
    Case::new("rings", "xskit", &["--lib"], &["ring::"], ANY),
    // The one that is left out loads thousands of programs, which says more of aya than of kernels.
    Case::new("program", "program", &["--test", "program"], &["--skip", "truncated_and"], ANY),
    // The one that is left out gives a thread a quarter of a second, which is too little here.
    Case::new(
        "sockets",
        "veth_traffic",
        &["--test", "veth_traffic"],
        &["--skip", "a_closed_socket_that_is"],
        ANY,
    ),
    Case {
        examples: &["--example", "l2fwd"],
        // The guest has one processor, and is slow.
        ..Case::new(
            "l2fwd",
            "examples",
            &["--test", "examples"],
            &["l2fwd", "--skip", "uses_all_queues", "--skip", "waits_for_a_carrier"],
            ANY,
        )
    },
    Case::zero_copy("refusals", &["refusals::"], ANY),
    Case::zero_copy("limits", &["limits::"], ZERO_COPY),
    Case::zero_copy("zero-copy", &["traffic::"], ZERO_COPY),
    Case::zero_copy("forward", &["forward::"], ZERO_COPY),
    Case::zero_copy("teardown", &["teardown::"], ZERO_COPY),
    Case::zero_copy("queues", &["queues::"], ZERO_COPY),
    Case {
        examples: &["--example", "l2fwd"],
        ..Case::zero_copy("killed", &["killed::"], ZERO_COPY)
    },
];

impl Case {
    pub(super) const fn new(
        name: &'static str,
        target: &'static str,
        build: &'static [&'static str],
        filters: &'static [&'static str],
        since: (u32, u32),
    ) -> Self {
        Self { name, target, build, examples: &[], filters, seconds: 400, since, harness: true }
    }

    const fn zero_copy(
        name: &'static str,
        filters: &'static [&'static str],
        since: (u32, u32),
    ) -> Self {
        Self::new(name, "zero_copy", &["--test", "zero_copy"], filters, since)
    }
}

/// The cases of these names; all, if there are none.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static Case>> {
    if names.is_empty() {
        return Ok(CASES.iter().collect());
    }
    let find = |name: &String| {
        CASES.iter().find(|case| case.name == name).with_context(|| {
            let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
            format!("no case is called `{name}`; there are: {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_found_by_its_name() {
        let all = chosen(&[]).unwrap();
        for case in &all {
            let found = chosen(&[case.name.to_owned()]).unwrap();
            assert!(std::ptr::eq(found[0], *case), "two cases are called {}", case.name);
        }
        let error = chosen(&["tear".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`tear`") && error.contains("teardown"), "{error}");
    }
}
