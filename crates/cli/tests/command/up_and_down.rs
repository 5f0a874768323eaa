//! Bringing up, looking, taking down.

use super::harness::*;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

#[test]
fn up_write_read_status_down() {
    let (scratch, dir) = need_mounts!("up");
    fs::set_permissions(&dir, Permissions::from_mode(0o1777)).unwrap();
    up(&dir);
    assert_eq!(
        mounts_below(scratch.path()),
        [(dir.clone(), "fuse.homenode".to_owned())]
    );
    assert_eq!(
        fs::metadata(&dir).unwrap().mode() & 0o7777,
        0o1777,
        "the directory's mode is the root's"
    );

    let local = status(&dir)["local_percent"].clone();
    assert!(
        [Value::Null, json!(100.0)].contains(&local),
        "nothing was written yet: {local}"
    );
    fs::write(dir.join("file"), vec![7; 300_000]).unwrap();
    assert_eq!(fs::read(dir.join("file")).unwrap(), vec![7; 300_000]);

    let status = status(&dir);
    assert_eq!(status["output_version"], 2);
    assert_eq!(status["directory"], dir.to_str().unwrap());
    let capacity = status["capacity_bytes"].as_u64().unwrap();
    assert_eq!(capacity, status["nodes"].as_array().unwrap().len() as u64 * (16 << 20));
    assert!(
        (300_000..=400_000).contains(&status["used_bytes"].as_u64().unwrap()),
        "{status}"
    );
    assert_eq!(
        capacity,
        status["free_bytes"].as_u64().unwrap() + status["used_bytes"].as_u64().unwrap()
    );
    assert!(
        status["members"][0]["backing"].as_str().unwrap().contains("swap"),
        "{status}"
    );
    assert_eq!(status["members"][0]["state"], "candidate");
    assert_eq!(status["members"][0]["kind"], "dram");
    assert_eq!(status["bodies"]["file"]["insert range"], "yes");
    assert_eq!(status["bodies"]["directory"]["read"], "EISDIR");
    let written: u64 = status["accesses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["written_bytes"].as_u64().unwrap())
        .sum();
    // What the kernel writes itself is not seen.
    let is_seen = status["fuse"]["data"] == "pool";
    assert_eq!(written, if is_seen { 300_000 } else { 0 });
    assert!(status["fuse"]["requests"].as_u64().unwrap() > 0);
    assert_eq!(status["fuse"]["panics"], 0);

    let text = succeed(homenode(["status"]).arg(dir.join("file")));
    says(&text, &[dir.to_str().unwrap(), "candidate", "0 panics"]);
    assert!(text.starts_with("health: ok\n"), "{text}");
    says(&text, &["\nlocal: ", " resident, of that "]);
    assert_eq!(status["problems"], json!([]));
    let memory = &status["server_memory"];
    assert!(
        memory["resident_bytes"].as_u64() > memory["own_bytes"].as_u64(),
        "{memory}"
    );
    assert_eq!(memory["metadata_bytes"], status["metadata_used_bytes"]);
    let is_local = |percent: f64| (0.0..=100.0).contains(&percent);
    assert!(status["local_percent"].as_f64().is_none_or(is_local), "{status}");
    let all: Value = serde_json::from_str(&succeed(&mut homenode(["status", "--json"]))).unwrap();
    assert_eq!(all["output_version"], 2);
    let one: Value = serde_json::from_str(&succeed(homenode(["status", "--json"]).arg(&dir))).unwrap();
    let keys = |shape: &Value| shape.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&one), keys(&all));
    assert_eq!(
        keys(&one).join(" "),
        "affinity_changes dead health output_version pools silent"
    );
    assert_eq!(
        (&one["health"], one["pools"].as_array().unwrap().len()),
        (&json!("ok"), 1)
    );
    let listed = all["pools"]
        .as_array()
        .unwrap()
        .iter()
        .any(|pool| pool["directory"] == dir.to_str().unwrap());
    assert!(listed, "{all}");

    let pid = server_pid(&dir).unwrap();
    down(&dir);
    assert_nothing_mounted(scratch.path());
    assert!(
        fs::read_dir(&dir).unwrap().next().is_none(),
        "the directory is as it was"
    );
    wait_for_end(pid);
}

