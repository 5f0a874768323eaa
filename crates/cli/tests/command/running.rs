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
fn missing_commands_and_directories_without_a_pool_are_refused() {
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
        &["cannot run /etc/passwd", "Permission denied", "chmod +x"],
    );
    refused(
        &mut homenode(["run", "--pool", "/", "--", "true"]),
        &["/ is not on a homenode mount", "homenode status"],
    );
    refused(
        &mut homenode(["run", "--pool", "/nonexistent", "--", "true"]),
        &["/nonexistent", "No such file"],
    );
}

#[test]
fn a_command_keeps_its_arguments_streams_and_exit_code() {
    library();
    let output = homenode(["run", "--", "sh", "-c", "cat; echo \"$1\" >&2; exit 7", "sh", "--stats"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stderr, b"--stats\n");
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 2; exec \"$0\" run -- sh -c umask", BINARY]);
    assert_eq!(succeed(&mut shell), "0002\n");
}

/// A service of systemd is started with SIGPIPE ignored, and counts on that.
#[test]
fn a_command_ignores_sigpipe_if_its_starter_does() {
    library();
    for (trap, is_ignored) in [("trap '' PIPE; ", true), ("", false)] {
        let script = format!("{trap}exec \"$0\" run -- grep SigIgn /proc/self/status");
        let output = Command::new("sh").args(["-c", &script, BINARY]).output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        let ignored = u64::from_str_radix(line.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
        // The mask has signal 1 first, and SIGPIPE is 13.
        assert_eq!(ignored >> 12 & 1 == 1, is_ignored, "{script}: {line}");
    }
}

#[test]
fn stats_name_the_command_and_why_a_program_runs_unchanged() {
    library();
    let scratch = Scratch::new("run-stats");
    let said = warned(&mut homenode(["run", "--stats", "--", "sh", "-c", "true; true | cat"]));
    says(&said, &["0 of 0 reads and writes at an offset were copies"]);
    assert_eq!(said.lines().count(), 1, "cat has counted nothing: {said}");
    // It closes standard error before it ends.
    let output = homenode(["run", "--stats", "--", "cat", "/dev/null"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("0 of 0 reads and writes"), "{said}");
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
fn command_runs_beside_a_pool_whose_server_is_stopped() {
    need_mounts!();
    library();
    let scratch = Scratch::new("run-stopped");
    let dir = scratch.dir("pool");
    up(&dir);
    let pid = server_pid(&dir).unwrap();
    let stopped = Stopped::new(pid);
    let run = ["--signal=KILL", "30", BINARY, "run", "--", "cat", "/proc/self/stat"];
    let output = Command::new("timeout").args(run).output().unwrap();
    drop(stopped);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        describe(&output)
    );
    down(&dir);
}

/// A command that runs with the library runs another command, whose dynamic linker could not load it.
#[test]
fn an_unsupported_program_inherits_no_library() {
    library();
    let scratch = Scratch::new("run-other");
    let shell = scratch.path().join("shell");
    let mut bytes = fs::read("/bin/sh").unwrap();
    bytes[4] = 1;
    fs::write(&shell, bytes).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    for (others, listed) in [("", "none\n"), ("libm.so.6 libdl.so.2", "libm.so.6:libdl.so.2\n")] {
        let output = homenode(["run", "--", BINARY, "run", "--"])
            .arg(&shell)
            .args(["-c", "echo ${LD_PRELOAD-none}"])
            .env("LD_PRELOAD", others)
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            listed,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn nested_runs_list_the_library_once() {
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
fn programs_outlive_a_killed_server() {
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
    let server = i32::try_from(status["pools"][0]["pid"].as_i64().unwrap()).unwrap();
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
    let place = mount.to_str().unwrap();
    for directory in [&mount, &mount.join("below")] {
        let mut run = homenode(["run", "--pool"]);
        refused(
            run.arg(directory).args(["--", "true"]),
            &[place, "server", "is dead", "homenode down"],
        );
    }
}
