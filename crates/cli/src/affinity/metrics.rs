//! Metrics of `homenode affinity run`.

pub(super) mod address;
