//! What passed, what was seen, and what cannot be done, mode by mode.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::{Outcome, mode::MODES};

/// How each case went in each mode; collected while they run. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Summary(Arc<Mutex<ByMode>>);

/// The cases of each mode, in the order in which they ended.
type ByMode = BTreeMap<&'static str, Vec<(&'static str, Line)>>;

/// How one case went.
enum Line {
    Passed(Option<String>),
    CannotRun(String),
    Failed,
    /// The privileges are missing.
    Skipped,
}

impl Summary {
    pub(crate) fn add(
        &self,
        mode: &'static str,
        case: &'static str,
        outcome: &thread::Result<Option<Outcome>>,
    ) {
        let line = match outcome {
            Ok(Some(Outcome::Passed)) => Line::Passed(None),
            Ok(Some(Outcome::Saw(what))) => Line::Passed(Some(what.clone())),
            Ok(Some(Outcome::CannotRun(reason))) => Line::CannotRun(reason.clone()),
            Ok(None) => Line::Skipped,
            Err(_) => Line::Failed,
        };
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.entry(mode).or_default().push((case, line));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.write_str("conformance:")?;
        for mode in MODES {
            let lines = lines.get(mode.name).map_or(&[][..], Vec::as_slice);
            let count = |kind: fn(&Line) -> bool| lines.iter().filter(|(_, l)| kind(l)).count();
            write!(
                f,
                "\n  {} ({}): {} passed, {} cannot be run here, {} skipped, {} failed",
                mode.name,
                mode.about,
                count(|line| matches!(line, Line::Passed(_))),
                count(|line| matches!(line, Line::CannotRun(_))),
                count(|line| matches!(line, Line::Skipped)),
                count(|line| matches!(line, Line::Failed)),
            )?;
            let mut told: Vec<String> = lines
                .iter()
                .filter_map(|(case, line)| match line {
                    Line::Passed(what) => Some(format!("passed       {case}: {}", what.as_ref()?)),
                    Line::CannotRun(reason) => Some(format!("cannot run   {case}: {reason}")),
                    Line::Failed => Some(format!("FAILED       {case}")),
                    Line::Skipped => None,
                })
                .collect();
            told.sort();
            for line in told {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

/// What a panic said.
pub(crate) fn message(panic: &Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
