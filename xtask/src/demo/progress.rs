//! Progress bars on a terminal; nothing elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The bars of a run. They vanish when it is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    bars: MultiProgress,
    all: ProgressBar,
}

impl Progress {
    /// For so many rows of frames, and the TCP connection.
    pub(super) fn new(rows: usize) -> Self {
        let bars = MultiProgress::new();
        let all = bars.add(ProgressBar::new(rows as u64 + 1).with_style(style("{pos}/{len}")));
        all.set_message("demo");
        Self { bars, all }
    }

    /// The bar of the next step, which ends at `length`.
    pub(super) fn step(&self, name: &str, length: u64) -> Step {
        let bar = self.bars.add(ProgressBar::new(length).with_style(style("{percent:>3} %")));
        bar.set_message(name.to_owned());
        Step { bar, all: self.all.clone() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.all.finish_and_clear();
    }
}

/// One step's bar. It vanishes when it is dropped, and the step counts as done.
#[derive(Debug)]
pub(super) struct Step {
    bar: ProgressBar,
    all: ProgressBar,
}

impl Step {
    pub(super) fn at(&self, position: u64) {
        self.bar.set_position(position);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        self.all.inc(1);
    }
}

fn style(numbers: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("{{msg:>20}} {{wide_bar}} {numbers}"))
        .expect("a template that is known to be right")
}
