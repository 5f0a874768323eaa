//! The operations of the protocol.

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// Operation that a request asks for; the numbers are the kernel's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the names are those of the kernel's header")]
        pub enum Opcode { $($name = $number),* }

        impl Opcode {
            /// Every known operation, ascending by number.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The operation of that number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The name without `FUSE_`, as in the kernel's header but for case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, SymLink = 6, MkNod = 8, MkDir = 9, Unlink = 10,
    RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17, Release = 18, FSync = 20,
    SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Flush = 25, Init = 26, OpenDir = 27, ReadDir = 28,
    ReleaseDir = 29, FSyncDir = 30, GetLock = 31, SetLock = 32, SetLockWait = 33, Access = 34, Create = 35,
    Interrupt = 36, BMap = 37, Destroy = 38, IoCtl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42, FAllocate = 43,
    ReadDirPlus = 44, Rename2 = 45, LSeek = 46, CopyFileRange = 47, SetUpMapping = 48, RemoveMapping = 49, SyncFs = 50,
    TmpFile = 51, StatX = 52, CopyFileRange64 = 53,
}

impl Opcode {
    /// Length of a table by number: one more than the largest number.
    pub const LIMIT: usize = 54;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_numbers_map_to_operations_and_back() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode as u32), Some(opcode));
            assert!((opcode as usize) < Opcode::LIMIT);
        }
        assert!(Opcode::ALL.is_sorted());
        for unknown in [0, 7, 19, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_number(unknown), None);
        }
    }
}
