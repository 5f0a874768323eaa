//! Ctrl-C, SIGTERM and SIGHUP are noted and looked at between steps, so that everything is taken down on the way out.

use crate::failure::{Cannot, Result, fail};
use crate::signals;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The last signal that arrived; 0 for none.
static ARRIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// From now on signals are only noted.
pub(super) fn watch() -> Result<()> {
    for signal in signals::that_end() {
        let number = usize::try_from(signal).expect("signal numbers are positive");
        signal_hook::flag::register_usize(signal, Arc::clone(&ARRIVED), number).cannot("listen for signals")?;
    }
    Ok(())
}

/// The number of the signal that arrived, if one did.
pub(super) fn signal() -> Option<usize> {
    // Relaxed: nothing else is told by it.
    Some(ARRIVED.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

/// A failure once a signal has arrived.
pub(super) fn check() -> Result<()> {
    match signal() {
        Some(signal) => fail!("interrupted by signal {signal}"),
        None => Ok(()),
    }
}
