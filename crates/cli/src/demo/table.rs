//! The table on the terminal.

use super::contestants::{Contestant, Section, Unit};
use super::findings::times;
use super::limits;
use super::outcome::{Outcome, Row};
use crate::topology::human_bytes;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// Whole text, its last line ended.
pub(super) fn of(outcome: &Outcome) -> String {
    let mut text = String::new();
    write_all(&mut text, outcome).expect("writing to a string cannot fail");
    text
}

fn write_all(text: &mut String, outcome: &Outcome) -> fmt::Result {
    for section in Section::ALL {
        write_section(text, outcome, section)?;
    }
    write_places(text, outcome)?;
    write_accesses(text, outcome)?;
    writeln!(text, "\n{}", outcome.headline)?;
    for finding in &outcome.findings {
        writeln!(text, "- {finding}")?;
    }
    if let Some(warning) = limits::distrust(outcome) {
        writeln!(text, "- {warning}")?;
    }
    Ok(())
}

fn write_section(text: &mut String, outcome: &Outcome, section: Section) -> fmt::Result {
    let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.case.section == section).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let ours: Vec<Contestant> = section
        .contestants()
        .iter()
        .copied()
        .filter(|one| one.is_ours())
        .collect();
    writeln!(text, "\n{}", section.title())?;
    write!(text, "{:<27} {:>6} {:>8} {:>8}", "", "", "tmpfs", "huge")?;
    for contestant in &ours {
        write!(text, " {:>14} {:>6} {:>6}", contestant.name(), "/tmpfs", "/huge")?;
    }
    writeln!(text, " {:>7}", "spread")?;
    for row in rows {
        write!(text, "{:<27} {:>6}", row.title, row.unit.name())?;
        for peer in Contestant::PEERS {
            // Measured once: a tmpfs has no page cache to go past.
            let shown = if section == Section::FioDirect && row.cells.contains_key(&peer) {
                "as above".to_owned()
            } else {
                value(row, peer)
            };
            write!(text, " {shown:>8}")?;
        }
        for &contestant in &ours {
            if outcome.absent.iter().any(|absent| absent.contestant == contestant) {
                write!(text, " {:>14} {:>6} {:>6}", "not available", "", "")?;
                continue;
            }
            let ratio = |peer| row.ratio(contestant, peer).map_or_else(|| "-".to_owned(), times);
            let ratios = Contestant::PEERS.map(ratio);
            write!(
                text,
                " {:>14} {:>6} {:>6}",
                value(row, contestant),
                ratios[0],
                ratios[1]
            )?;
        }
        match row.spread() {
            Some(spread) => writeln!(text, " {:>6.0}%", spread * 100.0)?,
            None => writeln!(text, " {:>7}", "-")?,
        }
    }
    Ok(())
}

fn value(row: &Row, contestant: Contestant) -> String {
    row.cells
        .get(&contestant)
        .map_or_else(|| "-".to_owned(), |samples| rate(samples.median(), row.unit))
}

/// Three digits or more, by the unit.
pub(super) fn rate(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Kiops if value < 100.0 => format!("{value:.1}"),
        Unit::MegabytesPerSecond if value < 10.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The nodes that bytes or accesses lie on, of all pools.
pub(super) fn homes(outcome: &Outcome) -> Vec<u16> {
    let members = outcome
        .pools
        .iter()
        .flat_map(|pool| &pool.state.members)
        .map(|member| member.home.0);
    members.collect::<BTreeSet<u16>>().into_iter().collect()
}

fn write_places(text: &mut String, outcome: &Outcome) -> fmt::Result {
    let homes = homes(outcome);
    write!(text, "\nWhere bytes lie\n{:<15} {:<36}", "", "")?;
    for home in &homes {
        write!(text, " {:>10}", format!("node {home}"))?;
    }
    writeln!(text)?;
    for pool in &outcome.pools {
        for files in &pool.files {
            write!(text, "{:<15} {:<36}", pool.contestant.name(), files.what)?;
            for home in &homes {
                write!(
                    text,
                    " {:>10}",
                    human_bytes(files.bytes_by_node.get(home).copied().unwrap_or(0))
                )?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

fn write_accesses(text: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        text,
        "\nWho reached what\n{:<15} {:<10} {:<8} {:>10} {:>10}",
        "", "CPUs of", "home", "read", "written"
    )?;
    for pool in &outcome.pools {
        for cell in &pool.state.accesses {
            writeln!(
                text,
                "{:<15} {:<10} {:<8} {:>10} {:>10}  {}",
                pool.contestant.name(),
                cell.from.to_string(),
                cell.home.to_string(),
                human_bytes(cell.read_bytes),
                human_bytes(cell.written_bytes),
                if cell.from == cell.home { "local" } else { "remote" }
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::Samples;
    use crate::demo::page::sample;
    use crate::says::says;

    #[test]
    fn the_table_has_every_row_and_lines_up() {
        let outcome = sample::outcome("node:2 pu:2");
        let text = of(&outcome);
        for row in &outcome.rows {
            assert!(text.contains(&row.title), "{text}");
        }
        assert!(text.contains("not available") && text.contains("remote"), "{text}");
        let fio = text
            .lines()
            .skip_while(|line| !line.starts_with(Section::Fio.title()))
            .skip(1);
        let widths: BTreeSet<usize> = fio.take(2).map(|line| line.chars().count()).collect();
        assert_eq!(widths.len(), 1, "{text}");
    }

    #[test]
    fn the_table_tells_how_noisy_the_numbers_are() {
        let mut outcome = sample::outcome("node:2 pu:2");
        outcome.settings.rounds = 1;
        for samples in outcome.rows.iter_mut().flat_map(|row| row.cells.values_mut()) {
            *samples = Samples::first(samples.median());
        }
        let text = of(&outcome);
        let is_silent = !text.contains(" 0%") && !text.contains('×');
        assert!(text.contains("trust no single number") && is_silent, "{text}");
        assert!(text.contains("as above"), "{text}");

        outcome.settings.rounds = 3;
        for samples in outcome.rows.iter_mut().flat_map(|row| row.cells.values_mut()) {
            let median = samples.median();
            samples.push(median);
            samples.push(median * 1.1);
        }
        let text = of(&outcome);
        assert!(!text.contains("trust") && !text.contains("busy"), "{text}");
        says(&text, &[" 10%\n"]);
        let samples = outcome.rows[0].cells.values_mut().next().unwrap();
        samples.push(samples.median() * 1.7);
        let text = of(&outcome);
        says(&text, &["busy", "67\u{a0}%", "in 1 of"]);
    }

    #[test]
    fn rates_keep_their_digits() {
        assert_eq!(rate(0.456, Unit::Kiops), "0.5");
        assert_eq!(rate(668.8, Unit::Kiops), "669");
        assert_eq!(rate(15.31, Unit::MegabytesPerSecond), "15");
    }
}
