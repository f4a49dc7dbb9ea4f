//! Rounds: each runs every subject once.

use std::time::Instant;

use crate::{Comparison, Metric, Plan, Watch};

/// One round: the values of each subject, and how much others disturbed the worst of them.
struct Round {
    values: Vec<Vec<f64>>,
    disturbed: f64,
}

/// Runs every subject once in each round, in another order each time, until there are as many undisturbed
/// rounds as planned; what was disturbed is repeated at once, a few times. Where the machine is too busy
/// for that, the least disturbed rounds are taken, and the comparison says so.
///
/// `run` measures the subject of that number, and returns a value for each metric. It runs once for each
/// subject before anything counts.
///
/// # Errors
///
/// The first that `run` returns.
///
/// # Panics
///
/// If `run` returns another number of values than there are metrics, or if there is no subject.
pub fn measure<E>(
    plan: &Plan,
    title: &str,
    subjects: &[impl AsRef<str>],
    metrics: &[Metric],
    mut run: impl FnMut(usize) -> Result<Vec<f64>, E>,
) -> Result<Comparison, E> {
    assert!(!subjects.is_empty(), "nothing to measure");
    let mut run = |subject| {
        let values = run(subject)?;
        assert_eq!(values.len(), metrics.len(), "a value for each metric");
        Ok(values)
    };
    for subject in 0..subjects.len() {
        run(subject)?;
    }
    let started = Instant::now();
    let mut rounds: Vec<Round> = Vec::new();
    let calm = |rounds: &[Round]| {
        rounds.iter().filter(|round| round.disturbed <= plan.tolerance).count() >= plan.rounds
    };
    while !calm(&rounds) && rounds.len() < plan.attempts.max(plan.rounds) {
        if rounds.len() >= plan.rounds && started.elapsed() > plan.patience {
            break;
        }
        let order = order(subjects.len(), rounds.len());
        let repeats = if started.elapsed() > plan.patience { 0 } else { plan.repeats };
        let plan = Plan { repeats, ..*plan };
        rounds.push(round(&plan, order, subjects.len(), &mut run)?);
    }
    let made = rounds.len();
    rounds.sort_by(|one, other| one.disturbed.total_cmp(&other.disturbed));
    rounds.truncate(plan.rounds);
    let disturbed = rounds.iter().filter(|round| round.disturbed > plan.tolerance).count();
    let values = rounds.into_iter().map(|round| round.values).collect();
    Ok(Comparison::new(title, subjects, metrics, values, [made, disturbed]))
}

fn round<E>(
    plan: &Plan,
    order: Vec<usize>,
    subjects: usize,
    run: &mut impl FnMut(usize) -> Result<Vec<f64>, E>,
) -> Result<Round, E> {
    let mut round = Round { values: vec![Vec::new(); subjects], disturbed: 0.0 };
    for subject in order {
        let mut least = f64::INFINITY;
        for _ in 0..=plan.repeats {
            let watch = Watch::start();
            let values = run(subject)?;
            let disturbed = watch.disturbed();
            if disturbed < least {
                least = disturbed;
                round.values[subject] = values;
            }
            if least <= plan.tolerance {
                break;
            }
        }
        round.disturbed = round.disturbed.max(least);
    }
    Ok(round)
}

/// Each subject comes first, second and so on equally often, and each follows each of its neighbours.
fn order(subjects: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..subjects).collect();
    order.rotate_left(round / 2 % subjects);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, convert::Infallible, time::Duration};

    use super::*;

    const METRICS: [Metric; 1] = [Metric::lower("time", "ns")];

    fn plan(rounds: usize) -> Plan {
        // Nothing is too much.
        let tolerance = f64::INFINITY;
        Plan { rounds, attempts: rounds, repeats: 2, patience: Duration::MAX, tolerance }
    }

    #[test]
    fn every_subject_runs_once_a_round_in_changing_order() {
        let mut runs = Vec::new();
        measure(&plan(6), "", &["a", "b", "c"], &METRICS, |subject| {
            runs.push(subject);
            Ok::<_, Infallible>(vec![1.0])
        })
        .unwrap();
        let rounds: Vec<&[usize]> = runs.chunks(3).collect();
        // The first does not count.
        assert_eq!(rounds.len(), 7);
        assert!(rounds.iter().all(|round| round.iter().collect::<HashSet<_>>().len() == 3));
        assert_eq!(rounds[1..].iter().collect::<HashSet<_>>().len(), 6);
    }

    #[test]
    fn too_busy_a_machine_is_said_to_be() {
        let mut plan = plan(2);
        (plan.attempts, plan.tolerance) = (4, -1.0);
        let mut runs = 0;
        let comparison = measure(&plan, "", &["a"], &METRICS, |_| {
            runs += 1;
            Ok::<_, Infallible>(vec![1.0])
        })
        .unwrap();
        assert_eq!(runs, 1 + 4 * (1 + 2));
        assert_eq!((comparison.rounds(), comparison.disturbed_rounds()), (2, 2));
    }

    #[test]
    fn without_patience_nothing_is_repeated() {
        let mut plan = plan(2);
        (plan.attempts, plan.tolerance, plan.patience) = (4, -1.0, Duration::ZERO);
        let mut runs = 0;
        let comparison = measure(&plan, "", &["a"], &METRICS, |_| {
            runs += 1;
            Ok::<_, Infallible>(vec![1.0])
        })
        .unwrap();
        assert_eq!((runs, comparison.disturbed_rounds()), (1 + 2, 2));
    }

    #[test]
    fn an_error_ends_it() {
        let result = measure(&plan(2), "", &["a", "b"], &METRICS, |subject| match subject {
            0 => Ok(vec![1.0]),
            _ => Err("no"),
        });
        assert_eq!(result.unwrap_err(), "no");
    }
}
