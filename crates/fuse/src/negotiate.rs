//! INIT: what the kernel offers, what the server takes.
//!
//! OVER_IO_URING is taken where rings can be had, PASSTHROUGH where files of the kernel hold the bytes, HANDLE_KILLPRIV_V2 unless a bench measures without it.
//!
//! Not taken, and why:
//! - ATOMIC_O_TRUNC: a cut within OPEN is not ordered against writes, whose offsets the kernel has chosen, nor against write-back of mappings; and
//!   where the kernel writes to the file, a server's thread would wait until the writer is through. SETATTR comes with the inode locked.
//! - POSIX_LOCKS and FLOCK_LOCKS: without them the kernel keeps fcntl, OFD and flock locks itself, as for a local
//!   filesystem. All users of the mount are on this machine, so its tables are complete, and no lock call costs a trip.
//! - AUTO_INVAL_DATA, in favour of EXPLICIT_INVAL_DATA: nothing changes a file behind the kernel's back, so a changed time
//!   or size is no reason to drop cached pages.
//! - ASYNC_DIO: the kernel drops cached pages of an asynchronous direct write when it sends the requests, not when the last
//!   of them is answered. A buffered reader in between leaves old bytes in the page cache, for as long as the file is open.
//! - WRITEBACK_CACHE: its writes reach the server from kernel threads, which say nothing about the writing CPU, and a full
//!   pool could be told of by fsync only.
//! - NO_OPEN_SUPPORT: it saves a trip with each open, but FOPEN_DIRECT_IO can then not be given, so O_DIRECT writers of
//!   one file would wait for each other.
//! - EXPORT_SUPPORT, in favour of NO_EXPORT_SUPPORT: no NFS handles of a volatile filesystem.
//! - CREATE_SUPP_GROUP: only for servers that check set-gid rules themselves; the kernel does (`default_permissions`).

use crate::buffer::Buffer;
use crate::device::{Device, Received};
use crate::error::Error;
use crate::options::Options;
use crate::wire::flags::init;
use crate::wire::{Field, InHeader, Incoming, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, OutHeader, Request, WriteIn};
use std::io;
use std::time::Duration;

/// Largest READ and WRITE: 256 pages, as many as the kernel lets one request have.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// Asynchronous requests (read-ahead, write-back) in flight; the kernel's default of 12 starves more than a dozen CPUs.
const BACKGROUND_REQUESTS_MAX: u16 = 512;
/// Read-ahead stops here and leaves the rest to requests somebody waits for.
const CONGESTED_REQUESTS: u16 = BACKGROUND_REQUESTS_MAX / 4 * 3;

/// Filesystems that may lie below the mount's files: the tmpfs of backing files. An overlay finds room above.
const STACK_DEPTH: u32 = 1;

const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::NO_EXPORT_SUPPORT;

/// From this minor version on the kernel drops cached pages after a direct write, too: a buffered reader that raced with
/// the write cannot leave old bytes in the page cache.
const MINOR_DIRECT_WRITES_INVALIDATE: u32 = 45;

/// From this minor version on (Linux 6.12) a write that is passed through counts as a change of attributes at once, also of those that an
/// answer on its way tells.
const MINOR_SEES_WRITES: u32 = 41;

/// The terms that both sides keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Whether O_DIRECT opens get FOPEN_DIRECT_IO, so that their writers run in parallel.
    pub(crate) parallel_direct_io: bool,
    /// How long the kernel may keep names and attributes.
    pub(crate) attribute_timeout: Duration,
    /// Whether the kernel reads and writes backing files itself.
    pub(crate) passthrough: bool,
    /// Whether attributes that are on their way are dropped when such a write has changed them.
    pub(crate) sees_writes: bool,
}

/// Features that the kernel offers in INIT, the first request of a connection. The kernel waits for the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    unique: u64,
    init: InitIn,
}

/// Features that the server is going to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) options: &'a Options,
    /// Largest READ and WRITE: a power of two, at most [`TRANSFER_BYTES_MAX`].
    pub(crate) transfer_bytes: usize,
    pub(crate) rings: bool,
    /// Whether files of the kernel hold the bytes.
    pub(crate) passthrough: bool,
}

