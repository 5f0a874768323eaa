//! `homenode pool create`, `import`, `list` and `export`: durable pools, and the files and disks that are their members.

use super::known::{self, Known};
use super::leaving;
use super::mounted::{self, Mounted, Server};
use crate::argument;
use crate::control::client::refuse_unserved;
use crate::directory::is_link;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::shown;
use crate::progress::Progress;
use crate::signals;
use crate::topology::human_bytes;
use crate::waiting;
use clap::Args;
use homenode::{Error, Found, MemberKind, Membership, Pool, PoolName, PoolOptions, Size};
use homenode_linux::memory::MemberFileError;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Memory of the cache of a pool that a command has up for a moment.
const CACHE_BYTES: u64 = 64 << 20;

/// Sources that mount(8) is given for a pool of memory, which no other pool can be called.
pub(crate) const RESERVED: [&str; 2] = ["homenode", "none"];

/// Create a durable pool on files, disks or persistent memory. The pool keeps its contents when its server ends or is killed; with disks, a kill loses as much as a power cut. After a power cut it keeps all synced data.
///
/// `homenode up NAME DIR` mounts the pool. If the command fails or is interrupted, it removes the files it created, and releases disk space it took for
/// existing files. Only the owner may open a file that the command creates. Users who may open a member have access to everything in the pool, and can lock the file
/// (flock(2)), which keeps the pool from being opened.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the pool: letters, digits, `-`, `_` and `.`.
    #[arg(value_name = "NAME")]
    name: PoolName,
    /// Size of the pool's cache for its disks, in bytes; `homenode up --cache` overrides it. Default: a quarter of
    /// each node's memory, or half of what is free there if that is less.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    cache: Option<u64>,
    #[command(flatten)]
    files: FilesArgs,
}

/// The files of a new pool.
#[derive(Args, Debug)]
pub(crate) struct FilesArgs {
    /// A file, disk or device for each member. An existing file keeps its size; a missing file is created. A file on a disk's filesystem becomes a `file` member. A file on
    /// persistent memory (DAX) or a tmpfs becomes a `pmem` member, and so does a device of persistent memory (/dev/dax0.0), taken as a whole. A disk or
    /// partition becomes a `block` member, taken as a whole; name it as in /dev/disk/by-id, since other names may change when the machine starts.
    #[arg(required = true, value_name = "PATH")]
    members: Vec<PathBuf>,
    /// Size of each file to create: bytes (512M, 1.5G, 2T).
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    size: Option<u64>,
    /// Do not fill the files with zeros first. The command is then quick, but the first fsync of each block takes
    /// twice as long.
    #[arg(long)]
    unwritten: bool,
    /// Bypass the page cache of the files, as for disks: the files become `block` members, cached in the pool's own memory.
    #[arg(long)]
    direct: bool,
    /// Also take files and disks that hold other data, and overwrite that data: a filesystem, partitions, or a pool that is not known here.
    #[arg(long, short)]
    force: bool,
}

/// Record a durable pool's name on this machine, so that `homenode up NAME DIR` finds its members.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// Files of all members, or directories to search for them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Name to record. Default: the name recorded already, else the name the pool was created with.
    #[arg(long, value_name = "NAME")]
    name: Option<PoolName>,
    /// UUID of the pool, if the directories hold members of several pools.
    #[arg(long, value_name = "UUID")]
    uuid: Option<String>,
    /// Replace another pool recorded under that name, or another name recorded for this pool.
    #[arg(long, short)]
    force: bool,
}

/// List the durable pools recorded on this machine.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Print JSON; sizes in bytes.
    #[arg(long)]
    json: bool,
}

/// Export a durable pool, so that its files can go to another machine: make all data durable, and forget its name here. Also ends block
/// devices of its volumes that a killed server left waiting, unless they are in use.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Name of the pool.
    #[arg(value_name = "NAME")]
    name: PoolName,
    /// Forget the name of a pool that cannot be opened. Its files are not changed. Waiting block devices end although they are in use.
    #[arg(long, short)]
    force: bool,
}

