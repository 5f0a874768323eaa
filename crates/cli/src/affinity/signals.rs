//! Signals as messages, for commands that must not end without having said or taken back what they have changed.

use crate::failure::{Failure, Result};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// From here on none of these signals ends the process: whoever waits for it is told.
pub(super) fn listen(signals: &[i32]) -> Result<Receiver<i32>> {
    let cannot = |error| Failure::new(format!("cannot listen for signals: {error}"));
    let mut signals = Signals::new(signals).map_err(cannot)?;
    let (sender, receiver) = mpsc::channel();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(forward)
        .map_err(cannot)?;
    Ok(receiver)
}
