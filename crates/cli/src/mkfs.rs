//! `mkfs.homenode` and `fsck.homenode`: what mkfs(8) and fsck(8) run. They are this binary under other names.

use crate::failure::Result;
use crate::fsck::{self, FsckArgs};
use crate::pool::durable::{self, FilesArgs};
use clap::{ArgAction, Command, CommandFactory, Parser};
use homenode::PoolName;
use std::process::ExitCode;

/// The names they are called by.
pub(crate) const MKFS: &str = "mkfs.homenode";
pub(crate) const FSCK: &str = "fsck.homenode";

/// Make a durable pool on files: what mkfs(8) runs for `mkfs -t homenode`.
///
/// `homenode pool create` also makes it known here by its name, as `homenode pool import` does later.
#[derive(Debug, Parser)]
#[command(name = MKFS, version)]
struct MkfsArgs {
    /// Name of the pool: letters, digits, `-`, `_` and `.`.
    #[arg(short = 'L', long, value_name = "NAME")]
    label: Option<PoolName>,
    #[command(flatten)]
    files: FilesArgs,
}

/// Check a durable pool that is not mounted: what fsck(8) runs for a pool of /etc/fstab. As `homenode fsck`, which repairs with `--repair`.
#[derive(Debug, Parser)]
#[command(name = FSCK, version)]
struct CheckArgs {
    #[command(flatten)]
    check: FsckArgs,
    /// Repair all faults, as -p and -y: the same as --repair.
    #[arg(short, short_aliases = ['p', 'y'], action = ArgAction::Count)]
    a: u8,
    /// Repair nothing, whatever else is given.
    #[arg(short, action = ArgAction::Count)]
    n: u8,
    /// Ignored: it always looks at everything.
    #[arg(short, short_aliases = ['v', 'T', 'M'], action = ArgAction::Count)]
    f: u8,
    /// Ignored: it takes no time that a bar could show.
    #[arg(short = 'C', value_name = "FD", num_args = 0..=1, require_equals = true)]
    progress: Option<String>,
}

/// `main` of [`MKFS`].
pub(crate) fn main() -> ExitCode {
    mkfs(&MkfsArgs::parse())
}

/// `main` of [`FSCK`].
pub(crate) fn main_of_fsck() -> ExitCode {
    match CheckArgs::try_parse() {
        Ok(CheckArgs { mut check, a, n, .. }) => {
            check.repair = n == 0 && (check.repair || a > 0);
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
    let (members, _) = durable::make(&args.label.unwrap_or_default(), &args.files)?;
    let uuid = homenode::member_of(&members[0])?.uuid;
    crate::print_line(&format!(
        "made pool {uuid:032x}; `homenode pool import` makes it known by a name"
    ))
}

/// The commands, for their manuals.
pub(crate) fn commands() -> [Command; 2] {
    [MkfsArgs::command(), CheckArgs::command()]
}