#[test]
fn file_map_shows_bytes_by_node() {
    let (_scratch, dir) = need_pool!("map");
    let file = dir.join("file");
    fs::write(&file, vec![1; 8192]).unwrap();
    symlink("file", dir.join("link")).unwrap();
    for path in [&file, &dir.join("link")] {
        let map: Value = serde_json::from_str(&succeed(homenode(["file", "map", "--json"]).arg(path))).unwrap();
        assert_eq!(map["output_version"], 1);
        let total: u64 = map["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|on| on["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(total, 8192, "{map}");
    }
    let text = succeed(homenode(["file", "map"]).arg(&file));
    assert!(text.starts_with("node ") && text.contains("8192"), "{text}");

    let home = status(&dir)["members"][0]["home"].to_string();
    succeed(homenode(["file", "move", "--node", &home]).arg(&file));
    let text = succeed(homenode(["file", "map"]).arg(&file));
    assert!(
        text.starts_with(&format!("node {home} ")) && text.lines().count() == 1,
        "{text}"
    );
    assert_eq!(fs::read(&file).unwrap(), vec![1; 8192]);

    fs::write(dir.join("empty"), "").unwrap();
    let text = succeed(homenode(["file", "map"]).arg(dir.join("empty")));
    assert!(text.contains("no bytes"), "{text}");
    down(&dir);
}

#[test]
fn commands_accept_any_spelling_of_the_directory() {
    need_mounts!();
    let scratch = Scratch::new("names");
    let odd = scratch.dir("with space\nnewline \\ and ünicode");
    symlink(&odd, scratch.path().join("link")).unwrap();
    let names = [
        "link",
        "./link/",
        "with space\nnewline \\ and ünicode///",
        "./with space\nnewline \\ and ünicode/.",
    ];
    for (up_name, down_name) in names.iter().zip(names.iter().rev()) {
        succeed(homenode(["up", SIZE, up_name]).current_dir(scratch.path()));
        assert_eq!(
            mounts_below(scratch.path()),
            [(odd.clone(), "fuse.homenode".to_owned())]
        );
        fs::write(odd.join("file"), "x").unwrap();
        succeed(homenode(["status", up_name]).current_dir(scratch.path()));
        succeed(homenode(["down", down_name]).current_dir(scratch.path()));
        assert_nothing_mounted(scratch.path());
    }
    let foreign = scratch.dir(OsStr::from_bytes(b"not\xffUTF-8\t"));
    up(&foreign);
    assert_eq!(
        mounts_below(scratch.path()),
        [(foreign.clone(), "fuse.homenode".to_owned())]
    );
    let log = log_of(&foreign);
    assert!(log.exists());
    let text = succeed(homenode(["status"]).arg(&foreign));
    assert!(text.contains(r"UTF-8\t") && !text.contains('\t'), "{text}");
    down(&foreign);
    assert!(!log.exists(), "{} stays", log.display());
    let dashed = scratch.dir("-dashed");
    succeed(homenode(["up", SIZE, "--", "-dashed"]).current_dir(scratch.path()));
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    down(&dashed);
}

#[test]
fn only_one_of_two_concurrent_ups_succeeds() {
    let (scratch, dir) = need_mounts!("race");
    for round in 0..6 {
        if round % 2 == 1 {
            // The same with a dead mount that all of them want to clear.
            up(&dir);
            let pid = server_pid(&dir).unwrap();
            signal(pid, rustix::process::Signal::KILL);
            wait_for_end(pid);
        }
        let start = || {
            homenode(["up", SIZE])
                .arg(&dir)
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        };
        let racers = [start(), start(), start()];
        let outputs = racers.map(|racer| racer.wait_with_output().unwrap());
        let winners = outputs.iter().filter(|output| output.status.success()).count();
        assert_eq!(winners, 1, "{:?}", outputs.each_ref().map(describe));
        for loser in outputs.iter().filter(|output| !output.status.success()) {
            assert_eq!(loser.status.code(), Some(1));
            let message = describe(loser);
            assert!(
                message.contains("another `homenode up`") || message.contains("mounted already"),
                "{message}"
            );
        }
        assert_eq!(mounts_below(scratch.path()).len(), 1);
        down(&dir);
        assert_nothing_mounted(scratch.path());
    }
}

#[test]
fn options_of_up() {
    let (scratch, dir) = need_mounts!("options");
    succeed(homenode(["up", "--node", "0", "--node", "0", "--size-per-node", "1%"]).arg(&dir));
    let status = status(&dir);
    assert_eq!(status["members"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["members"][0]["home"], 0);
    assert!(status["capacity_bytes"].as_u64().unwrap() > 0);
    down(&dir);
    succeed(homenode(["up"]).arg(&dir));
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    down(&dir);
}

#[test]
fn status_of_a_silent_or_dead_server_has_its_ordinary_shape() {
    let (_scratch, dir) = need_pool!("shape");
    let (pid, socket) = (server_pid(&dir).unwrap(), log_of(&dir).with_extension("sock"));
    let told = |words: &[&str], remedy| {
        let output = homenode(words).arg(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(remedy),
            "{}",
            describe(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let _stopped = Stopped::new(pid);
    for (is_dead, key, place, health, remedy) in [
        (false, "silent", &socket, "gave no status", "kill -CONT"),
        (true, "dead", &dir, "its server was killed", "homenode down"),
    ] {
        if is_dead {
            signal(pid, Signal::KILL);
            wait_for_end(pid);
        }
        let json: Value = serde_json::from_str(&told(&["status", "--json"], remedy)).unwrap();
        assert_eq!(json["output_version"], 2);
        assert_eq!((&json[key], &json["pools"]), (&json!([place]), &json!([])), "{json}");
        assert!(json["health"].as_str().unwrap().contains(health), "{json}");
        let text = told(&["status"], remedy);
        assert!(text.starts_with("health: ") && text.contains(health), "{text}");
    }
    down(&dir);
}

#[test]
fn status_reports_a_full_pool_first() {
    let (_scratch, dir) = need_mounts!("full");
    // Bytes of the kernel's files, where it has them, are on no member.
    up(&dir);
    let file = fs::File::create(dir.join("file")).unwrap();
    let block = [7; 1 << 16];
    let full = (0..).find_map(|at| file.write_all_at(&block, at << 16).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    drop(file);
    let found = status(&dir);
    for node in found["nodes"].as_array().unwrap() {
        assert_eq!(node["state"], "fat", "{found}");
    }
    assert!(found["problems"].to_string().contains("full: "), "{found}");
    let text = succeed(homenode(["status"]).arg(&dir));
    let health = text.lines().next().unwrap();
    assert!(
        health.starts_with(&format!("health: {}: full: ", dir.display())),
        "{text}"
    );
    assert!(text.contains(" fat "), "{text}");
    assert!(
        !text.contains("candidate") || found["fuse"]["data"] == "kernel",
        "{text}"
    );
    fs::remove_file(dir.join("file")).unwrap();
    down(&dir);
}

#[test]
fn a_lock_that_any_user_may_take_keeps_no_pool_away() {
    let (_scratch, dir) = need_mounts!("locked");
    let held = fs::File::open(&dir).unwrap();
    held.lock().unwrap();
    let found = held.metadata().unwrap();
    up(&dir);
    let lock = format!("/run/homenode/{:x}-{:x}.directory", found.dev(), found.ino());
    assert!(!Path::new(&lock).exists(), "{lock} stays");
    down(&dir);
}

/// A daemon that kept its starter's pipes would hang every script that reads them.
#[test]
fn the_server_inherits_no_state_of_its_starter() {
    let (scratch, dir) = need_mounts!("pipes");
    let lock = scratch.path().join("lock");
    let script = r#"exec 9>"$3"; flock -n 9 || exit 3; "$1" up --size-per-node 16M "$2"; echo started"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", BINARY]).arg(&dir).arg(&lock);
    // Returns only when nobody holds its standard output and error any more.
    assert_eq!(succeed(&mut shell), "started\n");
    let relock = Command::new("flock")
        .args(["-n", lock.to_str().unwrap(), "true"])
        .status()
        .unwrap();
    assert!(relock.success(), "the server does not hold the script's lock");
    let pid = server_pid(&dir).unwrap().as_raw_nonzero();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "homenode\n");
    down(&dir);
}

#[test]
fn version_and_help() {
    assert!(succeed(&mut homenode(["--version"])).contains(env!("CARGO_PKG_VERSION")));
    let help = succeed(&mut homenode(["--help"]));
    for heading in [
        "Pools:",
        "Files:",
        "Volumes and devices:",
        "Machine:",
        "Affinity:",
        "First run:",
        "Options:",
    ] {
        assert!(
            help.lines().any(|line| line == heading),
            "{heading} is missing in: {help}"
        );
    }
    for verb in ["up", "down", "status", "file", "pool", "topology", "member"] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(verb)),
            "{verb} is missing in: {help}"
        );
    }
    assert!(!succeed(&mut homenode(["up", "--help"])).contains("detached"));
}
