//! Tests that a recording reads as what was sensed.

use super::*;

const PERIOD: std::time::Duration = std::time::Duration::from_millis(50);

/// A recording of this machine, and what was sensed meanwhile.
fn recording() -> (tempfile::TempDir, Sensed) {
    let directory = tempfile::tempdir().unwrap();
    let busy = live::Busy::start();
    let sensed = record(
        &topology::Source::Live,
        Path::new("/"),
        directory.path(),
        PERIOD,
        Box::new(Vec::new),
    )
    .unwrap();
    busy.stop();
    (directory, sensed)
}

#[test]
fn a_recording_of_this_machine_reads_the_same() {
    let (directory, sensed) = recording();
    let again = recorded(directory.path()).unwrap();
    assert_eq!(again, sensed);
    assert!(
        sensed
            .snapshot
            .threads
            .iter()
            .any(|thread| thread.id.process == std::process::id())
    );
    // The devices and CPUs are those that the kernel tells, though the hardware is read from the file.
    let live = topology::read(&topology::Source::Live).unwrap();
    assert_eq!(sensed.snapshot.topology, live);
}

#[test]
fn a_missing_file_is_named() {
    let (directory, _) = recording();
    let all = [
        "meta",
        "topology.xml",
        "0.files",
        "1.files",
        "0/proc/interrupts",
        "1/proc/uptime",
    ];
    for name in all {
        let path = directory.path().join(name);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = recorded(directory.path()).unwrap_err();
        if name == "meta" {
            assert!(matches!(error, Error::Unfinished { .. }), "{error}");
        } else {
            assert!(matches!(error, Error::Incomplete { .. }), "{name}: {error}");
            assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
        }
        fs::write(&path, bytes).unwrap();
    }
    recorded(directory.path()).unwrap();
}

#[test]
fn a_damaged_file_is_named() {
    let (directory, _) = recording();
    for name in ["meta", "topology.xml", "1.files", "0/proc/interrupts"] {
        let path = directory.path().join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        let error = recorded(directory.path()).unwrap_err();
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
        fs::write(&path, bytes).unwrap();
    }
    let nowhere = recorded(&directory.path().join("nowhere")).unwrap_err();
    assert!(nowhere.to_string().contains("nowhere is not there"), "{nowhere}");
}

