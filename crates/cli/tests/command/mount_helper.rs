//! `mount -t homenode`, lines of /etc/fstab, and the helper that mount(8) calls for them.

use super::harness::*;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The helper, as mount(8) calls it.
fn helper(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = homenode(["homenode"]);
    command.arg0("/sbin/mount.homenode").arg(directory).args(arguments);
    command
}

#[test]
fn the_mount_helper_follows_its_options() {
    let (scratch, dir) = need_mounts!("helper");
    succeed(&mut helper(
        &dir,
        &["-n", "-v", "-o", "rw,noauto,size_per_node=16M,node=0,per_node,nosuid"],
    ));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
    assert!(line.starts_with("homenode "), "{line}");
    says(line, &[" fuse.homenode rw,nosuid,"]);
    assert_eq!(status(&dir)["capacity_bytes"], 16 << 20);
    assert!(dir.join("node0").is_dir());
    down(&dir);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn the_mount_helper_refuses_unknown_options() {
    need_mounts!(alone);
    let scratch = Scratch::new("helper-refuses");
    let dir = scratch.dir("pool");
    for (option, part) in [
        ("ro", "durable pools"),
        ("size_per_node=5X", "5X"),
        ("frob", "not known"),
    ] {
        let message = fail(1, &mut helper(&dir, &["-o", option]));
        assert!(message.starts_with("mount.homenode: "), "{message}");
        says(&message, &[option, part]);
    }
    fail(1, &mut helper(&dir, &["--nonsense"]));
    succeed(&mut helper(&dir, &["-f", "-o", "size_per_node=16M"]));
    let missing = scratch.path().join("missing");
    assert!(fail(32, &mut helper(&missing, &[])).contains("does not exist"));
    assert!(fail(32, &mut helper(&dir, &["-N", "/nonexistent"])).contains("/nonexistent"));
    assert_nothing_mounted(scratch.path());
}

/// In a mount namespace of its own whose /sbin holds the helper and nothing else. `$1` is the helper, `$2` the directory
/// to mount on, `$3` a file.
const PRELUDE: &str = r#"
    set -eu
    mount -t tmpfs none /sbin
    ln -s "$1" /sbin/mount.homenode
    ln -s "$1" /sbin/mount.fuse.homenode
    dir=$2 fstab=$3
    trap 'umount -l "$dir" 2>/dev/null || true' EXIT
    mounts() { findmnt -n -o SOURCE,FSTYPE "$dir" || true; }
"#;

fn in_own_namespace(test: &str, script: &str) -> String {
    let scratch = Scratch::new(test);
    let dir = scratch.dir("pool");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg(format!("{PRELUDE}{script}")).arg("sh").arg(BINARY);
    command.arg(&dir).arg(scratch.path().join("fstab"));
    let printed = succeed(&mut command);
    assert_nothing_mounted(scratch.path());
    printed
}

#[test]
fn mount_and_umount() {
    need_mounts!(alone);
    let script = r#"
        mount -t homenode homenode "$dir" -o size_per_node=32M,size_per_node=16M,node=0,nodev 2>"$fstab"
        test ! -s "$fstab"
        mounts
        echo content >"$dir/file"
        cat "$dir/file"
        umount "$dir"
        mounts
        mount -t homenode homenode "$dir" -o ro && exit 9
        mounts
        mount -v -t homenode homenode "$dir" -o size_per_node=16M 2>"$fstab"
        grep -q 'homenode: transport ' "$fstab"; grep -q 'homenode: data ' "$fstab"
        umount "$dir"
    "#;
    let printed = in_own_namespace("mount", script);
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["homenode", "fuse.homenode", "content"]
    );
}

#[test]
fn a_line_of_fstab_mounts_a_pool() {
    need_mounts!(alone);
    let script = r#"
        echo "homenode $dir homenode size_per_node=16M,nosuid,nofail,x-systemd.requires=a.service 0 0" >"$fstab"
        findmnt --verify --tab-file "$fstab" >&2
        mount --fstab "$fstab" "$dir"
        mounts
        mount --fstab "$fstab" --all
        grep -c " $dir " /proc/self/mounts
        umount "$dir"
        mounts
    "#;
    let printed = in_own_namespace("fstab", script);
    // `mount --all` sees that it is mounted already.
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["homenode", "fuse.homenode", "1"]
    );
}

