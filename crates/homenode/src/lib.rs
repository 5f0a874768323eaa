//! homenode
