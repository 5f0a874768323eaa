//! The nodes: a card for each with its CPUs, its memory and the members on it; where bytes lie, who reached them, and distances.

use super::markup::escape;
use super::rates::class;
use crate::demo::findings::percent;
use crate::demo::outcome::{Files, Outcome, PoolReport};
use crate::demo::table::homes;
use crate::topology::{human_bytes, ranges};
use homenode_policy::topology::{LatencySource, Node, NodeKind, Topology};

/// Items of a list, a node each.
pub(super) fn cards(outcome: &Outcome) -> String {
    outcome
        .topology
        .nodes()
        .iter()
        .map(|node| card(outcome, node))
        .collect()
}

fn card(outcome: &Outcome, node: &Node) -> String {
    let kind = match node.kind() {
        NodeKind::Dram => "",
        NodeKind::MemoryOnly => " (memory only)",
        NodeKind::CpuOnly => " (CPUs only)",
        NodeKind::Empty => " (empty)",
    };
    let cpus = match node.cpus.len() {
        0 => "no CPUs".to_owned(),
        1 => format!("CPU {}", ranges(&node.cpus)),
        count => format!("{count} CPUs: {}", ranges(&node.cpus)),
    };
    let fill = |pool: &PoolReport| {
        let members = pool.state.members.iter().filter(|member| member.home == node.id);
        let capacity = members.map(|member| member.capacity_bytes).sum();
        // Not the members' own count: they do not know of the bytes that the kernel moves.
        let used = pool
            .files
            .iter()
            .filter_map(|files| files.bytes_by_node.get(&node.id.0))
            .sum();
        (capacity > 0).then(|| {
            let value = format!("{} of {}", human_bytes(used), human_bytes(capacity));
            meter(
                pool.contestant.name(),
                &value,
                class(pool.contestant),
                "",
                (used, capacity),
            )
        })
    };
    let mut meters: String = outcome.pools.iter().filter_map(fill).collect();
    let own = outcome
        .pools
        .iter()
        .flat_map(|pool| &pool.state.accesses)
        .filter(|cell| cell.from == node.id);
    let (local, all) = own.fold((0, 0), |(local, all), cell| {
        let bytes = cell.read_bytes + cell.written_bytes;
        (local + if cell.home == cell.from { bytes } else { 0 }, all + bytes)
    });
    if all > 0 && outcome.topology.nodes().len() > 1 {
        meters += &meter(
            "its CPUs’ copies",
            &format!("{} local", percent(local, all)),
            "near",
            " far",
            (local, all),
        );
    }
    format!(
        "<li><h3>{}{kind} <span>{}</span></h3>\n<p class=\"quiet\">{}</p>\n<dl>\n{meters}</dl></li>\n",
        escape(&node.id.to_string()),
        escape(&human_bytes(node.memory_bytes)),
        escape(&cpus)
    )
}

/// A name, a value, and a part of a whole as a bar.
fn meter(name: &str, value: &str, class: &str, rest: &str, (part, whole): (u64, u64)) -> String {
    let tenths = (u128::from(part) * 1000 / u128::from(whole.max(1))).min(1000);
    format!(
        "<div><dt>{}</dt><dd>{}</dd><dd class=\"bar{rest}\" aria-hidden=\"true\"><i class=\"{class}\" style=\"width:{}.{}%\"></i></dd></div>\n",
        escape(name),
        escape(value),
        tenths / 10,
        tenths % 10
    )
}

/// A table that may be wider than a small screen: it scrolls by itself, by keyboard too.
fn table(caption: &str, head: &[&str], nodes: impl Iterator<Item = String>, rows: &str) -> String {
    let head = head.iter().map(|name| format!("<th scope=\"col\">{name}</th>"));
    let nodes = nodes.map(|node| format!("<th scope=\"col\" class=\"number\">{}</th>", escape(&node)));
    format!(
        "<p class=\"note\">{caption}</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{caption}\"><table>\n<thead><tr>{}\
         </tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n",
        head.chain(nodes).collect::<String>()
    )
}

fn names(homes: &[u16]) -> impl Iterator<Item = String> {
    homes.iter().map(|home| format!("node {home}"))
}

/// Bytes of files by node.
pub(super) fn places(outcome: &Outcome) -> String {
    let homes = homes(outcome);
    let row = |pool: &PoolReport, files: &Files| {
        let cell = |home: &u16| {
            let bytes = files.bytes_by_node.get(home).copied().unwrap_or(0);
            let place = match files.written_from {
                Some(node) if node == *home => "near",
                Some(_) if bytes > 0 => "far",
                _ => "none",
            };
            format!(
                "<td class=\"number\"><b class=\"{place}\">{}</b></td>",
                escape(&human_bytes(bytes))
            )
        };
        let (pool, what) = (escape(pool.contestant.name()), escape(&files.what));
        format!(
            "<tr><td>{pool}</td><td>{what}</td>{}</tr>\n",
            homes.iter().map(cell).collect::<String>()
        )
    };
    let rows = outcome
        .pools
        .iter()
        .flat_map(|pool| pool.files.iter().map(move |files| row(pool, files)));
    table(
        "Files, and the nodes that their bytes lie on.",
        &["pool", "files"],
        names(&homes),
        &rows.collect::<String>(),
    )
}