#[test]
fn a_remount_changes_kernel_options() {
    need_mounts!(alone);
    let script = r#"
        mount -t homenode homenode "$dir" -o size_per_node=16M,nosuid
        echo content >"$dir/file"
        flags() { findmnt -n -o VFS-OPTIONS,FS-OPTIONS "$dir" | tr , '
' | grep -xE 'ro|noexec|nosuid' | sort -u | tr '
' ' '; }
        mount -o remount,size_per_node=32M "$dir" 2>"$dir.message" && exit 9
        cat "$dir.message" >&2
        grep -q 'option size_per_node=32M: remount cannot change.*homenode pool add' "$dir.message"
        mount -o remount,ro,noexec "$dir"
        flags; echo
        echo other 2>/dev/null >"$dir/other" && exit 8
        mount -o remount,rw,exec "$dir"
        flags; echo
        echo "homenode $dir homenode size_per_node=32M,nosuid 0 0" >"$fstab"
        mount --fstab "$fstab" -o remount,ro "$dir" 2>"$dir.message" && exit 7
        grep -q 'option size_per_node=32M: .*mount -i -o remount,ro' "$dir.message"
        mount --fstab "$fstab" -i -o remount,ro "$dir"
        flags; echo
        echo "homenode $dir homenode size_per_node=16384K,nosuid,nofail 0 0" >"$fstab"
        mount --fstab "$fstab" -o remount,rw "$dir" 2>"$dir.message"
        test ! -s "$dir.message"
        flags; echo
        mount --fstab "$fstab" -o remount,ro "$dir"
        flags; echo
        cat "$dir/file"
        umount "$dir"
        mounts
    "#;
    let printed = in_own_namespace("remount", script);
    let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
    assert_eq!(
        lines,
        [
            "noexec nosuid ro",
            "nosuid",
            "nosuid ro",
            "nosuid",
            "nosuid ro",
            "content"
        ]
    );
}

/// Options that the kernel would show without effect.
#[test]
fn a_remount_refuses_what_the_server_does_not_follow() {
    need_mounts!(alone);
    let script = r#"
        export HOMENODE_POOLS=$dir.pools
        "$1" pool create tank "$dir.member" --size 32M
        refused() {
            mount -o "remount,$1" "$dir" 2>"$dir.message" && exit 9
            grep -q "option $2: $3" "$dir.message" || { cat "$dir.message" >&2; exit 8; }
        }
        mount -t homenode tank "$dir" -o ro,noatime,nodiratime
        umount "$dir"
        mount -t homenode tank "$dir" -o size_per_node=1G,per_node 2>"$dir.message" && exit 7
        grep -qE 'mount.homenode: option (size_per_node|per_node): it is for a new pool of memory' "$dir.message"
        mount -t homenode tank "$dir" -o ro,noatime,nodiratime
        refused commit=2 commit=2 "remount cannot change commit of the pool: unmount $dir and mount it anew"
        refused rw rw "the pool was opened read-only.*unmount $dir and mount it anew"
        refused relatime relatime 'the server keeps access times.*noatime'
        # mount(8) hands this word on to no helper.
        /sbin/mount.homenode tank "$dir" -o remount,diratime 2>"$dir.message" && exit 7
        grep -q "option diratime: the server keeps access times.*nodiratime" "$dir.message"
        mount -o remount,noexec "$dir"
        findmnt -n -o VFS-OPTIONS "$dir"
        umount "$dir"
        mount -t homenode tank "$dir"
        mount -o remount,ro,relatime "$dir"
        mount -o remount,rw "$dir"
        findmnt -n -o VFS-OPTIONS "$dir"
    "#;
    let printed = in_own_namespace("remount-refused", script);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[1..], ["ro,noexec,noatime,nodiratime", "rw,relatime"]);
}

/// Access times of a file and a directory that are read, for both kinds of data. They begin in the second 1000.
#[test]
fn access_times_move_as_the_options_say() {
    need_mounts!(alone);
    let script = r#"
        for data in auto pool; do for option in relatime nodiratime noatime; do
            mount -t homenode homenode "$dir" -o "size_per_node=16M,data=$data,$option"
            findmnt -n -o VFS-OPTIONS "$dir" | grep -q "$option"
            echo content >"$dir/file"; mkdir "$dir/below"
            touch -a -d @1000 "$dir/file" "$dir/below"
            cat "$dir/file" >/dev/null
            dd if="$dir/file" iflag=direct of=/dev/null 2>/dev/null || true
            ls "$dir/below"
            for name in file below; do
                if [ "$(stat -c %X "$dir/$name")" = 1000 ]; then echo "$option keeps $name"; else echo "$option moves $name"; fi
            done
            umount "$dir"
        done; done
    "#;
    let printed = in_own_namespace("access-times", script);
    let expected = [
        "relatime moves file",
        "relatime moves below",
        "nodiratime moves file",
        "nodiratime keeps below",
        "noatime keeps file",
        "noatime keeps below",
    ];
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines, [expected, expected].concat());
}

/// `mount -N`: it is seen there, and not here.
#[test]
fn the_mount_helper_mounts_in_another_namespace() {
    need_mounts!(alone);
    let script = r#"
        mkfifo "$fstab"
        unshare --mount --propagation private sh -c 'echo ready; read end' <"$fstab" >"$dir.ready" &
        exec 7>"$fstab"
        until [ -s "$dir.ready" ]; do sleep 0.01; done
        mount -N /proc/$!/ns/mnt -t homenode homenode "$dir" -o size_per_node=16M
        mounts
        nsenter --mount=/proc/$!/ns/mnt findmnt -n -o SOURCE,FSTYPE "$dir"
        nsenter --mount=/proc/$!/ns/mnt umount "$dir"
    "#;
    let printed = in_own_namespace("mount-namespace", script);
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["homenode", "fuse.homenode"]
    );
}
