//! `homenode generate`: man pages and shell completions, made from the definition of the command line when the command is
//! installed. Hidden: it is for those who package the command.

mod sections;

use crate::failure::{Cannot, Result};
use crate::mkfs;
use crate::mount_helper;
use clap::{Arg, ArgAction, Args, Command};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Write man pages to DIR/man and shell completions to DIR/completions.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Output directory, created if missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Section of the manual for what administrators run.
const ADMINISTRATION: &str = "8";

const FSTAB: &str = "homenode  /srv/pool  homenode  size_per_node=25%,nosuid,nodev,nofail  0 0";
const FSTAB_DURABLE: &str =
    "data  /srv/data  homenode  nofail,x-systemd.mount-timeout=5min,x-systemd.requires-mounts-for=/var/pool  0 0";
const BY_HAND: &str = "mount -t homenode -o size_per_node=2G,node=0,node=1 homenode /srv/pool";

pub(crate) fn run(args: &GenerateArgs, command: Command) -> Result<()> {
    let directory = &args.directory;
    write(directory, command).cannot(format_args!(
        "write man pages and completions to {}",
        directory.display()
    ))
}

fn write(directory: &Path, command: Command) -> io::Result<()> {
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut visible(&command), "homenode", &completions)?;
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, &man)?;
    write_page_of_mount_helper(&man)?;
    for command in mkfs::commands() {
        let page = Man::new(command).section(ADMINISTRATION);
        page.render(&mut File::create(man.join(page.get_filename()))?)?;
    }
    fs::write(
        man.join(format!("{}.{ADMINISTRATION}", mount_helper::NAME_FOR_MOUNTED)),
        format!(".so man{ADMINISTRATION}/{}.{ADMINISTRATION}\n", mount_helper::NAME),
    )
}

/// The page of a command and those of all below it.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write_pages(below, directory)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let version = command.get_version().unwrap_or_default();
    let page = Man::new(command.clone().override_usage(usage(command))).source(format!("{name} {version}"));
    let mut file = File::create(directory.join(page.get_filename()))?;
    page.render(&mut file)?;
    sections::of(command, &name).to_writer(&mut file)
}

/// How it is called, with the values that options take.
fn usage(command: &Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or(command.get_name()).to_owned()];
    let everywhere = |one: &&Arg| matches!(one.get_id().as_str(), "help" | "version");
    let visible = command
        .get_arguments()
        .filter(|one| !one.is_hide_set() && !everywhere(one));
    let (values, options): (Vec<&Arg>, Vec<&Arg>) = visible.partition(|one| one.is_positional());
    for argument in options.into_iter().chain(values) {
        let value = argument.get_value_names().unwrap_or_default().join(" ");
        let word = match (argument.get_long(), argument.get_action()) {
            (None, _) => value,
            (Some(long), ArgAction::Set | ArgAction::Append) => format!("--{long} {value}"),
            (Some(long), _) => format!("--{long}"),
        };
        let more = matches!(argument.get_action(), ArgAction::Append);
        let word = if argument.is_required_set() {
            word
        } else {
            format!("[{word}]")
        };
        words.push(if more { word + "..." } else { word });
    }
    if command.has_subcommands() {
        words.push("COMMAND".to_owned());
    }
    words.join(" ")
}

/// The command without what is hidden, which clap_complete would offer all the same.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|one| !one.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|one| !one.is_hide_set()).map(visible);
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().unwrap_or_default().to_owned())
        .allow_missing_positional(command.is_allow_missing_positional_set())
        .args(arguments)
        .subcommands(below)
}

fn write_page_of_mount_helper(directory: &Path) -> io::Result<()> {
    let (command, options) = mount_helper::manual();
    let page = Man::new(command).section(ADMINISTRATION);
    let mut file = File::create(directory.join(page.get_filename()))?;
    page.render(&mut file)?;
    let mut more = Roff::new();
    more.control("SH", ["REMOUNT"]);
    more.text([roman(
        "mount -o remount changes ro, rw, nosuid, nodev and noexec. It refuses rw for a pool opened read-only, and relatime for \
         a pool mounted with noatime. Pool options may be repeated only with the mounted pool's values; use homenode pool add, \
         drain and remove to change members. mount(8) runs mount.fuse.homenode for this; with both a source and a directory, \
         or with -i, it runs no helper and ignores pool options.",
    )]);
    more.control("SH", ["MOUNT OPTIONS"]);
    more.text([roman(
        "Besides what every filesystem may be given (defaults, noauto, nofail, x-systemd.automount and so on) these, which \
         are the options of homenode up:",
    )]);
    for (option, help) in options {
        more.control("TP", []);
        more.text([bold(option)]);
        more.text([roman(help)]);
    }
    more.control("SH", ["EXAMPLES"]);
    more.text([roman("A line of /etc/fstab:")]);
    example(&mut more, FSTAB);
    more.text([roman("One for a durable pool, with the place of its files:")]);
    example(&mut more, FSTAB_DURABLE);
    more.text([roman("By hand:")]);
    example(&mut more, BY_HAND);
    more.control("SH", ["SEE ALSO"]);
    more.text([
        bold("homenode-up"),
        roman("(1), "),
        bold("mount"),
        roman("(8), "),
        bold("fstab"),
        roman("(5)"),
    ]);
    more.to_writer(&mut file)
}

