//! mknod(2): pipes, sockets and device nodes.

use crate::actor::{ALICE, apart, as_user};
use crate::observe::{look, moved, permissions, sectors};
use crate::stage::{assert_errno, mode, open, stage};
use rustix::fs::{CWD, FileType, OFlags, makedev, mkfifoat, mknodat};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

/// A pipe with mode 0644.
pub(crate) fn make_fifo(path: &Path) {
    mkfifoat(CWD, path, mode(0o644)).expect("a new pipe can be made");
}

fn kind(path: &Path) -> FileType {
    FileType::from_raw_mode(look(path).st_mode)
}

#[test]
fn a_pipe_carries_bytes_between_processes() {
    let stage = stage!();
    let fifo = stage.at("fifo");
    make_fifo(&fifo);
    assert_eq!(
        (kind(&fifo), permissions(&fifo), look(&fifo).st_size),
        (FileType::Fifo, 0o644, 0)
    );
    let mut child = Command::new("cat").arg(&fifo).stdout(Stdio::piped()).spawn().unwrap();
    let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    writer.write_all(b"through the pipe").unwrap();
    drop(writer);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text, "through the pipe");
}

#[test]
fn writing_a_pipe_without_a_reader_fails() {
    let stage = stage!();
    let fifo = stage.at("fifo");
    make_fifo(&fifo);
    assert_errno!(open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK), NXIO);
    let reader = open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK).unwrap();
    assert_eq!(
        rustix::io::read(&reader, &mut [0; 10]).unwrap(),
        0,
        "no writer: end of file"
    );
    let writer = open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK).unwrap();
    rustix::io::write(&writer, b"abc").unwrap();
    assert_errno!(rustix::fs::seek(&reader, rustix::fs::SeekFrom::Start(0)), SPIPE);
    let mut bytes = [0; 10];
    assert_eq!(rustix::io::read(&reader, &mut bytes).unwrap(), 3);
    assert_eq!(look(&fifo).st_size, 0);
}

#[test]
fn a_socket_is_bound_and_reached_by_name() {
    let stage = stage!();
    let path = stage.at("socket");
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(kind(&path), FileType::Socket);
    assert_errno!(open(&path, OFlags::RDONLY), NXIO);
    let refused = UnixListener::bind(&path).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    let mut client = UnixStream::connect(&path).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"ping").unwrap();
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
    drop((listener, server));
    assert!(
        UnixStream::connect(&path).is_err(),
        "the name is there, the listener is not"
    );
}

#[test]
fn device_nodes_keep_their_numbers() {
    let stage = stage!();
    let devices = [
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("loop", FileType::BlockDevice, makedev(7, 200)),
        ("large", FileType::CharacterDevice, makedev(4095, 0xf_ffff)),
    ];
    for (name, file_type, device) in devices {
        let path = stage.at(name);
        let times = moved([stage.path()], || {
            mknodat(CWD, &path, file_type, mode(0o600), device).unwrap()
        });
        assert_eq!(times, ["mc"]);
        assert_eq!((kind(&path), look(&path).st_rdev), (file_type, device), "{name}");
        assert_eq!((look(&path).st_size, sectors(&path)), (0, 0));
        assert_errno!(mknodat(CWD, &path, file_type, mode(0o600), device), EXIST);
    }
    std::fs::write(stage.at("null"), b"swallowed").unwrap();
}

#[test]
fn mknod_makes_regular_files() {
    let stage = stage!();
    apart(|| {
        rustix::process::umask(mode(0o027));
        let path = stage.at("file");
        mknodat(CWD, &path, FileType::RegularFile, mode(0o666), 0).unwrap();
        assert_eq!((kind(&path), permissions(&path)), (FileType::RegularFile, 0o640));
        mkfifoat(CWD, stage.at("fifo"), mode(0o666)).unwrap();
        assert_eq!(permissions(stage.at("fifo")), 0o640);
        std::fs::write(&path, b"usable").unwrap();
    });
    assert_errno!(mknodat(CWD, stage.at("dir"), FileType::Directory, mode(0o755), 0), PERM);
}

#[test]
fn only_privileged_users_make_device_nodes() {
    let stage = stage!();
    rustix::fs::chmod(stage.path(), mode(0o777)).unwrap();
    as_user(ALICE, &[], || {
        let device = makedev(1, 3);
        assert_errno!(
            mknodat(CWD, stage.at("null"), FileType::CharacterDevice, mode(0o600), device),
            PERM
        );
        mkfifoat(CWD, stage.at("fifo"), mode(0o600)).unwrap();
        mknodat(CWD, stage.at("file"), FileType::RegularFile, mode(0o600), 0).unwrap();
    });
    assert_eq!(
        (look(stage.at("fifo")).st_uid, look(stage.at("fifo")).st_gid),
        (ALICE, ALICE)
    );
}

#[test]
fn special_files_have_times_and_owners() {
    let stage = stage!();
    let fifo = stage.at("fifo");
    make_fifo(&fifo);
    assert_eq!(moved([&fifo], || rustix::fs::chmod(&fifo, mode(0o600)).unwrap()), ["c"]);
    let to = stage.at("to");
    assert_eq!(moved([&fifo], || rustix::fs::rename(&fifo, &to).unwrap()), ["c"]);
    crate::stage::truncate(&to, 0).expect_err("a pipe has no length");
    assert_errno!(crate::stage::truncate(&to, 0), INVAL);
}
