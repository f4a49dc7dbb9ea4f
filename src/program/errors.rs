//! What aya and the kernel say, in the words of the person who hit it.

use std::{error::Error as StdError, io};

use aya::{EbpfError, maps::MapError, programs::ProgramError};

use crate::error::{Error, ErrorKind, Step};

/// The kernel's own error at the bottom of one of aya's.
pub(super) fn os_error(error: &(dyn StdError + 'static)) -> Option<io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref().and_then(io::Error::raw_os_error) {
            return Some(io::Error::from_raw_os_error(code));
        }
        cause = error.source();
    }
    None
}

/// An error while a map is read or changed.
#[expect(clippy::needless_pass_by_value, reason = "for use in map_err")]
pub(super) fn map(error: MapError, reason: &'static str) -> Error {
    match os_error(&error) {
        Some(source) => permitted(Error::os(Step::Map, reason, source)),
        None => Error::new(Step::Map, ErrorKind::Corrupt, format!("{reason}: {error}")),
    }
}

/// An error while an object is read and its maps are created.
#[expect(clippy::needless_pass_by_value, reason = "for use in map_err")]
pub(super) fn object(error: EbpfError) -> Error {
    match (&error, os_error(&error)) {
        (EbpfError::MapError(MapError::CreateError { name, .. }), Some(source)) => permitted(
            Error::os(Step::LoadProgram, format!("cannot create the BPF map {name}"), source),
        ),
        (_, Some(source)) => permitted(Error::os(Step::LoadProgram, error.to_string(), source)),
        (_, None) => corrupt(error.to_string()),
    }
}

/// An error while a table of rules is filled.
pub(super) fn table(error: MapError) -> Error {
    match os_error(&error) {
        Some(source) => {
            permitted(Error::os(Step::LoadProgram, "cannot fill a table of rules", source))
        }
        None => corrupt(error),
    }
}

/// An object that is not what it should be.
pub(super) fn corrupt(reason: impl std::fmt::Display) -> Error {
    Error::new(
        Step::LoadProgram,
        ErrorKind::Corrupt,
        format!("this is not a whole object of xskit's XDP program: {reason}"),
    )
    .hint("cargo xtask build-ebpf builds it anew")
}

/// An error while the kernel verifies and takes a program.
pub(super) fn program(error: ProgramError) -> Error {
    let Some(source) = os_error(&error) else { return corrupt(error) };
    let log = match &error {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        _ => String::new(),
    };
    // The log ends with statistics; what it refused is the last line before them.
    let verdict = log.lines().rev().find(|line| {
        !line.is_empty()
            && !["processed ", "verification time", "stack depth"]
                .iter()
                .any(|statistics| line.starts_with(statistics))
    });
    match verdict {
        Some(verdict) => Error::os(
            Step::LoadProgram,
            format!("the kernel's verifier refuses the program ({verdict})"),
            source,
        )
        .with_kind(ErrorKind::Corrupt),
        None => permitted(Error::os(Step::LoadProgram, "the kernel refuses the program", source)),
    }
}

/// Says which capability is missing where that is the cause.
pub(super) fn permitted(error: Error) -> Error {
    if error.raw_os_error() != Some(libc::EPERM) {
        return error;
    }
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    match missing(&status) {
        Some(missing) if missing.is_empty() => error.hint(
            "the capabilities are there: in a user namespace they do not count for BPF; before \
             Linux 5.11 raise RLIMIT_MEMLOCK (ulimit -l unlimited)",
        ),
        Some(missing) => error.hint(format!(
            "missing {}: run as root, or give the binary these capabilities",
            missing.join(", ")
        )),
        None => error.hint("BPF and XDP need CAP_BPF and CAP_NET_ADMIN: run as root"),
    }
}

const NET_ADMIN: u32 = 12;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

/// The capabilities among those needed that a process with this `/proc/…/status` lacks.
fn missing(status: &str) -> Option<Vec<&'static str>> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    let has = |capability: u32| effective & 1 << capability != 0;
    let mut missing = Vec::new();
    // CAP_SYS_ADMIN includes CAP_BPF, from the time before there was such a thing.
    if !has(BPF) && !has(SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !has(NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    Some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let with = |bits: u64| missing(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"));
        assert_eq!(with(0), Some(vec!["CAP_BPF", "CAP_NET_ADMIN"]));
        assert_eq!(with(1 << BPF), Some(vec!["CAP_NET_ADMIN"]));
        assert_eq!(with(1 << NET_ADMIN), Some(vec!["CAP_BPF"]));
        assert_eq!(with(1 << NET_ADMIN | 1 << SYS_ADMIN), Some(vec![]));
        assert_eq!(missing("Name:\tx\n"), None);
    }
}
