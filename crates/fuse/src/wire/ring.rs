//! The header of a ring's entry: where a request's parts lie when it comes through a ring, and what goes back.
//!
//! The kernel fills three areas: the request's header, the fixed part of its arguments, and the entry's own record. Names
//! and data are in the entry's payload buffer, apart. The answer's header goes where the request's was, its payload into
//! the same payload buffer.

use super::input::{InHeader, ReadIn};
use super::layout::{Zeros, record};
use super::output::OutHeader;
use super::request::{Incoming, Malformed};
use super::{Field, Opcode, Request};

const O_DIRECT: u32 = libc::O_DIRECT as u32;

/// Bytes of the whole header.
pub const RING_HEADER_BYTES: usize = 288;
/// Where the fixed part of the arguments starts; before it the header of a request or an answer.
const ARGUMENTS_AT: usize = 128;
/// Where the entry's record starts.
const ENTRY_AT: usize = 256;
const _: () = assert!(ENTRY_AT + RingEntry::BYTES == RING_HEADER_BYTES);

record! {
    /// The arguments of a command to the ring: which queue, and which request it answers.
    RingCommand: 24 { flags: u64, commit_id: u64, qid: u16, padding: Zeros<6> }
    /// `payload_sz` bytes of the payload buffer are in use; `commit_id` names the request when it is answered.
    RingEntry: 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: Zeros<4>, reserved: Zeros<8> }
}

/// The header of one entry, outside of the memory that the kernel writes to.
#[derive(Clone, Copy, Debug)]
pub struct RingHeader(pub [u8; RING_HEADER_BYTES]);

impl RingHeader {
    /// Makes the header as the kernel does; `None` when `arguments`, the fixed part, is longer than its place.
    #[must_use]
    pub fn of_request(request: InHeader, arguments: &[u8], entry: RingEntry) -> Option<Self> {
        let mut header = Self([0; RING_HEADER_BYTES]);
        request.put(&mut &mut header.0[..])?;
        let place = header.0[ARGUMENTS_AT..ENTRY_AT].get_mut(..arguments.len())?;
        place.copy_from_slice(arguments);
        entry.put(&mut &mut header.0[ENTRY_AT..])?;
        Some(header)
    }

    /// The entry's record.
    #[must_use]
    pub fn entry(&self) -> RingEntry {
        RingEntry::take(&mut &self.0[ENTRY_AT..]).expect("the header's buffer is larger than the structure")
    }

    /// The header of the request.
    #[must_use]
    pub fn request(&self) -> InHeader {
        InHeader::take(&mut &self.0[..]).expect("the header's buffer is larger than the structure")
    }

    /// The place of the arguments' fixed part, all of it.
    #[must_use]
    pub fn arguments(&self) -> &[u8] {
        &self.0[ARGUMENTS_AT..ENTRY_AT]
    }