pub(crate) fn create(args: &CreateArgs) -> Result<()> {
    if known::find(&args.name)?.is_some() {
        fail!(
            "a pool {0} is known here already: take another name, or `homenode pool export {0}` first",
            args.name
        );
    }
    if let Some(bytes) = args.cache {
        homenode::check_cache(bytes)?;
    }
    // What cannot be recorded is not made.
    known::check()?;
    for path in &args.files.members {
        to_text(path)?;
    }
    let (members, bytes, mut made) = make(&args.name, &args.files)?;
    let is_all_new = made.0.len() == members.len();
    let noted = note(&args.name, members, args.cache);
    if !is_all_new || !matches!(noted, Ok(false)) {
        made.keep();
    }
    match noted {
        Ok(true) => {}
        // Its files go.
        Ok(false) if is_all_new => {
            fail!(
                "another pool was recorded as {} meanwhile: take another name",
                args.name
            );
        }
        Ok(false) => fail!(
            "another pool was recorded as {} meanwhile: `homenode pool import --name` with these files records this one by another name",
            args.name
        ),
        Err(failure) => fail!(
            "pool {} is made, but its name is not recorded: {failure}; `homenode pool import` with its files records it",
            args.name
        ),
    }
    crate::print_line(&format!(
        "made pool {0} of {1}: `homenode up {0} DIR` mounts it",
        args.name,
        human_bytes(bytes)
    ))
}

/// Makes a pool, and the files that are missing; gives the members' absolute paths, the bytes for files, and the files that go again unless they are kept.
pub(crate) fn make(name: &PoolName, args: &FilesArgs) -> Result<(Vec<PathBuf>, u64, Made)> {
    refuse_reserved(name)?;
    let interrupt = Interrupt::new()?;
    let (mut made, mut made_files, mut takes_from) = (Made::default(), Vec::new(), Vec::new());
    for path in &args.members {
        let is_there = is_there(path)?;
        if let Ok(found) = homenode::member_of(path)
            && args.force
            && known::name_of(found.uuid)?.is_none()
        {
            takes_from.push(found.uuid);
        }
        let mut file = None;
        if !is_there {
            file = Some(made.make(path, args.size)?);
        } else if let Some(size) = args.size {
            check_size(path, size, args.force)?;
        }
        made_files.push(file);
    }
    let members = args
        .members
        .iter()
        .map(|path| absolute(path))
        .collect::<Result<Vec<_>>>()?;
    let options = PoolOptions {
        name: *name,
        unwritten: args.unwritten,
        direct: args.direct,
        cache: Some(CACHE_BYTES),
        takes_from,
        overwrites: args.force,
        made: made_files,
        interrupted: Some(Arc::clone(&interrupt.is_set)),
        ..PoolOptions::default()
    };
    let progress = Progress::new("writing each place of the files once");
    let pool = Pool::create_on(&members, &options);
    drop(progress);
    if pool.is_err() && interrupt.is_set.load(Ordering::Relaxed) {
        interrupt.give_up(&made);
    }
    if let (Err(Error::SmallFile { path, least_bytes, .. }), Some(size)) = (&pool, args.size)
        && made
            .0
            .iter()
            .any(|made| absolute(&made.path).is_ok_and(|made| made == *path))
    {
        fail!(
            "{} cannot be made: --size asks for {size} B, and a file needs at least {least_bytes} B",
            shown(path)
        );
    }
    // Closed, it is on the disk.
    pool?.put_away()?;
    members.iter().for_each(|path| tell_of_others(path));
    let on_memory = members.iter().filter(|path| is_on_memory(path));
    let on_memory: Vec<String> = on_memory.map(|path| shown(path)).collect();
    if !on_memory.is_empty() {
        complain!("homenode: {} memory: this pool lasts until reboot", are(&on_memory));
    }
    // As `homenode pool list` tells it.
    let bytes = homenode::find_members(&members)?.bytes;
    Ok((members, bytes, made))
}

