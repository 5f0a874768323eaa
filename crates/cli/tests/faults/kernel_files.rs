//! Files of the kernel where the machine gives less than they take: each fault ends as on a tmpfs, and the pool goes on.

use super::machine::*;
use crate::command::harness::*;
use rustix::process::{Pid, Signal};
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Small enough for the pool, more than a group of processes gets here.
const WRITTEN_BYTES: u64 = 48 << 20;
const GROUP_BYTES: u64 = 16 << 20;

/// Bytes are charged to the group of who writes them: it is ended, and neither the server nor anybody else.
#[test]
fn a_writer_in_a_full_memory_group_fails_alone() {
    on_each_transport("group", |scratch, dir, transport| {
        let tmpfs = scratch.dir("tmpfs");
        if !super::sync::kernel_can_hold_bytes(transport, &dir) {
            return;
        }
        let Some(group) = ControlGroup::of_memory() else {
            return down(&dir);
        };
        group.write(group.limit, &GROUP_BYTES.to_string()).unwrap();
        // Where there is swap, it is to be of no help.
        let _ = group.write("memory.swap.max", "0");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(&tmpfs)
            .status();
        assert!(mounted.unwrap().success());
        for directory in [&tmpfs, &dir] {
            let path = directory.join("file");
            let mut write = Command::new("sh");
            write.args(["-c", r#"exec head -c "$0" /dev/zero >"$1""#, &WRITTEN_BYTES.to_string()]);
            let ended = group.run(write.arg(&path)).status().unwrap();
            assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{transport}: {ended}");
            let bytes = fs::metadata(&path).unwrap().len();
            assert!(bytes > GROUP_BYTES / 2 && bytes < WRITTEN_BYTES, "{bytes} bytes");
            fs::remove_file(&path).unwrap();
        }
        unmount(&tmpfs);
        fs::write(dir.join("file"), "content").unwrap();
        wait_until("the bytes are free", || status(&dir)["used_bytes"] == 4096);
        down(&dir);
    });
}

/// Unmounts; tried again while a child of another test, which is just being started, has a file of it.
fn unmount(directory: &Path) {
    wait_until("it is unmounted", || {
        Command::new("umount").arg(directory).status().unwrap().success()
    });
}

/// Holders of a mount keep the memory of files that were open, and no other's.
#[test]
fn memory_of_files_goes_with_the_server_while_the_mount_is_held() {
    on_each_transport("held", |_, dir, transport| {
        for fault in ["a signal", "umount -f"] {
            if !super::sync::kernel_can_hold_bytes(transport, &dir) {
                return;
            }
            let pid = server_pid(&dir).unwrap();
            let store = store_of(pid);
            fs::write(dir.join("closed"), vec![1; 8 << 20]).unwrap();
            let open = fs::File::create_new(dir.join("open")).unwrap();
            open.write_all_at(b"content", 0).unwrap();
            // A close(2) does not wait for the server.
            wait_until("one file is open", || status(&dir)["fuse"]["open_files"] == 1);
            let mut holder = Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
            assert!(used_bytes(&store) > 8 << 20);
            match fault {
                "a signal" => signal(pid, Signal::TERM),
                // The kernel cuts the connection, and then finds the mount in use.
                _ => drop(Command::new("umount").arg("-f").arg(&dir).output().unwrap()),
            }
            wait_for_end(pid);
            let mut bytes = [0; 7];
            open.read_exact_at(&mut bytes, 0).unwrap();
            let used = used_bytes(&store);
            holder.kill().unwrap();
            holder.wait().unwrap();
            assert_eq!(&bytes, b"content");
            assert!((1..=2 << 20).contains(&used), "{transport}, {fault}: {used} bytes");
        }
    });
}

/// The server's private tmpfs, which this keeps, with all files that still have a name there.
fn store_of(server: Pid) -> fs::File {
    let files = fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero())).unwrap();
    let links = files.map(|entry| entry.unwrap().path());
    // Detached: its root has no other name.
    let mut roots = links.filter(|link| fs::read_link(link).is_ok_and(|target| target == Path::new("/")));
    fs::File::open(roots.next().expect("the server keeps it open")).unwrap()
}

fn used_bytes(store: &fs::File) -> u64 {
    let space = rustix::fs::fstatvfs(store).unwrap();
    (space.f_blocks - space.f_bfree) * space.f_frsize
}

/// An overlay may lie on a mount. One on that overlay is the kernel's third layer, which it refuses; nothing is lost.
#[test]
fn too_many_stacked_layers_fall_back() {
    on_each_transport("layers", |scratch, dir, transport| {
        let (layer, top) = (scratch.dir("layer"), scratch.dir("top"));
        let empty = scratch.dir("empty");
        if !super::sync::kernel_can_hold_bytes(transport, &dir) {
            return;
        }
        fs::write(dir.join("file"), "content").unwrap();
        let overlay = |above: &Path, below: &Path, on: &Path| {
            let layers = format!("lowerdir={}:{}", above.display(), below.display());
            let mut mount = Command::new("mount");
            mount.args(["-t", "overlay", "overlay", "-o", &layers]).arg(on);
            mount.output().unwrap().status.success()
        };
        if !overlay(&empty, &dir, &layer) {
            skipped("needs overlays");
            return down(&dir);
        }
        assert_eq!(fs::read(layer.join("file")).unwrap(), b"content");
        assert!(!overlay(&empty, &layer, &top), "the kernel stacks more than it did");
        assert_eq!(fs::read(layer.join("file")).unwrap(), b"content");
        unmount(&layer);
        down(&dir);
    });
}

/// Each of them is open to the machine, for root and for everybody.
#[test]
fn a_pool_leaves_half_of_the_open_files_to_others() {
    need_mounts!();
    let _undisturbed = as_it_is();
    let scratch = Scratch::new("open-to-all");
    let dir = scratch.dir("pool");
    // Room for the names of any number of files.
    succeed(homenode(["up", SIZE, "--metadata", "1T"]).arg(&dir));
    let files = rustix::fs::statvfs(&dir).unwrap().f_files;
    let open: u64 = fs::read_to_string("/proc/sys/fs/file-max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(files <= open / 2, "{files} files, {open} may be open");
    down(&dir);
}
