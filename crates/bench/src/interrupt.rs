//! Ctrl-C, SIGTERM and a terminal that closes end a bench between two passes, so that what it set up is taken down on the way out.

use crate::error::Error;
use homenode_linux::process::is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ARRIVED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on these signals are only noted; a second one ends the process at once.
pub(crate) fn watch() -> Result<(), Error> {
    let arrived = ARRIVED.get_or_init(Arc::default);
    // Not those that this process was started to ignore, as by nohup(1).
    for signal in [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|signal| !is_ignored(*signal))
    {
        let system = |error| Error::system("watching for signals", error);
        // In this order: the shutdown looks at the flag as the signals before this one left it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(arrived)).map_err(system)?;
        signal_hook::flag::register(signal, Arc::clone(arrived)).map_err(system)?;
    }
    Ok(())
}

/// An error once a signal has arrived.
pub(crate) fn check() -> Result<(), Error> {
    match ARRIVED.get() {
        Some(arrived) if arrived.load(Ordering::Relaxed) => Err(Error::Interrupted),
        _ => Ok(()),
    }
}
