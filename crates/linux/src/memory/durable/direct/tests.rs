//! Disks and files that become members.

use super::*;
use crate::memory::durable::{LOOKED_AT_BYTES, MemberReader, TakenRoom, witness};
use crate::memory::played::{Played, file_under, run};
use homenode_engine::log::UnusableSuperblock;
use homenode_engine::pool::MemberKind;
use homenode_engine::{Block, MemberId, Memory};
use std::sync::atomic::AtomicBool;

const BYTES: u64 = 16 << 20;

fn refused(path: &Path) -> String {
    MemberFile::open(path).unwrap_err().to_string()
}

fn open(path: &Path) -> MemberFile {
    MemberFile::open(path).unwrap()
}

fn prepare(member: &MemberFile) -> Result<(), MemberFileError> {
    member.prepare(false, &AtomicBool::new(false))
}

#[test]
fn a_disk_is_exclusive_but_readable_by_others() {
    let Some(disk) = Played::new(BYTES + 512, "100%", &[]) else {
        return;
    };
    let member = open(&disk.device);
    assert_eq!(
        (member.kind().unwrap(), member.blocks()),
        (MemberKind::Block, BYTES / 4096)
    );
    let in_use = format!(
        "{} is in use: its pool is up (`homenode status` lists mounted pools), or another command works on it",
        disk.device.display()
    );
    assert_eq!(refused(&disk.device), in_use);
    let to_read = MemberFile::open_to_read(&disk.device);
    assert!(
        matches!(to_read, Err(MemberFileError::InUse { by: None, .. })),
        "{to_read:?}"
    );
    assert_eq!(
        MemberFile::look(&disk.device).unwrap().kind().unwrap(),
        MemberKind::Block
    );
    let mounts = std::process::Command::new("mount")
        .arg(&disk.device)
        .arg("/mnt")
        .output()
        .unwrap();
    assert!(!mounts.status.success(), "a disk in use was mounted");
    drop(member);
    drop(open(&disk.device));
    let reader = MemberFile::open_to_read(&disk.device);
    reader.unwrap().file.write_all_at(&[0; 4096], 0).unwrap_err();
}

#[test]
fn a_disk_in_use_is_refused_with_its_use() {
    let Some(disk) = Played::new(2 * BYTES, "100%", &["--partscan"]) else {
        return;
    };
    let [one, two] = [1, 2].map(|number| disk.partition(number, u64::from(number) * (4 << 20), 4 << 20));
    let mounted = disk.mount(&one);
    let at = mounted.0.path().display();
    for path in [&disk.device, &one] {
        assert_eq!(
            refused(path),
            format!("{} is in use: mounted on {at}: unmount that first", path.display())
        );
    }
    assert_eq!(
        MemberFile::look(&one).unwrap().holds_data().unwrap(),
        Some("an ext2, ext3 or ext4 filesystem")
    );
    let member = open(&two);
    assert_eq!(member.blocks(), 1024);
    drop(mounted);
    assert!(
        refused(&disk.device).contains("its pool is up"),
        "a part of it is in use"
    );
    drop(member);
    drop(open(&disk.device));
    let swap = run("mkswap", &[two.to_str().unwrap()]);
    let holds = MemberFile::look(&two).unwrap().holds_data().unwrap();
    assert_eq!(holds, Some("swap space"), "{swap}");
}

#[test]
fn a_read_only_disk_is_refused_but_readable() {
    let Some(disk) = Played::new(BYTES, "100%", &["--read-only", "--partscan"]) else {
        return;
    };
    let part = disk.partition(1, 1 << 20, 8 << 20);
    for path in [&disk.device, &part] {
        assert!(
            refused(path).contains("is read-only: `blockdev --setrw`"),
            "{}",
            refused(path)
        );
        assert_eq!(MemberFile::open_to_read(path).unwrap().holds_data().unwrap(), None);
    }
}

#[test]
fn a_new_member_loses_foreign_signatures() {
    let Some(disk) = Played::new(BYTES, "100%", &[]) else {
        return;
    };
    let look = || MemberFile::look(&disk.device).unwrap().holds_data().unwrap();
    assert_eq!(look(), None);
    let write = |at: u64, bytes: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(&disk.device).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    write(BYTES - 512, b"EFI PART");
    assert_eq!(look(), Some("data"), "a copy of a partition table at the end");
    write(0x1_0040, b"_BHRfS_M");
    assert_eq!(look(), Some("a btrfs filesystem"));
    write(8 << 20, b"in the middle");
    // What a program has read of it does not stay behind in the page cache.
    let reader = File::open(&disk.device).unwrap();
    let mut page = [0; 4096];
    reader.read_exact_at(&mut page, 0x1_0000).unwrap();
    let member = [open(&disk.device)];
    TakenRoom::begin(&member).unwrap().keep();
    prepare(&member[0]).unwrap();
    assert_eq!(look(), Some("a btrfs filesystem"), "nothing is lost yet");
    member[0].take_over().unwrap();
    assert_eq!(look(), None);
    reader.read_exact_at(&mut page, 0x1_0000).unwrap();
    assert_eq!(page, [0; 4096]);
    let all = fs::read(disk.file()).unwrap();
    let ends = usize::try_from(LOOKED_AT_BYTES).unwrap();
    assert!(
        all[..ends]
            .iter()
            .chain(&all[all.len() - ends..])
            .all(|byte| *byte == 0)
    );
    assert_eq!(
        &all[8 << 20..][..13],
        b"in the middle",
        "bytes outside the member changed"
    );
}

