//! The arguments of `up` that say how the pool is mounted and served.

use crate::argument;
use crate::failure::{Result, fail};
use clap::Args;
use homenode::mover::MoverMode;
use homenode::{Data, MountOptions, Transport};
use std::time::Duration;

/// How the pool is mounted and served.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Mounting")]
pub(crate) struct MountingArgs {
    /// Transport of requests between kernel and server: `uring` (a ring for each CPU, faster; needs Linux 6.14 or newer with
    /// enable_uring of the fuse module set), `classic` (/dev/fuse, on every kernel), or `auto`: uring if available. Default: auto.
    #[arg(long, value_name = "auto|uring|classic", value_parser = argument::transport())]
    #[arg(hide_possible_values = true)]
    transport: Option<Transport>,
    /// Storage of the bytes of regular files: `kernel`, `pool` or `auto`. `kernel` means files of a private tmpfs, which the
    /// kernel reads, writes and maps itself (Linux 6.9 and newer), nearly at the speed of a tmpfs: 4 KiB at 0.7 to 0.9 of a tmpfs
    /// with huge pages. Names go to the server. `pool` means blocks of the pool: all bytes go through the server. `auto` takes
    /// `kernel` if available. Default: auto.
    #[arg(long, value_name = "auto|kernel|pool", value_parser = argument::data())]
    #[arg(hide_possible_values = true)]
    data: Option<Data>,
    /// Move files to the node that uses them most: `off`, `plan` (`status` lists the moves), or `on`. BPF programs count reads and writes;
    /// works only on machines with several nodes, and if the kernel holds the bytes (--data). Default: plan.
    #[arg(long, value_name = "off|plan|on", value_parser = argument::mover())]
    #[arg(hide_possible_values = true)]
    mover: Option<MoverMode>,
    /// Limit of memory for the payloads of all rings together, in addition to the pool: bytes (64M, 1G). The limit decides how many
    /// requests each CPU may have in flight. Default: 256M. The classic transport has no rings.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    buffers: Option<u64>,
    /// Microseconds that a ring's thread polls for the next request before it sleeps. Polling gains a few percent for small
    /// back-to-back requests, and costs up to N microseconds of CPU time after each. Default: 0, the thread sleeps at once.
    /// The classic transport has no rings.
    #[arg(long, value_name = "N", value_parser = argument::microseconds)]
    spin_us: Option<u64>,
    /// Seconds for which the kernel may cache names and attributes (0, 0.5, 60). Default: for ever, which is safe because
    /// every change to files goes through this kernel. A shorter time costs a request to the server for each stat and each
    /// name that is older. It helps only to find out whether a problem comes from the kernel's cache.
    #[arg(long, value_name = "SECONDS", value_parser = argument::seconds)]
    cache_attr: Option<Duration>,
    /// Create a directory for each node with a member, DIR/node0, DIR/node1 and so on, with DIR's owner and mode. Bytes
    /// written there lie on that node, on whichever CPU the writer runs, while the node has free space. (The directory's
    /// user.homenode.policy is node:N, and new files in it inherit the policy.) Only for pools of memory.
    #[arg(long)]
    pub(crate) per_node: bool,
    /// Set-uid and set-gid programs on the mount run with their caller's rights.
    #[arg(long)]
    nosuid: bool,
    /// Device nodes on the mount cannot be opened.
    #[arg(long)]
    nodev: bool,
    /// Programs on the mount cannot be run.
    #[arg(long)]
    noexec: bool,
    /// Reading a file does not change its access time.
    #[arg(long)]
    noatime: bool,
    /// Reading a directory does not change its access time.
    #[arg(long)]
    nodiratime: bool,
    /// Name of the mounted thing in the mount table.
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) source: Option<String>,
}

/// An option's name as it is written on a command line.
pub(crate) fn as_flag(name: &str) -> String {
    format!("--{name}")
}

impl MountingArgs {
    /// Refuses what contradicts itself. `spelled` makes of an option's name what the person wrote.
    pub(crate) fn check(&self, spelled: fn(&str) -> String) -> Result<()> {
        let for_rings = [("buffers", self.buffers), ("spin-us", self.spin_us)];
        for (name, value) in for_rings {
            if self.transport == Some(Transport::Classic) && value.is_some() {
                let (option, transport) = (spelled(name), spelled("transport"));
                fail!("{option} is for rings, and {transport}=classic has none: leave {option} or {transport} out");
            }
        }
        Ok(())
    }

    /// Storage of the bytes of regular files.
    pub(crate) fn data(&self) -> Data {
        self.data.unwrap_or(Data::Auto)
    }

    /// Whether files move to their users.
    pub(crate) fn mover(&self) -> MoverMode {
        self.mover.unwrap_or(MoverMode::Plan)
    }

    /// For the library.
    pub(crate) fn options(&self) -> MountOptions {
        let mut options = MountOptions::default();
        options.transport = self.transport.unwrap_or(Transport::Auto);
        options.data = self.data();
        options.buffer_bytes = self.buffers.unwrap_or(options.buffer_bytes);
        options.spin = self.spin_us.map_or(options.spin, Duration::from_micros);
        (options.nosuid, options.nodev, options.noexec) = (self.nosuid, self.nodev, self.noexec);
        (options.noatime, options.nodiratime) = (self.noatime, self.nodiratime);
        options.attribute_timeout = self.cache_attr.unwrap_or(options.attribute_timeout);
        options.source = self.source.clone().unwrap_or(options.source);
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Parser};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        mounting: MountingArgs,
    }

    fn parse(arguments: &[String]) -> MountingArgs {
        let arguments = std::iter::once("test".to_owned()).chain(arguments.iter().cloned());
        let matches = <Command as clap::CommandFactory>::command().get_matches_from(arguments);
        Command::from_arg_matches(&matches).unwrap().mounting
    }

    #[test]
    fn options_are_given_values_or_library_defaults() {
        let mut defaults = MountOptions::default();
        defaults.data = Data::Auto;
        assert_eq!(parse(&[]).options(), defaults);
        let given = ["--transport=classic", "--cache-attr=0.25", "--source=x"];
        let options = parse(&given.map(str::to_owned)).options();
        assert_eq!(options.transport, Transport::Classic);
        assert_eq!(options.attribute_timeout, Duration::from_millis(250));
        assert_eq!(options.source, "x");
        let options = parse(&["--buffers=64M", "--spin-us=7"].map(str::to_owned)).options();
        assert_eq!(options.buffer_bytes, 64 << 20);
        assert_eq!(options.spin, Duration::from_micros(7));
    }

    #[test]
    fn ring_options_are_refused_for_the_classic_transport() {
        for flag in ["--buffers=64M", "--spin-us=0"] {
            let given = [flag, "--transport=classic"].map(str::to_owned);
            let message = parse(&given).check(as_flag).unwrap_err().to_string();
            assert!(message.contains(flag.split('=').next().unwrap()), "{message}");
            assert!(message.contains("--transport=classic"), "{message}");
            assert_eq!(parse(&[flag.to_owned()]).check(as_flag), Ok(()));
        }
    }
}
