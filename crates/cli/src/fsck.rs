//! `homenode fsck`: whether a durable pool that is not up is sound, and its repair. Exits as fsck(8) does.

use crate::failure::{Failure, fail, plain};
use crate::mountinfo::shown;
use crate::pool::{known, leaving};
use crate::print_text;
use crate::serve::remedy_for_missing;
use homenode::{Checked, Error, PoolName};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of fsck(8): the command line was not understood.
pub(crate) const USAGE: u8 = 16;
/// Exit code: faults were found, and are mended.
const MENDED: u8 = 1;
/// Exit code: faults were found, and stay.
const FAULTS: u8 = 4;
/// Exit code: the check itself failed.
const FAILED: u8 = 8;
/// Faults that are told one by one.
const TOLD_MAX: usize = 100;

/// Check a durable pool that is not up; with --repair, repair it.
///
/// Without --repair the command only reads. Exit codes: 0 the pool is sound, 1 all faults are repaired, 4 faults remain, 8 the check failed,
/// 16 the command line is wrong.
#[derive(clap::Args, Debug)]
pub(crate) struct FsckArgs {
    /// Name of a pool that is known here, or the files of all members (put a `/` into a path that is also a pool's name).
    #[arg(required = true, value_name = "NAME|PATH")]
    members: Vec<PathBuf>,
    /// Repair all faults. The repair drops names of missing inodes, gives inodes without a name one in lost+found, and leaves blocks that two files
    /// share to the later file. All repairs take effect at once, so an interrupted repair changes nothing. Copy the members' files
    /// first if the data matter.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Repairs only where nothing is lost by it.
    #[arg(skip)]
    pub(crate) is_careful: bool,
}

pub(crate) fn run(args: &FsckArgs) -> ExitCode {
    let complain = |failure: &Failure| complain!("homenode: {failure}");
    let (known, members) = match members(&args.members) {
        Ok(found) => found,
        Err(failure) => {
            complain(&failure);
            return ExitCode::from(FAILED);
        }
    };
    let look = || match args.repair {
        true => homenode::repair(&members, !args.is_careful),
        false => homenode::check(&members),
    };
    let checked = match leaving::wait(look) {
        Ok(checked) => checked,
        Err(error) => {
            let is_fault = matches!(error, Error::Open(_));
            let remedy = remedy_for_missing(&error).unwrap_or_default();
            complain!("homenode: {}{remedy}", Failure::from(error));
            return ExitCode::from(if is_fault { FAULTS } else { FAILED });
        }
    };
    let is_lossless = checked.faults.iter().all(|fault| fault.remedy.is_lossless());
    let is_repair = args.repair && (is_lossless || !args.is_careful);
    if args.repair && !is_repair {
        complain!(
            "homenode: a repair would lose some of the pool, so nothing is repaired: copy the members' files first if the data matter, then --repair \
             (-y) repairs it"
        );
    }
    if let Err(failure) = print_text(&told(&checked, known.as_ref(), is_repair)) {
        complain(&failure);
        return ExitCode::from(FAILED);
    }
    if checked.faults.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !is_repair {
        return ExitCode::from(FAULTS);
    }
    // Not what was meant to be written counts, but what is there.
    match homenode::check(&members) {
        Ok(again) if again.faults.is_empty() => ExitCode::from(MENDED),
        Ok(again) => {
            complain!("homenode: faults remain after the repair");
            // The exit code tells it where this cannot.
            let _ = print_text(&told(&again, known.as_ref(), false));
            ExitCode::from(FAULTS)
        }
        Err(error) => {
            complain(&Failure::from(error));
            ExitCode::from(FAULTS)
        }
    }
}

/// The faults of a pool that is `known` by a name, with their remedies when these are carried out, and a last line about the pool.
fn told(checked: &Checked, known: Option<&PoolName>, is_repair: bool) -> String {
    let mut text = String::new();
    let mut tell = |line: &str| writeln!(text, "{line}").expect("writing to a string cannot fail");
    for fault in checked.faults.iter().take(TOLD_MAX) {
        let line = if is_repair {
            fault.to_string()
        } else {
            fault.damage.to_string()
        };
        tell(&plain(&line));
    }
    for path in &checked.others {
        tell(&format!("{} is no member of the pool, and is unchanged", shown(path)));
    }
    if checked.faults.len() > TOLD_MAX {
        tell(&format!("and {} more", checked.faults.len() - TOLD_MAX));
    }
    let state = match (checked.faults.len(), is_repair) {
        (0, _) => "sound".to_owned(),
        (1, false) => "1 fault; --repair mends it".to_owned(),
        (many, false) => format!("{many} faults; --repair mends them"),
        (1, true) => "1 fault repaired".to_owned(),
        (many, true) => format!("{many} faults repaired"),
    };
    let Checked {
        name,
        uuid,
        inodes,
        placed_bytes,
        ..
    } = checked;
    let name = match known {
        Some(known) if known != name => format!("{known} (made as {name})"),
        _ => name.to_string(),
    };
    tell(&format!(
        "pool {name} {uuid:032x}: {state}; {inodes} inodes, {placed_bytes} bytes of data"
    ));
    text
}

/// The files that are meant, and the name of their pool if that was given.
fn members(given: &[PathBuf]) -> Result<(Option<PoolName>, Vec<PathBuf>), Failure> {
    if let [only] = given
        && let Some(Ok(name)) = only.to_str().map(str::parse::<PoolName>)
        && known::find(&name)?.is_some()
    {
        return Ok((Some(name), known::members_of(&name)?));
    }
    if let [only] = given
        && only.file_name() == Some(only.as_os_str())
        && fs::symlink_metadata(only).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        fail!(
            "no pool {0} is known here, and there is no file {0}: `homenode pool list` lists known pools",
            shown(only)
        );
    }
    Ok((None, given.to_vec()))
}
