//! Tables in Markdown, for documents.

use crate::{Comparison, Metric, Verdict, table};

/// All comparisons in order; those that share a table are its columns.
pub(crate) fn comparisons(comparisons: &[Comparison]) -> Vec<String> {
    let table = |one: &Comparison| one.column.as_ref().map(|(table, _)| table.clone());
    let together =
        |one: &Comparison, other: &Comparison| one.column.is_some() && table(one) == table(other);
    comparisons
        .chunk_by(together)
        .flat_map(|chunk| match table(&chunk[0]) {
            Some(title) => columns(&title, chunk),
            None => vec![alone(&chunk[0])],
        })
        .collect()
}

/// A column for each point, as the benchmark's own table has them, without the increases.
pub(crate) fn series(title: &str, points: &[Comparison]) -> String {
    let metric = points.first().and_then(|point| point.metrics.first());
    let heads = points.iter().map(|point| point.title.clone()).collect();
    let rows = metric.map_or(Vec::new(), |metric| rows(points, &[*metric]));
    grid(&format!("{title}:"), NUMBERS, heads, rows)
}

/// Lines that a benchmark breaks stay apart.
pub(crate) fn note(note: &str) -> String {
    if note.contains('\n') {
        note.lines().map(|line| format!("- {line}")).collect::<Vec<_>>().join("\n")
    } else {
        note.to_owned()
    }
}

/// A row for each target, if there are any.
pub(crate) fn verdicts(verdicts: &[Verdict]) -> Option<String> {
    let row = |verdict: &Verdict| {
        let against = match verdict.against.as_slice() {
            [one] => one.clone(),
            several => format!("best of {}", several.join(", ")),
        };
        let ratio =
            verdict.ratio.zip(verdict.spread).map_or("–".to_owned(), |(ratio, spread)| {
                format!("{ratio:.2} (±{:.0} %)", 100.0 * spread)
            });
        let met = if verdict.met { "met" } else { "**missed**" };
        let bound = bound(verdict.bound);
        let cells = [
            verdict.subject.clone(),
            against,
            verdict.metric.clone(),
            bound,
            ratio,
            met.to_owned(),
        ];
        (verdict.title.clone(), cells.to_vec())
    };
    let heads = ["subject", "against", "metric", "target", "ratio", ""].map(str::to_owned).to_vec();
    let rows = || verdicts.iter().map(row).collect();
    (!verdicts.is_empty()).then(|| grid("Targets:", "---|", heads, rows()))
}

/// Two digits, or the three that it has.
fn bound(bound: f64) -> String {
    let text = format!("{bound:.3}");
    text.strip_suffix('0').unwrap_or(&text).to_owned()
}

/// A row for each subject, a column for each metric.
fn alone(comparison: &Comparison) -> String {
    let heads = comparison.metrics.iter().map(|metric| head(*metric)).collect();
    let row = |subject: &String| {
        let cells = comparison.metrics.iter().map(|metric| cell(comparison, subject, *metric));
        (subject.clone(), cells.collect())
    };
    let title = format!("{} ({}):", comparison.title, table::rounds(comparison));
    grid(&title, NUMBERS, heads, comparison.subjects.iter().map(row).collect())
}

/// A row for each subject, a column for each comparison: a table for the metrics that are compared, and one for
/// those that stand beside.
fn columns(title: &str, chunk: &[Comparison]) -> Vec<String> {
    let (compared, beside): (Vec<Metric>, Vec<Metric>) =
        chunk[0].metrics.iter().partition(|metric| metric.compared);
    let heads = || chunk.iter().filter_map(|one| Some(one.column.as_ref()?.1.clone())).collect();
    let table = |metrics: &[Metric], last: Option<(String, Vec<String>)>| {
        let names: Vec<_> = metrics.iter().map(|metric| head(*metric)).collect();
        let mut rows = rows(chunk, metrics);
        rows.extend(last);
        grid(&format!("{title}: {}", names.join("; ")), NUMBERS, heads(), rows)
    };
    let rounds = |one: &Comparison| match one.disturbed_rounds() {
        0 => one.rounds().to_string(),
        disturbed => format!("{}, {disturbed} disturbed", one.rounds()),
    };
    let rounds = chunk
        .iter()
        .any(|one| one.rounds() > 1 || one.disturbed_rounds() > 0)
        .then(|| ("rounds".to_owned(), chunk.iter().map(rounds).collect()));
    let mut tables = vec![table(&compared, rounds)];
    if !beside.is_empty() {
        tables.push(table(&beside, None));
    }
    tables
}

