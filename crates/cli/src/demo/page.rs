//! The report: one HTML page that needs nothing but itself. No script; well-formed XML too, so that tests can read it.

mod markup;
mod nodes;
mod rates;
#[cfg(test)]
pub(super) mod sample;

use super::contestants::{Contestant, Section};
use super::findings::{Ratios, one_node, peer, percent, times};
use super::limits;
use super::outcome::Outcome;
use crate::topology::human_bytes;
use markup::{escape, prose};

/// The page, whole.
pub(super) fn of(outcome: &Outcome) -> String {
    let machine = &outcome.machine;
    let warning = limits::distrust(outcome).map(|text| format!("<p class=\"warning\">{}</p>\n", prose(&text)));
    let description = description(outcome).into_iter();
    format!(
        include_str!("page/page.html"),
        style = include_str!("page/style.css"),
        machine = escape(&format!(
            "{} · {} · {} CPUs · {} · Linux {}",
            machine.date,
            machine.cpu_model,
            machine.cpus,
            human_bytes(machine.memory_bytes),
            machine.kernel
        )),
        figures = figures(outcome),
        warning = warning.unwrap_or_default(),
        nodes = nodes::cards(outcome),
        example = if one_node(outcome) {
            include_str!("page/example.html")
        } else {
            ""
        },
        headline = prose(&outcome.headline),
        findings = list(&outcome.findings),
        rates = Section::ALL.map(|section| rates::of(outcome, section)).concat(),
        places = nodes::places(outcome),
        accesses = nodes::accesses(outcome),
        distances = nodes::distances(&outcome.topology),
        limits = list(&outcome.limits),
        description = description
            .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(&name), escape(&value)))
            .collect::<String>(),
        version = escape(&machine.homenode)
    )
}

/// Three large numbers. Where a run gives no ratios, the files that were compared and the bytes that spilled take their place.
fn figures(outcome: &Outcome) -> String {
    let figure = |number: &str, label: &str, note: &str| {
        let (number, label, note) = (escape(number), escape(label), escape(note));
        format!("<li><b>{number}</b><span>{label}</span><span class=\"quiet\">{note}</span></li>\n")
    };
    let peer = peer(outcome);
    let ratio = |what: &str, sections: &[Section], contestant: Contestant| {
        let ratios = Ratios::of(outcome, sections, &[contestant], peer)?;
        let label = format!("{what}, to {}", peer.name());
        Some(figure(
            &times(ratios.mean()),
            &label,
            &format!("geometric mean; rows from {}", ratios.range()),
        ))
    };
    let pools = outcome.pools.iter().map(|pool| &pool.state);
    let (local, all) = pools.clone().fold((0, 0), |sum, state| {
        let (local, all) = state.local_and_all_bytes();
        (sum.0 + local, sum.1 + all)
    });
    let note = if one_node(outcome) {
        "one node: there is nothing to place".to_owned()
    } else {
        format!("of {} copied in and out of pools", human_bytes(all))
    };
    let compared: usize = outcome.trees.iter().map(|tree| tree.entries).sum();
    let no_difference = "copied by rsync, which found no difference";
    let spilled = human_bytes(pools.map(|state| state.spilled_bytes()).sum());
    let figures = [
        (all > 0).then(|| figure(&percent(local, all), "local to the CPU that copied", &note)),
        ratio("library", &[Section::InProcess], Contestant::Library),
        ratio("mount", &[Section::Fio], Contestant::Kernel)
            .or_else(|| ratio("mount, pool", &[Section::Fio, Section::FioDirect], Contestant::Pool)),
        (compared > 0).then(|| figure(&compared.to_string(), "files, directories and links", no_difference)),
        Some(figure(&spilled, "spilled", "to another node, as the writer’s was full")),
    ];
    figures.into_iter().flatten().take(3).collect()
}

fn list(sentences: &[String]) -> String {
    let sentences = sentences.iter().filter(|sentence| !sentence.is_empty());
    sentences
        .map(|sentence| format!("<li>{}</li>\n", prose(sentence)))
        .collect()
}

fn description(outcome: &Outcome) -> Vec<(String, String)> {
    let machine = &outcome.machine;
    let mut lines = vec![
        ("kernel".to_owned(), machine.kernel.clone()),
        ("CPU".to_owned(), machine.cpu_model.clone()),
        ("CPUs, nodes".to_owned(), format!("{}, {}", machine.cpus, machine.nodes)),
        ("memory".to_owned(), human_bytes(machine.memory_bytes)),
        (
            "virtual machine".to_owned(),
            if machine.virtual_machine { "yes" } else { "no" }.to_owned(),
        ),
        (
            "huge pages".to_owned(),
            format!(
                "anonymous: {}; shared memory: {}",
                machine.transparent_huge_pages, machine.shmem_huge_pages
            ),
        ),
        ("enable_uring".to_owned(), machine.enable_uring.clone()),
    ];
    for taken in &outcome.transports {
        lines.push((taken.contestant.name().to_owned(), taken.reason.clone()));
    }
    for absent in &outcome.absent {
        lines.push((
            absent.contestant.name().to_owned(),
            format!("not available: {}", absent.reason),
        ));
    }
    let settings = &outcome.settings;
    lines.extend([
        ("size per node".to_owned(), human_bytes(settings.size_per_node_bytes)),
        (
            "versions".to_owned(),
            format!("homenode {}; {}; {}", machine.homenode, machine.fio, machine.rsync),
        ),
        (
            "fio".to_owned(),
            "ioengine=psync fallocate=none invalidate=0 norandommap gtod_reduce=1 thread, a file per job".to_owned(),
        ),
        ("date".to_owned(), machine.date.clone()),
        ("command".to_owned(), machine.command_line.clone()),
    ]);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::Tree;
    use crate::says::says;

    /// Panics unless every element is closed where it was opened. Gives the number of elements.
    pub(super) fn elements(page: &str) -> usize {
        let mut open = Vec::new();
        let mut count = 0;
        let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
        for part in body.split('<').skip(1) {
            let tag = &part[..part.find('>').expect("a markup tag ends with >")];
            let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "the tag closes another: {tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            count += 1;
        }
        assert!(open.is_empty(), "open tags: {open:?}");
        count
    }

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        for machine in ["node:1 pu:2", "node:4 pu:2"] {
            let outcome = sample::outcome(machine);
            let page = of(&outcome);
            assert!(elements(&page) > 100);
            for row in &outcome.rows {
                assert!(page.contains(&escape(&row.title)), "{}", row.title);
            }
            assert!(
                !page.contains("<script") && page.contains("&lt;script&gt;"),
                "input is not escaped"
            );
            assert!(page.contains("Headline &lt;of&gt; a test.") && page.contains("not available: the reason"));
            assert_eq!(page.matches("</b><span>").count(), 3, "large numbers");
            assert_eq!(
                page.contains("recorded in the lab"),
                machine.starts_with("node:1"),
                "the example is for one node"
            );
            assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url("));
        }
    }

    #[test]
    fn a_page_without_ratios_shows_the_checks() {
        let mut outcome = sample::outcome("node:1 pu:2");
        for row in &mut outcome.rows {
            row.cells.retain(|contestant, _| contestant.is_ours());
        }
        outcome.trees.push(Tree {
            path: "/tree".to_owned(),
            entries: 1234,
            bytes: 5,
            verified_on: vec![Contestant::Pool],
        });
        let page = of(&outcome);
        says(&page, &["<b>1234</b>", "<b>2 MiB</b><span>spilled"]);
        assert!(!page.contains("geometric mean"), "{page}");
    }
}
