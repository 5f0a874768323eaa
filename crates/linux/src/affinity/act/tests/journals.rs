//! Journals that are cut, changed, or not ours; the file and its lock.

use super::super::journal::Journal;
use super::super::{Actor, Disk, Error, Store};
use super::model::{ALL, Handle};
use super::{action, plan, snapshot, some_plan};
use homenode_policy::NodeId;
use homenode_policy::affinity::{Cost, FileId, FileReason, MoveFile, Target};
use std::fs;
use std::io::Write;
use std::path::Path;

const BOOT: &str = "5c4ba8f0-boot";
const NAMESPACES: &str = "pid:[1],net:[2]";

/// Opens a journal that may be read only.
fn read(bytes: &[u8]) -> Result<Journal<Handle>, Error> {
    read_in(bytes, NAMESPACES)
}

fn read_in(bytes: &[u8], namespaces: &str) -> Result<Journal<Handle>, Error> {
    let handle = Handle::new(7);
    {
        let mut machine = handle.machine();
        (machine.busy, machine.is_read_only) = (false, true);
        machine.file = Some(bytes.to_vec());
    }
    Journal::open(handle, BOOT, namespaces)
}

/// A machine with plans carried out, and the journal of it.
fn machine_with_journal() -> (Handle, Vec<u8>) {
    let handle = Handle::new(7);
    handle.machine().busy = false;
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    for _ in 0..3 {
        let (plan, snapshot) = some_plan(&mut handle.machine());
        actor.apply(&plan, &snapshot, &[]).unwrap();
    }
    let file = handle.machine().file.clone().unwrap();
    assert!(file.iter().filter(|byte| **byte == b'\n').count() > 10);
    (handle, file)
}

#[test]
fn a_journal_cut_at_any_byte_keeps_the_lines_before() {
    let (_, file) = machine_with_journal();
    let whole = read(&file).unwrap();
    let header = file.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in 0..file.len() {
        let journal = read(&file[..length]);
        if length < header {
            let refused = match journal.unwrap_err() {
                Error::Empty { .. } => length == 0,
                Error::Damaged { .. } | Error::Foreign { .. } => length > 0,
                _ => false,
            };
            assert!(refused, "{length}");
            continue;
        }
        let journal = journal.unwrap();
        let line = file[..length].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        let cut = Some(&file[line..length]).filter(|cut| !cut.is_empty());
        assert_eq!(journal.cut.as_deref().map(str::as_bytes), cut, "{length}");
        for (target, entry) in journal.entries() {
            assert_eq!(entry.old, whole.entries()[target].old, "{length}");
        }
    }
}

#[test]
fn every_changed_byte_of_a_journal_is_detected() {
    let (_, file) = machine_with_journal();
    for position in 0..file.len() {
        for bit in 0..8 {
            let mut changed = file.clone();
            changed[position] ^= 1 << bit;
            let error = read(&changed).err();
            assert!(
                matches!(error, Some(Error::Damaged { .. } | Error::Foreign { .. })),
                "byte {position}, bit {bit}: {error:?}"
            );
        }
    }
}

#[test]
fn the_next_plan_after_a_cut_is_written_completely() {
    let (handle, mut file) = machine_with_journal();
    file.truncate(file.len() - 7);
    handle.machine().file = Some(file.clone());
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    let (plan, snapshot) = some_plan(&mut handle.machine());
    actor.apply(&plan, &snapshot, &[]).unwrap();
    let now = handle.machine().file.clone().unwrap();
    assert!(read(&now).is_ok());
}

