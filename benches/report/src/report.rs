//! All that one benchmark found.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{Comparison, Machine, Options, Series, Verdict, markdown, table};

/// The comparisons of one benchmark, and the machine they come from.
#[derive(Debug)]
pub struct Report {
    name: String,
    machine: Machine,
    notes: Vec<String>,
    comparisons: Vec<Comparison>,
    series: Vec<Series>,
}

impl Report {
    /// An empty one of this benchmark, on this machine.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            machine: Machine::here(),
            notes: Vec::new(),
            comparisons: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Names another compiler that made a part of what is measured.
    #[must_use]
    pub fn compiler(mut self, compiler: &str) -> Self {
        self.machine.add_compiler(compiler);
        self
    }

    /// Adds what a reader has to know, as a sentence.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a comparison.
    pub fn add(&mut self, comparison: Comparison) {
        self.comparisons.push(comparison);
    }

    /// Adds comparisons that people see as one table.
    pub fn add_series(&mut self, series: Series) {
        self.series.push(series);
    }

    /// The comparisons so far.
    pub fn comparisons(&self) -> &[Comparison] {
        &self.comparisons
    }

    /// Prints tables, for people or in Markdown, or one JSON object.
    ///
    /// # Errors
    ///
    /// Of standard output.
    pub fn print(&self, options: &Options) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if options.json {
            serde_json::to_writer(&mut out, &self.json())?;
            return writeln!(out);
        }
        if options.markdown {
            return write!(out, "{}", self.markdown());
        }
        writeln!(out, "{}: {}", self.name, self.machine)?;
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        for comparison in &self.comparisons {
            writeln!(out, "\n{}", table::comparison(comparison))?;
        }
        for series in &self.series {
            writeln!(out, "\n{}", series.table())?;
        }
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            writeln!(out, "\ntargets\n{}", table::verdicts(&verdicts))?;
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut parts = vec![format!("{}.", self.machine)];
        parts.extend(self.notes.iter().map(|note| markdown::note(note)));
        parts.extend(markdown::comparisons(&self.comparisons));
        parts.extend(
            self.series.iter().map(|series| markdown::series(series.title(), series.points())),
        );
        parts.extend(markdown::verdicts(&self.verdicts()));
        parts.join("\n\n") + "\n"
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.comparisons.iter().flat_map(Comparison::verdicts).collect()
    }

    fn json(&self) -> Value {
        let series = |series: &Series| {
            let points: Vec<_> = series.points().iter().map(comparison).collect();
            json!({ "title": series.title(), "points": points })
        };
        json!({
            "benchmark": self.name,
            "machine": self.machine,
            "notes": self.notes,
            "comparisons": self.comparisons.iter().map(comparison).collect::<Vec<_>>(),
            "series": self.series.iter().map(series).collect::<Vec<_>>(),
            "targets": self.verdicts(),
        })
    }
}

fn comparison(comparison: &Comparison) -> Value {
    #[derive(Serialize)]
    struct Cell<'a> {
        metric: &'a str,
        unit: &'a str,
        #[serde(flatten)]
        summary: crate::Summary,
        ratios: serde_json::Map<String, Value>,
    }
    let cell = |subject: &str, metric: &crate::Metric| {
        let ratio = |baseline: &String| {
            let ratio = comparison.ratio(subject, &[baseline], metric.name);
            (baseline.clone(), json!(ratio))
        };
        json!(Cell {
            metric: metric.name,
            unit: metric.unit,
            summary: comparison.summary(subject, metric.name),
            ratios: comparison.baselines.iter().map(ratio).collect(),
        })
    };
    let row = |subject: &String| {
        let cells: Vec<_> = comparison.metrics.iter().map(|metric| cell(subject, metric)).collect();
        json!({ "subject": subject, "values": cells })
    };
    json!({
        "title": comparison.title,
        "rounds": comparison.rounds(),
        "discarded_rounds": comparison.discarded_rounds(),
        "disturbed_rounds": comparison.disturbed_rounds(),
        "rows": comparison.subjects.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, Target};

    /// Its JSON is a promise to scripts.
    #[test]
    fn the_promised_json() {
        let metrics = [Metric::lower("time", "ns")];
        let values = vec![vec![1.0], vec![2.0]];
        let counted = Comparison::counted("loop", &["a", "b"], &metrics, values);
        let mut report = Report::new("test");
        report.add(counted.against("b").target(Target::new("a", ["b"], "time", 0.6)));
        let json = report.json();
        let half = json!({ "median": 0.5, "least": 0.5, "most": 0.5, "spread": 0.0 });
        assert_eq!(json["comparisons"][0]["rounds"], 1);
        assert_eq!(
            json["comparisons"][0]["rows"][0],
            json!({ "subject": "a", "values": [{
                "metric": "time", "unit": "ns",
                "median": 1.0, "least": 1.0, "most": 1.0, "spread": 0.0,
                "ratios": { "b": half }
            }] })
        );
        assert_eq!(
            json["targets"][0],
            json!({ "title": "loop", "subject": "a", "against": ["b"], "metric": "time",
                    "bound": 0.6, "ratio": 0.5, "spread": 0.0, "met": true })
        );
    }
}
