//! Properties of inodes besides data: permissions, lists, attributes, times, links.

mod lists;
mod stat;
mod xattrs;
