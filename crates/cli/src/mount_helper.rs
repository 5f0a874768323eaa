//! `mount.homenode`: what mount(8) runs for `mount -t homenode`, by hand or for a line of /etc/fstab.
//!
//! It is this binary under another name. Options with a meaning for the pool are those of `homenode up`, spelled as mount
//! options: `size_per_node=2G` is `--size-per-node=2G`. What any filesystem may be given is in [`options`].

mod options;
mod remount;

use crate::failure::{Failure, Result, fail};
use crate::pool;
use crate::up::{self, UpArgs};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser};
use homenode::PoolName;
use options::Meaning;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The name it is called by.
pub(crate) const NAME: &str = "mount.homenode";
/// The name for what is mounted: mount(8) takes it from the type in the mount table.
pub(crate) const NAME_FOR_MOUNTED: &str = "mount.fuse.homenode";

/// The argument of `up` that is written `ro` after `-o`.
const READ_ONLY: &str = "--read-only";

/// Exit codes of mount(8): not understood, and not mounted.
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Mount a homenode pool. mount(8) runs this helper for `mount -t homenode` and for /etc/fstab.
///
/// The helper brings the pool up as `homenode up [NAME] DIR` does; `umount DIR` ends the pool. The contents of a pool of memory are lost then.
#[derive(Debug, Parser)]
#[command(name = NAME, version, args_override_self = true)]
#[command(override_usage = "mount.homenode SOURCE DIR [-sfnv] [-N FILE] [-o OPTIONS] [-t TYPE]")]
pub(crate) struct HelperArgs {
    /// Name of a durable pool in `homenode pool list`; `homenode` or `none` for a new pool of memory.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Empty directory to mount on. The root of a new pool takes its owner and mode from DIR.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options, separated by commas. See MOUNT OPTIONS.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown options instead of failing.
    #[arg(short)]
    sloppy: bool,
    /// Check the options and do not mount.
    #[arg(short)]
    fake: bool,
    /// Ignored: there is no /etc/mtab to write.
    #[arg(short)]
    no_mtab: bool,
    /// Print the chosen transport and storage of bytes, with the reason.
    #[arg(short)]
    verbose: bool,
    /// Mount in this mount namespace.
    #[arg(short = 'N', value_name = "FILE")]
    namespace: Option<PathBuf>,
    /// Ignored: there is one type.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

impl HelperArgs {
    /// Every option, in the order given.
    fn written(&self) -> impl Iterator<Item = &str> {
        let options = self.options.iter().flat_map(|options| options.split(','));
        options.filter(|option| !option.is_empty())
    }
}

/// The helper's `main`.
pub(crate) fn main() -> ExitCode {
    let args = match HelperArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Where it cannot be printed, the exit code has to do.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let (result, code) = if remount::is_asked_for(&args) {
        carry_out(&args, remount::check(&args), |wanted| remount::run(&args, &wanted))
    } else {
        carry_out(&args, up_args(&args), |up_args| up::run_with(&up_args, args.verbose))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain!("{NAME}: {failure}");
            ExitCode::from(code)
        }
    }
}

/// Does what was understood, and tells the exit code that its failure has.
fn carry_out<T>(args: &HelperArgs, understood: Result<T>, run: impl FnOnce(T) -> Result<()>) -> (Result<()>, u8) {
    match understood {
        Ok(_) if args.fake => (Ok(()), FAILED),
        Ok(what) => (run(what), FAILED),
        Err(failure) => (Err(failure), USAGE),
    }
}

/// Arguments that `homenode up` would have been given.
fn up_args(args: &HelperArgs) -> Result<UpArgs> {
    let mut arguments: Vec<OsString> = vec![format!("--source={}", args.source).into()];
    for option in args.written() {
        match options::meaning(option) {
            Meaning::ReadOnly => arguments.push(READ_ONLY.into()),
            Meaning::GivenAnyway if option == "rw" => arguments.retain(|argument| argument != READ_ONLY),
            // The later of two opposites counts: `exec` takes back a `noexec` before it.
            Meaning::GivenAnyway => {
                let opposite = format!("--no{option}");
                arguments.retain(|argument| *argument != *opposite);
            }
            Meaning::Refused(remedy) => fail!("option {option}: {remedy}"),
            Meaning::OfPool => match argument(option)? {
                Some(argument) => arguments.push(argument.into()),
                None if args.sloppy => {}
                None => fail!("option {option} is not known; {NAME} has {}", names().join(", ")),
            },
        }
    }
    if !pool::durable::RESERVED.contains(&&*args.source) {
        let name = args.source.parse::<PoolName>().ok();
        let known = name.map_or(Ok(None), |name| pool::known::find(&name))?;
        if known.is_none() {
            fail!(
                "no pool {} is known here: `homenode pool list` lists known pools; write homenode for a new pool of memory",
                args.source.escape_debug()
            );
        }
        if args.namespace.is_some() {
            fail!(
                "a durable pool cannot be mounted in another namespace, where its members may have other names: mount it here, and bind it there"
            );
        }
        arguments.push(format!("--pool={}", args.source).into());
    }
    arguments.push("--".into());
    arguments.push(args.directory.clone().into());
    let mut parsed = parse(arguments)?;
    parsed.check(as_option)?;
    parsed.namespace.clone_from(&args.namespace);
    Ok(parsed)
}

