//! Names of what other programs keep on a disk or in a file, for a person who is about to lose it.

/// Name, place of the signature, and the signature. First come those that others may lie below.
const SIGNATURES: [(&str, usize, &[u8]); 12] = [
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("an XFS filesystem", 0, b"XFSB"),
    ("a btrfs filesystem", 0x1_0040, b"_BHRfS_M"),
    ("an ext2, ext3 or ext4 filesystem", 0x438, &[0x53, 0xef]),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    ("a physical volume (LVM)", 0x218, b"LVM2 001"),
    ("a part of a RAID (md)", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a part of a RAID (md)", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("an NTFS filesystem", 3, b"NTFS    "),
    // A filesystem FAT begins like it.
    ("a partition table, or a filesystem to boot from", 510, &[0x55, 0xaa]),
];

/// Name of what begins with these bytes.
pub(super) fn name(start: &[u8]) -> Option<&'static str> {
    let has = |(_, at, signature): &&(&str, usize, &[u8])| {
        let found = start.get(*at..);
        found.is_some_and(|found| found.starts_with(signature))
    };
    SIGNATURES.iter().find(has).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_counts_only_at_its_offset() {
        for (expected, at, signature) in SIGNATURES {
            let mut start = vec![0; 0x1_1000];
            start[at..at + signature.len()].copy_from_slice(signature);
            assert_eq!(name(&start), Some(expected));
            assert_eq!(name(&start[1..]), None, "{expected}");
            assert_eq!(name(&start[..at + signature.len() - 1]), None, "{expected}");
        }
        assert_eq!(name(&[]), None);
    }
}
