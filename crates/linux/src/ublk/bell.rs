//! What ends all queues of a device when one of them ends, whatever each waits for: a pipe that is never written to, only closed.

use parking_lot::Mutex;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};

/// Rings once, for everyone.
#[derive(Debug)]
pub(super) struct Bell(Mutex<Option<PipeWriter>>);

/// What queues listen with.
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
