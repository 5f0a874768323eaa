//! Requests of a ring that other threads carry out, and the way back: only the ring's thread can answer them.

use super::buffers::Lent;
use super::queue::Ready;
use crate::aside::Errand;
use crate::call::Origin;
use crate::host::Host;
use crate::responder::{Answer, Responder};
use crate::wire::{Reply, RingHeader};
use crate::worker::{aside_message_bytes, is_sync, user_of};
use homenode_engine::{Clock, Memory};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Number that is added to an eventfd, in the machine's order of bytes.
const ONE: [u8; 8] = if cfg!(target_endian = "little") {
    1_u64.to_le_bytes()
} else {
    1_u64.to_be_bytes()
};

/// A request that waits for the disk.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(super) ready: Ready,
    pub(super) header: RingHeader,
    pub(super) lent: Lent,
    pub(super) origin: Origin,
    pub(super) back: Arc<Back>,
}

/// Requests on their way back to a ring's thread.
#[derive(Debug)]
pub(crate) struct Back {
    answered: Mutex<Vec<(Parked, Answer)>>,
    /// An eventfd that the ring's thread waits for.
    bell: File,
}

impl Back {
    pub(super) fn new(depth: usize) -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            answered: Mutex::new(Vec::with_capacity(depth)),
            bell: bell.into(),
        }))
    }

    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Takes what has come back, after the bell rang.
    pub(super) fn take(&self, answered: &mut Vec<(Parked, Answer)>) {
        // Before the look: what comes after it rings again. Nothing is to be read when it rang for what was taken already.
        let _ = (&self.bell).read(&mut [0; 8]);
        answered.append(&mut self.lock());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Parked, Answer)>> {
        // Nothing panics under the lock.
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Errand for Parked {
    fn bytes(&self) -> usize {
        // It waits in its entry.
        0
    }

    fn is_sync(&self) -> bool {
        is_sync(&self.header.request(), self.header.arguments())
    }

    fn user(&self) -> u32 {
        user_of(&self.header.request())
    }

    fn begun(&self) -> Option<(u32, Instant)> {
        None
    }

    fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, responder: &Responder<M, C, H>) -> Answer {
        let payload = self.lent.payload();
        // Where nothing is asked in the payload, the answer is made there.
        let bytes = match self.header.entry().payload_sz {
            0 => 0,
            _ => aside_message_bytes(&self.header.parse(payload)),
        };
        let mut scratch = vec![0; bytes];
        carry_out(responder, &self.header, payload, &mut scratch, self.origin)
    }

    fn give_back(errands: &mut Vec<(Self, Answer)>) {
        let Some((first, _)) = errands.first() else { return };
        let back = Arc::clone(&first.back);
        back.lock().append(errands);
        // It fails only when the thread has not looked for 2^64 times.
        let _ = (&back.bell).write(&ONE);
    }
}

/// Carries out the request of an entry; the answer's payload takes the place of the request's.
pub(super) fn carry_out<M: Memory, C: Clock, H: Host>(
    responder: &Responder<M, C, H>,
    header: &RingHeader,
    payload: &mut [u8],
    scratch: &mut [u8],
    origin: Origin,
) -> Answer {
    if header.entry().payload_sz == 0 {
        return responder.carry_out(header.parse(&[]), origin, &mut Reply::new(payload));
    }
    // What is asked and what is answered would share the payload.
    let mut reply = Reply::new(scratch);
    let answer = responder.carry_out(header.parse(payload), origin, &mut reply);
    let used = reply.used();
    // A request that is carried out again is parsed again.
    if matches!(answer, Answer::Due(_)) {
        payload[..used].copy_from_slice(&scratch[..used]);
    }
    answer
}
