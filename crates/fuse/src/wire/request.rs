//! Requests of the kernel, parsed.
//!
//! A request is a header, a fixed part by opcode, then names (each ended by a NUL) or data. Names are checked here: not
//! empty, no `/`. Everything behind the parsed part is ignored, as the protocol grows at the end.

use super::input::*;
use super::{Field, Opcode};

/// One request and who sent it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Sender, inode and number of the request.
    pub header: InHeader,
    /// What is asked for.
    pub request: Request<'a>,
}

/// What is asked for; the inode asked about is `InHeader::nodeid`.
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
    #[error("request {unique} says it has {said} bytes, but {came} came")]
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
        let (unique, came) = (header.unique, bytes.len());
        if header.len as usize != came {
            return Err(Malformed::Length {
                unique,
                said: header.len,
                came,
            });
        }
        let Some(opcode) = Opcode::from_number(header.opcode) else {
            return Ok(Self {
                header,
                request: Request::Unserved(header.opcode),
            });
        };
        let arguments_bytes = rest.len().checked_sub(usize::from(header.total_extlen) * 8);
        let request = arguments_bytes
            .and_then(|count| rest.get(..count))
            .and_then(|mut arguments| Request::parse(opcode, &mut arguments))
            .ok_or(Malformed::Arguments { unique, opcode })?;
        Ok(Self { header, request })
    }
}

impl<'a> Request<'a> {
    fn parse(opcode: Opcode, from: &mut &'a [u8]) -> Option<Self> {
        Some(match opcode {
            Opcode::Init => Self::Init(Field::take(from)?),
            Opcode::Forget => Self::Forget(Field::take(from)?),
            Opcode::BatchForget => Self::BatchForget(forgets(from)?),
            Opcode::GetAttr => Self::GetAttr(Field::take(from)?),
            Opcode::StatX => Self::StatX(Field::take(from)?),
            Opcode::SetAttr => Self::SetAttr(Field::take(from)?),
            Opcode::Open => Self::Open(Field::take(from)?),
            Opcode::Read => Self::Read(Field::take(from)?),
            Opcode::Write => {
                let input = WriteIn::take(from)?;
                Self::Write {
                    input,
                    data: data(from, input.size)?,
                }
            }
            Opcode::StatFs => Self::StatFs,
            Opcode::Release => Self::Release(Field::take(from)?),
            Opcode::FSync => Self::FSync(Field::take(from)?),
            Opcode::SetXattr => {
                let input = SetXattrIn::take(from)?;
                Self::SetXattr {
                    input,
                    name: text(from)?,
                    value: data(from, input.size)?,
                }
            }
            Opcode::GetXattr => Self::GetXattr {
                input: Field::take(from)?,
                name: text(from)?,
            },
            Opcode::ListXattr => Self::ListXattr(Field::take(from)?),
            Opcode::RemoveXattr => Self::RemoveXattr { name: text(from)? },
            Opcode::Flush => Self::Flush(Field::take(from)?),
            Opcode::OpenDir => Self::OpenDir(Field::take(from)?),
            Opcode::ReadDir => Self::ReadDir(Field::take(from)?),
            Opcode::ReadDirPlus => Self::ReadDirPlus(Field::take(from)?),
            Opcode::ReleaseDir => Self::ReleaseDir(Field::take(from)?),
            Opcode::FSyncDir => Self::FSyncDir(Field::take(from)?),
            Opcode::Access => Self::Access(Field::take(from)?),
            Opcode::Interrupt => Self::Interrupt(Field::take(from)?),
            Opcode::Destroy => Self::Destroy,
            Opcode::FAllocate => Self::FAllocate(Field::take(from)?),
            Opcode::LSeek => Self::LSeek(Field::take(from)?),
            Opcode::CopyFileRange => Self::CopyFileRange(Field::take(from)?),
            Opcode::CopyFileRange64 => Self::CopyFileRange64(Field::take(from)?),
            Opcode::SyncFs => Self::SyncFs,
            _ => return Self::parse_names(opcode, from),
        })
    }

    /// The operations on names.
    fn parse_names(opcode: Opcode, from: &mut &'a [u8]) -> Option<Self> {
        Some(match opcode {
            Opcode::Lookup => Self::Lookup { name: name(from)? },
            Opcode::ReadLink => Self::ReadLink,
            Opcode::SymLink => Self::SymLink {
                name: name(from)?,
                target: text(from)?,
            },
            Opcode::MkNod => Self::MkNod {
                input: Field::take(from)?,
                name: name(from)?,
            },
            Opcode::MkDir => Self::MkDir {
                input: Field::take(from)?,
                name: name(from)?,
            },
            Opcode::Unlink => Self::Unlink { name: name(from)? },
            Opcode::RmDir => Self::RmDir { name: name(from)? },
            Opcode::Rename => {
                let newdir = RenameIn::take(from)?.newdir;
                let input = Rename2In {
                    newdir,
                    ..Rename2In::default()
                };
                Self::Rename {
                    input,
                    name: name(from)?,
                    new_name: name(from)?,
                }
            }
            Opcode::Rename2 => Self::Rename {
                input: Field::take(from)?,
                name: name(from)?,
                new_name: name(from)?,
            },
            Opcode::Link => Self::Link {
                input: Field::take(from)?,
                name: name(from)?,
            },
            Opcode::Create => Self::Create {
                input: Field::take(from)?,
                name: name(from)?,
            },
            // A name follows (the kernel makes one up), which says nothing.
            Opcode::TmpFile => Self::TmpFile(Field::take(from)?),
            _ => Self::Unserved(opcode as u32),
        })
    }
}

/// Bytes up to a NUL, which is taken too.
fn text<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = from.iter().position(|&byte| byte == 0)?;
    let (text, rest) = from.split_at_checked(end)?;
    *from = rest.get(1..)?;
    Some(text)
}

/// The name of a directory entry.
fn name<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    text(from).filter(|name| !name.is_empty() && !name.contains(&b'/'))
}

fn data<'a>(from: &mut &'a [u8], bytes: u32) -> Option<&'a [u8]> {
    let (data, rest) = from.split_at_checked(bytes as usize)?;
    *from = rest;
    Some(data)
}

fn forgets<'a>(from: &mut &'a [u8]) -> Option<Forgets<'a>> {
    let count = BatchForgetIn::take(from)?.count as usize;
    let bytes = from.get(..count.checked_mul(ForgetOne::BYTES)?)?;
    Some(Forgets { bytes })
}
