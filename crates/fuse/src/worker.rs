//! One server thread: reads a request, has it answered, writes the answer, until the filesystem is unmounted.
//!
//! After its buffers are made, a thread takes nothing from the heap to read and write files.

use crate::buffer::Buffer;
use crate::device::{Device, Received, Sent};
use crate::host::Host;
use crate::negotiate::TRANSFER_BYTES_MAX;
use crate::responder::Responder;
use crate::wire::{Field, InHeader, OutHeader, WriteIn};
use homenode_engine::{Clock, Memory};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Pause after a FORGET, which nobody waits for: the next ones come together, and cost one wake-up instead of one each.
const FORGET_PAUSE: Duration = Duration::from_micros(500);

/// What a server thread owns.
#[derive(Debug)]
pub(crate) struct Worker<M: Memory, C: Clock, H> {
    pub(crate) device: Arc<Device>,
    pub(crate) responder: Responder<M, C, H>,
    /// Whether others answer all requests that somebody waits for: rings.
    pub(crate) is_beside_rings: bool,
}

impl<M: Memory, C: Clock, H: Host> Worker<M, C, H> {
    /// Serves until the filesystem is unmounted.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut requests = Buffer::new(InHeader::BYTES + WriteIn::BYTES, TRANSFER_BYTES_MAX);
        let mut replies = Buffer::new(OutHeader::BYTES, TRANSFER_BYTES_MAX);
        loop {
            let bytes = match self.device.receive(requests.bytes())? {
                Received::Request(bytes) => bytes,
                Received::Unmounted => return Ok(()),
            };
            let request = requests.bytes().get(..bytes).unwrap_or_default();
            let Some(message_bytes) = self.responder.answer(request, replies.bytes()) else {
                if self.is_beside_rings {
                    thread::sleep(FORGET_PAUSE);
                }
                continue;
            };
            let message = replies.bytes().get(..message_bytes).unwrap_or_default();
            match self.device.send(message) {
                // Unwanted only when the connection has ended, and every lookup of the kernel with it.
                Ok(Sent::Taken | Sent::Unwanted) => {}
                // The kernel gives the caller EIO then.
                Err(error) => tracing::error!(%error, bytes = message_bytes, "the kernel refused an answer"),
            }
        }
    }
}
