//! Server thread: reads a request, has it answered, writes the answer, until the filesystem is unmounted.
//!
//! After its buffers are made, a thread takes nothing from the heap to read and write files.

use crate::aside::{Aside, Errand};
use crate::buffer::Buffer;
use crate::call::Later;
use crate::device::{Device, Received, Sent};
use crate::host::Host;
use crate::negotiate::TRANSFER_BYTES_MAX;
use crate::responder::{Answer, Responder};
use crate::wire::{Field, InHeader, Incoming, Malformed, Opcode, OutHeader, Request, WriteIn};
use homenode_engine::pool::{Discarding, Pool};
use homenode_engine::{Clock, Memory};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Pause after a FORGET, which nobody waits for: the next ones come together, and cost one wake-up instead of one each.
const FORGET_PAUSE: Duration = Duration::from_micros(500);

/// State of a server thread.
#[derive(Debug)]
pub(crate) struct Worker<M: Memory, C: Clock, H> {
    pub(crate) device: Arc<Device>,
    pub(crate) responder: Responder<M, C, H>,
    /// Whether others answer all requests that somebody waits for: rings.
    pub(crate) is_beside_rings: bool,
    /// Who carries out what waits for the disk of a durable pool, or takes long.
    pub(crate) aside: Option<Arc<Aside<Asked>>>,
}

/// A request that was read from a device, and waits for the disk or takes long.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The request, and room for the answer behind it.
    buffer: Buffer,
    request_bytes: usize,
    device: Arc<Device>,
    /// When the request came.
    begun: Instant,
    /// How far it came.
    done: u64,
    /// Calls that find no room wait for a request that frees some.
    _discarding: Option<Discarding>,
}

impl Asked {
    /// `None` when the process may map no more.
    pub(crate) fn new<M: Memory>(
        request: &[u8],
        message_bytes: usize,
        device: &Arc<Device>,
        begun: Instant,
        pool: &Pool<M>,
    ) -> Option<Self> {
        const FREEING: [u32; 3] = [
            Opcode::Forget as u32,
            Opcode::BatchForget as u32,
            Opcode::Release as u32,
        ];
        let mut buffer = Buffer::new(request.len(), message_bytes).ok()?;
        buffer.bytes()[..request.len()].copy_from_slice(request);
        Some(Self {
            buffer,
            request_bytes: request.len(),
            device: Arc::clone(device),
            begun,
            done: 0,
            _discarding: FREEING.contains(&opcode_in(request)).then(|| pool.note_discarding()),
        })
    }

    fn request(&self) -> &[u8] {
        &self.buffer.as_bytes()[..self.request_bytes]
    }
}

/// The longest answer to what changes something: a name, its attributes and an open file.
const ASIDE_MESSAGE_BYTES: usize = 256;

/// Room for a message that answers a request which another thread carries out.
pub(crate) fn aside_message_bytes(incoming: &Result<Incoming<'_>, Malformed>) -> usize {
    let asked = match incoming.as_ref().map(|incoming| incoming.request) {
        Ok(Request::Read(input)) => input.size,
        Ok(Request::GetXattr { input, .. }) => input.size,
        _ => 0,
    };
    ASIDE_MESSAGE_BYTES + TRANSFER_BYTES_MAX.min(asked as usize)
}

impl Errand for Asked {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.buffer.mapped_bytes()
    }

    fn is_sync(&self) -> bool {
        sync_in(self.request())
    }

    fn user(&self) -> u32 {
        InHeader::take(&mut self.request()).map_or(NOBODY, |header| user_of(&header))
    }

    fn begun(&self) -> Option<(u32, Instant)> {
        Some((opcode_in(self.request()), self.begun))
    }

    fn carry_out<M: Memory, C: Clock, H: Host>(&mut self, responder: &Responder<M, C, H>) -> Answer {
        let (request, message) = self.buffer.bytes().split_at_mut(self.request_bytes);
        responder.answer(request, Some(self.done), message)
    }

    fn goes_on(&mut self, answer: Answer) -> bool {
        let Answer::Later(Later::Step(done)) = answer else {
            return false;
        };
        self.done = done;
        true
    }

    fn give_back(errands: &mut Vec<(Self, Answer)>) {
        for (mut asked, answer) in errands.drain(..) {
            send(&asked.device, answer, &mut asked.buffer.bytes()[asked.request_bytes..]);
        }
    }
}

