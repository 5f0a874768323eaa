//! The machine as a picture: a box for each node with its CPUs, its memory and the members on it; and the distances.

use super::bars::class;
use super::markup::escape;
use crate::demo::outcome::Outcome;
use crate::topology::{human_bytes, ranges};
use homenode_policy::topology::{LatencySource, Node, NodeKind, Topology};
use std::fmt::{self, Write};

const BOX_WIDTH: usize = 320;
const GAP: usize = 16;
const COLUMNS: usize = 2;
const HEAD_HEIGHT: usize = 74;
const MEMBER_HEIGHT: usize = 38;
const PADDING: usize = 14;
const CELL: usize = 52;
/// More do not fit a page; the table of accesses has all.
const MATRIX_NODES_MAX: usize = 16;

/// An SVG element of a size of its own.
pub(super) fn of(page: &mut String, outcome: &Outcome) -> fmt::Result {
    let nodes = outcome.topology.nodes();
    let box_height = HEAD_HEIGHT + outcome.pools.len() * MEMBER_HEIGHT;
    let columns = nodes.len().min(COLUMNS);
    let rows = nodes.len().div_ceil(COLUMNS);
    let (width, height) = (
        columns * (BOX_WIDTH + GAP) - GAP + 2,
        rows * (box_height + GAP) - GAP + 2,
    );
    writeln!(
        page,
        "<div class=\"scroll\"><svg class=\"picture\" width=\"{width}\" height=\"{height}\" viewBox=\"-1 -1 {width} {height}\" \
         role=\"img\" aria-label=\"nodes, their CPUs, memory and members\">"
    )?;
    for (index, node) in nodes.iter().enumerate() {
        let (x, y) = (
            index % COLUMNS * (BOX_WIDTH + GAP),
            index / COLUMNS * (box_height + GAP),
        );
        writeln!(page, "<g transform=\"translate({x} {y})\">")?;
        node_box(page, outcome, node, box_height)?;
        writeln!(page, "</g>")?;
    }
    writeln!(page, "</svg></div>")?;
    distances(page, &outcome.topology)
}

fn node_box(page: &mut String, outcome: &Outcome, node: &Node, height: usize) -> fmt::Result {
    let inner = BOX_WIDTH - 2 * PADDING;
    let kind = match node.kind() {
        NodeKind::Dram => String::new(),
        NodeKind::MemoryOnly => " (memory only)".to_owned(),
        NodeKind::CpuOnly => " (CPUs only)".to_owned(),
        NodeKind::Empty => " (empty)".to_owned(),
    };
    let cpus = match node.cpus.len() {
        0 => "no CPUs".to_owned(),
        1 => format!("CPU {}", ranges(&node.cpus)),
        count => format!("{count} CPUs: {}", shortened(&ranges(&node.cpus))),
    };
    writeln!(
        page,
        "<rect class=\"node\" width=\"{BOX_WIDTH}\" height=\"{height}\" rx=\"6\"/>"
    )?;
    writeln!(
        page,
        "<text class=\"title\" x=\"{PADDING}\" y=\"26\">{}{kind}</text>",
        escape(&node.id.to_string())
    )?;
    writeln!(
        page,
        "<text class=\"end\" x=\"{}\" y=\"26\">{}</text>",
        BOX_WIDTH - PADDING,
        escape(&human_bytes(node.memory_bytes))
    )?;
    writeln!(
        page,
        "<text class=\"quiet\" x=\"{PADDING}\" y=\"46\">{}</text>",
        escape(&cpus)
    )?;
    let mut y = HEAD_HEIGHT;
    for pool in &outcome.pools {
        let members = pool.state.members.iter().filter(|member| member.home == node.id.0);
        let (used, capacity) = members.fold((0, 0), |sum, one| (sum.0 + one.used_bytes, sum.1 + one.capacity_bytes));
        if capacity == 0 {
            continue;
        }
        let filled = usize::try_from(u128::from(used) * inner as u128 / u128::from(capacity))
            .unwrap_or(inner)
            .min(inner);
        writeln!(
            page,
            "<text class=\"small\" x=\"{PADDING}\" y=\"{y}\">{}</text>",
            escape(pool.contestant.name())
        )?;
        writeln!(
            page,
            "<text class=\"small end\" x=\"{}\" y=\"{y}\">{} of {}</text>",
            BOX_WIDTH - PADDING,
            escape(&human_bytes(used)),
            escape(&human_bytes(capacity))
        )?;
        let top = y + 6;
        writeln!(
            page,
            "<rect class=\"track\" x=\"{PADDING}\" y=\"{top}\" width=\"{inner}\" height=\"10\" rx=\"2\"/>"
        )?;
        let colour = class(pool.contestant);
        writeln!(
            page,
            "<rect class=\"{colour}\" x=\"{PADDING}\" y=\"{top}\" width=\"{filled}\" height=\"10\" rx=\"2\"/>"
        )?;
        y += MEMBER_HEIGHT;
    }
    Ok(())
}

