//! Extended attributes: stored ones, the access control lists among them, and the two of the filesystem's own.

use super::acl::{ACCESS, Acl, DEFAULT};
use super::attr::{GROUP_EXECUTE, SET_GID, SET_UID};
use super::commit::{Changes, Held};
use super::inode::State;
use super::metadata::ROOT;
use super::placement::Placement;
use super::words::WORDS_XATTR;
use super::{Error, Fs, Ino, Inode, Operation, Result, XattrMode};
use crate::log::{Attributes, Change, Effect};
use crate::{Clock, Memory, NodeId};

/// Placement policy of a file, or what new entries of a directory inherit: `local`, `node:N` or `interleave`.
pub const POLICY_XATTR: &[u8] = b"user.homenode.policy";
/// Has whatever extends a file reserve the space, so that stores through mappings find room; or says so of what is made in a directory. Its
/// value is [`RESERVE_VALUE`].
pub const RESERVE_XATTR: &[u8] = b"user.homenode.reserve";
/// The only value of [`RESERVE_XATTR`].
pub const RESERVE_VALUE: &[u8] = b"extend";
/// Bytes per node, as `node=bytes` pairs with commas between. Read-only, and not listed.
pub const MAP_XATTR: &[u8] = b"user.homenode.map";
/// Names of the filesystem's own attributes: others than these would have no effect.
const OWN_PREFIX: &[u8] = b"user.homenode.";

/// Longest value (XATTR_SIZE_MAX).
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// All names and values of one inode.
const TOTAL_BYTES_MAX: usize = 1 << 20;
/// All names of one inode, each with a NUL: with those that the filesystem has itself, no more than listxattr(2) can tell (XATTR_LIST_MAX).
const NAMES_BYTES_MAX: usize = 63 << 10;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The value of [`MAP_XATTR`] for bytes by node.
pub fn map_value(by_node: impl IntoIterator<Item = (NodeId, u64)>) -> Vec<u8> {
    let on = by_node.into_iter().map(|(node, bytes)| format!("{}={bytes}", node.0));
    on.collect::<Vec<_>>().join(",").into_bytes()
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        match name {
            POLICY_XATTR => inode
                .policy
                .load()
                .map(|placement| placement.to_string().into_bytes())
                .ok_or(Error::NoAttribute),
            MAP_XATTR => {
                inode.kind().supports(Operation::Map)?;
                Ok(map_value(self.map(inode)))
            }
            _ if !is_known(name) => Err(Error::NotSupported),
            _ => {
                let state = inode.state.lock();
                Ok(state.xattr(name).ok_or(Error::NoAttribute)?.to_vec())
            }
        }
    }

    /// Names of all extended attributes, each followed by a NUL.
    pub fn xattr_names(&self, inode: &Inode) -> Vec<u8> {
        let mut names = Vec::new();
        let mut add = |name: &[u8]| {
            names.extend_from_slice(name);
            names.push(0);
        };
        if inode.policy.load().is_some() {
            add(POLICY_XATTR);
        }
        let state = inode.state.lock();
        state
            .xattrs
            .iter()
            .flat_map(|all| all.keys())
            .for_each(|name| add(name));
        names
    }

    /// Sets an extended attribute. `kill_sgid`: clear set-gid too (FUSE_SETXATTR_ACL_KILL_SGID).
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`] by `mode`; [`Error::AttributeTooBig`], [`Error::NoSpace`] by size;
    /// [`Error::Invalid`] for a list, a policy or a reservation that does not parse, and for other names of `user.homenode`;
    /// [`Error::NotPermitted`] for the map.
    pub fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        self.set_xattr_as(ROOT, inode, name, value, mode, kill_sgid)
    }

    /// [`Fs::set_xattr`] asked for by `user`.
    ///
    /// # Errors
    /// [`Error::NoMetadata`] too, when the inode is another's and half of the limit is taken.
    pub fn set_xattr_as(
        &self,
        user: u32,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        let _room = self.admit_bytes(Effect::Adds, value.len().min(VALUE_BYTES_MAX) as u64)?;
        let no_suffix = name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1;
        if name.is_empty() || no_suffix || name.len() > super::directory::NAME_BYTES_MAX {
            return Err(Error::Invalid);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::AttributeTooBig);
        }
        let (mut held, ino) = (Held::state_of(inode), inode.ino);
        held.set_asker(inode.asker(Some(user)));
        let state = held.only();
        let mut attributes = inode.attributes(state);
        let with_attributes = |attributes| Changes::of(Change::Inode { ino, attributes });
        // Lists are stored in our own order of bytes.
        let list;
        let changes = match name {
            _ if name == MAP_XATTR || name.starts_with(WORDS_XATTR) => return Err(Error::NotPermitted),
            POLICY_XATTR => {
                check_mode(attributes.placement.is_some(), mode)?;
                attributes.placement = Some(self.parse_placement(value)?);
                with_attributes(attributes)
            }
            _ if !is_known(name) => return Err(Error::NotSupported),
            _ if name.starts_with(OWN_PREFIX) && name != RESERVE_XATTR => return Err(Error::Invalid),
            ACCESS => {
                let acl = Acl::parse(value)?;
                if let Some(acl) = &acl {
                    let keep = if kill_sgid { !SET_GID } else { !0 };
                    attributes.mode = attributes.mode & !0o777 & keep | acl.mode();
                }
                let mut changes = with_attributes(attributes);
                if let Some(acl) = acl.filter(|acl| !acl.is_minimal()) {
                    list = acl.to_bytes();
                    changes.add(put(ino, state, name, &list)?);
                } else if state.xattr(name).is_some() {
                    changes.add(Change::NoXattr { ino, name });
                }
                changes
            }
            DEFAULT => {
                if !inode.is_directory() {
                    return Err(Error::NotPermitted);
                }
                match Acl::parse(value)? {
                    Some(acl) => {
                        list = acl.to_bytes();
                        Changes::of(put(ino, state, name, &list)?)
                    }
                    None => Changes::of(Change::NoXattr { ino, name }),
                }
            }
            RESERVE_XATTR if value != RESERVE_VALUE => return Err(Error::Invalid),
            _ => {
                check_mode(state.xattr(name).is_some(), mode)?;
                Changes::of(put(ino, state, name, value)?)
            }
        };
        self.commit(held, self.now_ns(), changes.as_slice())?;
        match (name, inode.kernel_file()) {
            (POLICY_XATTR, Some(file)) => self.place(inode, file),
            (ACCESS, Some(file)) => file.lines().withdraw(),
            // The next write takes it away.
            (CAPABILITY, Some(file)) => file.lines().raise_asks(),
            _ => {}
        }
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotPermitted`] for the map.
    pub fn remove_xattr(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        let _room = self.admit(false)?;
        let (held, ino) = (Held::state_of(inode), inode.ino);
        let state = held.only();
        let change = match name {
            _ if name == MAP_XATTR || name.starts_with(WORDS_XATTR) => return Err(Error::NotPermitted),
            POLICY_XATTR => {
                let mut attributes = inode.attributes(state);
                attributes.placement.take().ok_or(Error::NoAttribute)?;
                Change::Inode { ino, attributes }
            }
            _ if !is_known(name) => return Err(Error::NotSupported),
            ACCESS | DEFAULT if state.xattr(name).is_none() => return Ok(()),
            // Without an access list the permission bits stay: they say what the list said.
            _ => {
                state.xattr(name).ok_or(Error::NoAttribute)?;
                Change::NoXattr { ino, name }
            }
        };
        self.commit(held, self.now_ns(), &[change])?;
        match (name, inode.kernel_file()) {
            (POLICY_XATTR, Some(file)) => self.place(inode, file),
            (ACCESS, Some(file)) => file.lines().withdraw(),
            _ => {}
        }
        Ok(())
    }

    /// Clears what makes a file run with another's rights, as a write by someone without CAP_FSETID does.
    pub(super) fn kill_privileges(&self, inode: &Inode) {
        let (held, ino) = (Held::state_of(inode), inode.ino);
        let state = held.only();
        let before = inode.attributes(state);
        let has_capability = state.xattr(CAPABILITY).is_some();
        let mode = without_privileges(before.mode);
        if mode == before.mode && !has_capability {
            return;
        }
        let attributes = Attributes { mode, ..before };
        let mut changes = Changes::of(Change::Inode { ino, attributes });
        if has_capability {
            changes.add(Change::NoXattr { ino, name: CAPABILITY });
        }
        let done = self.commit(held, self.now_ns(), changes.as_slice());
        done.expect("the change takes no memory, so it cannot fail");
    }

    /// A placement policy whose node has a member.
    fn parse_placement(&self, text: &[u8]) -> Result<Placement> {
        let text = std::str::from_utf8(text).map_err(|_| Error::Invalid)?;
        let placement = text.parse().map_err(|_| Error::Invalid)?;
        match placement {
            Placement::Node(node) if !self.pool.has_member_on(node) => Err(Error::Invalid),
            _ => Ok(placement),
        }
    }
}