fn opcode_in(mut request: &[u8]) -> u32 {
    InHeader::take(&mut request).map_or(u32::MAX, |header| header.opcode)
}

/// Whether a request ends with what an fsync does.
fn sync_in(mut request: &[u8]) -> bool {
    InHeader::take(&mut request).is_some_and(|header| is_sync(&header, request))
}

/// The user whose turn a request takes. The kernel sends write-back, RELEASE and FORGET in nobody's name, with zeros: they are not root's.
pub(crate) fn user_of(header: &InHeader) -> u32 {
    // A caller of another PID namespace has no number here either, but a user.
    if (header.pid, header.uid, header.gid) == (0, 0, 0) {
        NOBODY
    } else {
        header.uid
    }
}

const NOBODY: u32 = u32::MAX;

/// Whether it is an fsync, or a write that is one too (O_DSYNC; O_SYNC has both bits).
pub(crate) fn is_sync(header: &InHeader, mut arguments: &[u8]) -> bool {
    const FSYNC: [u32; 2] = [Opcode::FSync as u32, Opcode::FSyncDir as u32];
    let is_synced = |input: WriteIn| input.flags & libc::O_DSYNC.cast_unsigned() != 0;
    FSYNC.contains(&header.opcode)
        || header.opcode == Opcode::Write as u32 && WriteIn::take(&mut arguments).is_some_and(is_synced)
}

/// Sends an answer whose payload is in `message`; false when none is due.
fn send(device: &Device, answer: Answer, message: &mut [u8]) -> bool {
    let Answer::Due(header) = answer else { return false };
    let placed = header.put(&mut &mut message[..]);
    let message = placed.and_then(|()| message.get(..header.len as usize));
    match message.map(|message| device.send(message)) {
        // Unwanted when the connection has ended, whose pins go with the mount, and after an INTERRUPT.
        Some(Ok(Sent::Taken | Sent::Unwanted)) => {}
        // The kernel gives the caller EIO then.
        Some(Err(error)) => tracing::error!(%error, bytes = header.len, "the kernel refused an answer"),
        None => tracing::error!(bytes = header.len, "an answer is longer than its place"),
    }
    true
}

impl<M: Memory, C: Clock, H: Host> Worker<M, C, H> {
    /// Serves until the filesystem is unmounted.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut requests = Buffer::new(InHeader::BYTES + WriteIn::BYTES, TRANSFER_BYTES_MAX)?;
        let mut replies = Buffer::new(OutHeader::BYTES, TRANSFER_BYTES_MAX)?;
        loop {
            let bytes = match self.device.receive(requests.bytes())? {
                Received::Request(bytes) => bytes,
                Received::Unmounted => return Ok(()),
            };
            let begun = Instant::now();
            let request = requests.bytes().get(..bytes).unwrap_or_default();
            let mut answer = self.responder.answer(request, None, replies.bytes());
            if let Answer::Later(Later::Disk(way)) = answer {
                let message_bytes = aside_message_bytes(&Incoming::parse(request));
                let has_room = |aside: &&Arc<Aside<Asked>>| aside.has_room(Buffer::bytes_of(bytes, message_bytes), way);
                let aside = self.aside.as_ref().filter(has_room);
                let pool = self.responder.service.fs.pool();
                if let Some((aside, asked)) = aside.zip(Asked::new(request, message_bytes, &self.device, begun, pool)) {
                    aside.send(asked, way);
                    continue;
                }
                // Beside rings nobody waits for this thread; and where too much waits already, all do.
                answer = self.responder.answer_wholly(request, replies.bytes());
                if sync_in(request) {
                    self.responder.force(std::iter::once(&mut answer));
                }
            }
            if matches!(answer, Answer::Due(_)) {
                self.responder.counters.count_time(opcode_in(request), begun.elapsed());
            }
            if !send(&self.device, answer, replies.bytes()) && self.is_beside_rings {
                thread::sleep(FORGET_PAUSE);
            }
        }
    }
}
