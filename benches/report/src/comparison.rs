//! What rounds came to: a row for each subject.

use serde::Serialize;

use crate::{Summary, Target, Verdict};

/// What is measured of each subject.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) lower_is_better: bool,
    /// Digits after the point, for people.
    pub(crate) digits: usize,
    /// Whether the table for people shows how it stands to a baseline.
    pub(crate) compared: bool,
}

impl Metric {
    /// Of which less is better, such as a time.
    pub const fn lower(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, lower_is_better: true, digits: 2, compared: true }
    }

    /// Of which more is better, such as a rate.
    pub const fn higher(name: &'static str, unit: &'static str) -> Self {
        Self { lower_is_better: false, ..Self::lower(name, unit) }
    }

    /// Shown with that many digits after the point, 2 if nothing is said.
    #[must_use]
    pub const fn digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    /// Shown without a ratio.
    #[must_use]
    pub const fn beside(self) -> Self {
        Self { compared: false, ..self }
    }
}

/// The values of all subjects in all rounds, and what stands beside what.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub(crate) title: String,
    pub(crate) subjects: Vec<String>,
    pub(crate) metrics: Vec<Metric>,
    /// By round, subject, metric.
    values: Vec<Vec<Vec<f64>>>,
    made: usize,
    disturbed: usize,
    pub(crate) baselines: Vec<String>,
    targets: Vec<Target>,
    /// The Markdown table that it is a column of, and the column's head.
    pub(crate) column: Option<(String, String)>,
}

impl Comparison {
    pub(crate) fn new(
        title: &str,
        subjects: &[impl AsRef<str>],
        metrics: &[Metric],
        values: Vec<Vec<Vec<f64>>>,
        [made, disturbed]: [usize; 2],
    ) -> Self {
        Self {
            title: title.to_owned(),
            subjects: subjects.iter().map(|subject| subject.as_ref().to_owned()).collect(),
            metrics: metrics.to_vec(),
            values,
            made,
            disturbed,
            baselines: Vec::new(),
            targets: Vec::new(),
            column: None,
        }
    }

    /// Values that need no rounds, since they come out the same each time: counts. A list for each
    /// subject, with a value for each metric.
    ///
    /// # Panics
    ///
    /// If there is another number of lists than of subjects, or of values than of metrics.
    pub fn counted(
        title: &str,
        subjects: &[impl AsRef<str>],
        metrics: &[Metric],
        values: Vec<Vec<f64>>,
    ) -> Self {
        assert_eq!(values.len(), subjects.len(), "a list for each subject");
        assert!(values.iter().all(|list| list.len() == metrics.len()), "a value for each metric");
        Self::new(title, subjects, metrics, vec![values], [1, 0])
    }

    /// Makes it, in Markdown, a column of a table that comparisons of the same kind share.
    #[must_use]
    pub fn in_table(self, table: &str, head: impl Into<String>) -> Self {
        Self { column: Some((table.to_owned(), head.into())), ..self }
    }

    /// Adds a metric: how much more of the metric `of` each subject has than `subject`, in the same round.
    ///
    /// # Panics
    ///
    /// If it names what is not here.
    #[must_use]
    pub fn net(mut self, metric: Metric, of: &str, subject: &str) -> Self {
        let (of, base) = (self.metric(of), self.place(subject));
        for round in &mut self.values {
            let base = round[base][of];
            for values in round {
                values.push(values[of] - base);
            }
        }
        self.metrics.push(metric);
        self
    }

    /// Adds a metric: `of` without as much as each subject has more of `effect` than `subject`, in the same
    /// round. What the effect costs is so set apart from what else differs.
    ///
    /// # Panics
    ///
    /// If it names what is not here.
    #[must_use]
    pub fn apart(mut self, metric: Metric, of: &str, effect: &str, subject: &str) -> Self {
        let (of, effect, base) = (self.metric(of), self.metric(effect), self.place(subject));
        for round in &mut self.values {
            let base = round[base][effect];
            for values in round {
                values.push(values[of] - (values[effect] - base));
            }
        }
        self.metrics.push(metric);
        self
    }

    /// Shows ratios to that subject.
    ///
    /// # Panics
    ///
    /// If there is no such subject.
    #[must_use]
    pub fn against(mut self, subject: &str) -> Self {
        self.place(subject);
        self.baselines.push(subject.to_owned());
        self
    }