fn parse(arguments: Vec<OsString>) -> Result<UpArgs> {
    let parsed = pool_command().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| UpArgs::from_arg_matches(&matches));
    let parsed = parsed.map_err(|error| match (error.kind(), error.get(ContextKind::InvalidArg)) {
        // Only the options that a durable pool does not have contradict another one.
        (ErrorKind::ArgumentConflict, Some(ContextValue::String(flag))) => {
            let name = flag.split(' ').next().unwrap_or_default().trim_start_matches('-');
            Failure::new(format!(
                "option {}: it is for a new pool of memory, and the source names a durable pool: leave it out",
                as_option(name)
            ))
        }
        _ => Failure::new(error.to_string()),
    })?;
    Ok(parsed.read_from(arguments))
}

/// Mount options that say what these words of `up` say.
pub(crate) fn options_of(words: &[OsString]) -> Vec<String> {
    let mut command = pool_command();
    let known = pool_options(&mut command);
    let given = command.get_matches_from(words);
    let option = |arg: &Arg| {
        let values = given.get_raw(arg.get_id().as_str()).into_iter().flatten();
        match takes_value(arg) {
            true => values
                .map(|value| format!("{}={}", name_of(arg), value.display()))
                .collect(),
            false if given.get_flag(arg.get_id().as_str()) => vec![name_of(arg)],
            false => Vec::new(),
        }
    };
    known.iter().flat_map(option).collect()
}

/// An argument's name as it is written after `-o`.
fn as_option(name: &str) -> String {
    match name {
        "read-only" => "ro".to_owned(),
        name => name.replace('-', "_"),
    }
}

/// A mount option as an argument of `up`; `None` when `up` has no such. Checked alone, so that the message can name it.
fn argument(option: &str) -> Result<Option<String>> {
    let (name, value) = option
        .split_once('=')
        .map_or((option, None), |(name, value)| (name, Some(value)));
    let mut command = pool_command();
    let known = pool_options(&mut command);
    let Some(known) = known.into_iter().find(|known| name_of(known) == name) else {
        return Ok(None);
    };
    let flag = format!("--{}", name.replace('_', "-"));
    let argument = match (takes_value(&known), value) {
        (true, Some(value)) => format!("{flag}={value}"),
        (false, None) => flag,
        (true, None) => fail!("option {option} needs a value: {}", shown(&known)),
        (false, Some(_)) => fail!("option {option} takes no value: write {name}"),
    };
    match command.try_get_matches_from([argument.as_str(), "--", "DIR"]) {
        Ok(_) => Ok(Some(argument)),
        Err(error) => match error.source() {
            Some(problem) => fail!("option {option}: {problem}"),
            None => match error.get(ContextKind::ValidValue) {
                Some(values) => fail!("option {option}: write one of {values}"),
                None => fail!("option {option}: {}", error.kind()),
            },
        },
    }
}

/// `up` as it is parsed here and by the server: the later one of two equal options counts, as with any filesystem.
fn pool_command() -> Command {
    UpArgs::augment_args(Command::new(NAME)).no_binary_name(true)
}

/// The arguments of `up` that are mount options too.
fn pool_options(command: &mut Command) -> Vec<Arg> {
    command.build();
    let is_option = |arg: &&Arg| {
        let set = matches!(
            arg.get_action(),
            ArgAction::Set | ArgAction::Append | ArgAction::SetTrue
        );
        set && !arg.is_positional() && !arg.is_hide_set() && !["foreground", "pool"].contains(&arg.get_id().as_str())
    };
    command.get_arguments().filter(is_option).cloned().collect()
}

fn name_of(arg: &Arg) -> String {
    as_option(arg.get_long().unwrap_or_default())
}

