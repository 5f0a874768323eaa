//! Mount options that any filesystem may be given.

/// Treatment of a mount option.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It is so already, or it is for others to read: mount(8), systemd, people.
    GivenAnyway,
    /// The pool is to be read only.
    ReadOnly,
    /// It is not done; what to do instead.
    Refused(&'static str),
    /// It says something about the pool, or nothing.
    OfPool,
}

/// Options that ask for what is so, or are not meant for the filesystem.
///
/// Times are in memory, as everything, whatever `lazytime` says. The last three are given to other FUSE filesystems.
const GIVEN_ANYWAY: &str = "rw defaults auto noauto user nouser users nousers owner noowner group nogroup nofail _netdev suid dev exec \
    async atime diratime relatime nostrictatime lazytime nolazytime nomand noiversion silent loud symfollow allow_other \
    default_permissions comment";

/// Whether a list of words has this one.
pub(super) fn has_word(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// Options that ask for something else than what is given, and what to do.
const REFUSED: [(&str, &str); 18] = [
    ("norelatime", ACCESS_TIMES),
    ("strictatime", ACCESS_TIMES),
    ("sync", SYNC),
    ("dirsync", SYNC),
    ("mand", "there are no mandatory locks: leave it out"),
    ("iversion", "files have no version number: leave it out"),
    ("nosymfollow", "symbolic links are followed: leave it out"),
    ("bind", NO_BIND),
    ("rbind", NO_BIND),
    ("move", NO_BIND),
    ("writeback", "it is gone, writes reach the pool at once: leave it out"),
    ("size", "a pool has a size on each node: write size_per_node=SIZE"),
    (
        "nr_inodes",
        "files have no limit of their own, but the memory they take: write metadata=SIZE",
    ),
    ("mode", OWNER_AND_MODE),
    ("uid", OWNER_AND_MODE),
    ("gid", OWNER_AND_MODE),
    (
        "huge",
        "members have huge pages where the kernel has them: leave it out",
    ),
    (
        "mpol",
        "bytes lie on the writer's node: leave it out, or write per_node for a directory bound to each node",
    ),
];

const ACCESS_TIMES: &str = "access times move as with relatime, or not at all (noatime): leave it out";
const SYNC: &str =
    "not supported: fsync makes a durable pool's bytes durable, and commit=SECONDS all of them in time; leave it out";
const NO_BIND: &str = "that needs no helper: leave out `-t homenode`";
const OWNER_AND_MODE: &str = "the mount's root gets owner and mode of the directory: chown and chmod that";

/// The name of an option (`name` or `name=value`).
pub(crate) fn name_in(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Tells how an option is treated.
pub(crate) fn meaning(option: &str) -> Meaning {
    let name = name_in(option);
    if has_word(GIVEN_ANYWAY, name) || name.starts_with("x-") || name.starts_with("X-") {
        return Meaning::GivenAnyway;
    }
    if name == "ro" {
        return Meaning::ReadOnly;
    }
    let refused = REFUSED.iter().find(|(refused, _)| *refused == name);
    refused.map_or(Meaning::OfPool, |(_, remedy)| Meaning::Refused(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_classified_by_name() {
        assert_eq!(meaning("defaults"), Meaning::GivenAnyway);
        assert_eq!(meaning("x-systemd.automount"), Meaning::GivenAnyway);
        assert_eq!(meaning("comment=ro"), Meaning::GivenAnyway);
        assert_eq!(meaning("ro"), Meaning::ReadOnly);
        assert_eq!(meaning("uid=1000"), Meaning::Refused(OWNER_AND_MODE));
        assert_eq!(meaning("size_per_node=1G"), Meaning::OfPool);
        assert_eq!(meaning("xyz"), Meaning::OfPool);
    }

    #[test]
    fn no_option_is_in_both_lists() {
        for (name, _) in REFUSED {
            assert!(!has_word(GIVEN_ANYWAY, name), "{name}");
        }
    }
}
