//! Results into `docs/performance.md`, between the lines that say which benchmark they are of.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result};

use super::{Package, run};
use crate::cargo::workspace;

const FILE: &str = "docs/performance.md";
const END: &str = "<!-- end -->";
/// The section that says how long each took.
const TIMES: &str = "times";

/// Runs these benchmarks, and writes what each found as soon as it has ended.
pub(super) fn record(benchmarks: &[(&str, Package)], arguments: &[String]) -> Result<()> {
    let path = workspace().join(FILE);
    let arguments = [arguments, &["--markdown".to_owned()]].concat();
    let mut times = vec!["| command | seconds |".to_owned(), "|---|--:|".to_owned()];
    let mut all = 0.0;
    // Before anything runs for minutes.
    let page = read(&path)?;
    for (name, _) in benchmarks {
        replace(&page, name, "").with_context(|| format!("{FILE} has no place for {name}"))?;
    }
    for (name, package) in benchmarks {
        let program = super::Program::build(*package, name)?;
        let started = Instant::now();
        let text = run(&program, name, &arguments)?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("{name}: {seconds:.0} s");
        times.push(format!("| {name} | {seconds:.0} |"));
        all += seconds;
        write(&path, name, &text)?;
    }
    if benchmarks.len() > 1 {
        times.push(format!("| all | {all:.0} |"));
        write(&path, TIMES, &times.join("\n"))?;
    }
    eprintln!("{FILE} has the results");
    Ok(())
}

fn write(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = replace(&read(path)?, name, text);
    let page = page.with_context(|| format!("{FILE} has no place for {name} any more"))?;
    fs::write(path, page).with_context(|| path.display().to_string())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The page with that text in its section, if it has one.
fn replace(page: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- bench {name} -->\n");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{}\n\n{END}{after}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_nothing_else() {
        let page =
            "a\n<!-- bench ring -->\nold\n<!-- end -->\nb\n<!-- bench veth -->\n<!-- end -->\n";
        let new = replace(page, "ring", "new\n").unwrap();
        assert_eq!(
            new,
            "a\n<!-- bench ring -->\n\nnew\n\n<!-- end -->\nb\n<!-- bench veth -->\n<!-- end -->\n"
        );
        assert_eq!(replace(&new, "ring", "new").unwrap(), new);
        assert_eq!(replace(page, "seed", ""), None);
    }

    #[test]
    fn every_benchmark_beside_others_has_a_place() {
        let page = fs::read_to_string(workspace().join(FILE)).unwrap();
        for name in super::super::PEERS.iter().map(|(name, _)| *name).chain([TIMES]) {
            assert!(replace(&page, name, "").is_some(), "{name}");
        }
    }
}
