//! Ctrl-C, SIGTERM and SIGHUP are noted and looked at between steps, so that everything is taken down on the way out.

use crate::failure::{Failure, Result, fail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The last signal that arrived; 0 for none.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on signals are only noted.
    pub(super) fn watch() -> Result<Self> {
        let arrived = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).expect("signals have small positive numbers");
            signal_hook::flag::register_usize(signal, Arc::clone(&arrived), number)
                .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
        }
        Ok(Self(arrived))
    }

    /// The number of the signal that arrived, if one did.
    pub(super) fn signal(&self) -> Option<usize> {
        // Relaxed: nothing else is told by it.
        Some(self.0.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }

    /// A failure once a signal has arrived.
    pub(super) fn check(&self) -> Result<()> {
        match self.signal() {
            Some(signal) => fail!("interrupted by signal {signal}"),
            None => Ok(()),
        }
    }
}