    /// How many bytes of a file the kernel reads ahead, if that is the request.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> Option<u32> {
        if self.request().opcode != Opcode::Read as u32 {
            return None;
        }
        let input = ReadIn::take(&mut self.arguments())?;
        (input.flags & O_DIRECT == 0).then_some(input.size)
    }

    /// Parses the request whose names and data are in `payload`.
    ///
    /// # Errors
    /// [`Malformed`], as [`Incoming::parse`].
    pub fn parse<'a>(&'a self, payload: &'a [u8]) -> Result<Incoming<'a>, Malformed> {
        let (header, entry) = (self.request(), self.entry());
        let payload_bytes = entry.payload_sz as usize;
        let arguments_bytes = (header.len as usize).checked_sub(InHeader::BYTES + payload_bytes);
        let parts = arguments_bytes
            .and_then(|bytes| self.arguments().get(..bytes))
            .zip(payload.get(..payload_bytes));
        let Some((arguments, payload)) = parts else {
            return Err(Malformed::Length {
                unique: header.unique,
                said: header.len,
                came: InHeader::BYTES + payload_bytes,
            });
        };
        let request = Request::of_parts(&header, arguments, Some(payload))?;
        Ok(Incoming { header, request })
    }

    /// The answer, in its place: its header, and the bytes of payload it has.
    pub fn answer(&mut self, header: OutHeader, payload_bytes: u32) {
        let fits = "the header has room for it";
        header.put(&mut &mut self.0[..]).expect(fits);
        let entry = RingEntry {
            payload_sz: payload_bytes,
            ..self.entry()
        };
        entry.put(&mut &mut self.0[ENTRY_AT..]).expect(fits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Opcode, WriteIn};

    /// Behind the arguments lies what was there before.
    fn header(len: usize, opcode: Opcode, arguments: &[u8], payload_sz: u32) -> RingHeader {
        let request = InHeader {
            len: u32::try_from(len).unwrap(),
            opcode: opcode as u32,
            unique: 7,
            ..InHeader::default()
        };
        let entry = RingEntry {
            commit_id: 7,
            payload_sz,
            ..RingEntry::default()
        };
        let mut place = [0xAA; ENTRY_AT - ARGUMENTS_AT];
        place[..arguments.len()].copy_from_slice(arguments);
        RingHeader::of_request(request, &place, entry).unwrap()
    }

    #[test]
    fn a_fixed_part_larger_than_its_place_is_refused() {
        let header = |bytes| RingHeader::of_request(InHeader::default(), &vec![1; bytes], RingEntry::default());
        assert_eq!(header(128).unwrap().arguments(), [1; 128]);
        assert!(header(129).is_none());
    }

    #[test]
    fn the_parts_of_a_write_are_joined() {
        let input = WriteIn {
            offset: 9,
            size: 3,
            ..WriteIn::default()
        };
        let mut arguments = [0; WriteIn::BYTES];
        input.put(&mut &mut arguments[..]).unwrap();
        let header = header(40 + 40 + 3, Opcode::Write, &arguments, 3);
        let incoming = header.parse(b"abc and what was there before").unwrap();
        assert!(matches!(incoming.request, Request::Write { input: got, data: b"abc" } if got == input));
        assert_eq!(header.entry().commit_id, 7);
    }

    #[test]
    fn a_name_without_a_fixed_part_is_in_the_payload() {
        let header = header(40 + 5, Opcode::Lookup, &[], 5);
        let incoming = header.parse(b"name\0 and more").unwrap();
        assert!(matches!(incoming.request, Request::Lookup { name: b"name" }));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for (len, payload_sz) in [
            (39, 0),
            (40 + 129, 0),
            (40 + 4, 5),
            (40 + 9, 9),
            (usize::from(u16::MAX), 5),
        ] {
            let header = header(len, Opcode::Lookup, &[], payload_sz);
            let parsed = header.parse(b"name\0");
            assert!(
                matches!(parsed, Err(Malformed::Length { unique: 7, .. })),
                "{len} {payload_sz}"
            );
        }
    }

    #[test]
    fn read_ahead_is_distinguished_from_direct_reads() {
        let read = |opcode, flags| {
            let input = ReadIn {
                size: 1 << 20,
                flags,
                ..ReadIn::default()
            };
            let mut arguments = [0; ReadIn::BYTES];
            input.put(&mut &mut arguments[..]).unwrap();
            header(40 + 40, opcode, &arguments, 0).read_ahead_bytes()
        };
        assert_eq!(read(Opcode::Read, 0), Some(1 << 20));
        assert_eq!(read(Opcode::Read, O_DIRECT), None);
        assert_eq!(read(Opcode::ReadDir, 0), None);
    }

    #[test]
    fn an_answer_keeps_the_number_to_commit() {
        let mut header = header(40, Opcode::StatFs, &[], 0);
        let out = OutHeader {
            len: 20,
            error: -5,
            unique: 7,
        };
        header.answer(out, 4);
        assert_eq!(OutHeader::take(&mut &header.0[..]), Some(out));
        assert_eq!((header.entry().commit_id, header.entry().payload_sz), (7, 4));
    }
}
