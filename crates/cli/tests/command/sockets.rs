//! Sockets: which of them `status` takes away, and what a server tells core affinity.

use super::harness::*;
use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use serde_json::{Value, json};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// Sockets of mounts that no machine has, and the lock: tests take turns where other commands may be at work.
fn socket(minor: u32) -> PathBuf {
    let directory = Path::new("/run/homenode");
    fs::create_dir_all(directory).unwrap();
    let path = directory.join(format!("4000-{minor}.sock"));
    let _ = fs::remove_file(&path);
    path
}

/// A socket that has its name, and nobody listens on it (yet).
fn bind(path: &Path) -> rustix::fd::OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn status_removes_sockets_of_dead_servers() {
    need_mounts!();
    let path = socket(1);
    drop(bind(&path));
    succeed(&mut homenode(["status", "--json"]));
    assert!(!path.exists());
}

#[test]
fn status_keeps_the_socket_of_a_starting_server() {
    need_mounts!();
    let path = socket(2);
    let lock = File::options()
        .create(true)
        .append(true)
        .open("/run/homenode/lock")
        .unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let starting = bind(&path);
    let mut status = homenode(["status", "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(status.try_wait().unwrap().is_none(), "status did not wait for the lock");
    assert!(path.exists());
    rustix::net::listen(&starting, 16).unwrap();
    drop(lock);
    // Whoever asks is sent away; the status of the other tests' commands goes on without this one.
    thread::spawn(move || while rustix::net::accept(&starting).is_ok() {});
    assert!(status.wait().unwrap().success());
    assert!(path.exists());
    fs::remove_file(path).unwrap();
}

/// A server that runs refuses a viewer too many: the pool is there all the same.
#[test]
fn a_server_that_sends_viewers_away_is_shown() {
    need_mounts!(alone);
    let refusal = "{\"failed\":{\"message\":\"8 viewers look already\"}}\n";
    for (minor, said, why) in [(3, "", "closed the connection"), (4, refusal, "8 viewers look already")] {
        let path = socket(minor);
        let server = bind(&path);
        rustix::net::listen(&server, 16).unwrap();
        thread::spawn(move || {
            while let Ok(client) = rustix::net::accept(&server) {
                // The viewer has gone already, perhaps.
                let _ = UnixStream::from(client).write_all(said.as_bytes());
            }
        });
        let picture = succeed(homenode(["top", "--once"]).env("COLUMNS", "300"));
        fs::remove_file(&path).unwrap();
        let health = picture.lines().next().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(health.contains(name) && health.contains(why), "{picture}");
    }
}

#[test]
fn the_server_reports_use_by_thread() {
    let (_scratch, dir) = need_pool!("tasks");
    let mut stream = UnixStream::connect(log_of(&dir).with_extension("sock")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for _ in 0..2 {
        stream.write_all(b"{\"request\":\"tasks\"}\n").unwrap();
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let tasks = &answer["done"]["tasks"];
        assert_eq!(tasks["answered"], json!(true), "{answer}");
        // Its own threads have moved nothing, and on one node callers are not counted.
        assert!(tasks["threads"].is_array() && tasks["files"].is_array(), "{answer}");
        fs::write(dir.join("file"), vec![7; 300_000]).unwrap();
    }
    down(&dir);
}

/// In a mount namespace with groups of its own.
#[test]
fn members_of_the_group_look_and_change_nothing() {
    need_mounts!(alone);
    let scratch = Scratch::new("readers");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    succeed(
        std::process::Command::new("cp")
            .arg(BINARY)
            .arg(scratch.path().join("homenode")),
    );
    let groups = fs::read_to_string("/etc/group").unwrap();
    let others = groups.lines().filter(|line| !line.starts_with("homenode:"));
    let groups: String = others.map(|line| line.to_owned() + "\n").collect();
    for (name, groups) in [("others", groups.clone()), ("group", groups + "homenode:x:64999:\n")] {
        let path = scratch.path().join(name);
        fs::write(&path, groups).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    scratch.dir("pool");
    let script = r#"
        set -eu
        mount --bind "$1/group" /etc/group
        homenode=$1/homenode
        "$homenode" up --size-per-node=16M "$1/pool" 2>/dev/null
        trap '"$homenode" down "$1/pool"' EXIT
        reader() { setpriv --reuid 65534 --regid 65534 --groups 64999 "$@"; }
        nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        reader "$homenode" status "$1/pool" | grep '^health: '
        reader "$homenode" status --json | grep -q "$1/pool"
        reader "$homenode" top --once | grep -q "1 pool by name"
        reader "$homenode" top --json | grep -q "$1/pool"
        # The file is in a sample a second later.
        : >"$1/pool/file"
        sleep 2.5
        for look in status top; do
            "$homenode" $look --json >"$1/$look-root"
            reader "$homenode" $look --json >"$1/$look-reader"
        done
        if reader "$homenode" down "$1/pool"; then exit 11; fi
        if reader "$homenode" pool add "$1/pool" --node 0 --size 16M; then exit 12; fi
        # They are told no paths of members, which are not missing for that.
        export HOMENODE_POOLS=$1/known
        mkdir "$1/durable"
        "$homenode" pool create tank "$1/member" --size 32M 2>/dev/null
        "$homenode" up tank "$1/durable" 2>/dev/null
        code=0; reader "$homenode" down "$1/durable" 2>"$1/durable.said" || code=$?
        "$homenode" down "$1/durable"
        [ $code = 1 ]
        grep 'only root may do that' "$1/durable.said"
        # Each of them looks, and says who may.
        refused() {
            if nobody "$homenode" "$@" 2>"$1.said"; then exit 13; fi
            cat "$1.said" >&2
            grep -q '(run as root, or as a member of the group homenode)$' "$1.said"
        }
        cd "$1"
        refused status "$1/pool"
        refused status
        refused top --once
        refused volume list "$1/pool"
        refused volume list
        if nobody "$homenode" pool add "$1/pool" --node 0 --size 16M 2>changes; then exit 14; fi
        grep -q '(run as root)$' changes
        mount --bind "$1/others" /etc/group
        if nobody "$homenode" status "$1/pool" 2>without; then exit 15; fi
        grep -q '(run as root)$' without
        mountpoint "$1/pool"
        stat -c '%a %g' /run/homenode-read /run/homenode-read/*.sock /run/homenode
    "#;
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "readers"])
        .arg(scratch.path())
        .output()
        .unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    says(&said, &["only root may do that", "750 64999\n660 64999\n"]);
    assert!(said.contains("\n700 0\n"), "{said}");
    for (look, report) in [("status", "/pools/0"), ("top", "/pools/0/report")] {
        let users = |who: &str| {
            let told = fs::read(scratch.path().join(format!("{look}-{who}"))).unwrap();
            let told: Value = serde_json::from_slice(&told).unwrap();
            let report = told.pointer(report).unwrap();
            assert_eq!(report["metadata_users"], 1, "{told}");
            report["metadata_by_user"].as_array().unwrap().len()
        };
        assert_eq!((users("root"), users("reader")), (1, 0), "{look}");
    }
}
