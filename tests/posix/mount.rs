//! The filesystem under test: one mount for the whole test binary, and small mounts that a test fills up.
//!
//! With `HOMENODE_TEST_DIR=/some/dir` the suite runs on that directory instead, which is how the tests themselves are proven:
//! on a tmpfs every one of them must pass. Small mounts are then tmpfs too.
//!
//! `HOMENODE_TEST_TRANSPORT=uring` or `classic` says how requests travel, `HOMENODE_TEST_DATA=kernel` or `pool` what holds the
//! bytes; without them `homenode up` chooses.
//!
//! Invariant: no mount outlives its test binary. A shell waits on a pipe that only the test binary holds; when the binary ends,
//! however it ends, the pipe closes and the shell takes the mount down.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What serves the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The built binary.
    Homenode,
    /// The directory of `HOMENODE_TEST_DIR`, or a tmpfs made to go with it.
    Reference,
}

/// A mounted filesystem. Dropping it takes it down.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
    pub(crate) kind: Kind,
    /// Whether files of the kernel hold the bytes.
    pub(crate) is_kernel: bool,
    /// Absent where somebody else owns the directory.
    janitor: Option<Child>,
}

/// Bytes per node of the mount that all tests share.
const SHARED_SIZE: &str = "512M";

/// The mount that all tests of this binary share; `None`, and a line that says why, where it cannot be.
pub(crate) fn shared() -> Option<&'static Mount> {
    static SHARED: OnceLock<Result<Mount, String>> = OnceLock::new();
    if skipped() {
        return None;
    }
    let mount = SHARED.get_or_init(|| match std::env::var_os("HOMENODE_TEST_DIR") {
        Some(dir) => Ok(Mount {
            dir: PathBuf::from(dir),
            kind: Kind::Reference,
            is_kernel: false,
            janitor: None,
        }),
        None => Mount::up(Kind::Homenode, SHARED_SIZE),
    });
    match mount {
        Ok(mount) => Some(mount),
        Err(why) => panic!("the filesystem under test did not come up: {why}"),
    }
}

/// A mount of `size` (such as `64M`) of the caller's own, to be filled or taken down.
pub(crate) fn small(size: &str) -> Option<Mount> {
    if skipped() {
        return None;
    }
    let kind = match std::env::var_os("HOMENODE_TEST_DIR") {
        Some(_) => Kind::Reference,
        None => Kind::Homenode,
    };
    match Mount::up(kind, size) {
        Ok(mount) => Some(mount),
        Err(why) => panic!("a small mount did not come up: {why}"),
    }
}

/// Whether nothing can be mounted here; says so past the test harness's capture.
fn skipped() -> bool {
    static SAID: OnceLock<bool> = OnceLock::new();
    *SAID.get_or_init(|| {
        let reason = if !rustix::process::geteuid().is_root() {
            "mounting needs root"
        } else if std::env::var_os("HOMENODE_TEST_DIR").is_none() && !Path::new("/dev/fuse").exists() {
            "there is no /dev/fuse"
        } else {
            return false;
        };
        skip(reason);
        true
    })
}

/// Says that tests are skipped, past the test harness's capture.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {reason} ({test})");
}

impl Mount {
    fn up(kind: Kind, size: &str) -> Result<Self, String> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("homenode-{}-{serial}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let janitor = janitor(kind, &dir).map_err(|error| format!("cannot start sh: {error}"))?;
        let mut mount = Self {
            dir,
            kind,
            is_kernel: false,
            janitor: Some(janitor),
        };
        let mut command = match kind {
            Kind::Homenode => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
                command.arg("up").arg(&mount.dir).args(["--size-per-node", size]);
                if let Some(transport) = transport() {
                    command.args(["--transport", &transport]);
                }
                if let Some(data) = data() {
                    command.args(["--data", &data]);
                }
                command
            }
            Kind::Reference => {
                let mut command = Command::new("mount");
                command
                    .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
                    .arg(&mount.dir);
                command
            }
        };
        // A file, not a pipe: a daemon may keep its standard error open for as long as it lives.
        let log = mount.dir.with_extension("log");
        let output = File::create(&log).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let status = command.stdin(Stdio::null()).stdout(output).stderr(errors).status();
        let said = fs::read_to_string(&log).unwrap_or_default();
        match status {
            Ok(status) if status.success() => {
                if kind == Kind::Homenode {
                    let (transport_in_use, data_in_use) = in_use(&mount.dir);
                    assert_eq!(
                        transport().unwrap_or(transport_in_use.clone()),
                        transport_in_use,
                        "transport"
                    );
                    let asked = data().filter(|data| data != "auto");
                    assert_eq!(asked.unwrap_or(data_in_use.clone()), data_in_use, "data");
                    mount.is_kernel = data_in_use == "kernel";
                }
                Ok(mount)
            }
            Ok(status) => Err(format!("{command:?} ended with {status}: {said}")),
            Err(error) => Err(format!("{command:?}: {error}")),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(mut janitor) = self.janitor.take() else { return };
        drop(janitor.stdin.take());
        let ended = janitor.wait();
        let clean = ended.as_ref().is_ok_and(|status| status.success());
        if !clean && !std::thread::panicking() {
            panic!("taking {} down failed: {ended:?}", self.dir.display());
        }
    }
}

/// What is to hold the bytes.
fn data() -> Option<String> {
    std::env::var("HOMENODE_TEST_DATA").ok()
}

/// The transport to be tested.
fn transport() -> Option<String> {
    std::env::var("HOMENODE_TEST_TRANSPORT").ok()
}

/// What the server of `dir` says its requests travel by, and what holds the bytes.
fn in_use(dir: &Path) -> (String, String) {
    let mut status = Command::new(env!("CARGO_BIN_EXE_homenode"));
    let output = status.args(["status", "--json"]).arg(dir).output();
    let output = output.expect("the command that mounted runs again").stdout;
    let status: serde_json::Value = serde_json::from_slice(&output).expect("status prints JSON");
    let name = |of: &str| status["pools"][0]["fuse"][of].as_str().expect("a name").to_owned();
    (name("transport"), name("data"))
}

/// A shell that takes `dir` down once its standard input closes. It fails if `homenode down` does.
fn janitor(kind: Kind, dir: &Path) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let down = match kind {
        // Children that other tests fork hold a file open until they have become another program.
        Kind::Homenode => r#"{ "$1" down "$2" || { sleep 1; "$1" down "$2"; }; }"#,
        Kind::Reference => r#"umount -l "$2""#,
    };
    let script = format!(
        r#"cat >/dev/null
        code=0
        if mountpoint -q "$2"; then {down} || {{ code=1; umount -l "$2"; }}; fi
        rm -f "$2.log"; rmdir "$2"; exit $code"#
    );
    Command::new("sh")
        .args(["-c", &script, "janitor", env!("CARGO_BIN_EXE_homenode")])
        .arg(dir)
        .stdin(Stdio::piped())
        // Out of reach of a ctrl-C that ends the test binary.
        .process_group(0)
        .spawn()
}
