//! Pools and memory that are populated: nobody waits for the kernel to find and clear pages while a bench measures.

use crate::error::{During, Error};
use crate::required;
use homenode::{NodeId, Pool, PoolOptions};
use memmap2::{Advice, MmapMut};

/// A pool with so many bytes of `node`, or of each node.
pub(crate) fn pool(node_bytes: u64, node: Option<u16>) -> Result<Pool, homenode::Error> {
    let mut options = PoolOptions::new()
        .size_per_node(node_bytes.to_string().parse().expect("a number is a size"))
        .populate_ahead("100%".parse().expect("the size is well formed"));
    if let Some(node) = node {
        options = options.node(NodeId(node));
    }
    let pool = Pool::create(&options)?;
    pool.wait_populated()?;
    Ok(pool)
}

/// Anonymous memory of huge pages, present.
pub(crate) fn memory(bytes: u64) -> Result<MmapMut, Error> {
    let mapped = MmapMut::map_anon(usize::try_from(bytes).expect("addresses have 64 bits"));
    let mut memory = mapped.during(format_args!("mapping {bytes} bytes of anonymous memory"))?;
    // The floor is one of small pages then.
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if memory.advise(Advice::HugePage).is_err() || enabled.contains("[never]") {
        required::skip("huge pages of a bare memcpy: this kernel gives none");
    }
    memory.fill(1);
    Ok(memory)
}
