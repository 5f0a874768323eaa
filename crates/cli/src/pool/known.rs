//! Durable pools that this machine knows by name: which files are their members.

use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::shown;
use homenode::PoolName;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Directory of one file for each pool.
const DIRECTORY: &str = "/etc/homenode/pools";
/// Variable that names another one.
const VARIABLE: &str = "HOMENODE_POOLS";

/// A pool's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    /// In hexadecimal digits.
    pub(crate) uuid: String,
    pub(crate) members: Vec<PathBuf>,
    /// Bytes of the cache for disks, unless another size is given when it comes up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache_bytes: Option<u64>,
    /// Options of `homenode up` for this pool, which those of a command line outrank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) options: Vec<String>,
}

impl Known {
    /// Refuses files that belong to another pool by now.
    fn refuse_others(&self, name: &PoolName) -> Result<()> {
        for path in &self.members {
            // What cannot be read is told by whoever opens it.
            if let Ok(found) = homenode::member_of(path)
                && format!("{:032x}", found.uuid) != self.uuid
            {
                fail!(
                    "{} is no longer a member of pool {name}, but of pool {:032x}: `homenode pool import` records the present pool",
                    shown(path),
                    found.uuid
                );
            }
        }
        Ok(())
    }
}

/// Asked for first before a server leaves its working directory, from which the variable's path may lead.
fn directory() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let named = std::env::var_os(VARIABLE).map_or_else(|| DIRECTORY.into(), PathBuf::from);
        std::path::absolute(&named).unwrap_or(named)
    })
}

pub(crate) fn path_of(name: &PoolName) -> PathBuf {
    directory().join(format!("{name}.toml"))
}

pub(crate) fn find(name: &PoolName) -> Result<Option<Known>> {
    let path = path_of(name);
    match fs::read_to_string(&path) {
        Ok(text) => match toml::from_str(&text) {
            Ok(known) => Ok(Some(known)),
            Err(error) => {
                let before = error.span().and_then(|span| text.get(..span.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                fail!(
                    "cannot understand line {line} of {}: {}: correct the line, or write the file anew with the members' paths: \
                     `homenode pool import --force --name {name} PATH...`",
                    path.display(),
                    error.message()
                )
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => fail!("cannot read {}: {error}", path.display()),
    }
}

/// Cache size and options in the pool's file, as far as they can be read; a line on standard error tells what is lost when the file is written anew. Returns
/// nothing for a file of another pool.
pub(crate) fn kept_of(name: &PoolName, uuid: &str) -> (Option<u64>, Vec<String>) {
    let path = path_of(name);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Default::default(),
        Err(error) => {
            complain!(
                "homenode: cannot read {}: {error}: its options are dropped",
                path.display()
            );
            return Default::default();
        }
    };
    let dropped = |what: &str| complain!("homenode: {} is written anew without {what}", path.display());
    let Ok(mut table) = text.parse::<toml::Table>() else {
        let is_known = |line: &&str| ["uuid", "members"].iter().any(|key| line.starts_with(key));
        for line in text.lines().filter(|line| !line.trim().is_empty() && !is_known(line)) {
            dropped(&format!("the line {line}"));
        }
        return Default::default();
    };
    if table
        .remove("uuid")
        .is_some_and(|of| of.as_str().is_some_and(|of| of != uuid))
    {
        return Default::default();
    }
    table.remove("members");
    let bytes = table.get("cache_bytes").and_then(|value| value.clone().try_into().ok());
    let options = table.get("options").and_then(|value| value.clone().try_into().ok());
    for (key, value) in table {
        let is_kept = match &*key {
            "cache_bytes" => bytes.is_some(),
            "options" => options.is_some(),
            _ => false,
        };
        if !is_kept {
            dropped(&format!("{key} = {value}"));
        }
    }
    (bytes, options.unwrap_or_default())
}

/// Bytes that the cache of the pool of that name is to have, where they are known.
pub(crate) fn cache_of(name: &PoolName) -> Option<u64> {
    find(name).ok()??.cache_bytes
}

/// Identity of the pool of that name, if it is known.
pub(crate) fn uuid_of(name: &PoolName) -> Option<u128> {
    u128::from_str_radix(&find(name).ok()??.uuid, 16).ok()
}

/// The members of a pool that must be known.
pub(crate) fn members_of(name: &PoolName) -> Result<Vec<PathBuf>> {
    match find(name)? {
        Some(known) => {
            known.refuse_others(name)?;
            Ok(known.members)
        }
        None => fail!(
            "no pool {name} is known here: `homenode pool list` lists known pools, `homenode pool import PATH...` records one"
        ),
    }
}

/// Names of all that are known, ascending.
pub(crate) fn names() -> Result<Vec<PoolName>> {
    let directory = directory();
    let cannot = |error: io::Error| Failure::new(format!("cannot list {}: {error}", directory.display()));
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(cannot)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry.map_err(cannot)?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(".toml")?.parse().ok());
        names.extend::<Option<PoolName>>(name);
    }
    names.sort_by_key(ToString::to_string);
    Ok(names)
}

/// Name that a pool is known by, if it is.
pub(crate) fn name_of(uuid: u128) -> Result<Option<PoolName>> {
    let uuid = format!("{uuid:032x}");
    let mut unread = None;
    for name in names()? {
        match find(&name) {
            Ok(Some(known)) if known.uuid == uuid => return Ok(Some(name)),
            Ok(_) => {}
            Err(failure) => unread = Some(failure),
        }
    }
    unread.map_or(Ok(None), Err)
}

/// Refuses to go on where no pool can be noted.
pub(crate) fn check() -> Result<()> {
    let directory = directory();
    // It may have to be made.
    let there = directory.ancestors().find(|place| place.exists());
    rustix::fs::access(there.unwrap_or(Path::new("/")), Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| {
        Failure::new(format!(
            "pools cannot be recorded in {}: {errno}: use sudo, or name another directory by {VARIABLE}",
            directory.display()
        ))
    })
}

/// Notes a pool, in place of what was noted under its name.
pub(crate) fn put(name: &PoolName, known: &Known) -> Result<()> {
    let rename = |new: &Path, path: &Path| fs::rename(new, path);
    write(name, known, rename).cannot(writing(name))
}

/// Notes a new pool. Returns false if another one was noted under its name meanwhile.
pub(crate) fn put_new(name: &PoolName, known: &Known) -> Result<bool> {
    let link = |new: &Path, path: &Path| {
        fs::hard_link(new, path)?;
        fs::remove_file(new)
    };
    match write(name, known, link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        written => written.map(|()| true).cannot(writing(name)),
    }
}

fn writing(name: &PoolName) -> String {
    format!("write {}", path_of(name).display())
}

/// Whole or not at all, also after a power cut.
fn write(name: &PoolName, known: &Known, place: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let (path, text) = (&path_of(name), toml::to_string(known).map_err(io::Error::other)?);
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    // Two processes may write it at once.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::File::create(&new).and_then(|file| {
        io::Write::write_all(&mut &file, text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| place(&new, path)).inspect_err(|_| {
        // As far as that is possible.
        let _ = fs::remove_file(&new);
    })?;
    fs::File::open(directory)?.sync_all()
}

pub(crate) fn forget(name: &PoolName) -> Result<()> {
    let path = path_of(name);
    fs::remove_file(&path).cannot(format_args!("remove {}", path.display()))
}
