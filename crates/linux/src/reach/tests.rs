use super::*;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;

#[test]
fn reads_and_writes_of_one_tmpfs_are_counted_by_file_and_thread() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let metadata = fs::metadata(directory.path()).unwrap();
    let begun = Reach::begin(Filesystem::Tmpfs, metadata.dev());
    if let Err(why) = &begun
        // EPERM: some kernels let nobody hook into functions.
        && (refusal().is_some() || why.contains("(os error 1)"))
    {
        crate::skip(format_args!("{why}"));
        return;
    }
    let mut reach = begun.unwrap();
    let mut file = File::create_new(directory.path().join("file")).unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    let mut file = File::open(directory.path().join("file")).unwrap();
    file.rewind().unwrap();
    file.read_exact(&mut [0; 3000]).unwrap();
    let mut elsewhere = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    elsewhere.write_all(&[1; 500]).unwrap();
    let (reached, missed) = reach.take().unwrap();
    let me = fs::read_link("/proc/thread-self").unwrap();
    let thread: u32 = me.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let number = file.metadata().unwrap().ino();
    let ours: Vec<_> = reached.iter().filter(|entry| entry.thread == thread).collect();
    assert!(ours.iter().all(|entry| entry.file == number), "{ours:?}");
    let sum = |bytes: fn(&Reached) -> u64| ours.iter().map(|entry| bytes(entry)).sum::<u64>();
    assert_eq!(
        (sum(|entry| entry.read_bytes), sum(|entry| entry.written_bytes)),
        (3000, 10_000)
    );
    assert_eq!(missed, 0);
    let (again, _) = reach.take().unwrap();
    assert!(again.iter().all(|entry| entry.file != number), "counted once");
}

#[test]
fn truncated_counts_are_refused() {
    let mut bytes = vec![7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(decode(&bytes), Some((Vec::new(), 7)));
    bytes.extend([0; 31]);
    assert_eq!(decode(&bytes), None);
    bytes.push(0);
    assert_eq!(decode(&bytes).unwrap().0.len(), 1);
    assert_eq!(decode(&[0; 7]), None);
}
