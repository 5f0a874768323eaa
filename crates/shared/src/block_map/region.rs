//! A long stretch of addresses for map nodes: a shift and an addition turn a node's index into its address.
//! The words kept beside each node lie behind all nodes.
//!
//! Memory is there once a node is touched, on the node of the thread that touches it first.

#[cfg(not(any(loom, miri)))]
pub(super) use mapped::Region;
#[cfg(any(loom, miri))]
pub(super) use owned::Region;

#[cfg(not(any(loom, miri)))]
mod mapped {
    use super::super::nodes::{Beside, Node};
    use std::ptr::NonNull;

    /// Nodes at most: 16 Mi (64 GiB of addresses) map 32 TiB of whole 2 MiB runs.
    const NODES_MAX: usize = 1 << 24;
    /// Tried last, where addresses are limited.
    const NODES_MIN: usize = 1 << 14;

    /// Zeroed nodes.
    #[derive(Debug)]
    pub(in super::super) struct Region {
        base: NonNull<Node>,
        nodes: usize,
    }

    // SAFETY: the region is plain memory of atomics that lives as long as this value.
    unsafe impl Send for Region {}
    // SAFETY: as above; it hands out shared references only.
    unsafe impl Sync for Region {}

    impl Region {
        /// # Panics
        /// When the process may not have 64 MiB more of addresses.
        pub(in super::super) fn new() -> Self {
            let mut nodes = NODES_MAX;
            loop {
                if let Some(base) = map(nodes) {
                    return Self { base, nodes };
                }
                assert!(
                    nodes > NODES_MIN,
                    "no addresses for the block map: raise the limit of address space (ulimit -v)"
                );
                nodes /= 2;
            }
        }

        pub(in super::super) fn nodes(&self) -> usize {
            self.nodes
        }

        #[inline]
        pub(in super::super) fn node(&self, index: u32) -> &Node {
            assert!((index as usize) < self.nodes);
            // SAFETY: the index is within the mapping.
            let node = unsafe { self.base.add(index as usize) };
            // SAFETY: mapped and zeroed, which is a valid Node; only atomics in it change; unmapped by Drop only.
            unsafe { node.as_ref() }
        }

        #[inline]
        pub(in super::super) fn beside(&self, index: u32) -> &Beside {
            assert!((index as usize) < self.nodes);
            // SAFETY: the besides start behind the last node, within the mapping, at a page's start.
            let besides = unsafe { self.base.add(self.nodes) }.cast::<Beside>();
            // SAFETY: the index is below the number of besides, which is that of nodes.
            let beside = unsafe { besides.add(index as usize) };
            // SAFETY: mapped and zeroed, which is a valid Beside; unmapped by Drop only.
            unsafe { beside.as_ref() }
        }
    }

    impl Region {
        /// Gives the memory of `nodes` nodes from `first` on back to the kernel: they are zeros when they are touched next.
        /// Nobody uses them meanwhile.
        pub(in super::super) fn forget(&self, first: u32, nodes: usize) {
            assert!(first as usize + nodes <= self.nodes);
            // SAFETY: the index is within the mapping.
            let start = unsafe { self.base.add(first as usize) };
            // Where the kernel refuses they keep their memory, which is zeros already.
            // SAFETY: whole pages of our own mapping, as a node is a page; their bytes are zeros before and after.
            unsafe { libc::madvise(start.as_ptr().cast(), nodes * size_of::<Node>(), libc::MADV_DONTNEED) };
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: our own mapping, which nobody refers to any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), bytes_of(self.nodes)) };
        }
    }

    /// Bytes of a region of so many nodes with their besides.
    const fn bytes_of(nodes: usize) -> usize {
        nodes * (size_of::<Node>() + size_of::<Beside>())
    }

    fn map(nodes: usize) -> Option<NonNull<Node>> {
        let bytes = bytes_of(nodes);
        let (read_write, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        // Only core dumps depend on it.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
        // A page-aligned address is aligned for a Node.
        NonNull::new(base.cast())
    }
}

#[cfg(any(loom, miri))]
mod owned {
    use super::super::nodes::{Beside, Node, SLAB_NODES};

    #[derive(Debug)]
    pub(in super::super) struct Region {
        nodes: Box<[Node]>,
        besides: Box<[Beside]>,
    }

    impl Region {
        pub(in super::super) fn new() -> Self {
            // A model check makes them anew for each interleaving.
            let slabs = if cfg!(loom) { 6 } else { 256 };
            let nodes = SLAB_NODES * slabs;
            Self {
                nodes: (0..nodes).map(|_| Node::default()).collect(),
                besides: (0..nodes).map(|_| Beside::default()).collect(),
            }
        }

        pub(in super::super) fn nodes(&self) -> usize {
            self.nodes.len()
        }

        pub(in super::super) fn node(&self, index: u32) -> &Node {
            &self.nodes[index as usize]
        }

        pub(in super::super) fn beside(&self, index: u32) -> &Beside {
            &self.besides[index as usize]
        }

        /// There is no kernel here.
        pub(in super::super) fn forget(&self, _first: u32, _nodes: usize) {}
    }
}
