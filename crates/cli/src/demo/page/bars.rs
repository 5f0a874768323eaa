//! Rows as bars: each row has its own scale, from zero to the largest value any round of it showed.

use super::markup::escape;
use crate::demo::case::{Contestant, Section};
use crate::demo::findings::{glances, times};
use crate::demo::outcome::{Outcome, Row, Samples};
use crate::demo::table::rate;
use std::fmt::{self, Write};

/// Kinds of rows in a bar each, against the peer, whose rate is a line at 1.
pub(super) fn glance(page: &mut String, outcome: &Outcome) -> fmt::Result {
    let (peer, glances) = glances(outcome);
    let most = glances.iter().filter_map(|one| one.mean).fold(1.0, f64::max);
    let one = 100.0 / most;
    writeln!(
        page,
        "<h2>At a glance</h2>\n<p class=\"note\">Mean rate, with that of {} as 1 (the vertical line). Longer is faster.</p>",
        escape(peer.name())
    )?;
    let mut before = "";
    for glance in &glances {
        if glance.what != before {
            writeln!(
                page,
                "{}<div class=\"row\">\n<h4>{}</h4>",
                if before.is_empty() { "" } else { "</div>\n" },
                escape(glance.what)
            )?;
            before = glance.what;
        }
        let name = escape(glance.contestant.name());
        let class = class(glance.contestant);
        match glance.mean {
            Some(mean) => writeln!(
                page,
                "<div class=\"line\"><span class=\"name\">{name}</span><svg class=\"bar\" width=\"100%\" height=\"14\" \
                 aria-hidden=\"true\"><rect class=\"track\" width=\"100%\" height=\"14\" rx=\"2\"/><rect class=\"{class}\" \
                 width=\"{:.2}%\" height=\"14\" rx=\"2\"/><line class=\"one\" x1=\"{one:.2}%\" x2=\"{one:.2}%\" y1=\"-3\" \
                 y2=\"17\"/></svg><span class=\"value\">{}</span><span class=\"ratio\"></span></div>",
                (mean / most * 100.0).clamp(0.0, 100.0),
                times(mean)
            )?,
            None => absent(page, glance.contestant)?,
        }
    }
    writeln!(page, "</div>")
}

fn absent(page: &mut String, contestant: Contestant) -> fmt::Result {
    writeln!(
        page,
        "<div class=\"line\"><span class=\"name\">{}</span><span class=\"bar absent\">not available</span>\
         <span class=\"value\"></span><span class=\"ratio\"></span></div>",
        escape(contestant.name())
    )
}

/// All rows of a section.
pub(super) fn section(page: &mut String, outcome: &Outcome, section: Section) -> fmt::Result {
    let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.case.section == section).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "<h3>{}</h3>\n<p class=\"note\">{}</p>",
        escape(section.title()),
        escape(section.note())
    )?;
    for row in rows {
        self::row(page, outcome, row)?;
    }
    Ok(())
}

fn row(page: &mut String, outcome: &Outcome, row: &Row) -> fmt::Result {
    let scale = row.cells.values().map(Samples::max).fold(0.0, f64::max);
    writeln!(
        page,
        "<div class=\"row\">\n<h4>{} <span class=\"unit\">{}</span></h4>",
        escape(&row.title),
        row.unit.name()
    )?;
    for &contestant in row.case.section.contestants() {
        match row.cells.get(&contestant) {
            Some(samples) => line(page, row, contestant, samples, scale)?,
            None if outcome.absent.iter().any(|one| one.contestant == contestant) => absent(page, contestant)?,
            None => {}
        }
    }
    writeln!(page, "</div>")
}

fn line(page: &mut String, row: &Row, contestant: Contestant, samples: &Samples, scale: f64) -> fmt::Result {
    let value = rate(samples.median(), row.unit);
    let ratio = if contestant.is_ours() {
        ratios(row, contestant)
    } else {
        String::new()
    };
    writeln!(
        page,
        "<div class=\"line\"><span class=\"name\">{name}</span>{bar}<span class=\"value\">{value}</span>\
         <span class=\"ratio\">{ratio}</span></div>",
        name = escape(contestant.name()),
        bar = bar(samples, scale, class(contestant)),
    )
}

/// `2.1× tmpfs, 1.8× huge`.
fn ratios(row: &Row, contestant: Contestant) -> String {
    let ratio = |peer: Contestant| Some(format!("{} {}", times(row.ratio(contestant, peer)?), peer.short_name()));
    let ratios: Vec<String> = Contestant::PEERS.into_iter().filter_map(ratio).collect();
    escape(&ratios.join(", "))
}

/// In percent of the width, so that it fits any screen: the median as a bar, all rounds as a line over its end.
fn bar(samples: &Samples, scale: f64, class: &str) -> String {
    let percent = |value: f64| {
        if scale > 0.0 {
            (value / scale * 100.0).clamp(0.0, 100.0)
        } else {
            0.0
        }
    };
    let (low, middle, high) = (
        percent(samples.min()),
        percent(samples.median()),
        percent(samples.max()),
    );
    format!(
        "<svg class=\"bar\" width=\"100%\" height=\"14\" aria-hidden=\"true\"><rect class=\"track\" width=\"100%\" height=\"14\" \
         rx=\"2\"/><rect class=\"{class}\" width=\"{middle:.2}%\" height=\"14\" rx=\"2\"/><line class=\"range\" x1=\"{low:.2}%\" \
         x2=\"{high:.2}%\" y1=\"7\" y2=\"7\"/></svg>"
    )
}

/// The class that gives a contestant its colour.
pub(super) fn class(contestant: Contestant) -> &'static str {
    match contestant {
        Contestant::Tmpfs => "tmpfs",
        Contestant::TmpfsHuge => "huge",
        Contestant::Kernel => "kernel",
        Contestant::Run => "run",
        Contestant::Pool => "pool",
        Contestant::Library => "library",
        Contestant::Cached => "cached",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stay_in_their_width() {
        let mut samples = Samples::first(50.0);
        samples.push(100.0);
        samples.push(75.0);
        let text = bar(&samples, 100.0, "kernel");
        assert!(text.contains("class=\"kernel\" width=\"75.00%\""), "{text}");
        assert!(text.contains("x1=\"50.00%\" x2=\"100.00%\""), "{text}");
        let wide = bar(&samples, 1.0, "kernel");
        assert!(!wide.contains("NaN") && wide.contains("width=\"100.00%\""), "{wide}");
        let nothing = bar(&Samples::first(0.0), 0.0, "kernel");
        assert!(
            !nothing.contains("NaN") && nothing.contains("class=\"kernel\" width=\"0.00%\""),
            "{nothing}"
        );
    }
}