/// Signals that end the making of a pool.
struct Interrupt {
    is_set: Arc<AtomicBool>,
    /// The signal.
    number: Arc<AtomicUsize>,
}

impl Interrupt {
    fn new() -> Result<Self> {
        let (is_set, number) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        for signal in signals::that_end() {
            let value = usize::try_from(signal).expect("signals are positive");
            let registered = flag::register_usize(signal, Arc::clone(&number), value)
                .and_then(|_| flag::register(signal, Arc::clone(&is_set)));
            registered.cannot("listen for signals")?;
        }
        Ok(Self { is_set, number })
    }

    /// Removes the files that were made, says so, and ends the process as a shell expects it.
    fn give_up(&self, made: &Made) -> ! {
        made.remove();
        let names: Vec<String> = made.0.iter().map(|made| shown(&made.path)).collect();
        let removed = match &names[..] {
            [] => String::new(),
            names => format!(", and {} removed, made by this command", are(names)),
        };
        complain!("homenode: interrupted: no pool was made{removed}; existing files are unchanged");
        let signal = i32::try_from(self.number.load(Ordering::Relaxed)).unwrap_or(SIGINT);
        std::process::exit(128 + signal)
    }
}

/// Names things, with a verb: `/a is`, `/a, /b are`.
fn are(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn refuse_reserved(name: &PoolName) -> Result<()> {
    if RESERVED.contains(&name.as_str()) {
        fail!("{name} stands for a pool of memory in mount(8): take another name");
    }
    Ok(())
}

/// The absolute path of a file that is to be a member of a pool that is up, and may not be there yet. Refuses a `size` that is not the file's, unless
/// the user insists.
pub(crate) fn to_be_added(path: &Path, size: Option<u64>, is_forced: bool) -> Result<String> {
    let is_there = is_there(path)?;
    if let Some(size) = size {
        check_size(path, size, is_forced)?;
    }
    let path = match (path.file_name(), path.parent()) {
        (Some(name), Some(parent)) if !is_there => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            absolute(parent)?.join(name)
        }
        _ => absolute(path)?,
    };
    to_text(&path)
}

/// A path as the pool's record has it.
fn to_text(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.cannot(format_args!("look at {}", shown(path)))?;
    absolute.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(format!(
            "the name of {} is not UTF-8: give the file another one",
            shown(path)
        ))
    })
}

/// Refuses a `--size` that is not that of a file, unless the user insists; says where it changes nothing.
fn check_size(path: &Path, size: u64, is_forced: bool) -> Result<()> {
    let name = shown(path);
    match fs::metadata(path) {
        // Whoever opens it refuses it.
        Ok(found) if found.is_dir() => {}
        Ok(found) if !found.is_file() => {
            complain!("homenode: {name} is a device: the pool takes all of it and ignores --size");
        }
        Ok(found) if found.len() != size => {
            let (bytes, asked) = (human_bytes(found.len()), human_bytes(size));
            if !is_forced {
                fail!(
                    "{name} exists and has {bytes}, where --size asks for {asked}: leave --size out to take it as it is, or remove it"
                );
            }
            complain!("homenode: {name} exists and keeps its {bytes}; --size is ignored");
        }
        _ => {}
    }
    Ok(())
}

/// Files that go again unless their pool is made.
#[derive(Default)]
pub(crate) struct Made(Vec<MadeFile>);

struct MadeFile {
    path: PathBuf,
    /// Directory that it was made in, whatever becomes of that one's path.
    parent: OwnedFd,
    /// Locked, so that it is nobody else's when it goes.
    file: Arc<fs::File>,
}

impl Made {
    /// The files stay.
    pub(crate) fn keep(&mut self) {
        self.0.clear();
    }