/// Also when it is cut in the middle of a character.
#[test]
fn a_cut_line_that_took_effect_is_reported_and_not_reverted() {
    let handle = Handle::new(7);
    {
        let mut machine = handle.machine();
        machine.busy = false;
        let interrupt = machine.interrupts.get_mut(&30).unwrap();
        (interrupt.managed, interrupt.affinity.now) = (false, ALL);
        interrupt.name = "caf\u{e9}".to_owned();
    }
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    let told = snapshot(&handle.machine());
    let plan = plan(vec![action(Target::Interrupt(30), ALL, 2)]);
    assert!(actor.apply(&plan, &told, &[]).unwrap().outcomes[0].1.is_done());
    assert_eq!(actor.cut(), None);
    let mut file = handle.machine().file.clone().unwrap();
    let character = file.iter().position(|byte| *byte == 0xc3).unwrap();
    for length in [file.len() - 1, character + 1] {
        file.truncate(length);
        handle.machine().file = Some(file.clone());
        let actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
        let cut = actor.cut().unwrap();
        assert!(cut.contains("{\"interrupt\":{\"number\":30}}"), "{cut}");
    }
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    assert_eq!(actor.revert().unwrap().targets, []);
    assert_eq!(handle.machine().has(&Target::Interrupt(30)), Some(2));
}

#[test]
fn foreign_files_are_refused_with_the_reason() {
    let (_, file) = machine_with_journal();
    let text = String::from_utf8(file).unwrap();
    let told = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        told("[Match]\nName=eth0\n"),
        "/model/journal is no journal of this version: it does not begin with \"homenode-affinity\": name another file, or \
         revert with the version that wrote it"
    );
    assert!(told(&text.replacen(" 1 ", " 2 ", 1)).contains("its version is \"2\""));
    assert!(told("").contains("is empty") && told("").contains("Remove it"));
    let third = text.lines().nth(2).unwrap();
    let error = told(&text.replacen(third, &third.replace("\"old\"", "\"new\""), 1));
    assert!(error.contains("line 3: its checksum is wrong"), "{error}");
    let elsewhere = read_in(text.as_bytes(), "pid:[1],net:[9]").unwrap_err();
    assert!(matches!(elsewhere, Error::Elsewhere { .. }), "{elsewhere}");
    // All of them: writes go to the /sys of the mounts.
    assert!(
        elsewhere.to_string().contains("nsenter --all --target PROCESS"),
        "{elsewhere}"
    );
}

#[test]
fn a_journal_of_another_boot_has_nothing_in_force() {
    let (handle, file) = machine_with_journal();
    let other = String::from_utf8(file).unwrap();
    let header = format!("homenode-affinity 1 other {NAMESPACES}");
    let header = format!("{header} {:08x}", crc32c::crc32c(header.as_bytes()));
    let rest = other.split_once('\n').unwrap().1;
    // A power cut has spoilt the rest.
    handle.machine().file = Some(format!("{header}\n{}\0\0\n", &rest[9..]).into_bytes());
    let before = handle.machine().differences();
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    assert!(actor.has_rebooted() && actor.changed().is_empty());
    assert_eq!(actor.revert().unwrap().targets, []);
    assert_eq!(handle.machine().differences(), before);
    assert!(handle.machine().file.is_none());
}

#[test]
fn only_one_process_holds_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("not/yet/there/affinity.journal");
    let first = Disk::open(&path).unwrap();
    let error = Disk::open(&path).unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {} moves interrupts", std::process::id()))
            && error.contains(path.to_str().unwrap()),
        "{error}"
    );
    drop(first);
    Disk::open(&path).unwrap();
}

#[test]
fn a_symbolic_link_at_the_journals_path_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, victim) = (directory.path().join("journal"), directory.path().join("victim"));
    let untouched = || assert_eq!(std::fs::read(&victim).unwrap(), b"theirs");
    std::fs::write(&victim, "theirs").unwrap();
    std::os::unix::fs::symlink(&victim, directory.path().join("journal.lock")).unwrap();
    Disk::open(&path).unwrap_err();
    untouched();
    std::fs::remove_file(directory.path().join("journal.lock")).unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    let error = Disk::open(&path).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&victim, directory.path().join("journal.new")).unwrap();
    let mut disk = Disk::open(&path).unwrap();
    disk.replace(b"ours").unwrap();
    assert_eq!(disk.load().unwrap().as_deref(), Some(&b"ours"[..]));
    untouched();
}