/// Bytes that CPUs copied, by their node and the bytes' home.
pub(super) fn accesses(outcome: &Outcome) -> String {
    let homes = homes(outcome);
    let mut rows = String::new();
    let mut spills = String::new();
    for pool in &outcome.pools {
        let name = escape(pool.contestant.name());
        let (_, all) = pool.state.local_and_all_bytes();
        for from in &homes {
            let own = || pool.state.accesses.iter().filter(|cell| cell.from.0 == *from);
            let cell = |home: &u16| {
                let Some(cell) = own().find(|cell| cell.home.0 == *home) else {
                    return "<td class=\"number\">–</td>".to_owned();
                };
                format!(
                    "<td class=\"number\"><b class=\"{}\">{}</b><small>{} read</small><small>{} written</small></td>",
                    if from == home { "near" } else { "far" },
                    percent(cell.read_bytes + cell.written_bytes, all),
                    escape(&human_bytes(cell.read_bytes)),
                    escape(&human_bytes(cell.written_bytes))
                )
            };
            if own().next().is_some() {
                let cells: String = homes.iter().map(cell).collect();
                rows += &format!("<tr><td>{name}</td><th scope=\"row\">node {from}</th>{cells}</tr>\n");
            }
        }
        for spill in &pool.state.spills {
            let bytes = escape(&human_bytes(spill.bytes));
            spills += &format!(
                "<p>{name}: {bytes} of {}’s writers spilled to {}.</p>\n",
                spill.from, spill.home
            );
        }
    }
    if !rows.is_empty() {
        let caption = "Copies in and out of a pool, by the node of the CPU that copied and the node that the bytes lie on; shares of \
                       all of the pool. What the kernel moves in its own files is not counted.";
        rows = table(caption, &["pool", "CPUs of"], names(&homes), &rows);
    }
    rows + &spills
}

/// The matrix of distances; a darker cell is farther.
pub(super) fn distances(topology: &Topology) -> String {
    let nodes = topology.node_ids();
    if nodes.len() < 2 {
        return String::new();
    }
    let latency = topology.latency();
    let unit = match latency.source {
        LatencySource::Hmat => "in ns, by the firmware",
        LatencySource::Measured => "in ns, measured",
        LatencySource::Slit => "relative, by the firmware; 10 is local",
        LatencySource::Assumed => "relative, assumed, because the machine tells none; 10 is local",
    };
    let farthest = latency.matrix.iter().flatten().copied().max().unwrap_or(1).max(1);
    let mut rows = String::new();
    for (from, distances) in nodes.iter().zip(&latency.matrix) {
        let cell = |(to, distance): (_, &u32)| {
            let place = if to == from { "near" } else { "far" };
            let shade = distance * 30 / farthest;
            format!("<td class=\"number shade {place}\" style=\"--shade:{shade}%\">{distance}</td>")
        };
        let cells: String = nodes.iter().zip(distances).map(cell).collect();
        rows += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(&from.to_string()));
    }
    let caption = format!("Distances from CPUs (rows) to memory (columns), {unit}.");
    table(&caption, &["CPUs of"], nodes.iter().map(ToString::to_string), &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::page::sample;
    use crate::says::says;

    #[test]
    fn every_node_has_a_card_and_its_distances() {
        for (machine, nodes) in [("node:1 pu:2", 1), ("node:2 pu:2", 2), ("node:5 pu:70", 5)] {
            let outcome = sample::outcome(machine);
            let text = cards(&outcome);
            assert_eq!(text.matches("<li>").count(), nodes, "{text}");
            says(&text, &["4 MiB of 1.0 GiB", "style=\"width:0.3%\""]);
            let cells = distances(&outcome.topology).matches("shade").count() / 2;
            assert_eq!(cells, if nodes == 1 { 0 } else { nodes * nodes });
        }
    }

    #[test]
    fn far_bytes_are_shown_as_far() {
        let outcome = sample::outcome("node:2 pu:2");
        assert!(
            cards(&outcome).contains("<dd>0.0\u{a0}% local</dd><dd class=\"bar far\""),
            "node 1 copied from node 0 only"
        );
        let accesses = accesses(&outcome);
        assert!(accesses.contains("<b class=\"near\">75.0\u{a0}%</b>"), "{accesses}");
        says(&accesses, &["<b class=\"far\">25.0\u{a0}%</b>", "2 MiB of node 1’s"]);
        assert!(places(&outcome).contains("<b class=\"far\">4 MiB</b>"));
    }
}
