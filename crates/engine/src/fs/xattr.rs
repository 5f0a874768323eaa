//! Extended attributes: stored ones, the access control lists among them, and the two of the filesystem's own.

use super::acl::{ACCESS, Acl, DEFAULT};
use super::attr::{GROUP_EXECUTE, PERMISSIONS, SET_GID, SET_UID};
use super::inode::Xattrs;
use super::placement::Placement;
use super::{Error, Fs, Inode, Operation, Result, XattrMode};
use crate::{Clock, Memory};
use std::sync::atomic::Ordering;

/// Placement policy of a file, or what new entries of a directory inherit: `local`, `node:N` or `interleave`.
pub const POLICY_XATTR: &[u8] = b"user.homenode.policy";
/// Bytes per node, as `node=bytes` pairs with commas between. Read-only, and not listed.
pub const MAP_XATTR: &[u8] = b"user.homenode.map";

/// Longest value (XATTR_SIZE_MAX).
const VALUE_BYTES_MAX: usize = 64 << 10;
/// All names and values of one inode.
const TOTAL_BYTES_MAX: usize = 1 << 20;
const CAPABILITY: &[u8] = b"security.capability";

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
                let map: Vec<_> = self
                    .map(inode)
                    .iter()
                    .map(|(node, bytes)| format!("{}={bytes}", node.0))
                    .collect();
                Ok(map.join(",").into_bytes())
            }
            _ if !is_known(name) => Err(Error::NotSupported),
            _ => {
                let xattrs = inode.xattrs.lock();
                let value = xattrs
                    .as_ref()
                    .and_then(|all| all.get(name))
                    .ok_or(Error::NoAttribute)?;
                Ok(value.to_vec())
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
        inode
            .xattrs
            .lock()
            .iter()
            .flat_map(|all| all.keys())
            .for_each(|name| add(name));
        names
    }

    /// Sets an extended attribute. `kill_sgid`: clear set-gid too (FUSE_SETXATTR_ACL_KILL_SGID).
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`] by `mode`; [`Error::AttributeTooBig`], [`Error::NoSpace`] by size;
    /// [`Error::Invalid`] for a list or a policy that does not parse; [`Error::NotPermitted`] for the map.
    pub fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        let no_suffix = name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1;
        if name.is_empty() || no_suffix || name.len() > super::directory::NAME_BYTES_MAX {
            return Err(Error::Invalid);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::AttributeTooBig);
        }
        match name {
            MAP_XATTR => return Err(Error::NotPermitted),
            POLICY_XATTR => {
                let is_set = inode.policy.load().is_some();
                check_mode(is_set, mode)?;
                let text = std::str::from_utf8(value).map_err(|_| Error::Invalid)?;
                let placement = text.parse().map_err(|_| Error::Invalid)?;
                if let Placement::Node(node) = placement
                    && !self.pool.has_member_on(node)
                {
                    return Err(Error::Invalid);
                }
                inode.policy.store(Some(placement));
            }
            _ if !is_known(name) => return Err(Error::NotSupported),
            ACCESS => self.set_access_list(inode, value, kill_sgid)?,
            DEFAULT => {
                if !inode.is_directory() {
                    return Err(Error::NotPermitted);
                }
                match Acl::parse(value)? {
                    Some(acl) => put(inode, DEFAULT, &acl.to_bytes(), XattrMode::Either)?,
                    None => drop(take(inode, DEFAULT)),
                }
            }
            _ => put(inode, name, value, mode)?,
        }
        inode.touch_changed(self.now_ns());
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotPermitted`] for the map.
    pub fn remove_xattr(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        match name {
            MAP_XATTR => return Err(Error::NotPermitted),
            POLICY_XATTR => {
                inode.policy.load().ok_or(Error::NoAttribute)?;
                inode.policy.store(None);
            }
            _ if !is_known(name) => return Err(Error::NotSupported),
            // Without an access list the permission bits stay: they say what the list said.
            _ => drop(take(inode, name).ok_or(Error::NoAttribute)?),
        }
        inode.touch_changed(self.now_ns());
        Ok(())
    }

    /// Clears what makes a file run with another's rights, as a write by someone without CAP_FSETID does.
    pub(super) fn kill_privileges(&self, inode: &Inode) {
        let clear = |mode: u32| {
            let gid = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
            mode & !(SET_UID | gid)
        };
        if inode.mode() != clear(inode.mode()) {
            let _ = inode
                .mode
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |mode| Some(clear(mode)));
            inode.touch_changed(self.now_ns());
        }
        if inode.xattrs.lock().is_some() {
            take(inode, CAPABILITY);
        }
    }

    /// What chmod(2) does to the access list.
    pub(super) fn apply_mode_to_list(inode: &Inode, mode: u32) -> Result<()> {
        let stored = inode.xattrs.lock().as_ref().and_then(|all| all.get(ACCESS).cloned());
        if let Some(bytes) = stored
            && let Some(mut acl) = Acl::parse(&bytes)?
        {
            acl.set_mode(mode);
            put(inode, ACCESS, &acl.to_bytes(), XattrMode::Either)?;
        }
        Ok(())
    }

    /// The default list that new entries of `dir` inherit.
    pub(super) fn default_list(dir: &Inode) -> Option<Acl> {
        let bytes = dir.xattrs.lock().as_ref().and_then(|all| all.get(DEFAULT).cloned())?;
        Acl::parse(&bytes).ok().flatten()
    }

    /// Gives a new inode what it inherits: `access` unless the permission bits say it already, and `default`.
    pub(super) fn put_inherited(inode: &Inode, access: &Acl, default: Option<&Acl>) -> Result<()> {
        if !access.is_minimal() {
            put(inode, ACCESS, &access.to_bytes(), XattrMode::Either)?;
        }
        default.map_or(Ok(()), |default| {
            put(inode, DEFAULT, &default.to_bytes(), XattrMode::Either)
        })
    }

    fn set_access_list(&self, inode: &Inode, value: &[u8], kill_sgid: bool) -> Result<()> {
        match Acl::parse(value)? {
            Some(acl) => {
                if acl.is_minimal() {
                    take(inode, ACCESS);
                } else {
                    put(inode, ACCESS, &acl.to_bytes(), XattrMode::Either)?;
                }
                let bits = acl.mode();
                let keep = PERMISSIONS & !0o777 & if kill_sgid { !SET_GID } else { !0 };
                let new = |mode: u32| Some(mode & !PERMISSIONS | mode & keep | bits);
                let _ = inode.mode.fetch_update(Ordering::Relaxed, Ordering::Relaxed, new);
            }
            None => drop(take(inode, ACCESS)),
        }
        Ok(())
    }
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

fn put(inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
    let mut xattrs = inode.xattrs.lock();
    let before = xattrs.as_ref().and_then(|all| all.get(name));
    check_mode(before.is_some(), mode)?;
    let others: usize = xattrs
        .iter()
        .flat_map(|all| all.iter())
        .filter(|(n, _)| ***n != *name)
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if others + name.len() + value.len() > TOTAL_BYTES_MAX {
        return Err(Error::NoSpace);
    }
    xattrs.get_or_insert_default().insert(name.into(), value.into());
    Ok(())
}

fn take(inode: &Inode, name: &[u8]) -> Option<Box<[u8]>> {
    let mut xattrs = inode.xattrs.lock();
    let value = xattrs.as_mut()?.remove(name);
    if xattrs.as_deref().is_some_and(Xattrs::is_empty) {
        *xattrs = None;
    }
    value
}
