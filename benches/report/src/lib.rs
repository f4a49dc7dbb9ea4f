//! How xskit's benchmarks measure and report.
//!
//! On a machine that does other work too, one process can run half as fast again as the next for no
//! visible reason. So what is compared runs in one process, in turns: a *round* runs each *subject* once,
//! and only ratios within a round are compared between rounds.
//!
//! | | |
//! |---|---|
//! | [`Options`] | `--quick`, `--rounds`, `--json`, `--markdown`: what every benchmark's command line has |
//! | [`run`] | the `main` of a benchmark that has no others |
//! | [`measure`] | interleaved rounds; what was disturbed is measured again, or left out |
//! | [`Comparison`] | medians, spread, ratios round by round, targets and whether they are met |
//! | [`Series`] | the same at many points, as one table with the increase in per cent |
//! | [`Report`] | the tables of one benchmark with the machine they come from, for people, as Markdown and as JSON |
//!
//! ```
//! use xskit_report::{Metric, Options, Report, measure};
//!
//! let options = Options::quick();
//! let work = [1_000_u64, 2_000];
//! let comparison = measure(
//!     &options.plan(7),
//!     "sums",
//!     &["short", "long"],
//!     &[Metric::lower("time", "ns")],
//!     |subject| {
//!         let started = std::time::Instant::now();
//!         std::hint::black_box((0..work[subject]).map(std::hint::black_box).sum::<u64>());
//!         Ok::<_, std::io::Error>(vec![started.elapsed().as_secs_f64() * 1e9])
//!     },
//! )?;
//! let mut report = Report::new("sums");
//! report.add(comparison.against("short"));
//! report.print(&options)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod comparison;
mod cpu;
mod disturbance;
mod machine;
mod markdown;
mod options;
mod program;
mod report;
mod rounds;
mod series;
mod summary;
mod table;
mod target;

pub use comparison::{Comparison, Metric};
pub use cpu::{cpus, pin, prefer};
pub use disturbance::Watch;
pub use machine::{Machine, rustc};
pub use options::{Options, Plan};
pub use program::run;
pub use report::Report;
pub use rounds::measure;
pub use series::Series;
pub use summary::Summary;
pub use target::{Target, Verdict};
