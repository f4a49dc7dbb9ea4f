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
        Some(verdict) => {
            let error = Error::os(
                Step::LoadProgram,
                format!("the kernel's verifier refuses the program ({verdict})"),
                source,
            );
            if effective().is_some_and(lacks_perfmon) {
                error.with_kind(ErrorKind::Permission).hint(
                    "missing CAP_PERFMON: without it the verifier forbids arithmetic that the program \
                     needs; run as root, or give the binary this capability",
                )
            } else {
                error.with_kind(ErrorKind::Corrupt).hint(
                    "the kernel may be older than the program needs: cargo xtask load --check",
                )
            }
        }
        None => permitted(Error::os(Step::LoadProgram, "the kernel refuses the program", source)),
    }
}

/// Says which capability is missing where that is the cause.
pub(super) fn permitted(error: Error) -> Error {
    if error.raw_os_error() != Some(libc::EPERM) {
        return error;
    }
    let effective = effective();
    let sockets = match effective {
        Some(effective) if effective & 1 << NET_RAW == 0 => "; sockets will need CAP_NET_RAW too",
        _ => "",
    };
    match effective.map(missing) {
        Some(missing) if missing.is_empty() => error.hint(
            "the capabilities are there: in a user namespace they do not count for BPF; before \
             Linux 5.11 raise RLIMIT_MEMLOCK (ulimit -l unlimited)",
        ),
        Some(missing) => error.hint(format!(
            "missing {}: run as root, or give the binary these capabilities{sockets}",
            missing.join(", ")
        )),
        None => error.hint("BPF and XDP need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run as root"),
    }
}

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// The calling thread's effective capabilities.
fn effective() -> Option<u64> {
    effective_in(&std::fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn effective_in(status: &str) -> Option<u64> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(effective.trim(), 16).ok()
}

/// CAP_SYS_ADMIN includes CAP_PERFMON, as it does CAP_BPF.
fn lacks_perfmon(effective: u64) -> bool {
    effective & (1 << PERFMON | 1 << SYS_ADMIN) == 0
}

/// The capabilities that loading the program takes and that are not among the effective ones.
fn missing(effective: u64) -> Vec<&'static str> {
    let has = |capability: u32| effective & 1 << capability != 0;
    let mut missing = Vec::new();
    // CAP_SYS_ADMIN includes CAP_BPF, from the time before there was such a thing.
    if !has(BPF) && !has(SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !has(NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if lacks_perfmon(effective) {
        missing.push("CAP_PERFMON");
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing(0), ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]);
        assert_eq!(missing(1 << BPF), ["CAP_NET_ADMIN", "CAP_PERFMON"]);
        assert_eq!(missing(1 << NET_ADMIN | 1 << PERFMON), ["CAP_BPF"]);
        assert!(missing(1 << NET_ADMIN | 1 << SYS_ADMIN).is_empty());
        assert_eq!(effective_in("Name:\tx\nCapEff:\t00000000000000a0\n"), Some(0xa0));
        assert_eq!(effective_in("Name:\tx\n"), None);
    }
}
