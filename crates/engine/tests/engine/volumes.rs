//! Volumes under threads, and what is refused; `file_model` has them against a slow model.

mod refused;
mod threads;
