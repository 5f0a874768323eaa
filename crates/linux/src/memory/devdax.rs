//! Persistent memory as a character device (devdax, `/dev/dax0.0`): its size and home, and its bytes, which only a mapping reaches.
//!
//! The kernel knows no read(2), write(2), msync(2) and no size of such a device: sysfs tells the size, and stores are durable once they are written
//! back from the processor's caches.

use super::mapping::{HUGE_BYTES, Mapping};
use crate::copy;
use crate::topology::sysfs::Tree;
use homenode_engine::NodeId;
use homenode_shared::{Guarded, is_lost};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// A device of persistent memory.
#[derive(Debug)]
pub(super) struct Devdax {
    pub(super) bytes: u64,
    /// Mappings start and end at multiples of it, and a page that cannot be had takes so much with it.
    pub(super) unit_bytes: usize,
    /// The node it is attached to, where the machine tells.
    pub(super) home: Option<NodeId>,
    /// Made with the first read.
    window: OnceLock<Window>,
}

/// A mapping to read through.
#[derive(Debug)]
struct Window {
    // Dropped before the mapping.
    _guarded: Guarded,
    mapping: Mapping,
}

impl Devdax {
    /// The device of that number, if it is one of persistent memory and `tree` tells its size.
    pub(super) fn of(tree: &Tree, device: u64) -> Option<Self> {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let directory = format!("sys/dev/char/{major}:{minor}");
        let subsystem = tree.link_name(format!("{directory}/subsystem"))?;
        if subsystem != "dax" {
            return None;
        }
        Some(Self {
            bytes: tree.number(format!("{directory}/size"))?,
            // Older kernels do not tell it; they have 2 MiB where nobody asked for another.
            unit_bytes: tree.number(format!("{directory}/align")).unwrap_or(HUGE_BYTES),
            home: tree
                .home(&directory)
                .or_else(|| tree.number(format!("{directory}/target_node")).map(NodeId)),
            window: OnceLock::new(),
        })
    }

    pub(super) fn mapped_bytes(&self) -> io::Result<usize> {
        let bytes = usize::try_from(self.bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mapped = bytes.checked_next_multiple_of(self.unit_bytes.max(HUGE_BYTES));
        mapped.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    /// Reads bytes of the device, open as `file`.
    pub(super) fn read_exact_at(&self, file: &File, to: &mut [u8], at: u64) -> io::Result<()> {
        let is_within = at.checked_add(to.len() as u64).is_some_and(|end| end <= self.bytes);
        if !is_within {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let window = match self.window.get() {
            Some(window) => window,
            None => {
                let window = self.open_window(file)?;
                self.window.get_or_init(|| window)
            }
        };
        let at = usize::try_from(at).expect("the device is mapped, so offsets fit a usize");
        let from = window.mapping.base().wrapping_add(at).cast_const();
        // SAFETY: the bytes lie in the mapping, which is all of the device; `to` is ours.
        unsafe { copy::load(to.as_mut_ptr(), from, to.len()) };
        if is_lost(from, to.len()) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    fn open_window(&self, file: &File) -> io::Result<Window> {
        let bytes = self.mapped_bytes()?;
        let mapping = Mapping::reserve(bytes)?;
        mapping.attach_to_read(file.as_fd(), 0)?;
        Ok(Window {
            _guarded: Guarded::in_units(mapping.base(), bytes, self.unit_bytes)?,
            mapping,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::topology::made::Made;

    /// The device of a machine that has one character device, with these attributes.
    pub(in crate::memory) fn found(subsystem: &str, attributes: &[(&str, &str)]) -> Option<Devdax> {
        let machine = Made::new();
        let device = "sys/dev/char/252:3";
        machine.link(&format!("{device}/subsystem"), &format!("../../../bus/{subsystem}"));
        for (attribute, text) in attributes {
            machine.file(&format!("{device}/{attribute}"), text);
        }
        Devdax::of(&machine.tree(), libc::makedev(252, 3))
    }

    #[test]
    fn size_unit_and_home_of_a_dax_device_match_sysfs() {
        let told = [
            ("size", "266338304\n"),
            ("align", "1073741824\n"),
            ("numa_node", "-1\n"),
            ("target_node", "3\n"),
        ];
        let device = found("dax", &told).unwrap();
        assert_eq!(
            (device.bytes, device.unit_bytes, device.home),
            (266_338_304, 1 << 30, Some(NodeId(3)))
        );
        assert_eq!(device.mapped_bytes().unwrap(), 1 << 30);
        let device = found("dax", &[("size", "4194304\n"), ("numa_node", "1\n")]).unwrap();
        assert_eq!((device.unit_bytes, device.home), (HUGE_BYTES, Some(NodeId(1))));
    }

    #[test]
    fn other_devices_are_not_dax_devices() {
        assert!(found("mem", &[("size", "4096\n")]).is_none());
        assert!(found("dax", &[]).is_none());
    }
}
