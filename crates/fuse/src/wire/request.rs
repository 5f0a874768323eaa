//! Requests of the kernel, parsed.
//!
//! A request is a header, a fixed part by opcode, then names (each ended by a NUL) or data. Names are checked here: not
//! empty, no `/`. Everything behind the parsed part is ignored, as the protocol grows at the end.

use super::input::*;
use super::{Field, Opcode};

/// A request and its sender.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Sender, inode and number of the request.
    pub header: InHeader,
    /// Operation that is asked for, with its arguments.
    pub request: Request<'a>,
}

/// Operation that a request asks for, with its arguments; the inode is `InHeader::nodeid`.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "the variants are the operations of the kernel's header, the fields their arguments"
)]
pub enum Request<'a> {
    Init(InitIn),
    Lookup {
        name: &'a [u8],
    },
    Forget(ForgetIn),
    BatchForget(Forgets<'a>),
    GetAttr(GetAttrIn),
    StatX(StatXIn),
    SetAttr(SetAttrIn),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        input: MkNodIn,
        name: &'a [u8],
    },
    MkDir {
        input: MkDirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    /// RENAME and RENAME2; `input.flags` are those of renameat2(2).
    Rename {
        input: Rename2In,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        input: LinkIn,
        name: &'a [u8],
    },
    Open(OpenIn),
    Read(ReadIn),
    Write {
        input: WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Release(ReleaseIn),
    FSync(FSyncIn),
    SetXattr {
        input: SetXattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        input: GetXattrIn,
        name: &'a [u8],
    },
    ListXattr(GetXattrIn),
    RemoveXattr {
        name: &'a [u8],
    },
    Flush(FlushIn),
    OpenDir(OpenIn),
    ReadDir(ReadIn),
    ReadDirPlus(ReadIn),
    ReleaseDir(ReleaseIn),
    FSyncDir(FSyncIn),
    Access(AccessIn),
    Create {
        input: CreateIn,
        name: &'a [u8],
    },
    TmpFile(CreateIn),
    Interrupt(InterruptIn),
    Destroy,
    FAllocate(FAllocateIn),
    LSeek(LSeekIn),
    CopyFileRange(CopyFileRangeIn),
    CopyFileRange64(CopyFileRangeIn),
    SyncFs,
    /// A known operation this server never offers (locks, poll, ioctl, bmap, mappings) or one it has never heard of: its
    /// number.
    Unserved(u32),
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Too short for a header.
    #[error("{0} bytes are too few for a request header")]
    Header(usize),
    /// The length in the header is not the length of what came.
    #[error("request {unique} declares {said} bytes, but has {came}")]
    Length {
        /// Number of the request.
        unique: u64,
        /// Bytes by the header.
        said: u32,
        /// Bytes that came.
        came: usize,
    },
    /// The arguments of the operation are cut off or no names.
    #[error("the arguments of request {unique} do not fit operation {}", opcode.name())]
    Arguments {
        /// Number of the request.
        unique: u64,
        /// The operation.
        opcode: Opcode,
    },
}

impl Malformed {
    /// The request to answer with an error; `None` when not even that is known.
    #[must_use]
    pub const fn unique(self) -> Option<u64> {
        match self {
            Self::Header(_) => None,
            Self::Length { unique, .. } | Self::Arguments { unique, .. } => Some(unique),
        }
    }
}

/// The inodes of BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a> {
    /// Whole records only.
    bytes: &'a [u8],
}

impl Iterator for Forgets<'_> {
    type Item = ForgetOne;

    fn next(&mut self) -> Option<ForgetOne> {
        Field::take(&mut self.bytes)
    }
}

impl<'a> Incoming<'a> {
    /// Parses what one read of the device gave.
    ///
    /// # Errors
    /// [`Malformed`] for anything that is no request; an operation nobody knows is [`Request::Unserved`], not an error.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        let header = InHeader::take(&mut rest).ok_or(Malformed::Header(bytes.len()))?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Length {
                unique: header.unique,
                said: header.len,
                came: bytes.len(),
            });
        }
        let request = Request::of_parts(&header, rest, None)?;
        Ok(Self { header, request })
    }
}

/// Part behind a request's header: the fixed part, then names or data, in one piece or in two.
struct Arguments<'a> {
    now: &'a [u8],
    /// Names and data, where they lie apart.
    payload: Option<&'a [u8]>,
}

impl<'a> Arguments<'a> {
    fn field<F: Field>(&mut self) -> Option<F> {
        F::take(&mut self.now)
    }

    /// Returns the rest of the arguments, from which names and data are taken.
    fn rest(&mut self) -> &mut &'a [u8] {
        if let Some(payload) = self.payload.take() {
            self.now = payload;
        }
        &mut self.now
    }

    /// Bytes up to a NUL, which is taken too.
    fn text(&mut self) -> Option<&'a [u8]> {
        let from = self.rest();
        let end = from.iter().position(|&byte| byte == 0)?;
        let (text, rest) = from.split_at_checked(end)?;
        *from = rest.get(1..)?;
        Some(text)
    }

    /// The name of a directory entry.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.text().filter(|name| !name.is_empty() && !name.contains(&b'/'))
    }

    fn data(&mut self, bytes: u32) -> Option<&'a [u8]> {
        let from = self.rest();
        let (data, rest) = from.split_at_checked(bytes as usize)?;
        *from = rest;
        Some(data)
    }

    fn forgets(&mut self) -> Option<Forgets<'a>> {
        let count = self.field::<BatchForgetIn>()?.count as usize;
        let bytes = self.rest().get(..count.checked_mul(ForgetOne::BYTES)?)?;
        Some(Forgets { bytes })
    }

    /// Leaves out the extensions, which are last.
    fn without_extensions(self, bytes: usize) -> Option<Self> {
        let last = self.payload.unwrap_or(self.now);
        let last = last.get(..last.len().checked_sub(bytes)?)?;
        Some(match self.payload {
            Some(_) => Self {
                payload: Some(last),
                ..self
            },
            None => Self { now: last, ..self },
        })
    }
}