/// Whether the pool has an option of this name, other than those that are the kernel's.
fn is_pool_option(name: &str) -> bool {
    pool_options(&mut pool_command()).iter().any(|arg| name_of(arg) == name)
}

fn takes_value(arg: &Arg) -> bool {
    !matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The option in the form of the manual, such as `node=N`.
fn shown(arg: &Arg) -> String {
    match arg.get_value_names() {
        Some([value, ..]) if takes_value(arg) => format!("{}={value}", name_of(arg)),
        _ => name_of(arg),
    }
}

fn names() -> Vec<String> {
    pool_options(&mut pool_command()).iter().map(shown).collect()
}

/// The command for its manual, and each mount option with what it does.
pub(crate) fn manual() -> (Command, Vec<(String, String)>) {
    let described = |arg: &Arg| {
        let help = arg.get_long_help().or(arg.get_help());
        (shown(arg), help.map(ToString::to_string).unwrap_or_default())
    };
    let options = pool_options(&mut pool_command()).iter().map(described).collect();
    (HelperArgs::command(), options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::says::says;
    use homenode::Size;

    fn parse(options: &[&str]) -> Result<UpArgs> {
        let mut arguments = vec![NAME, "homenode", "/mnt/pool"];
        arguments.extend(options);
        up_args(&HelperArgs::try_parse_from(arguments).unwrap())
    }

    #[test]
    fn mount_options_become_arguments_of_up() {
        let args = parse(&[
            "-o",
            "rw,size_per_node=2G,node=0,node=3",
            "-o",
            "noauto,size_per_node=1G,per_node",
        ])
        .unwrap();
        assert_eq!(args.directory, std::path::Path::new("/mnt/pool"));
        assert_eq!(args.size_per_node, Some(Size::Bytes(1 << 30)), "the later one counts");
        assert_eq!(args.nodes, [0, 3]);
        assert!(args.mounting.per_node && !args.foreground);
        assert_eq!(args.mounting.source.as_deref(), Some("homenode"));
        assert!(!parse(&[]).unwrap().mounting.per_node);
    }

    #[test]
    fn the_time_between_commits_is_for_durable_pools() {
        let refused = |option: &str| parse(&["-o", option]).unwrap_err().to_string();
        assert!(refused("commit=5").contains("commit is for durable pools"));
        for wrong in ["commit=0", "commit=301", "commit=soon", "commit=1.5"] {
            assert!(refused(wrong).contains("1 to 300"), "{}", refused(wrong));
        }
    }

    #[test]
    fn standard_mount_options_are_accepted() {
        parse(&[
            "-o",
            "rw,defaults,auto,noauto,user,nofail,_netdev,exec,suid,dev,relatime,async,allow_other",
        ])
        .unwrap();
        parse(&[
            "-o",
            "x-systemd.requires=a.service,X-mount.mkdir,comment=a pool,,",
            "-n",
            "-v",
            "-t",
            "homenode",
        ])
        .unwrap();
    }

    #[test]
    fn the_later_of_opposite_options_counts() {
        let flags = |options: &[&str]| {
            let options = parse(options).unwrap().mounting.options();
            (options.nosuid, options.nodev, options.noexec)
        };
        let times = |options: &[&str]| {
            let options = parse(options).unwrap().mounting.options();
            (options.noatime, options.nodiratime)
        };
        assert_eq!(times(&["-o", "noatime,nodiratime,relatime"]), (true, true));
        assert_eq!(times(&["-o", "noatime,diratime,nodiratime,atime"]), (false, true));
        assert_eq!(flags(&["-o", "nosuid,nodev,noexec"]), (true, true, true));
        assert_eq!(flags(&["-o", "noexec,nosuid,nodev,exec"]), (true, true, false));
        assert_eq!(
            flags(&["-o", "noexec,nosuid,nodev,noexec", "-o", "suid,dev"]),
            (false, false, true)
        );
        assert_eq!(flags(&["-o", "exec,dev,noexec,nodev"]), (false, true, true));
    }

    #[test]
    fn ignored_options_may_be_repeated() {
        let args = parse(&[
            "-vv", "-n", "-nv", "-ss", "-t", "x", "-t", "y", "-o", "node=1", "-o", "node=2",
        ])
        .unwrap();
        assert_eq!(args.nodes, [1, 2], "options add up");
    }

    #[test]
    fn unsupported_options_are_refused_with_a_remedy() {
        let refused = [
            ("strictatime", "relatime"),
            ("norelatime", "noatime"),
            ("size=1G", "size_per_node"),
            ("mpol=bind:0", "per_node"),
            ("mode=0755", "directory"),
            ("writeback", "it is gone"),
            ("frobnicate", "size_per_node=SIZE"),
            ("foreground", "not known"),
            ("detached", "not known"),
            ("source=x", "not known"),
            ("help", "not known"),
            ("size_per_node", "size_per_node=SIZE"),
            ("size_per_node=5X", "K, M, G"),
            ("size_per_node=", "empty"),
            ("node=x", "one number"),
            ("transport=tcp", "classic"),
            ("per_node=1", "no value"),
        ];
        for (option, remedy) in refused {
            let message = parse(&["-o", &format!("rw,{option}")]).unwrap_err().to_string();
            says(&message, &[&format!("option {option}"), remedy]);
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn read_only_is_refused_for_a_pool_of_memory() {
        for option in ["ro", "degraded"] {
            let message = parse(&["-o", option]).unwrap_err().to_string();
            assert!(message.starts_with(option) && message.contains("durable"), "{message}");
        }
    }

    #[test]
    fn contradicting_options_are_named_as_mount_options() {
        let message = parse(&["-o", "transport=classic,spin_us=5"]).unwrap_err().to_string();
        assert!(!message.contains("--"), "{message}");
        says(&message, &["spin_us", "transport=classic"]);
    }

    #[test]
    fn a_remount_changes_kernel_options_only() {
        let check = |options: &str| {
            let args = HelperArgs::try_parse_from([NAME, "homenode", "/mnt/pool", "-o", options]).unwrap();
            assert!(remount::is_asked_for(&args));
            remount::check(&args)
        };
        let of_pool = |options: &str| check(options).map(|wanted| wanted.options);
        // As mount(8) makes them of the mount table, of a line of /etc/fstab, and of what is asked for.
        let of_table = "rw,nosuid,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other";
        assert_eq!(of_pool(of_table), Ok(vec![]));
        assert_eq!(of_pool(&format!("{of_table},noexec,dev")), Ok(vec![]));
        assert_eq!(of_pool("ro,remount,nofail,nosuid"), Ok(vec![]));
        let times = ["noatime", "nodiratime"].map(str::to_owned).to_vec();
        assert_eq!(of_pool("ro,remount,noatime,nodiratime"), Ok(times));
        let same = |given: &str, has: &[&str]| {
            let has: Vec<String> = has.iter().map(|&option| option.to_owned()).collect();
            check(&format!("{of_table},{given}")).unwrap().differs_from(&has)
        };
        let has = ["size_per_node=16M", "node=0", "node=2", "transport=auto", "data=auto"];
        for given in [
            "size_per_node=16M",
            "size_per_node=1G,size_per_node=16384K",
            "node=2,node=0,transport=auto",
        ] {
            assert_eq!(same(given, &has), None, "{given}");
        }
        for given in [
            "size_per_node=32M",
            "size_per_node=50%",
            "node=0",
            "transport=classic",
            "per_node",
            "metadata=1G",
        ] {
            let name = given.split('=').next().unwrap();
            assert_eq!(same(given, &has).as_deref(), Some(name), "{given}");
        }
        for (option, part) in [
            ("size_per_node=5X", "K, M, G"),
            ("size=1G", "size_per_node"),
            ("frobnicate", "not known"),
        ] {
            let message = check(&format!("{of_table},{option}")).unwrap_err().to_string();
            assert!(message.contains(option) && message.contains(part), "{message}");
        }
        let mount = HelperArgs::try_parse_from([NAME, "homenode", "/mnt/pool", "-o", "rw,x-remount"]).unwrap();
        assert!(!remount::is_asked_for(&mount));
    }

    #[test]
    fn sloppy_ignores_unknown_options_only() {
        assert_eq!(parse(&["-s", "-o", "frobnicate,node=1"]).unwrap().nodes, [1]);
        assert!(parse(&["-s", "-o", "ro"]).is_err());
        assert!(parse(&["-s", "-o", "ro,rw"]).is_ok());
        assert!(parse(&["-s", "-o", "node=x"]).is_err());
    }

    #[test]
    fn the_manual_has_every_option_with_its_help() {
        let (_, options) = manual();
        let names: Vec<&str> = options
            .iter()
            .map(|(name, _)| name.split('=').next().unwrap())
            .collect();
        for name in [
            "size_per_node",
            "node",
            "transport",
            "buffers",
            "spin_us",
            "cache_attr",
            "per_node",
            "nosuid",
        ] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        assert!(options.iter().all(|(_, help)| !help.is_empty()));
    }
}
