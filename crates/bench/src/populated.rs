//! A pool with every block populated: what benches measure, so that nobody waits for the kernel to find and clear pages.

use homenode::{Error, NodeId, Pool, PoolOptions};

/// With so many bytes of `node`, or of each node.
pub(crate) fn pool(node_bytes: u64, node: Option<u16>) -> Result<Pool, Error> {
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
