//! Errors as they reach a person: one message that names the object, the reason and the remedy.

use crate::holders;
use homenode_linux::memory::MemberFileError;
use std::fmt;
use std::os::unix::fs::FileTypeExt;

/// Why a command could not do what it was told. Exits with 1.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl AsRef<str>) -> Self {
        let lines: Vec<String> = message.as_ref().split('\n').map(plain).collect();
        Self(lines.join("\n"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats as `Display`, because tests and `main` print errors by `Debug`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<homenode::Error> for Failure {
    fn from(error: homenode::Error) -> Self {
        Self::new(told(&error))
    }
}

/// An error with those below it, and with the holders of a member's file.
pub(crate) fn told(error: &homenode::Error) -> String {
    let text = chain(error);
    match error {
        homenode::Error::MemberFile(MemberFileError::InUse { path, by: None }) => {
            let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
            let named = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let holders = if is_device {
                holders::of_file(&named)
            } else {
                holders::of_lock(path)
            };
            let holders = if holders.is_empty() {
                "no process that is seen here".to_owned()
            } else {
                holders.join(", ")
            };
            if is_device {
                format!("{text}; open in {holders}")
            } else {
                format!("{text}; locked by {holders} (any user who can read the file can lock it)")
            }
        }
        _ => text,
    }
}

/// The error and those below it that it does not tell itself.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let reason = source.to_string();
        if !text.contains(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        below = source.source();
    }
    text
}

/// Names of files, threads and mounts are whatever a program says: on one line, and no commands to a terminal.
pub(crate) fn plain(text: &str) -> String {
    let escape = |one: char| -> String {
        if one.is_control() {
            one.escape_default().collect()
        } else {
            one.into()
        }
    };
    text.chars().map(escape).collect()
}

/// Results whose errors tell what could not be done.
pub(crate) trait Cannot<T> {
    /// Fails with "cannot", what was to be done, and the error.
    fn cannot(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Cannot<T> for std::result::Result<T, E> {
    fn cannot(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::new(format!("cannot {what}: {error}")))
    }
}

/// Shorthand for `Err(Failure::new(format!(…)))`.
macro_rules! fail {
    ($($message:tt)*) => {
        return Err($crate::failure::Failure::new(format!($($message)*)))
    };
}
pub(crate) use fail;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(Failure::new("a\u{1b}c\nd").to_string(), "a\\u{1b}c\nd");
        assert_eq!(plain("a\u{1b}[2Jb\n\u{9b}2J\u{e4}"), "a\\u{1b}[2Jb\\n\\u{9b}2J\u{e4}");
    }
}
