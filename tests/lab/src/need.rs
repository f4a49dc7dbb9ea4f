//! What a test needs, and what happens where that is missing: it says so, or fails.

use std::{
    env, io,
    io::Write,
    process::{Command, Stdio},
    thread,
};

use crate::{netns::Netns, sys};

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Network namespaces with interfaces in them (CAP_SYS_ADMIN and CAP_NET_ADMIN, in a user
    /// namespace too: `unshare -Urn` gives them to everybody).
    Namespaces,
    /// These, and BPF maps and programs: root.
    Bpf,
    /// That, and tcpdump: somebody else's eyes on what was sent.
    Tcpdump,
}

/// Whether the need is met; if not, why.
///
/// # Errors
///
/// One line that says what was refused, and what helps.
pub fn have(need: Need) -> Result<(), String> {
    Netns::new().map_err(|error| {
        format!("no network namespace can be made ({error}): run as root or under `unshare -Urn`")
    })?;
    if need != Need::Namespaces {
        sys::create_bpf_map()
            .map_err(|error| format!("no BPF map can be made ({error}): run as root"))?;
    }
    if need == Need::Tcpdump {
        let mut tcpdump = Command::new("tcpdump");
        let silent = tcpdump.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        silent.status().map_err(|error| format!("no tcpdump ({error}): install the package"))?;
    }
    Ok(())
}

/// Tells whether the calling test can run, and says aloud when it cannot.
///
/// # Panics
///
/// When it cannot, and `XSKIT_TEST_REQUIRE=all` says that nothing may be skipped.
pub fn require(need: Need) -> bool {
    let Err(why) = have(need) else { return true };
    assert!(
        env::var_os("XSKIT_TEST_REQUIRE").is_none_or(|required| required != "all"),
        "{} may not be skipped (XSKIT_TEST_REQUIRE=all): {why}",
        test()
    );
    skip(&why);
    false
}

/// Says aloud that the calling test is skipped.
pub(crate) fn skip(why: &str) {
    // Not `eprintln!`: the harness hides what passing tests print.
    writeln!(io::stderr(), "SKIPPED: {}: {why}", test()).expect("standard error takes a line");
}

/// The test harness names the thread after the test.
fn test() -> String {
    thread::current().name().unwrap_or("test").to_owned()
}
