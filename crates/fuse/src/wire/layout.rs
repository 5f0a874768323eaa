//! Fixed-size structures as they lie on the wire: integers in the host's byte order, no hidden padding.
//!
//! [`record!`] declares a structure once with its size in the kernel's header; taking it from bytes and putting it into
//! bytes follow from the field list, and the compiler checks that the fields fill exactly that size without padding, so
//! every offset is the header's.

/// Something with a fixed size on the wire.
pub trait Field: Copy {
    /// Bytes on the wire.
    const BYTES: usize;

    /// Takes the value off the front of `from`; `None` when `from` is too short.
    fn take(from: &mut &[u8]) -> Option<Self>;

    /// Puts the value at the front of `to`, which then starts behind it; `None` when `to` is too short.
    fn put(self, to: &mut &mut [u8]) -> Option<()>;
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        #[expect(clippy::host_endian_bytes, reason = "the kernel and the server are one machine: FUSE has the host's byte order")]
        impl Field for $type {
            const BYTES: usize = size_of::<$type>();

            fn take(from: &mut &[u8]) -> Option<Self> {
                let (head, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_ne_bytes(*head))
            }

            fn put(self, to: &mut &mut [u8]) -> Option<()> {
                let (head, rest) = std::mem::take(to).split_first_chunk_mut()?;
                *head = self.to_ne_bytes();
                *to = rest;
                Some(())
            }
        }
    )*};
}
integer!(u16, u32, u64, i32, i64);

/// `N` bytes without meaning: zero when written, whatever they are when read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeros<const N: usize>([u8; N]);

impl<const N: usize> Default for Zeros<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Field for Zeros<N> {
    const BYTES: usize = N;

    fn take(from: &mut &[u8]) -> Option<Self> {
        let (_, rest) = from.split_first_chunk::<N>()?;
        *from = rest;
        Some(Self::default())
    }

    fn put(self, to: &mut &mut [u8]) -> Option<()> {
        let (head, rest) = std::mem::take(to).split_first_chunk_mut::<N>()?;
        head.fill(0);
        *to = rest;
        Some(())
    }
}

macro_rules! record {
    ($($(#[$meta:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "names and meanings of the fields are those of the kernel's header")]
        pub struct $name { $(pub $field: $type),* }

        impl $crate::wire::Field for $name {
            const BYTES: usize = $bytes;

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::wire::Field::take(from)?),* })
            }

            fn put(self, to: &mut &mut [u8]) -> Option<()> {
                $(self.$field.put(to)?;)*
                Some(())
            }
        }

        const _: () = assert!(
            0 $(+ <$type as $crate::wire::Field>::BYTES)* == $bytes && size_of::<$name>() == $bytes,
            "the fields must fill the size in the kernel's header without padding"
        );
    )*};
}
pub(super) use record;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{SetXattrIn, StatXTime};

    #[test]
    fn a_record_survives_encoding() {
        let time = StatXTime {
            tv_sec: -3,
            tv_nsec: 7,
            reserved: Zeros::default(),
        };
        let mut bytes = [0xAA; 20];
        let mut to = &mut bytes[..];
        time.put(&mut to).expect("16 of 20 bytes");
        assert_eq!(to.len(), 4);
        let mut from = &bytes[..];
        assert_eq!(StatXTime::take(&mut from), Some(time));
        assert_eq!(from, [0xAA; 4]);
    }

    #[test]
    fn offsets_match_the_c_layout() {
        let mut bytes = [0xAA; 16];
        SetXattrIn {
            setxattr_flags: 0x0102_0304,
            ..SetXattrIn::default()
        }
        .put(&mut &mut bytes[..]);
        let mut from = &bytes[std::mem::offset_of!(SetXattrIn, setxattr_flags)..];
        assert_eq!(u32::take(&mut from), Some(0x0102_0304));
        assert_eq!(from, [0; 4], "padding is cleared");
    }

    #[test]
    fn too_few_bytes_are_refused() {
        for length in 0..StatXTime::BYTES {
            assert_eq!(StatXTime::take(&mut &vec![0; length][..]), None);
            assert_eq!(StatXTime::default().put(&mut &mut vec![0; length][..]), None);
        }
    }
}