#[test]
fn unaligned_reads_return_their_bytes() {
    for directory in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
        let (_directory, path) = file_under(directory.as_ref(), BYTES);
        let written: Vec<u8> = (0..BYTES / 8).flat_map(|at| at.to_le_bytes()).collect();
        fs::write(&path, &written).unwrap();
        let member = open(&path).direct().unwrap();
        assert_eq!(member.kind().unwrap(), MemberKind::Block);
        let reader = MemberReader::new([(MemberId(0), member)]);
        for (at, count) in [(0, 1), (4095, 2), (4096, 4096), (511, 3 << 20), (BYTES - 1, 1), (7, 0)] {
            let (mut read, start) = (vec![0; count], usize::try_from(at).unwrap());
            let (index, offset) = (at / 4096, start % 4096);
            reader.load(Block::new(MemberId(0), index), offset, &mut read).unwrap();
            assert!(read == written[start..start + count], "{count} bytes at {at}");
        }
        reader
            .load(Block::new(MemberId(0), BYTES / 4096), 0, &mut [0])
            .unwrap_err();
    }
}

#[test]
fn a_new_file_is_also_allocated_with_direct_io() {
    let (_directory, path) = file_under(env!("CARGO_MANIFEST_DIR").as_ref(), 3 << 20);
    let kept = fs::OpenOptions::new().write(true).open(&path).unwrap();
    kept.write_all_at(b"kept", 1 << 20).unwrap();
    let member = open(&path).direct().unwrap();
    prepare(&member).unwrap();
    assert_eq!(member.next_hole(0).unwrap(), None);
    let mut read = [0; 4];
    member.read_exact_at(&mut read, 1 << 20).unwrap();
    assert_eq!(&read, b"kept");
}

#[test]
fn files_without_direct_io_are_refused() {
    let refused = open_to_look("/proc/self/status").direct().unwrap_err().to_string();
    assert!(refused.contains("leave --direct out"), "{refused}");
}

fn open_to_look(path: &str) -> MemberFile {
    MemberFile::look(Path::new(path)).unwrap()
}

#[test]
fn a_disk_with_large_blocks_is_refused() {
    // Linux 6.15 and newer play them.
    let Some(disk) = Played::try_new(BYTES, "100%", &["--sector-size=8192"]) else {
        return;
    };
    let text = refused(&disk.device);
    assert!(
        text.contains("has blocks of 8192 B, and at most 4096 B can be used"),
        "{text}"
    );
}

#[test]
fn the_witness_of_a_disk_is_unique_to_a_process() {
    let (_directory, path) = file_under(env!("CARGO_MANIFEST_DIR").as_ref(), BYTES);
    let told = |member: &MemberFile| witness([(MemberId(0), member)]).unwrap();
    let mapped = [open(&path), MemberFile::look(&path).unwrap()];
    assert_eq!(told(&mapped[0]), told(&mapped[1]));
    let direct = mapped.map(|member| member.direct().unwrap());
    assert_eq!(told(&direct[0]), told(&direct[0]));
    assert_ne!(told(&direct[0]), told(&direct[1]), "two processes have one witness");
}

#[test]
fn a_loop_device_is_at_home_with_its_file() {
    let Some(disk) = Played::new(BYTES, "100%", &["--partscan"]) else {
        return;
    };
    let part = disk.partition(1, 1 << 20, 8 << 20);
    let home = |path: &Path| MemberFile::look(path).unwrap().home();
    assert_eq!((home(&disk.device), home(&part)), (None, None), "a tmpfs has no disk");
    let (_directory, path) = file_under(env!("CARGO_MANIFEST_DIR").as_ref(), BYTES);
    let over = run("losetup", &["--find", "--show", path.to_str().unwrap()]);
    let homes = (home(over.as_ref()), home(&path));
    run("losetup", &["-d", &over]);
    assert_eq!(homes.0, homes.1);
}

#[test]
fn a_disk_whose_queue_says_so_wants_stable_bytes() {
    let Some(disk) = Played::new(BYTES, "100%", &["--partscan"]) else {
        return;
    };
    let part = disk.partition(1, 1 << 20, 8 << 20);
    let name = disk.device.file_name().expect("it has one");
    let attribute = Path::new("/sys/block").join(name).join("queue/stable_writes");
    for (told, expected) in [("1", true), ("0", false)] {
        if let Err(error) = fs::write(&attribute, told) {
            return crate::skip(format_args!("{}: {error}", attribute.display()));
        }
        for path in [&disk.device, &part] {
            let file = File::open(path).unwrap();
            assert_eq!(wants_stable_bytes(&file), expected, "{}", path.display());
        }
    }
}

#[test]
fn disks_without_superblocks_are_not_members() {
    let Some(disk) = Played::new(BYTES, "100%", &[]) else {
        return;
    };
    let found = MemberFile::look(&disk.device).unwrap().superblock();
    let expected = UnusableSuperblock::NotOne;
    assert!(matches!(found, Err(MemberFileError::Superblock { source, .. }) if source == expected));
}