/// The access list after chmod(2), if there is one.
pub(super) fn list_with_mode(state: &State, mode: u32) -> Result<Option<Box<[u8]>>> {
    let Some(mut acl) = state.xattr(ACCESS).map(Acl::parse).transpose()?.flatten() else {
        return Ok(None);
    };
    acl.set_mode(mode);
    Ok(Some(acl.to_bytes()))
}

/// A mode without the bits that make a file run with another's rights.
pub(super) fn without_privileges(mode: u32) -> u32 {
    let gid = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | gid)
}

/// The classes Linux knows, each name with something behind the dot.
fn is_known(name: &[u8]) -> bool {
    let class = |class: &[u8]| name.strip_prefix(class).is_some();
    name == ACCESS || name == DEFAULT || class(b"user.") || class(b"trusted.") || class(b"security.")
}

fn check_mode(is_set: bool, mode: XattrMode) -> Result<()> {
    match (is_set, mode) {
        (true, XattrMode::Create) => Err(Error::Exists),
        (false, XattrMode::Replace) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

/// A new value, where all of the inode's have room.
fn put<'a>(ino: Ino, state: &State, name: &'a [u8], value: &'a [u8]) -> Result<Change<'a>> {
    let all = state.xattrs.iter().flat_map(|all| all.iter());
    let others = all.filter(|(other, _)| ***other != *name);
    let (mut names_bytes, mut bytes) = (name.len() + 1, name.len() + value.len());
    for (name, value) in others {
        names_bytes += name.len() + 1;
        bytes += name.len() + value.len();
    }
    if bytes > TOTAL_BYTES_MAX || names_bytes > NAMES_BYTES_MAX {
        return Err(Error::NoSpace);
    }
    Ok(Change::Xattr { ino, name, value })
}
