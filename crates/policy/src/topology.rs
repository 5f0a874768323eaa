//! Topology model.