impl Offer {
    /// Whether the kernel can read and write backing files itself.
    pub(crate) fn has_passthrough(&self) -> bool {
        flags_of(&self.init) & init::PASSTHROUGH != 0
    }

    /// Whether requests may come through rings.
    pub(crate) fn has_rings(&self) -> bool {
        flags_of(&self.init) & init::OVER_IO_URING != 0
    }

    /// Waits for INIT.
    pub(crate) fn receive(device: &Device) -> Result<Self, Error> {
        let mut buffer = Buffer::new(InHeader::BYTES + WriteIn::BYTES, TRANSFER_BYTES_MAX).map_err(failed)?;
        loop {
            let bytes = match device.receive(buffer.bytes()).map_err(failed)? {
                Received::Request(bytes) => bytes,
                Received::Unmounted => return Err(failed(io::Error::from_raw_os_error(libc::ENODEV))),
            };
            let request = buffer.bytes().get(..bytes).unwrap_or_default();
            let Ok(Incoming {
                header,
                request: Request::Init(init),
            }) = Incoming::parse(request)
            else {
                return Err(failed(io::Error::other("the first request is not INIT")));
            };
            if init.major <= MAJOR {
                return Ok(Self {
                    unique: header.unique,
                    init,
                });
            }
            // A newer kernel sends INIT again in the version it is told.
            let ours = InitOut {
                major: MAJOR,
                minor: MINOR,
                ..InitOut::default()
            };
            send(device, header.unique, ours).map_err(failed)?;
        }
    }

    /// Answers it. From then on the kernel sends requests.
    pub(crate) fn accept(&self, device: &Device, terms: &Terms<'_>) -> Result<Agreed, Error> {
        let (answer, agreed) = agree(&self.init, terms)?;
        self.refuse_interrupts(device);
        send(device, self.unique, answer).map_err(failed)?;
        Ok(agreed)
    }

    /// Has the kernel send no request to interrupt another one: it sends them ahead of those that forget inodes, and looks for the request that an answer
    /// is about among those that came by the same descriptor, where it would not be later on. This one is there.
    fn refuse_interrupts(&self, device: &Device) {
        /// The kernel's bit in the number of a request for an interrupt of it.
        const INTERRUPT: u64 = 1;
        let refusal = OutHeader {
            len: u32::try_from(OutHeader::BYTES).expect("a header has 16 bytes"),
            error: -libc::ENOSYS,
            unique: self.unique | INTERRUPT,
        };
        let mut message = [0; OutHeader::BYTES];
        let put = refusal.put(&mut &mut message[..]);
        put.expect("the message has room for the header");
        // A kernel that does not take it sends them, and each is refused.
        let _ = device.send(&message);
    }
}

fn failed(source: io::Error) -> Error {
    Error::Negotiate { source }
}

fn send(device: &Device, unique: u64, answer: InitOut) -> io::Result<()> {
    const BYTES: usize = OutHeader::BYTES + InitOut::BYTES;
    let mut message = [0; BYTES];
    let mut to = &mut message[..];
    let len = u32::try_from(BYTES).expect("BYTES is 80");
    OutHeader { len, error: 0, unique }
        .put(&mut to)
        .expect("the message has room for the header");
    answer.put(&mut to).expect("the message has room for the answer");
    device.send(&message).map(|_| ())
}

fn agree(offer: &InitIn, terms: &Terms<'_>) -> Result<(InitOut, Agreed), Error> {
    let options = terms.options;
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Err(Error::TooOld {
            major: offer.major,
            minor: offer.minor,
        });
    }
    let mut wanted = WANTED;
    for (flag, wish) in [
        (init::HANDLE_KILLPRIV_V2, options.kill_privileges),
        (init::OVER_IO_URING, terms.rings),
        (init::PASSTHROUGH, terms.passthrough),
    ] {
        wanted |= if wish { flag } else { 0 };
    }
    let flags = wanted & flags_of(offer);
    let pages = terms.transfer_bytes / PAGE_BYTES;
    let minor = offer.minor.min(MINOR);
    let answer = InitOut {
        major: MAJOR,
        minor,
        max_readahead: u32::try_from(options.read_ahead_bytes)
            .unwrap_or(u32::MAX)
            .max(offer.max_readahead),
        flags: low(flags),
        flags2: low(flags >> 32),
        max_background: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: CONGESTED_REQUESTS,
        max_write: u32::try_from(terms.transfer_bytes).expect("a transfer has at most 1 MiB"),
        time_gran: 1,
        max_pages: u16::try_from(pages).expect("a transfer has at most 256 pages"),
        max_stack_depth: if flags & init::PASSTHROUGH == 0 { 0 } else { STACK_DEPTH },
        ..InitOut::default()
    };
    let agreed = Agreed {
        parallel_direct_io: flags & init::DIRECT_IO_ALLOW_MMAP != 0 && minor >= MINOR_DIRECT_WRITES_INVALIDATE,
        attribute_timeout: options.attribute_timeout,
        passthrough: flags & init::PASSTHROUGH != 0,
        sees_writes: minor >= MINOR_SEES_WRITES,
    };
    Ok((answer, agreed))
}

