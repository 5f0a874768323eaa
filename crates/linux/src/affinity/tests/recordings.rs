//! What is recorded is what was sensed.

use super::*;

const PERIOD: std::time::Duration = std::time::Duration::from_millis(50);

/// A recording of this machine, and what was sensed meanwhile.
fn recording() -> (tempfile::TempDir, Sensed) {
    let directory = tempfile::tempdir().unwrap();
    let busy = live::Busy::start();
    let sensed = record(&topology::Source::Live, Path::new("/"), directory.path(), PERIOD).unwrap();
    busy.stop();
    (directory, sensed)
}

#[test]
fn this_machine_reads_the_same_from_its_recording() {
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
        assert!(matches!(error, Error::Incomplete { .. }), "{name}: {error}");
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
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
    assert!(nowhere.to_string().contains("nowhere/meta is missing"), "{nowhere}");
}

#[test]
fn nothing_is_recorded_over() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("precious"), "x").unwrap();
    let error = record(&topology::Source::Live, Path::new("/"), directory.path(), PERIOD).unwrap_err();
    assert!(matches!(error, Error::NotEmpty { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn modes_and_errors_are_recorded_too() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
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
    let sensed = record(&hardware, machine.root(), directory.path(), std::time::Duration::ZERO).unwrap();
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