/// Shortens a list to fit into a box.
fn shortened(list: &str) -> String {
    const LETTERS_MAX: usize = 32;
    if list.len() <= LETTERS_MAX {
        return list.to_owned();
    }
    let cut: String = list.chars().take(LETTERS_MAX).collect();
    cut + " …"
}

/// The matrix of distances; a darker cell is farther.
fn distances(page: &mut String, topology: &Topology) -> fmt::Result {
    let nodes = topology.node_ids();
    if nodes.len() < 2 {
        return writeln!(page, "<p class=\"note\">One node: there are no distances.</p>");
    }
    let latency = topology.latency();
    let unit = match latency.source {
        LatencySource::Hmat => "in ns, by the firmware",
        LatencySource::Measured => "in ns, measured",
        LatencySource::Slit => "relative, by the firmware; 10 is local",
        LatencySource::Assumed => "relative, assumed, because the machine tells none; 10 is local",
    };
    let count = nodes.len().min(MATRIX_NODES_MAX);
    let farthest = latency.matrix.iter().flatten().copied().max().unwrap_or(1).max(1);
    let side = (count + 1) * CELL;
    writeln!(
        page,
        "<p class=\"note\">Distance from CPUs (rows) to memory (columns): {unit}.</p>"
    )?;
    writeln!(
        page,
        "<div class=\"scroll\"><svg class=\"picture\" width=\"{side}\" height=\"{side}\" viewBox=\"0 0 {side} {side}\" role=\"img\" \
         aria-label=\"distances between nodes\">"
    )?;
    for (row, from) in nodes.iter().enumerate().take(count) {
        let middle = CELL / 2;
        let (start, baseline) = ((row + 1) * CELL, (row + 1) * CELL + middle + 4);
        let label = escape(&from.to_string());
        writeln!(
            page,
            "<text class=\"small middle\" x=\"{middle}\" y=\"{baseline}\">{label}</text>"
        )?;
        writeln!(
            page,
            "<text class=\"small middle\" x=\"{}\" y=\"{}\">{label}</text>",
            start + middle,
            CELL - 8
        )?;
        for (column, distance) in latency.matrix[row].iter().enumerate().take(count) {
            let x = (column + 1) * CELL;
            let opacity = f64::from(*distance) / f64::from(farthest) * 0.6;
            let place = if row == column { "near" } else { "far" };
            writeln!(
                page,
                "<rect class=\"{place}\" x=\"{x}\" y=\"{start}\" width=\"{0}\" height=\"{0}\" fill-opacity=\"{opacity:.2}\"/><text \
                 class=\"small middle\" x=\"{1}\" y=\"{baseline}\">{distance}</text>",
                CELL - 2,
                x + middle
            )?;
        }
    }
    writeln!(page, "</svg></div>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::page::sample;

    /// The number behind `name="` where it comes first in `text`.
    fn number(text: &str, name: &str) -> usize {
        let behind = &text[text.find(&format!("{name}=\"")).unwrap() + name.len() + 2..];
        behind[..behind.find('"').unwrap()].parse().unwrap()
    }

    #[test]
    fn every_node_has_a_box_inside_the_picture() {
        for (machine, nodes) in [("node:1 pu:2", 1), ("node:2 pu:2", 2), ("node:5 pu:70", 5)] {
            let mut text = String::new();
            of(&mut text, &sample::outcome(machine)).unwrap();
            assert_eq!(text.matches("class=\"node\"").count(), nodes, "{text}");
            let (width, height) = (number(&text, "width"), number(&text, "height"));
            for place in text.split("translate(").skip(1) {
                let (x, y) = place[..place.find(')').unwrap()].split_once(' ').unwrap();
                let box_height = number(&place[place.find("class=\"node\"").unwrap()..], "height");
                assert!(x.parse::<usize>().unwrap() + BOX_WIDTH < width, "{machine}");
                assert!(y.parse::<usize>().unwrap() + box_height < height, "{machine}");
            }
            let cells = text.matches("class=\"near\"").count() + text.matches("class=\"far\"").count();
            assert_eq!(cells, if nodes == 1 { 0 } else { nodes * nodes });
        }
    }
}