fn rows(points: &[Comparison], metrics: &[Metric]) -> Vec<(String, Vec<String>)> {
    let subjects = points.first().map_or(&[][..], |first| &first.subjects);
    let row = |subject: &String| {
        let cells = points.iter().map(|point| {
            let cells: Vec<_> =
                metrics.iter().map(|metric| cell(point, subject, *metric)).collect();
            cells.join("; ")
        });
        (subject.clone(), cells.collect())
    };
    subjects.iter().map(row).collect()
}

fn head(metric: Metric) -> String {
    format!("{}, {}", metric.name, metric.unit)
}

/// The median, with the spread where it is what is compared.
fn cell(comparison: &Comparison, subject: &str, metric: Metric) -> String {
    let summary = comparison.summary(subject, metric.name);
    let median = format!("{:.*}", metric.digits, summary.median);
    let alone = comparison.rounds() == 1 || !metric.compared;
    if alone { median } else { format!("{median} ±{:.0} %", 100.0 * summary.spread) }
}

/// A column of numbers, to the right.
const NUMBERS: &str = "--:|";

fn grid(title: &str, column: &str, heads: Vec<String>, rows: Vec<(String, Vec<String>)>) -> String {
    let line = |first: String, cells: Vec<String>| {
        let cells: Vec<_> = [vec![first], cells].concat();
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |", cells.join(" | "))
    };
    let rule = format!("|---|{}", column.repeat(heads.len()));
    let mut lines = vec![title.to_owned(), String::new(), line(String::new(), heads), rule];
    lines.extend(rows.into_iter().map(|(name, cells)| line(name, cells)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    const METRICS: [Metric; 2] =
        [Metric::lower("time", "ns").digits(1), Metric::lower("calls", "each").beside()];

    fn counted(title: &str) -> Comparison {
        let values = vec![vec![1.0, 5.0], vec![2.0, 6.0]];
        Comparison::counted(title, &["a", "b"], &METRICS, values)
    }

    #[test]
    fn comparisons_that_share_a_table_are_its_columns() {
        let tables = comparisons(&[
            counted("alone"),
            counted("loop, 1").in_table("loop", "1"),
            counted("loop, 16").in_table("loop", "16"),
            counted("other, 1").in_table("other", "1"),
        ]);
        assert_eq!(tables.len(), 5);
        assert_eq!(
            tables[0],
            "alone (1 round):\n\n|  | time, ns | calls, each |\n|---|--:|--:|\n\
             | a | 1.0 | 5.00 |\n| b | 2.0 | 6.00 |"
        );
        assert_eq!(
            tables[1],
            "loop: time, ns\n\n|  | 1 | 16 |\n|---|--:|--:|\n\
             | a | 1.0 | 1.0 |\n| b | 2.0 | 2.0 |"
        );
        assert!(
            tables[2].contains("loop: calls, each") && tables[2].contains("| a | 5.00 | 5.00 |")
        );
    }

    #[test]
    fn a_target_that_is_missed_is_plain_to_see() {
        let target = counted("loop").target(Target::new("b", ["a"], "time", 0.125));
        let text = verdicts(&target.verdicts().collect::<Vec<_>>()).unwrap();
        assert!(
            text.contains("| loop | b | a | time | 0.125 | 2.00 (±0 %) | **missed** |"),
            "{text}"
        );
        assert_eq!(verdicts(&[]), None);
    }
}