    /// Makes a file, and locks it.
    pub(crate) fn make(&mut self, path: &Path, size: Option<u64>) -> Result<Arc<fs::File>> {
        if path.starts_with("/dev/") && !path.starts_with("/dev/shm/") {
            fail!("there is no device {}: `lsblk` lists the disks", shown(path));
        }
        let Some(size) = size else {
            fail!(
                "{} does not exist: give --size to create it, or create it yourself (truncate -s 10G)",
                shown(path)
            );
        };
        let cannot = |error: io::Error| Failure::new(format!("cannot make {}: {error}", shown(path)));
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = path.file_name().ok_or_else(|| cannot(ErrorKind::InvalidInput.into()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
            Err(Errno::NOENT) => fail!(
                "cannot make {}: the directory {} does not exist: create it first",
                shown(path),
                shown(parent)
            ),
            opened => opened.map_err(|errno| cannot(errno.into()))?,
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // What is in it is for whom the pool's own modes say.
        let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR);
        if matches!(file, Err(Errno::EXIST)) && is_link(path) {
            fail!(
                "{} is a link to a file that does not exist: create that file, or give its own name",
                shown(path)
            );
        }
        let file = Arc::new(fs::File::from(file.map_err(|errno| cannot(errno.into()))?));
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            fail!("{} was just made, and another command uses it already", shown(path));
        }
        self.0.push(MadeFile {
            path: path.to_owned(),
            parent,
            file: Arc::clone(&file),
        });
        match file.set_len(size) {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => fail!(
                "cannot make {}: its filesystem has no files of {}: give a smaller --size",
                shown(path),
                human_bytes(size)
            ),
            set => set.map_err(cannot)?,
        }
        Ok(file)
    }
}

