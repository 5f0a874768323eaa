//! `homenode fsck`: whether a durable pool that is not up is sound. Exits as fsck(8) does.

use crate::failure::{Failure, plain};
use crate::pool::known;
use crate::print_text;
use homenode::{Error, PoolName};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of fsck(8): the command line was not understood.
pub(crate) const USAGE: u8 = 16;
/// Exit code: faults were found, and stay.
const FAULTS: u8 = 4;
/// Exit code: the check itself failed.
const FAILED: u8 = 8;
/// Faults that are told one by one.
const TOLD_MAX: usize = 100;

/// Checks a durable pool that is not up. Reads only. Exits with 0 when it is sound, 4 when it is not, 8 when that cannot be told.
#[derive(clap::Args, Debug)]
pub(crate) struct FsckArgs {
    /// A pool that is known here, or the files of all members (with a `/` in a name that is a pool's too).
    #[arg(required = true, value_name = "NAME|PATH")]
    members: Vec<PathBuf>,
}

pub(crate) fn run(args: &FsckArgs) -> ExitCode {
    let members = match members(&args.members) {
        Ok(members) => members,
        Err(failure) => {
            complain!("homenode: {failure}");
            return ExitCode::from(FAILED);
        }
    };
    let checked = match homenode::check(&members) {
        Ok(checked) => checked,
        Err(error) => {
            let is_fault = matches!(error, Error::Open(_));
            complain!("homenode: {}", Failure::from(error));
            return ExitCode::from(if is_fault { FAULTS } else { FAILED });
        }
    };
    let mut text = String::new();
    let mut tell = |line: &str| writeln!(text, "{line}").expect("a string grows");
    for damage in checked.damage.iter().take(TOLD_MAX) {
        tell(&plain(&damage.to_string()));
    }
    if checked.damage.len() > TOLD_MAX {
        tell(&format!("and {} more", checked.damage.len() - TOLD_MAX));
    }
    let (inodes, bytes) = (checked.inodes, checked.placed_bytes);
    let state = match checked.damage.len() {
        0 => "sound".to_owned(),
        1 => "1 fault".to_owned(),
        many => format!("{many} faults"),
    };
    tell(&format!(
        "pool {} {:032x}: {state}; {inodes} inodes, {bytes} bytes of data",
        checked.name, checked.uuid
    ));
    match print_text(&text) {
        Err(failure) => {
            complain!("homenode: {failure}");
            ExitCode::from(FAILED)
        }
        Ok(()) if checked.damage.is_empty() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(FAULTS),
    }
}

/// The files that are meant.
fn members(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let [only] = given else { return Ok(given.to_vec()) };
    let name = only.to_str().and_then(|name| name.parse::<PoolName>().ok());
    match name {
        Some(name) if known::find(&name)?.is_some() => known::members_of(&name),
        _ => Ok(given.to_vec()),
    }
}