    /// Says whether a target is met, beside the table.
    ///
    /// # Panics
    ///
    /// If it names what is not here.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        target.verdict(&self);
        self.targets.push(target);
        self
    }

    /// Rounds that the numbers come from.
    pub fn rounds(&self) -> usize {
        self.values.len()
    }

    /// Rounds that were measured and left out since other work disturbed them.
    pub fn discarded_rounds(&self) -> usize {
        self.made - self.values.len()
    }

    /// Of those that the numbers come from: were disturbed too, but there were none that were less.
    pub fn disturbed_rounds(&self) -> usize {
        self.disturbed
    }

    /// What is compared.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The subjects' names.
    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// What a metric of a subject came to.
    ///
    /// # Panics
    ///
    /// If there is no such subject or metric.
    pub fn summary(&self, subject: &str, metric: &str) -> Summary {
        let (subject, metric) = (self.place(subject), self.metric(metric));
        Summary::of(&self.values.iter().map(|round| round[subject][metric]).collect::<Vec<_>>())
    }

    /// A metric of a subject by that of the best of some others, round by round. The best is who is it over all
    /// rounds: the best of each single one is who was lucky there, and nobody equals that. Rounds in which it has
    /// nothing to divide by are left out; `None` where all are.
    ///
    /// # Panics
    ///
    /// If there is no such subject or metric.
    pub fn ratio<S: AsRef<str>>(
        &self,
        subject: &str,
        others: &[S],
        metric: &str,
    ) -> Option<Summary> {
        let lower_is_better = self.metrics[self.metric(metric)].lower_is_better;
        let median = |other: &&S| self.summary(other.as_ref(), metric).median;
        let by_median = |a: &&S, b: &&S| median(a).total_cmp(&median(b));
        let best = if lower_is_better {
            others.iter().min_by(by_median)
        } else {
            others.iter().max_by(by_median)
        };
        let (best, subject) = (self.place(best?.as_ref()), self.place(subject));
        let metric = self.metric(metric);
        let rounds = self.values.iter().filter(|round| round[best][metric] > 0.0);
        let ratios: Vec<f64> =
            rounds.map(|round| round[subject][metric] / round[best][metric]).collect();
        (!ratios.is_empty()).then(|| Summary::of(&ratios))
    }

    /// All targets, and whether they are met.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.targets.iter().map(|target| target.verdict(self))
    }

    fn place(&self, subject: &str) -> usize {
        let place = self.subjects.iter().position(|name| name == subject);
        place.unwrap_or_else(|| panic!("no subject {subject} in {}", self.title))
    }

    pub(crate) fn metric(&self, metric: &str) -> usize {
        let place = self.metrics.iter().position(|one| one.name == metric);
        place.unwrap_or_else(|| panic!("no metric {metric} in {}", self.title))
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums and halves that are exact")]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let metrics = [Metric::lower("time", "ns"), Metric::higher("rate", "1/s")];
        // The second round ran on a machine half as fast.
        let values = vec![
            vec![vec![1.0, 10.0], vec![2.0, 5.0], vec![3.0, 20.0]],
            vec![vec![2.0, 5.0], vec![4.0, 2.5], vec![6.0, 10.0]],
        ];
        Comparison::new("test", &["a", "b", "c"], &metrics, values, [5, 0])
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let comparison = comparison();
        assert_eq!(comparison.ratio("a", &["b"], "time"), Some(Summary::of(&[0.5, 0.5])));
        // The best is the fastest in time, and the highest in rate.
        assert_eq!(comparison.ratio("a", &["b", "c"], "time").unwrap().median, 0.5);
        assert_eq!(comparison.ratio("a", &["b", "c"], "rate").unwrap().median, 0.5);
        assert_eq!(comparison.summary("a", "time").median, 1.5);
        assert_eq!((comparison.rounds(), comparison.discarded_rounds()), (2, 3));
    }

    #[test]
    fn the_best_is_who_is_it_over_all_rounds() {
        let metrics = [Metric::higher("rate", "1/s")];
        let round = |rates: [f64; 3]| rates.map(|rate| vec![rate]).to_vec();
        let values = vec![round([6.0, 6.0, 4.0]), round([6.0, 4.0, 8.0]), round([6.0, 6.0, 5.0])];
        let comparison = Comparison::new("test", &["a", "b", "c"], &metrics, values, [3, 0]);
        assert_eq!(comparison.ratio("a", &["b", "c"], "rate"), Some(Summary::of(&[1.0, 1.5, 1.0])));
    }

    #[test]
    fn what_is_left_of_a_time_without_anothers() {
        let net = comparison().net(Metric::lower("net", "ns"), "time", "a");
        assert_eq!(net.summary("c", "net").median, 3.0);
        assert_eq!(net.ratio("b", &["c"], "net").unwrap().median, 0.5);
        assert_eq!(net.ratio("b", &["a"], "net"), None);
    }

    #[test]
    fn what_an_effect_explains_is_set_apart() {
        let metrics = [Metric::lower("time", "ns"), Metric::lower("memory", "ns")];
        let values = vec![vec![10.0, 1.0], vec![14.0, 4.0]];
        let apart = Comparison::counted("test", &["small", "large"], &metrics, values).apart(
            Metric::lower("apart", "ns"),
            "time",
            "memory",
            "small",
        );
        assert_eq!(apart.summary("small", "apart").median, 10.0);
        assert_eq!(apart.ratio("large", &["small"], "apart").unwrap().median, 1.1);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let metrics = [Metric::lower("calls", "1")];
        let values = vec![vec![1.0], vec![0.0]];
        let comparison = Comparison::counted("test", &["a", "b"], &metrics, values);
        assert_eq!(comparison.ratio("a", &["b"], "calls"), None);
    }

    #[test]
    #[should_panic(expected = "no subject d")]
    fn an_unknown_baseline_is_a_mistake() {
        drop(comparison().against("d"));
    }
}