impl Made {
    /// Removes the files, but what has taken their places.
    fn remove(&self) {
        for made in &self.0 {
            let Some(name) = made.path.file_name() else { continue };
            let found = rustix::fs::statat(&made.parent, name, AtFlags::SYMLINK_NOFOLLOW);
            let is_it = |own: Metadata| found.is_ok_and(|found| (found.st_dev, found.st_ino) == (own.dev(), own.ino()));
            if made.file.metadata().is_ok_and(is_it) {
                let _ = rustix::fs::unlinkat(&made.parent, name, AtFlags::empty());
            }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether users besides the owner may open a file, as its modes say.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o077 != 0)
}

/// Says of such a file what they can do with it as a member.
pub(crate) fn open_to_others(path: &Path) -> String {
    format!(
        "users who may open {0} have access to everything in the pool, and can keep it down by a lock: `chmod 600 {0}` prevents both",
        shown(path)
    )
}

/// Says of a file that has become a member what others can do with it.
pub(crate) fn tell_of_others(path: &Path) {
    if is_open_to_others(path) {
        complain!("homenode: {}", open_to_others(path));
    }
}

/// Whether there is a file.
fn is_there(path: &Path) -> Result<bool> {
    refuse_unserved(path)?;
    path.try_exists().cannot(format_args!("look at {}", shown(path)))
}

/// A name that stays: a link to a disk is not resolved, as the disk may be called otherwise when the machine starts the next time.
fn absolute(path: &Path) -> Result<PathBuf> {
    let resolved = if is_disk(path) {
        std::path::absolute(path)
    } else {
        fs::canonicalize(path)
    };
    resolved.cannot(format_args!("look at {}", shown(path)))
}

/// Whether a file lies on a filesystem that loses its files with the power: a tmpfs, as /dev/shm is, or a ramfs.
fn is_on_memory(path: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58F6;
    let found = rustix::fs::statfs(path);
    let is_memory = found.is_ok_and(|found| [TMPFS, RAMFS].map(i64::from).contains(&found.f_type));
    // A device's node lies on such a filesystem, and its bytes elsewhere.
    is_memory && path.is_file()
}

fn is_disk(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Makes a new pool known by its members. Returns false if another one has the name by now.
fn note(name: &PoolName, members: Vec<PathBuf>, cache_bytes: Option<u64>) -> Result<bool> {
    let first = homenode::member_of(&members[0])?;
    let uuid = format!("{:032x}", first.uuid);
    let known = Known {
        uuid,
        members,
        cache_bytes,
        options: Vec::new(),
    };
    known::put_new(name, &known)
}

pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    let mut found = BTreeMap::<u128, (PoolName, Vec<PathBuf>)>::new();
    let mut note = |path, membership: Membership| {
        let (_, files) = found.entry(membership.uuid).or_insert((membership.name, Vec::new()));
        files.push(path);
    };
    for path in &args.paths {
        let path = absolute(path)?;
        if path.is_dir() {
            for path in files_in(&path)? {
                // Others lie there too.
                if let Ok(membership) = homenode::member_of(&path) {
                    note(path, membership);
                }
            }
        } else {
            let membership = homenode::member_of(&path)?;
            note(path, membership);
        }
    }
    if let Some(uuid) = &args.uuid {
        let wanted = u128::from_str_radix(&uuid.replace('-', ""), 16);
        let wanted = wanted.map_err(|_| Failure::new(format!("{uuid} is no UUID: write its 32 hexadecimal digits")))?;
        found.retain(|uuid, _| *uuid == wanted);
    }
    if found.len() > 1 {
        let all = found.iter().map(|(uuid, (name, _))| format!("{uuid:032x} ({name})"));
        let all = all.collect::<Vec<_>>().join(", ");
        fail!("members of several pools were found: choose one by --uuid: {all}");
    }
    let Some((_, (_, mut files))) = found.pop_first() else {
        fail!("no member of a pool was found there");
    };
    files.sort_unstable();
    files.dedup();
    let pool = homenode::find_members(&files)?;
    let known_as = unless_forced(known::name_of(pool.uuid), args.force)?;
    let name = args.name.or(known_as).unwrap_or(pool.name);
    refuse_reserved(&name)?;
    if name == PoolName::default() {
        fail!("the pool was made without a name: give one by --name");
    }
    let uuid = format!("{:032x}", pool.uuid);
    if let Some(known) = unless_forced(known::find(&name), args.force)?
        && known.uuid != uuid
        && !args.force
    {
        fail!("another pool is known as {name} already: give this one a name by --name, or replace it by --force");
    }
    let earlier = known_as.filter(|known_as| *known_as != name);
    if let (Some(earlier), false) = (earlier, args.force) {
        fail!("the pool is known as {earlier} already: --force gives it the name {name} instead");
    }
    let told = named(&pool.members, &names(&pool.kinds)).join(", ");
    let (cache_bytes, options) = known::kept_of(&known_as.unwrap_or(name), &uuid);
    let known = Known {
        uuid,
        members: pool.members,
        cache_bytes,
        options,
    };
    known::put(&name, &known)?;
    if let Some(earlier) = earlier {
        known::forget(&earlier)?;
    }
    let earlier = earlier.map_or_else(String::new, |earlier| format!(", and no longer as {earlier}"));
    crate::print_line(&format!(
        "pool {name} is known{earlier}: `homenode up {name} DIR` mounts it; its members are {told}"
    ))
}

/// Takes a note that cannot be read for none: by force it is written anew.
fn unless_forced<T>(found: Result<Option<T>>, force: bool) -> Result<Option<T>> {
    if force { Ok(found.unwrap_or(None)) } else { found }
}

fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let cannot = |error: io::Error| Failure::new(format!("cannot list {}: {error}", shown(directory)));
    let entries = fs::read_dir(directory).map_err(cannot)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: Vec<PathBuf> = paths.collect::<io::Result<_>>().map_err(cannot)?;
    // Links to a disk lie side by side.
    let mut disks = BTreeSet::new();
    let is_new = |path: &PathBuf| path.is_file() || is_disk(path) && disks.insert(fs::canonicalize(path).ok());
    Ok(paths.into_iter().filter(is_new).collect())
}

