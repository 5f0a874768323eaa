//! `homenode run`: what it runs, what it refuses, and what it tells.

use super::harness::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Builds the library beside the command: Cargo does not for tests of another package.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "homenode-client"])
            .status();
        assert!(built.unwrap().success());
        Path::new(BINARY).with_file_name("libhomenode.so")
    })
}

#[test]
fn commands_that_are_not_there_and_directories_that_are_no_pools_are_refused() {
    library();
    fail(2, &mut homenode(["run"]));
    refused_with(
        127,
        &mut homenode(["run", "--", "no-such-command"]),
        &["cannot run no-such-command", "no such command"],
    );
    refused_with(
        127,
        &mut homenode(["run", "--statz", "--", "true"]),
        &["cannot run --statz", "no such option", "homenode run --help"],
    );
    refused_with(
        126,
        &mut homenode(["run", "--", "/etc/passwd"]),
        &["cannot run /etc/passwd", "Permission denied"],
    );
    refused(
        &mut homenode(["run", "--pool", "/", "--", "true"]),
        &["/ is not on a pool", "homenode status"],
    );
    refused(
        &mut homenode(["run", "--pool", "/nonexistent", "--", "true"]),
        &["/nonexistent", "No such file"],
    );
}

#[test]
fn command_keeps_its_arguments_streams_and_exit_code() {
    library();
    let output = homenode(["run", "--", "sh", "-c", "cat; echo \"$1\" >&2; exit 7", "sh", "--stats"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stderr, b"--stats\n");
}

#[test]
fn stats_tell_each_process_and_why_a_program_runs_unchanged() {
    library();
    let scratch = Scratch::new("run-stats");
    let output = homenode(["run", "--stats", "--", "sh", "-c", "true; true | cat"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("0 of 0 reads and writes at an offset were copies"),
        "{said}"
    );
    // As one of 32 bits says it is: the dynamic linker would complain. The kernel does not look.
    let program = scratch.path().join("program");
    let mut bytes = fs::read("/bin/true").unwrap();
    bytes[4] = 1;
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = homenode(["run", "--stats", "--"]).arg(&program).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("runs unchanged: it is no program of 64 bits"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_library_is_listed_once_however_often_it_is_asked_for() {
    let library = library().to_str().unwrap();
    let twice = ["run", "--", BINARY, "run", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let output = homenode(twice).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), library);
    // Libraries of others stay.
    let output = homenode(twice)
        .env("LD_PRELOAD", "libm.so.6 libdl.so.2")
        .output()
        .unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(listed.trim_end(), format!("{library}:libm.so.6:libdl.so.2"));
}

/// The server dies at once; what a program has open goes on, as it does without `run`.
#[test]
fn programs_outlive_a_server_that_is_killed() {
    need_mounts!();
    library();
    let scratch = Scratch::new("run-killed");
    let mount = scratch.dir("mount");
    let up = homenode(["up", SIZE, "--data=kernel"]).arg(&mount).output().unwrap();
    if !up.status.success() {
        // Kernels before 6.9 have no such files.
        assert!(String::from_utf8_lossy(&up.stderr).contains("kernel"), "{up:?}");
        return;
    }
    let status: serde_json::Value =
        serde_json::from_slice(&homenode(["status", "--json"]).arg(&mount).output().unwrap().stdout).unwrap();
    let server = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    // fio opens its file, and reads what it has written again and again: before and after.
    let mut fio = homenode([
        "run",
        "--",
        "fio",
        "--name=run",
        "--rw=randrw",
        "--bs=4k",
        "--size=4M",
        "--ioengine=psync",
    ]);
    fio.args([
        "--fallocate=none",
        "--time_based",
        "--runtime=3",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--output-format=terse",
    ]);
    // fio keeps a record of what it has verified where it runs.
    fio.current_dir(scratch.path());
    let fio = fio
        .arg(format!("--directory={}", mount.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(server).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let output = fio.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
