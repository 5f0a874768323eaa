//! Bell that ends all queues of a device when one ends, whatever each waits for. It is a pipe that is never written to, only closed.

use parking_lot::Mutex;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};

/// Rings once, for everyone.
#[derive(Debug)]
pub(super) struct Bell(Mutex<Option<PipeWriter>>);

/// End of the pipe on which queues listen.
#[derive(Debug)]
pub(super) struct Ear(PipeReader);

/// Rings when it is dropped, also when a panic does that.
pub(super) struct RingAtEnd<'a>(pub(super) &'a Bell);

pub(super) fn new() -> io::Result<(Bell, Ear)> {
    let (reader, writer) = io::pipe()?;
    Ok((Bell(Mutex::new(Some(writer))), Ear(reader)))
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.0.lock() = None;
    }
}

impl Drop for RingAtEnd<'_> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl Ear {
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_bell_rings_when_a_thread_returns_or_panics() {
        let (bell, mut ear) = new().unwrap();
        let panicked = std::thread::scope(|scope| {
            let run = || {
                let _ring = RingAtEnd(&bell);
                panic!("planned panic");
            };
            scope.spawn(run).join()
        });
        assert!(panicked.is_err());
        assert_eq!(ear.0.read(&mut [0]).unwrap(), 0, "the other end is closed");
        bell.ring();
    }
}