/// A line as it is, on a line of its own.
fn example(page: &mut Roff, line: &str) {
    page.control("PP", []);
    page.control("nf", []);
    page.control("RS", []);
    page.text([roman(line)]);
    page.control("RE", []);
    page.control("fi", []);
    page.control("PP", []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use crate::says::says;
    use clap::CommandFactory;

    /// Pages of a command and of all that is below it, as man(1) names them.
    fn pages(command: &Command, name: &str) -> Vec<String> {
        let below = command.get_subcommands().filter(|one| !one.is_hide_set());
        let below = below.flat_map(|one| pages(one, &format!("{name}-{}", one.get_name())));
        std::iter::once(format!("{name}.1")).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), Cli::command()).unwrap();
        let read = |name: &str| {
            let path = directory.path().join(name);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let pages = pages(&Cli::command(), "homenode");
        assert!(pages.contains(&"homenode-file-map.1".to_owned()), "{pages:?}");
        for page in &pages {
            let text = read(&format!("man/{page}"));
            assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
        }
        let count = fs::read_dir(directory.path().join("man")).unwrap().count();
        assert_eq!(count, pages.len() + 4, "pages of the commands and of the helpers");
        let alias = read("man/mount.fuse.homenode.8");
        assert!(
            directory.path().join("man").join("mount.homenode.8").exists() && alias.contains("man8/mount.homenode.8")
        );
        for (page, parts) in [
            (
                "homenode",
                &["SH ENVIRONMENT", "SH FILES", "SH \"EXIT STATUS\"", "SH \"SEE ALSO\""][..],
            ),
            (
                "homenode-up",
                &["\"homenode\\-up 0", "\\-\\-size\\-per\\-node SIZE", "mount.homenode"],
            ),
            ("homenode-file-map", &["SH \"SEE ALSO\""]),
        ] {
            let text = read(&format!("man/{page}.1"));
            for part in parts {
                let part = part.replace("\\-", "-");
                assert!(
                    text.replace("\\-", "-").contains(&part),
                    "{part} is missing in {page}: {text}"
                );
            }
        }
        for page in ["homenode-fsck", "homenode-run"] {
            let text = read(&format!("man/{page}.1"));
            assert!(
                !text.contains("EXIT STATUS"),
                "{page} has exit codes of its own: {text}"
            );
        }
        let bash = read("completions/homenode.bash");
        assert!(bash.contains("auto uring classic"), "known values are completed");
        assert!(read("man/homenode-up.1").contains("per\\-node"));
        for file in ["homenode.bash", "_homenode", "homenode.fish"] {
            let text = read(&format!("completions/{file}"));
            assert!(text.contains("size-per-node") && text.contains("drain"), "{file}");
        }
    }

    #[test]
    fn completions_leave_hidden_arguments_out() {
        let command = visible(&Cli::command());
        assert!(command.find_subcommand("generate").is_none());
        let up = command.find_subcommand("up").unwrap();
        let offered: Vec<&str> = up.get_arguments().filter_map(clap::Arg::get_long).collect();
        assert!(offered.contains(&"foreground"), "{offered:?}");
        assert!(
            !offered.contains(&"detached") && !offered.contains(&"source"),
            "{offered:?}"
        );
    }

    #[test]
    fn the_page_of_the_mount_helper_has_its_options() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), Cli::command()).unwrap();
        let text = fs::read_to_string(directory.path().join("man/mount.homenode.8")).unwrap();
        let (_, options) = mount_helper::manual();
        for (option, _) in options {
            // As roff writes it.
            let option = option.replace('-', "\\-");
            assert!(text.contains(&option), "{option} is missing in: {text}");
        }
        says(&text, &["MOUNT OPTIONS", "/srv/pool", ".SH \"SEE ALSO\""]);
    }
}
