//! Progress on a terminal, for what takes more than a second.

use crate::failure::{Cannot, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use std::thread;
use std::time::Duration;

/// Time after which a bar appears: shorter work needs no bar.
const REVEAL_AFTER: Duration = Duration::from_secs(1);
/// 128 + SIGINT: what a shell makes of a command that Ctrl-C ended.
pub(crate) const INTERRUPTED_EXIT_CODE: i32 = 130;
const TICK: Duration = Duration::from_millis(100);

/// A bar that shows itself after a second, if standard error is a terminal. Goes when dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("{spinner} {msg}"));
        bar.set_message(what.into());
        let later = bar.clone();
        thread::spawn(move || {
            thread::sleep(REVEAL_AFTER);
            if !later.is_finished() {
                later.set_draw_target(ProgressDrawTarget::stderr());
                later.enable_steady_tick(TICK);
            }
        });
        Self(bar)
    }

    /// Bar of a request to a server. From here on Ctrl-C ends this command with a word about what does not end: the server goes on with what it has
    /// begun. `look` is the command that tells how far it is. Once the bar has gone, only a second Ctrl-C ends the command.
    pub(crate) fn of_request(what: impl Into<String>, look: String) -> Result<Self> {
        let progress = Self::new(what);
        progress.on_interrupt(look)?;
        Ok(progress)
    }

    /// A step of a longer run, shown at once: a bar on a terminal, else a line. It has so many parts, or 1 that cannot be counted.
    pub(crate) fn step(what: &str, parts: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(parts as u64), ProgressDrawTarget::stderr());
        bar.set_style(style(if parts > 1 {
            "{spinner} {msg} {wide_bar} {pos}/{len}, {eta} left"
        } else {
            "{spinner} {msg} {elapsed}"
        }));
        bar.set_message(what.to_owned());
        if bar.is_hidden() {
            complain!("{what} ...");
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Another part is done.
    pub(crate) fn advance(&self) {
        self.0.inc(1);
    }

    pub(crate) fn set(&self, done_bytes: u64, total_bytes: u64) {
        if self.0.length() != Some(total_bytes) {
            self.0
                .set_style(style("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}"));
            self.0.set_length(total_bytes);
        }
        self.0.set_position(done_bytes);
    }

    fn on_interrupt(&self, look: String) -> Result<()> {
        let mut signals = Signals::new([SIGINT]).cannot("listen for signals")?;
        let bar = self.0.clone();
        thread::spawn(move || {
            let mut has_passed = false;
            for _ in signals.forever() {
                if !bar.is_finished() {
                    bar.finish_and_clear();
                    complain!(
                        "homenode: interrupted: the server finishes the request if it has begun, else drops it; see `{look}`"
                    );
                } else if !has_passed {
                    // What is done is done: the command is about to say so.
                    has_passed = true;
                    continue;
                }
                std::process::exit(INTERRUPTED_EXIT_CODE);
            }
        });
        Ok(())
    }

    /// Prints a line without disturbing the bar.
    pub(crate) fn say(&self, line: &str) {
        self.0.suspend(|| complain!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates in this file are well formed")
}
