//! What a comparison should reach.

use serde::Serialize;

use crate::Comparison;

/// A bound on the ratio of a subject to the best of some others.
#[derive(Clone, Debug)]
pub struct Target {
    subject: String,
    others: Vec<String>,
    metric: String,
    bound: f64,
}

/// A target, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The comparison.
    pub title: String,
    /// What has to reach it.
    pub subject: String,
    /// The best of these is 1.
    pub against: Vec<String>,
    /// The metric.
    pub metric: String,
    /// The bound: from above where less is better, else from below.
    pub bound: f64,
    /// The median of the ratios; none where there was nothing to divide by.
    pub ratio: Option<f64>,
    /// The spread of the ratios, as [`Summary::spread`](crate::Summary::spread).
    pub spread: Option<f64>,
    /// Whether the median is within the bound.
    pub met: bool,
}

impl Target {
    /// `subject` reaches `bound` times what the best of `others` does.
    pub fn new<S: Into<String>>(
        subject: &str,
        others: impl IntoIterator<Item = S>,
        metric: &str,
        bound: f64,
    ) -> Self {
        let others = others.into_iter().map(Into::into).collect();
        Self { subject: subject.to_owned(), others, metric: metric.to_owned(), bound }
    }

    pub(crate) fn verdict(&self, comparison: &Comparison) -> Verdict {
        let Self { subject, others, metric, bound } = self;
        let ratio = comparison.ratio(subject, others, metric);
        let lower = comparison.metrics[comparison.metric(metric)].lower_is_better;
        let within = |ratio: f64| if lower { ratio <= *bound } else { ratio >= *bound };
        Verdict {
            title: comparison.title.clone(),
            subject: subject.clone(),
            against: others.clone(),
            metric: metric.clone(),
            bound: *bound,
            ratio: ratio.map(|ratio| ratio.median),
            spread: ratio.map(|ratio| ratio.spread),
            met: ratio.is_some_and(|ratio| within(ratio.median)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;

    #[test]
    fn bounds_are_from_the_side_that_is_better() {
        let metrics = [Metric::lower("time", "ns"), Metric::higher("rate", "1/s")];
        let values = vec![vec![3.0, 3.0], vec![4.0, 4.0]];
        let comparison = Comparison::counted("test", &["a", "b"], &metrics, values);
        let met = |metric, bound| Target::new("a", ["b"], metric, bound).verdict(&comparison).met;
        assert!(met("time", 0.75) && met("rate", 0.75));
        assert!(!met("time", 0.7) && !met("rate", 0.8));
    }
}