impl<'a> Request<'a> {
    /// Parses what follows `header`; `payload` holds names and data where they lie apart.
    pub(super) fn of_parts(header: &InHeader, now: &'a [u8], payload: Option<&'a [u8]>) -> Result<Self, Malformed> {
        let Some(opcode) = Opcode::from_number(header.opcode) else {
            return Ok(Self::Unserved(header.opcode));
        };
        Arguments { now, payload }
            .without_extensions(usize::from(header.total_extlen) * 8)
            .and_then(|mut arguments| Self::parse(opcode, &mut arguments))
            .ok_or(Malformed::Arguments {
                unique: header.unique,
                opcode,
            })
    }

    fn parse(opcode: Opcode, from: &mut Arguments<'a>) -> Option<Self> {
        Some(match opcode {
            Opcode::Init => Self::Init(from.field()?),
            Opcode::Forget => Self::Forget(from.field()?),
            Opcode::BatchForget => Self::BatchForget(from.forgets()?),
            Opcode::GetAttr => Self::GetAttr(from.field()?),
            Opcode::StatX => Self::StatX(from.field()?),
            Opcode::SetAttr => Self::SetAttr(from.field()?),
            Opcode::Open => Self::Open(from.field()?),
            Opcode::Read => Self::Read(from.field()?),
            Opcode::Write => {
                let input = from.field::<WriteIn>()?;
                Self::Write {
                    input,
                    data: from.data(input.size)?,
                }
            }
            Opcode::StatFs => Self::StatFs,
            Opcode::Release => Self::Release(from.field()?),
            Opcode::FSync => Self::FSync(from.field()?),
            Opcode::SetXattr => {
                let input = from.field::<SetXattrIn>()?;
                Self::SetXattr {
                    input,
                    name: from.text()?,
                    value: from.data(input.size)?,
                }
            }
            Opcode::GetXattr => Self::GetXattr {
                input: from.field()?,
                name: from.text()?,
            },
            Opcode::ListXattr => Self::ListXattr(from.field()?),
            Opcode::RemoveXattr => Self::RemoveXattr { name: from.text()? },
            Opcode::Flush => Self::Flush(from.field()?),
            Opcode::OpenDir => Self::OpenDir(from.field()?),
            Opcode::ReadDir => Self::ReadDir(from.field()?),
            Opcode::ReadDirPlus => Self::ReadDirPlus(from.field()?),
            Opcode::ReleaseDir => Self::ReleaseDir(from.field()?),
            Opcode::FSyncDir => Self::FSyncDir(from.field()?),
            Opcode::Access => Self::Access(from.field()?),
            Opcode::Interrupt => Self::Interrupt(from.field()?),
            Opcode::Destroy => Self::Destroy,
            Opcode::FAllocate => Self::FAllocate(from.field()?),
            Opcode::LSeek => Self::LSeek(from.field()?),
            Opcode::CopyFileRange => Self::CopyFileRange(from.field()?),
            Opcode::CopyFileRange64 => Self::CopyFileRange64(from.field()?),
            Opcode::SyncFs => Self::SyncFs,
            _ => return Self::parse_names(opcode, from),
        })
    }

    /// The operations on names.
    fn parse_names(opcode: Opcode, from: &mut Arguments<'a>) -> Option<Self> {
        Some(match opcode {
            Opcode::Lookup => Self::Lookup { name: from.name()? },
            Opcode::ReadLink => Self::ReadLink,
            Opcode::SymLink => Self::SymLink {
                name: from.name()?,
                target: from.text()?,
            },
            Opcode::MkNod => Self::MkNod {
                input: from.field()?,
                name: from.name()?,
            },
            Opcode::MkDir => Self::MkDir {
                input: from.field()?,
                name: from.name()?,
            },
            Opcode::Unlink => Self::Unlink { name: from.name()? },
            Opcode::RmDir => Self::RmDir { name: from.name()? },
            Opcode::Rename => {
                let newdir = from.field::<RenameIn>()?.newdir;
                let input = Rename2In {
                    newdir,
                    ..Rename2In::default()
                };
                Self::Rename {
                    input,
                    name: from.name()?,
                    new_name: from.name()?,
                }
            }
            Opcode::Rename2 => Self::Rename {
                input: from.field()?,
                name: from.name()?,
                new_name: from.name()?,
            },
            Opcode::Link => Self::Link {
                input: from.field()?,
                name: from.name()?,
            },
            Opcode::Create => Self::Create {
                input: from.field()?,
                name: from.name()?,
            },
            // A name follows (the kernel makes one up), which says nothing.
            Opcode::TmpFile => Self::TmpFile(from.field()?),
            _ => Self::Unserved(opcode as u32),
        })
    }
}
