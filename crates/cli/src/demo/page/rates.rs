//! Rates as tables of numbers and bars: a table for each unit of a section, in which all bars have the same scale.

use super::markup::{escape, prose};
use crate::demo::contestants::{Contestant, Section, Unit};
use crate::demo::findings::times;
use crate::demo::outcome::{Outcome, Row, Samples};
use crate::demo::table::rate;

/// All rows of a section; nothing where there are none.
pub(super) fn of(outcome: &Outcome, section: Section) -> String {
    let table = |unit| {
        let rows = outcome
            .rows
            .iter()
            .filter(|row| (row.case.section, row.unit) == (section, unit));
        table(outcome, section, &rows.collect::<Vec<_>>())
    };
    let tables = [Unit::Kiops, Unit::MegabytesPerSecond].map(table).concat();
    if tables.is_empty() {
        return tables;
    }
    format!(
        "<h3>{}</h3>\n<p class=\"note\">{}</p>\n{tables}",
        escape(section.title()),
        prose(section.note())
    )
}

fn table(outcome: &Outcome, section: Section, rows: &[&Row]) -> String {
    let Some(unit) = rows.first().map(|row| row.unit.name()) else {
        return String::new();
    };
    let is_absent = |one: &Contestant| outcome.absent.iter().any(|absent| absent.contestant == *one);
    let mut contestants = section.contestants().to_vec();
    contestants.retain(|one| is_absent(one) || rows.iter().any(|row| row.cells.contains_key(one)));
    let scale = rows
        .iter()
        .flat_map(|row| row.cells.values())
        .map(Samples::max)
        .fold(0.0, f64::max);
    let head = contestants
        .iter()
        .map(|one| format!("<th scope=\"col\">{}</th>", escape(one.name())));
    let row = |row: &&Row| {
        let cell = |one: &Contestant| match row.cells.get(one) {
            Some(samples) => cell(row, *one, samples, scale),
            None => {
                let text = if is_absent(one) { "not available" } else { "–" };
                format!("<td class=\"absent\" data-of=\"{}\">{text}</td>", escape(one.name()))
            }
        };
        let cells: String = contestants.iter().map(cell).collect();
        format!(
            "<tr><th scope=\"row\">{} <span class=\"unit\">{unit}</span></th>{cells}</tr>\n",
            escape(&row.title)
        )
    };
    format!(
        "<table class=\"rates\">\n<thead><tr><th scope=\"col\">{unit}</th>{}</tr></thead>\n<tbody>\n{}</tbody></table>\n",
        head.collect::<String>(),
        rows.iter().map(row).collect::<String>()
    )
}

fn cell(row: &Row, contestant: Contestant, samples: &Samples, scale: f64) -> String {
    let ratio = |peer: Contestant| Some(format!("{} {}", times(row.ratio(contestant, peer)?), peer.short_name()));
    let ratios: Vec<String> = Contestant::PEERS
        .into_iter()
        .filter(|_| contestant.is_ours())
        .filter_map(ratio)
        .collect();
    format!(
        "<td data-of=\"{}\"><b>{}</b>{}<small>{}</small></td>",
        escape(contestant.name()),
        rate(samples.median(), row.unit),
        bar(samples, scale, class(contestant)),
        escape(&ratios.join(", "))
    )
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
        "<span class=\"bar\" aria-hidden=\"true\"><i class=\"{class}\" style=\"width:{middle:.2}%\"></i><s \
         style=\"left:{low:.2}%;width:{:.2}%\"></s></span>",
        high - low
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
    use crate::demo::page::sample;
    use crate::says::says;

    #[test]
    fn bars_stay_in_their_width() {
        let mut samples = Samples::first(50.0);
        samples.push(100.0);
        samples.push(75.0);
        let text = bar(&samples, 100.0, "kernel");
        assert!(text.contains("class=\"kernel\" style=\"width:75.00%\""), "{text}");
        assert!(text.contains("left:50.00%;width:50.00%"), "{text}");
        let wide = bar(&samples, 1.0, "kernel");
        assert!(!wide.contains("NaN") && wide.contains("width:100.00%"), "{wide}");
        let nothing = bar(&Samples::first(0.0), 0.0, "kernel");
        assert!(!nothing.contains("NaN"), "{nothing}");
        says(&nothing, &["class=\"kernel\" style=\"width:0.00%\""]);
    }

    #[test]
    fn all_bars_of_a_table_share_a_scale() {
        let mut outcome = sample::outcome("node:1 pu:2");
        let text = of(&outcome, Section::InProcess);
        assert_eq!(text.matches("<table").count(), 1, "{text}");
        // The library had 8.0 in the first row and 2.0 in the second.
        for width in ["100.00%", "25.00%"] {
            says(&text, &[&format!("class=\"library\" style=\"width:{width}\"")]);
        }
        let fio = of(&outcome, Section::Fio);
        assert!(!fio.contains("homenode run</th>"), "{fio}");
        says(&fio, &["not available"]);
        let mut twice = Samples::first(6.0);
        twice.push(6.0);
        outcome.rows[2].cells.insert(Contestant::Run, twice);
        let fio = of(&outcome, Section::Fio);
        assert!(fio.contains("homenode run</th>") && fio.contains("1.5× huge"), "{fio}");
    }
}
