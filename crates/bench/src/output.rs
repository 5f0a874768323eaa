//! Files that a bench writes at its end. They are opened before its first round: a name that cannot be written does not cost
//! the minutes between.

use crate::error::{During, Error};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file that is to be written. What is in it stays until then, and none is left that was made for nothing.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    /// It was made here, and is not written yet.
    is_new: bool,
}

impl Output {
    /// Opens the file at `path`, if one is asked for.
    pub(crate) fn open(path: Option<&Path>) -> Result<Option<Self>, Error> {
        let Some(path) = path else { return Ok(None) };
        let (file, is_new) = match File::create_new(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let mut options = File::options();
                // Made where a symbolic link leads nowhere yet.
                (options.write(true).create(true).truncate(false).open(path), false)
            }
            made => (made, true),
        };
        let file = file.during(format_args!("opening {} to write it", path.display()))?;
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            is_new,
        }))
    }

    /// Writes all of it.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Error> {
        self.replace(text)
            .during(format_args!("writing {}", self.path.display()))?;
        self.is_new = false;
        Ok(())
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        // Of a pipe there is nothing to cut off.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            // It may have gone meanwhile.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Tells a line to the process that waits for it at the other end of standard output.
pub(crate) fn tell(line: impl Display) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    told.during("answering the bench")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_file_is_unchanged_until_the_report_is_written() {
        let directory = tempfile::tempdir().expect("a directory is made");
        let path = directory.path().join("rows");
        let open = || {
            Output::open(Some(&path))
                .expect("the file can be opened")
                .expect("a path is given")
        };
        drop(open());
        assert!(!path.exists(), "nothing was written");
        open().write("first, and long").expect("the file can be written");
        drop(open());
        let read = || fs::read_to_string(&path).expect("the file exists");
        assert_eq!(read(), "first, and long");
        open().write("second").expect("the file can be written");
        assert_eq!(read(), "second");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_removed() {
        let directory = tempfile::tempdir().expect("a directory is made");
        let path = directory.path().join("rows");
        File::create_new(&path).expect("the file can be created");
        let full = File::options().write(true).open("/dev/full").expect("it can be opened");
        let output = Output {
            path: path.clone(),
            file: full,
            is_new: true,
        };
        let error = output.write("text").expect_err("the device is full").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(!path.exists(), "an empty file is removed");
    }

    #[test]
    fn an_unwritable_output_fails_at_the_start() {
        let directory = tempfile::tempdir().expect("a directory is made");
        for path in [directory.path(), &directory.path().join("missing/rows")] {
            let error = Output::open(Some(path)).expect_err("the path is no file").to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        assert!(Output::open(None).expect("no path is given").is_none());
    }
}
