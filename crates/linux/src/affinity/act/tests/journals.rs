//! Journals.
