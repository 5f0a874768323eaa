//! Code that targets share: checks for every request that a decoder gives, and a directory for files.

use homenode_fuse::wire::Request;
use std::env;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process;

/// Checks that names are names, lengths are right, and everything borrowed lies in one of `areas`, the decoder's input.
pub fn check(request: Request<'_>, areas: &[Range<*const u8>]) {
    let inside = |part: &[u8]| {
        let Range { start, end } = part.as_ptr_range();
        assert!(part.is_empty() || areas.iter().any(|area| area.start <= start && end <= area.end));
    };
    let name = |part: &[u8]| {
        inside(part);
        assert!(!part.is_empty() && !part.contains(&b'/') && !part.contains(&0));
    };
    match request {
        Request::Lookup { name: one }
        | Request::MkDir { name: one, .. }
        | Request::MkNod { name: one, .. }
        | Request::Create { name: one, .. }
        | Request::Link { name: one, .. }
        | Request::Unlink { name: one }
        | Request::RmDir { name: one } => name(one),
        Request::Rename {
            name: one,
            new_name: two,
            ..
        } => {
            name(one);
            name(two);
        }
        Request::SymLink { name: one, target } => {
            name(one);
            inside(target);
        }
        Request::Write { input, data } => {
            inside(data);
            assert_eq!(data.len(), input.size as usize);
        }
        Request::SetXattr { input, name, value } => {
            inside(name);
            inside(value);
            assert_eq!(value.len(), input.size as usize);
        }
        Request::GetXattr { name, .. } | Request::RemoveXattr { name } => inside(name),
        Request::BatchForget(forgets) => {
            let bytes: usize = areas.iter().map(|area| area.end as usize - area.start as usize).sum();
            assert!(forgets.count() * 16 < bytes);
        }
        _ => {}
    }
}

/// An empty directory of this process, in memory where there is one; it stays.
pub fn scratch(name: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { env::temp_dir() };
    let directory = above.join(format!("homenode-fuzz-{name}-{}", process::id()));
    fs::create_dir_all(&directory).expect("the file can be written");
    directory
}
