//! One at a time.
