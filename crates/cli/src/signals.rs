//! Signals as messages, for commands that must not end without having said or taken back what they have changed.

use crate::failure::{Cannot, Result};
use homenode_linux::process::is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// Signals that end a server: SIGTERM always; SIGINT and SIGHUP not where this process was started to ignore them, as by nohup(1), or by a shell script that
/// goes on meanwhile. To be asked before another action is set.
pub(crate) fn that_end() -> Vec<i32> {
    let rest = [SIGINT, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    [SIGTERM].into_iter().chain(rest).collect()
}

/// From here on none of these signals ends the process: whoever waits for it is told.
pub(crate) fn listen(signals: &[i32]) -> Result<Receiver<i32>> {
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
