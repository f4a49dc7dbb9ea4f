//! Tables for people.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::{Comparison, Metric, Summary, Verdict};

/// A line about the rounds, and a row for each subject.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut header = vec![String::new()];
    for metric in &comparison.metrics {
        header.push(format!("{}\n{}", metric.name, metric.unit));
        header.push("±".to_owned());
        for baseline in compared(comparison, *metric) {
            header.push(format!("× {baseline}"));
        }
    }
    let mut table = plain();
    table.set_header(header);
    for subject in &comparison.subjects {
        let mut row = vec![subject.clone()];
        for metric in &comparison.metrics {
            let summary = comparison.summary(subject, metric.name);
            row.push(format!("{:.*}", metric.digits, summary.median));
            row.push(spread(summary));
            for baseline in compared(comparison, *metric) {
                let ratio = comparison.ratio(subject, &[baseline], metric.name);
                row.push(ratio.map_or("–".to_owned(), |ratio| format!("{:.2}", ratio.median)));
            }
        }
        table.add_row(row);
    }
    align(&mut table);
    format!("{} ({})\n{table}", comparison.title, rounds(comparison))
}

/// A row for each target.
pub(crate) fn verdicts(verdicts: &[Verdict]) -> String {
    let mut table = plain();
    table.set_header(["", "subject", "against", "metric", "target", "ratio", "±", ""]);
    for verdict in verdicts {
        let against = match verdict.against.as_slice() {
            [one] => one.clone(),
            several => format!("best of {}", several.join(", ")),
        };
        table.add_row([
            verdict.title.clone(),
            verdict.subject.clone(),
            against,
            verdict.metric.clone(),
            format!("{:.2}", verdict.bound),
            verdict.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}")),
            verdict.spread.map_or("–".to_owned(), |spread| format!("{:.0} %", 100.0 * spread)),
            if verdict.met { "met" } else { "missed" }.to_owned(),
        ]);
    }
    table.to_string()
}

fn compared(comparison: &Comparison, metric: Metric) -> &[String] {
    if metric.compared { &comparison.baselines } else { &[] }
}

fn spread(summary: Summary) -> String {
    format!("{:.0} %", 100.0 * summary.spread)
}

pub(crate) fn rounds(comparison: &Comparison) -> String {
    let [rounds, discarded, disturbed] =
        [comparison.rounds(), comparison.discarded_rounds(), comparison.disturbed_rounds()];
    let mut parts = vec![format!("{rounds} {}", if rounds == 1 { "round" } else { "rounds" })];
    if disturbed > 0 {
        parts.push(format!("{disturbed} of them disturbed by other work"));
    }
    if discarded > 0 {
        parts.push(format!("{discarded} more discarded"));
    }
    parts.join(", ")
}

/// Rows of that name under heads, without a head over the names.
pub(crate) fn grid(heads: Vec<String>, rows: Vec<(String, Vec<String>)>) -> String {
    let mut table = plain();
    table.set_header([vec![String::new()], heads].concat());
    for (name, cells) in rows {
        table.add_row([vec![name], cells].concat());
    }
    align(&mut table);
    table.to_string()
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    #[test]
    fn what_people_see() {
        let metrics =
            [Metric::lower("time", "ns").digits(1), Metric::higher("calls", "1").beside()];
        let values = vec![vec![1.0, 5.0], vec![2.0, 6.0]];
        let counted = Comparison::counted("loop", &["a", "b"], &metrics, values)
            .against("b")
            .target(Target::new("a", ["b"], "time", 0.4));
        let text = comparison(&counted);
        assert!(text.starts_with("loop (1 round)\n"), "{text}");
        let row: Vec<_> =
            text.lines().find(|line| line.contains(" a ")).unwrap().split('┆').collect();
        let row: Vec<_> = row.iter().map(|cell| cell.trim_matches(['│', ' '])).collect();
        assert_eq!(row, ["a", "1.0", "0 %", "0.50", "5.00", "0 %"]);
        let text = verdicts(&counted.verdicts().collect::<Vec<_>>());
        assert!(text.contains("missed") && text.contains("0.500"), "{text}");
    }
}