/// Its lines would have root set any interrupt, thread or queue.
#[test]
fn a_journal_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut disk = Disk::open(&path).unwrap();
    disk.replace(b"one\n").unwrap();
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        use std::io::Write;
        // Past the capture of the harness.
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root can give files to others");
        return;
    }
    let error = disk.load().unwrap_err().to_string();
    assert!(error.contains("another user"), "{error}");
    assert!(disk.append(b"two\n").is_err());
    assert_eq!(fs::read(&path).unwrap(), b"one\n");
}

#[test]
fn a_journal_must_be_a_regular_file() {
    let directory = tempfile::tempdir().unwrap();
    let error = Disk::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
    assert!(Disk::open(Path::new("/dev/full")).is_err());
    assert!(!Path::new("/dev/full.lock").exists());
}

#[test]
fn the_journal_file_can_be_written_extended_replaced_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut disk = Disk::open(&path).unwrap();
    assert_eq!(disk.load().unwrap(), None);
    assert!(disk.append(b"x").is_err());
    disk.replace(b"one\n").unwrap();
    disk.append(b"two\n").unwrap();
    assert_eq!(disk.load().unwrap().unwrap(), b"one\ntwo\n");
    disk.replace(b"three\n").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"three\n");
    fs::write(directory.path().join("journal.new"), b"cut").unwrap();
    disk.remove().unwrap();
    disk.remove().unwrap();
    let left = fs::read_dir(directory.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["journal.lock"]);
    assert_eq!(disk.load().unwrap(), None);
}

#[test]
fn a_foreign_file_is_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"something that somebody needs\n").unwrap();
    let handle = Handle::new(1);
    handle.machine().busy = false;
    let error = Actor::open(handle, &path).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"something that somebody needs\n");
}

fn file(inode: u64) -> FileId {
    FileId { pool: (0, 45), inode }
}

fn moves(inodes: impl Iterator<Item = u64>) -> Vec<MoveFile> {
    let one = |inode| MoveFile {
        file: file(inode),
        to: NodeId(2),
        threads: 1,
        bytes: 1,
        saved_bytes_per_s: 1,
        reason: FileReason::Held,
        cost_before: Cost::default(),
        cost_after: Cost::default(),
    };
    inodes.map(one).collect()
}

#[test]
fn moved_files_are_recorded_and_reported_by_revert() {
    let (handle, before) = machine_with_journal();
    let open = || Actor::with_store(handle.clone(), handle.clone()).unwrap();
    open().note_files(&moves(7..9)).unwrap();
    let written = handle.machine().file.clone().unwrap();
    let lines = String::from_utf8(written[before.len()..].to_vec()).unwrap();
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        assert!(line.contains(r#""file":{"major":0,"minor":45,"inode":"#), "{line}");
        assert!(line.ends_with(r#""stays":true}"#), "{line}");
    }
    let mut actor = open();
    let told = [(file(7), NodeId(2)), (file(8), NodeId(2))];
    assert_eq!(actor.moved_files(), told);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.files, told);
    assert!(actor.is_clean() && actor.moved_files().is_empty());
    assert_eq!(handle.machine().file, None);
}

#[test]
fn the_number_of_files_in_a_journal_is_bounded() {
    let handle = Handle::new(7);
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    for first in (0..20_000).step_by(100) {
        actor.note_files(&moves(first..first + 100)).unwrap();
    }
    let file = handle.machine().file.clone().unwrap();
    let lines = file.iter().filter(|byte| **byte == b'\n').count();
    assert!(lines < 4 * 1024, "{lines}");
    assert_eq!(actor.moved_files().len(), 1024);
    assert!(!actor.is_clean());
    let again = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    assert_eq!(again.moved_files().len(), 1024);
}
