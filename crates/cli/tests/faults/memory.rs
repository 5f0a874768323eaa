//! A user without rights who fills the server's memory with what is no file's data.

use super::machine::*;
use crate::command::harness::*;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const LIMIT: u64 = 32 << 20;

/// Files with large attributes, until one is refused.
const FILL: &str = r#"
value=$(head -c 60000 /dev/zero | tr '\0' x)
for file in $(seq 1000); do
    : >"$file" || exit 9
    for name in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        setfattr -n "user.$name" -v "$value" "$file" || exit 3
    done
done"#;

fn anonymous_bytes(dir: &Path) -> u64 {
    let pid = server_pid(dir).unwrap().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn metadata_of_a_user_stays_within_its_limit() {
    on_each_transport("memory", |_, dir, transport| {
        let metadata = format!("--metadata={LIMIT}");
        let mut up = homenode(["up", SIZE, &metadata, "--transport", transport]);
        // Pages of rings come when first used, 2 MiB at a time: few of them, as all that grows is taken for metadata.
        up.args((transport == "uring").then_some("--buffers=2M"));
        succeed(up.arg(&dir));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let files_before = rustix::fs::statvfs(&dir).unwrap().f_ffree;
        let before = anonymous_bytes(&dir);
        let mut fill = Command::new("setpriv");
        fill.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", FILL]);
        let output = fill.current_dir(&dir).output().unwrap();
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("No space left on device"), "{said}");

        let report = status(&dir);
        let used = report["metadata_used_bytes"].as_u64().unwrap();
        assert_eq!(report["metadata_limit_bytes"], LIMIT);
        assert!(used <= LIMIT / 2 && used > LIMIT / 3, "{used} of {LIMIT}");
        assert!(report["metadata_refused"].as_u64().unwrap() >= 1);
        let is_ill =
            || succeed(homenode(["status"]).arg(&dir)).contains(": requests refused as metadata memory was full");
        assert!(is_ill());
        let most = &report["metadata_by_user"][0];
        assert_eq!(most["uid"], 65534);
        let own = most["bytes"].as_u64().unwrap();
        assert!(own <= used && own > used - 4096, "{own} of {used}");
        let grown = anonymous_bytes(&dir).saturating_sub(before);
        assert!(grown > LIMIT / 3 && grown < LIMIT, "{used} counted, {grown} grown");
        let files = rustix::fs::statvfs(&dir).unwrap().f_ffree;
        assert!(
            files < files_before * 2 / 3,
            "df -i: {files_before} before, {files} now"
        );
        File::create(dir.join("another")).expect("others have room");

        for entry in fs::read_dir(&dir).unwrap() {
            fs::remove_file(entry.unwrap().path()).expect("removing needs no room");
        }
        wait_until("memory goes back", || anonymous_bytes(&dir) < before + LIMIT / 8);
        assert!(status(&dir)["metadata_used_bytes"].as_u64().unwrap() < 4096);
        assert!(!is_ill());
        down(&dir);
    });
}
