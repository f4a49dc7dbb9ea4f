//! The same comparison at many points, as one table: a column for each point.

use crate::{Comparison, table};

/// Comparisons of the same subjects at different points, such as frame sizes, shown by one metric with
/// the change in per cent from the first subject to each other, as cover letters of kernel series do it.
#[derive(Clone, Debug)]
pub struct Series {
    title: String,
    metric: &'static str,
    points: Vec<Comparison>,
}

impl Series {
    /// An empty one, shown by the metric of that name.
    pub fn new(title: &str, metric: &'static str) -> Self {
        Self { title: title.to_owned(), metric, points: Vec::new() }
    }

    /// Adds a point, whose title heads its column.
    ///
    /// # Panics
    ///
    /// If it has other subjects than those before.
    pub fn add(&mut self, point: Comparison) {
        if let Some(first) = self.points.first() {
            assert_eq!(first.subjects, point.subjects, "one row for each subject");
        }
        self.points.push(point);
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// The points so far.
    pub fn points(&self) -> &[Comparison] {
        &self.points
    }

    pub(crate) fn table(&self) -> String {
        let Some(first) = self.points.first() else { return self.title.clone() };
        let mut rows = Vec::new();
        let digits =
            first.metrics.iter().find(|one| one.name == self.metric).map_or(2, |one| one.digits);
        for subject in &first.subjects {
            let cell = |point: &Comparison| {
                let summary = point.summary(subject, self.metric);
                format!("{:.digits$} ±{:.0} %", summary.median, 100.0 * summary.spread)
            };
            rows.push((subject.clone(), self.points.iter().map(cell).collect()));
        }
        let baseline = &first.subjects[0];
        for subject in &first.subjects[1..] {
            let cell = |point: &Comparison| {
                let ratio = point.ratio(subject, &[baseline], self.metric);
                ratio.map_or("–".to_owned(), |ratio| {
                    format!("{:+.1} %", 100.0 * (ratio.median - 1.0))
                })
            };
            let name = match first.subjects.len() {
                2 => "increase".to_owned(),
                _ => format!("increase, {subject}"),
            };
            rows.push((name, self.points.iter().map(cell).collect::<Vec<_>>()));
        }
        let heads = self.points.iter().map(|point| point.title.clone()).collect();
        format!("{} ({})\n{}", self.title, table::rounds(first), table::grid(heads, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;

    #[test]
    fn a_column_for_each_point_and_the_increase() {
        let metrics = [Metric::higher("rate", "Kpps").digits(0)];
        let mut series = Series::new("frames", "rate");
        for (title, with) in [("64", 150.0), ("128", 90.0)] {
            let values = vec![vec![100.0], vec![with]];
            series.add(Comparison::counted(title, &["without", "with"], &metrics, values));
        }
        let text = series.table();
        let row = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).expect("a row of that name");
            line.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(row("with ")[2..4], ["150 ±0 %", "90 ±0 %"]);
        assert_eq!(row("increase")[2..4], ["+50.0 %", "-10.0 %"]);
    }
}
