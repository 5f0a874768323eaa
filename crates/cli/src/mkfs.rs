//! `mkfs.homenode` and `fsck.homenode`: what mkfs(8) and fsck(8) run. They are this binary under other names.

use crate::argument::negative_value;
use crate::failure::Result;
use crate::fsck::{self, FsckArgs};
use crate::pool::durable::{self, FilesArgs};
use clap::{ArgAction, Command, CommandFactory, Parser};
use homenode::PoolName;
use std::process::ExitCode;

/// The names they are called by.
pub(crate) const MKFS: &str = "mkfs.homenode";
pub(crate) const FSCK: &str = "fsck.homenode";

/// Create a durable pool on files. mkfs(8) runs this command for `mkfs -t homenode`.
///
/// `homenode pool create` also records the pool's name on this machine; after mkfs, `homenode pool import` does that.
#[derive(Debug, Parser)]
#[command(name = MKFS, version)]
struct MkfsArgs {
    /// Name of the pool: letters, digits, `-`, `_` and `.`.
    #[arg(short = 'L', long, value_name = "NAME")]
    label: Option<PoolName>,
    #[command(flatten)]
    files: FilesArgs,
}

/// Check a durable pool that is not mounted. fsck(8) runs this command for a pool of /etc/fstab. `homenode fsck` is the same command; `--repair` repairs.
#[derive(Debug, Parser)]
#[command(name = FSCK, version)]
struct CheckArgs {
    #[command(flatten)]
    check: FsckArgs,
    /// Repair faults where nothing is lost by it; else change nothing, and exit with 4. -p is the same.
    #[arg(short, short_aliases = ['p'], action = ArgAction::Count)]
    a: u8,
    /// Repair all faults, as --repair does; overrides -a and -p.
    #[arg(short, action = ArgAction::Count)]
    y: u8,
    /// Repair nothing; overrides -a, -p, -y and --repair.
    #[arg(short, action = ArgAction::Count)]
    n: u8,
    /// Ignored: every check is complete.
    #[arg(short, short_aliases = ['v', 'T', 'M'], action = ArgAction::Count)]
    f: u8,
    /// Ignored: there is no progress bar.
    #[arg(short = 'C', value_name = "FD")]
    progress: Option<i32>,
}

/// `main` of [`MKFS`].
pub(crate) fn main() -> ExitCode {
    mkfs(&MkfsArgs::try_parse().unwrap_or_else(|error| negative_value(error).exit()))
}

/// `main` of [`FSCK`].
pub(crate) fn main_of_fsck() -> ExitCode {
    match CheckArgs::try_parse() {
        Ok(CheckArgs { mut check, a, y, n, .. }) => {
            let is_all = check.repair || y > 0;
            check.repair = n == 0 && (is_all || a > 0);
            check.is_careful = check.repair && !is_all;
            fsck::run(&check)
        }
        Err(error) => {
            // Where it cannot be printed, the exit code has to do.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { fsck::USAGE } else { 0 })
        }
    }
}

fn mkfs(args: &MkfsArgs) -> ExitCode {
    match make(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain!("{MKFS}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn make(args: &MkfsArgs) -> Result<()> {
    let (members, _, mut made) = durable::make(&args.label.unwrap_or_default(), &args.files)?;
    made.keep();
    let uuid = homenode::member_of(&members[0])?.uuid;
    crate::print_line(&format!(
        "made pool {uuid:032x}; `homenode pool import` makes it known by a name"
    ))
}

/// The commands, for their manuals.
pub(crate) fn commands() -> [Command; 2] {
    [MkfsArgs::command(), CheckArgs::command()]
}
