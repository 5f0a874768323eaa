//! Signals as messages, for commands that must not end without having said or taken back what they have changed.

use crate::failure::{Cannot, Result};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// From here on none of these signals ends the process: whoever waits for it is told.
pub(super) fn listen(signals: &[i32]) -> Result<Receiver<i32>> {
    let mut signals = Signals::new(signals).cannot("listen for signals")?;
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
        .cannot("listen for signals")?;
    Ok(receiver)
}