/// Members with their kinds, where these are known.
fn named(members: &[PathBuf], kinds: &[&str]) -> Vec<String> {
    let kinds = kinds.iter().map(Some).chain(std::iter::repeat(None));
    let member = |(path, kind): (&PathBuf, Option<&&str>)| match kind {
        Some(kind) => format!("{} ({kind})", shown(path)),
        None => shown(path),
    };
    members.iter().zip(kinds).map(member).collect()
}

fn names(kinds: &[MemberKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.name()).collect()
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    uuid: String,
    /// Bytes of the members, where all are known.
    bytes: Option<u64>,
    members: Vec<PathBuf>,
    /// Kind of each member (`file`, `pmem`, `block`), where all are known.
    kinds: Vec<&'static str>,
    /// Mount points whose servers live.
    mounted_on: Vec<String>,
    /// Mount points whose servers were killed.
    dead_on: Vec<String>,
    /// It is mounted, and can only be read because a member could not be written.
    failed: bool,
    /// Reason why it cannot be mounted.
    problem: Option<String>,
}

impl Listed {
    fn state(&self) -> String {
        match (&self.mounted_on[..], &self.dead_on[..], &self.problem) {
            ([first, ..], ..) if self.failed => {
                format!(
                    "mounted on {0}, READ ONLY: `homenode status {0}`",
                    shown(Path::new(first))
                )
            }
            (places, ..) if !places.is_empty() => {
                let places: Vec<String> = places.iter().map(|place| shown(Path::new(place))).collect();
                format!("mounted on {}", places.join(", "))
            }
            (_, _, Some(problem)) => problem.clone(),
            (_, [first, ..], _) => format!("not mounted: its server on {} was killed", shown(Path::new(first))),
            _ => "not mounted".to_owned(),
        }
    }
}

pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let mounts = mounted::all().cannot("read the mount table")?;
    let mut pools = Vec::new();
    for name in known::names()? {
        let mut listed = Listed {
            name: name.to_string(),
            uuid: String::new(),
            bytes: None,
            members: Vec::new(),
            kinds: Vec::new(),
            mounted_on: Vec::new(),
            dead_on: Vec::new(),
            failed: false,
            problem: None,
        };
        match known::find(&name) {
            Ok(Some(known)) => {
                match look_at(&known) {
                    Ok(found) => {
                        listed.bytes = Some(found.bytes);
                        listed.kinds = names(&found.kinds);
                        listed.members = found.members;
                    }
                    Err(failure) => listed.problem = Some(failure.to_string()),
                }
                listed.uuid = known.uuid;
                if listed.members.is_empty() {
                    listed.members = known.members;
                }
            }
            // Exported since.
            Ok(None) => continue,
            Err(failure) => listed.problem = Some(failure.to_string()),
        }
        for Mounted { mount, server } in mounts.iter().filter(|mount| mount.is_of(&listed.name, &listed.uuid)) {
            let is_dead = matches!(server, Server::Dead);
            let place = if is_dead {
                &mut listed.dead_on
            } else {
                &mut listed.mounted_on
            };
            place.push(mount.mount_point.to_string_lossy().into_owned());
            listed.failed |= matches!(server, Server::Answers(report) if report.has_failed());
        }
        pools.push(listed);
    }
    if args.json {
        return crate::print_json(&pools);
    }
    let states: Vec<String> = pools.iter().map(Listed::state).collect();
    let width = states
        .iter()
        .map(|state| state.chars().count())
        .max()
        .unwrap_or(0)
        .max(11);
    let mut text = format!("{:<20} {:>10}  {:<width$}  MEMBERS\n", "NAME", "SIZE", "STATE");
    for (pool, state) in pools.iter().zip(states) {
        let size = pool.bytes.map_or("?".to_owned(), human_bytes);
        let members = named(&pool.members, &pool.kinds).join(" ");
        let _ = writeln!(text, "{:<20} {size:>10}  {state:<width$}  {members}", pool.name);
    }
    crate::print_text(&text)
}