/// Cuts files as a full disk or a stopped copy leaves them: empty, anywhere, and after a line.
#[test]
fn a_truncated_recording_is_refused() {
    let (directory, _) = recording();
    for name in ["meta", "topology.xml", "0.files", "1.files", "1/proc/interrupts"] {
        let path = directory.path().join(name);
        let whole = fs::read(&path).unwrap();
        let lines: Vec<usize> = (1..whole.len()).filter(|end| whole[end - 1] == b'\n').collect();
        let ends = [0, 1, whole.len() / 2, whole.len() - 1, lines[0], *lines.last().unwrap()];
        // hwloc does without the end of the last line.
        let is_cut = |end: &usize| *end < whole.len() && (name != "topology.xml" || whole[*end..] != *b"\n");
        for end in ends.into_iter().filter(is_cut) {
            fs::write(&path, &whole[..end]).unwrap();
            let message = recorded(directory.path()).unwrap_err().to_string();
            let parts = [&*path.to_string_lossy(), "record the machine again"];
            assert!(parts.iter().all(|part| message.contains(part)), "{end}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        fs::write(&path, whole).unwrap();
    }
    recorded(directory.path()).unwrap();
    let file = directory.path().join("meta");
    let message = recorded(&file).unwrap_err().to_string();
    let expected = format!("{} is no directory: name a directory", file.display());
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn unreadable_hardware_is_reported_on_one_line() {
    let (directory, _) = recording();
    let path = directory.path().join("topology.xml");
    let whole = fs::read_to_string(&path).unwrap();
    let spoilt = [
        whole.replace("</object>", "<//bject>"),
        whole.replace("<topology", "<topplogy"),
        " ".repeat(whole.len()),
    ];
    for text in spoilt {
        fs::write(&path, text).unwrap();
        let message = recorded(directory.path()).unwrap_err().to_string();
        assert!(
            message.contains("topology.xml: hwloc cannot read it: record the machine again"),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn recording_into_a_used_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("precious"), "x").unwrap();
    let error = record(
        &topology::Source::Live,
        Path::new("/"),
        directory.path(),
        PERIOD,
        Box::new(Vec::new),
    )
    .unwrap_err();
    assert!(matches!(error, Error::NotEmpty { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn recording_into_a_directory_of_others_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let directory = tempfile::tempdir().unwrap();
    let refused = || {
        let root = Path::new("/");
        let recorded = record(
            &topology::Source::Live,
            root,
            directory.path(),
            PERIOD,
            Box::new(Vec::new),
        );
        let error = recorded.unwrap_err();
        assert!(matches!(error, Error::Shared { .. }), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    };
    for mode in [0o770, 0o702, 0o1777] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        refused();
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    // Where that is allowed.
    if chown(directory.path(), Some(65534), None).is_ok() {
        refused();
    }
}

/// The owner of the directory above may do so.
#[test]
fn a_directory_that_takes_the_place_of_the_recording_gets_nothing() {
    use std::os::unix::fs::symlink;
    let above = tempfile::tempdir().unwrap();
    let (directory, moved) = (above.path().join("recording"), above.path().join("moved"));
    let victim = above.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !directory.join("topology.xml").exists() {
                std::thread::yield_now();
            }
            fs::rename(&directory, &moved).unwrap();
            fs::create_dir(&directory).unwrap();
            symlink(&victim, directory.join("meta")).unwrap();
        });
        let root = Path::new("/");
        let period = std::time::Duration::from_millis(500);
        record(&topology::Source::Live, root, &directory, period, Box::new(Vec::new)).unwrap();
    });
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    recorded(&moved).unwrap();
}

#[test]
fn modes_and_errors_are_recorded_too() {
    use std::os::unix::fs::PermissionsExt;
    let machine = four_cpus();
    machine.interrupts(&[
        (30, [1, 0, 0], "nvme0q1"),
        (31, [1, 0, 0], "fixed"),
        (32, [1, 0, 0], "unreadable"),
    ]);
    machine.affinity(30, "0", "0").affinity(31, "1", "1");
    let fixed = machine.root().join("proc/irq/31/smp_affinity_list");
    fs::set_permissions(fixed, fs::Permissions::from_mode(0o444)).unwrap();
    fs::create_dir_all(machine.root().join("proc/irq/32/smp_affinity_list")).unwrap();
    let hardware = topology::Source::Synthetic("node:2 core:2 pu:1".to_owned());
    let directory = tempfile::tempdir().unwrap();
    let sensed = record(
        &hardware,
        machine.root(),
        directory.path(),
        std::time::Duration::ZERO,
        Box::new(Vec::new),
    )
    .unwrap();
    let managed: Vec<_> = sensed
        .snapshot
        .interrupts
        .iter()
        .map(|one| (one.number, one.managed))
        .collect();
    assert_eq!(managed, [(30, false), (31, true)]);
    assert!(
        sensed.unseen.iter().any(|unseen| unseen.why.contains("Is a directory")),
        "{:?}",
        sensed.unseen
    );
    // As from an archive that keeps no modes.
    let copied = directory.path().join("1/proc/irq/31/smp_affinity_list");
    fs::set_permissions(copied, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(recorded(directory.path()).unwrap(), sensed);
}

/// A pool whose server has counted 1000 bytes more at each question, of the calling thread, a millisecond by its clock.
fn ask() -> Ask {
    let thread = crate::process::own_thread();
    let started = crate::process::start_ticks(thread).unwrap();
    let mut counted_ms = 0;
    Box::new(move || {
        counted_ms += 1;
        let task = TaskBytes {
            thread,
            started,
            homes: vec![(0, 1000 * counted_ms)],
            files: vec![],
        };
        vec![PoolTasks {
            answered: true,
            counted_ms,
            threads: vec![task],
            ..PoolTasks::default()
        }]
    })
}

#[test]
fn recordings_have_buffers() {
    let directory = tempfile::tempdir().unwrap();
    let busy = live::Busy::start();
    let sensed = record(&topology::Source::Live, Path::new("/"), directory.path(), PERIOD, ask()).unwrap();
    busy.stop();
    assert_eq!(recorded(directory.path()).unwrap(), sensed);
    let moved = sensed
        .snapshot
        .threads
        .iter()
        .map(homenode_policy::affinity::Thread::memory_bytes);
    assert_eq!(moved.sum::<u64>(), sensed.snapshot.period_ns / 1000);
}