fn flags_of(offer: &InitIn) -> u64 {
    u64::from(offer.flags) | u64::from(offer.flags2) << 32
}

const fn low(flags: u64) -> u32 {
    (flags & 0xFFFF_FFFF) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags: low(flags),
            flags2: low(flags >> 32),
            ..InitIn::default()
        }
    }

    fn terms(options: &Options) -> Terms<'_> {
        Terms {
            options,
            transfer_bytes: TRANSFER_BYTES_MAX,
            rings: false,
            passthrough: false,
        }
    }

    #[test]
    fn optional_features_are_used_when_requested() {
        let options = Options::default();
        let all = Terms {
            rings: true,
            transfer_bytes: TRANSFER_BYTES_MAX / 4,
            ..terms(&options)
        };
        let optional = init::OVER_IO_URING;
        let taken = |offered, terms| {
            let (answer, _) = agree(&offer(45, offered), terms).unwrap();
            assert_eq!(answer.max_write, u32::from(answer.max_pages) * 4096);
            (flags_of_answer(&answer) & optional, answer.max_write)
        };
        assert_eq!(taken(u64::MAX, &all), (optional, 1 << 18));
        assert_eq!(taken(!optional, &all), (0, 1 << 18));
        assert_eq!(taken(u64::MAX, &terms(&options)), (0, 1 << 20));
    }

    fn flags_of_answer(answer: &InitOut) -> u64 {
        u64::from(answer.flags) | u64::from(answer.flags2) << 32
    }

    #[test]
    fn only_offered_features_are_used() {
        let offered = init::ASYNC_READ | init::POSIX_LOCKS | init::FLOCK_LOCKS | init::DIRECT_IO_ALLOW_MMAP;
        let (answer, agreed) = agree(&offer(45, offered), &terms(&Options::default())).unwrap();
        assert_eq!(u64::from(answer.flags), init::ASYNC_READ);
        assert_eq!(u64::from(answer.flags2) << 32, init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(
            agreed,
            Agreed {
                parallel_direct_io: true,
                attribute_timeout: Options::ATTRIBUTE_TIMEOUT,
                passthrough: false,
                sees_writes: true,
            }
        );
        assert_eq!((answer.max_write, answer.max_pages, answer.minor), (1 << 20, 256, 45));
    }

    #[test]
    fn privileges_are_left_to_the_kernel_only_when_asked() {
        let taken = |options: &Options| {
            let (answer, _) = agree(&offer(45, u64::MAX), &terms(options)).unwrap();
            u64::from(answer.flags) & init::HANDLE_KILLPRIV_V2 != 0
        };
        let mut options = Options::default();
        assert!(taken(&options));
        options.kill_privileges = false;
        assert!(!taken(&options));
    }

    #[test]
    fn direct_io_is_off_on_kernels_that_keep_stale_pages() {
        let (_, agreed) = agree(&offer(40, u64::MAX), &terms(&Options::default())).unwrap();
        assert!(!agreed.parallel_direct_io);
    }

    #[test]
    fn old_kernels_are_refused_and_newer_ones_are_answered_with_our_version() {
        let too_old = |minor| {
            matches!(
                agree(&offer(minor, 0), &terms(&Options::default())),
                Err(Error::TooOld { .. })
            )
        };
        assert!(too_old(35) && !too_old(36));
        let (answer, _) = agree(&offer(99, 0), &terms(&Options::default())).unwrap();
        assert_eq!(answer.minor, MINOR);
    }
}
