//! The committed counts, by compiler.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::subject::{Cycle, Who};

/// How much more than the committed count fails.
const TOLERANCE: f64 = 1.02;

/// Counts by rustc's version and by what is counted.
pub struct Table(BTreeMap<String, BTreeMap<String, f64>>);

/// The name of a count.
pub fn key(who: Who, cycle: Cycle, batch: u32) -> String {
    format!("{} at {batch}, {}", cycle.program(), who.name())
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

/// The compiler, without the date and commit of its build.
fn compiler() -> &'static str {
    xskit_report::rustc()
}

impl Table {
    pub fn read() -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Self(serde_json::from_str(&text)?))
    }

    pub fn set(&mut self, counts: &[(String, f64)]) {
        let rounded =
            counts.iter().map(|(key, count)| (key.clone(), (count * 100.0).round() / 100.0));
        self.0.insert(compiler().to_owned(), rounded.collect());
    }

    pub fn write(&self) -> Result<()> {
        Ok(fs::write(path(), serde_json::to_string_pretty(&self.0)? + "\n")?)
    }

    /// Fails where xskit takes more instructions than it did. What C takes is its compiler's business.
    pub fn check(&self, counts: &[(String, f64)]) -> Result<()> {
        let Some(known) = self.0.get(compiler()) else {
            let known: Vec<_> = self.0.keys().map(String::as_str).collect();
            eprintln!(
                "no counts of {} to compare with (there are those of {}): `--write` adds them",
                compiler(),
                known.join(", ")
            );
            return Ok(());
        };
        let mut worse = Vec::new();
        for (key, count) in counts.iter().filter(|(key, _)| key.contains("xskit")) {
            let before = known.get(key).with_context(|| format!("no committed count of {key}"))?;
            if *count > before * TOLERANCE {
                worse.push(format!("{key}: {count:.2}, not {before:.2}"));
            }
        }
        if worse.is_empty() {
            return Ok(());
        }
        bail!(
            "more than 2 % above the committed counts (`--write` takes them, if it has to be):\n  {}",
            worse.join("\n  ")
        )
    }
}
