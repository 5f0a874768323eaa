//! Verbs of `homenode --help` under headings.

use clap::Command;
use std::fmt::Write;

/// Verbs by heading; each verb that is not hidden is in one.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Pools", &["up", "down", "status", "top", "web", "pool", "fsck"]),
    ("Files", &["file", "run", "steer"]),
    ("Volumes and devices", &["volume", "blk"]),
    ("Machine", &["topology", "member", "doctor", "simulate"]),
    ("Affinity", &["affinity"]),
    ("First run", &["demo"]),
];

/// Has the help of a command list its verbs by group.
pub(crate) fn with_groups(command: Command) -> Command {
    let (header, literal) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, verbs) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{header}{heading}:{header:#}");
        for verb in verbs {
            let found = command.find_subcommand(verb).and_then(Command::get_about);
            let about = found.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{verb:<9}{literal:#} {about}");
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "{header}Options:{header:#}\n{{options}}\n\n`homenode help VERB` tells more about a verb."
    );
    command.help_template(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_verb_is_in_one_group() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn help_lists_each_verb_once_under_its_heading() {
        let help = with_groups(Cli::command()).render_help().to_string();
        for (heading, verbs) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n  {}", verbs[0])), "{help}");
            for verb in verbs {
                let lines = help.lines().filter(|line| line.starts_with(&format!("  {verb} ")));
                assert_eq!(lines.count(), 1, "{verb}: {help}");
            }
        }
    }
}