/// Members of a pool, or why it cannot be mounted.
fn look_at(known: &Known) -> Result<Found> {
    let found = homenode::find_members(&known.members)?;
    if format!("{:032x}", found.uuid) != known.uuid {
        fail!("its files belong to pool {:032x}", found.uuid);
    }
    Ok(found)
}

pub(crate) fn export(args: &ExportArgs) -> Result<()> {
    // Opened and closed: what a killed server left in this machine's memory is on the files then. Nothing is added to the pool, so it needs
    // no limits: `up --metadata` may have allowed it more than the default.
    let options = PoolOptions {
        cache: Some(CACHE_BYTES),
        metadata: Some(Size::Bytes(u64::MAX)),
        files_max: Some(u64::MAX),
        ..PoolOptions::default()
    };
    let open = |members: Vec<PathBuf>| leaving::wait(|| Pool::open_on(&members, &options));
    let opened = known::members_of(&args.name).map(open);
    let is_in_use = matches!(&opened, Ok(Err(Error::MemberFile(MemberFileError::InUse { .. }))));
    let opened = opened.and_then(|pool| Ok(pool?));
    if let Err(failure) = &opened {
        if is_in_use {
            fail!("{failure}");
        }
        let uuid = known::uuid_of(&args.name).map_or_else(String::new, |uuid| format!("{uuid:032x}"));
        let mounts = mounted::all().cannot("read the mount table")?;
        let lives = |mount: &&Mounted| !matches!(mount.server, Server::Dead) && mount.is_of(args.name.as_str(), &uuid);
        if let Some(Mounted { mount, .. }) = mounts.iter().find(lives) {
            let place = shown(&mount.mount_point);
            fail!(
                "{failure}; the pool {} is mounted on {place}: `homenode down {place}` first",
                args.name
            );
        }
        if !args.force {
            fail!("{failure}; --force forgets the name anyway");
        }
        complain!("homenode: {failure}");
    }
    let members = known::members_of(&args.name).unwrap_or_default();
    if let Some(uuid) = known::uuid_of(&args.name) {
        // Of a server that was killed. A copy leaves those of the original.
        let mut waiting = waiting::of_pool(uuid);
        waiting.retain(|device| !device.is_beside(&members));
        waiting::end(&waiting, args.force)?;
    }
    let closed = opened
        .as_ref()
        .map_or(Ok(()), |pool| pool.put_away().map_err(Failure::from));
    if let Err(failure) = closed {
        let what = format!(
            "the pool {} could not be closed, and is as after a crash: {failure}",
            args.name
        );
        if !args.force {
            fail!(
                "{what}: `homenode fsck {}` checks it; --force forgets the name anyway",
                args.name
            );
        }
        complain!("homenode: {what}");
    }
    // Before the pool can be opened again: an `up` that waits for it is to find no name.
    known::forget(&args.name)?;
    drop(opened);
    if let Some(lost) = members.iter().find(|member| !member.exists()) {
        return crate::print_line(&format!(
            "forgot the name {}; {} is not there, and `homenode pool import` needs the files of all members",
            args.name,
            shown(lost)
        ));
    }
    crate::print_line(&format!(
        "exported pool {}; `homenode pool import` records it again, on this or another machine",
        args.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_were_made_are_removed() {
        let directory = std::env::temp_dir().join(format!("homenode-made-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let [stays, goes] = ["stays", "goes"].map(|name| directory.join(name));
        let mut made = Made::default();
        for path in [&stays, &goes] {
            made.make(path, Some(4096)).unwrap();
        }
        fs::write(directory.join("another"), "of somebody").unwrap();
        fs::rename(directory.join("another"), &stays).unwrap();
        drop(made);
        assert_eq!(fs::read_to_string(&stays).unwrap(), "of somebody");
        assert!(!goes.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
