//! Volumes: against a slow model, among files and in a pool that is often full; under threads; and what is refused.

mod model;
mod refused;
mod threads;
