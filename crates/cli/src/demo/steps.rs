//! Progress of the demo for the person: a line for each step, and a bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);

/// A step under way. Goes when dropped.
#[derive(Debug)]
pub(super) struct Step(ProgressBar);

impl Step {
    /// Begins a step of `parts`; 1 for what cannot be counted.
    pub(super) fn begin(what: &str, parts: usize) -> Self {
        let template = if parts > 1 {
            "{spinner} {msg} {wide_bar} {pos}/{len}, {eta} left"
        } else {
            "{spinner} {msg} {elapsed}"
        };
        let style = ProgressStyle::with_template(template).expect("both templates are well formed");
        let bar = ProgressBar::with_draw_target(Some(parts as u64), ProgressDrawTarget::stderr()).with_style(style);
        bar.set_message(what.to_owned());
        if bar.is_hidden() {
            complain!("{what} ...");
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Another part is done.
    pub(super) fn advance(&self) {
        self.0.inc(1);
    }

    /// Prints a line that stays.
    pub(super) fn say(&self, line: &str) {
        self.0.suspend(|| complain!("{line}"));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
