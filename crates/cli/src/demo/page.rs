//! The report: one HTML page that needs nothing but itself. No script; well-formed XML too, so that tests can read it.

mod bars;
mod markup;
mod picture;
#[cfg(test)]
pub(super) mod sample;

use super::case::Section;
use super::findings::percent;
use super::outcome::Outcome;
use super::table::homes;
use crate::topology::human_bytes;
use markup::escape;
use std::fmt::{self, Write};

/// The page, whole.
pub(super) fn of(outcome: &Outcome) -> String {
    let mut page = String::new();
    write_page(&mut page, outcome).expect("writing to a string cannot fail");
    page
}

fn write_page(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"/>\n<title>Homenode on this machine</title>\n<style>\n{}</style>\n\
         </head>\n<body>",
        include_str!("page/style.css")
    )?;
    let machine = &outcome.machine;
    writeln!(
        page,
        "<h1>Homenode on this machine</h1>\n<p class=\"headline\">{}</p>\n<p class=\"meta\">{} · {} · {} CPUs · {} · Linux {}</p>",
        escape(&outcome.headline),
        escape(&machine.date),
        escape(&machine.cpu_model),
        machine.cpus,
        escape(&human_bytes(machine.memory_bytes)),
        escape(&machine.kernel)
    )?;
    list(page, &outcome.findings)?;
    bars::glance(page, outcome)?;

    writeln!(
        page,
        "<h2>How fast</h2>\n<p class=\"note\">Each group of bars has a scale of its own; longer is faster.</p>"
    )?;
    for section in Section::ALL {
        bars::section(page, outcome, section)?;
    }
    writeln!(page, "<h2>Where</h2>")?;
    picture::of(page, outcome)?;
    places(page, outcome)?;
    accesses(page, outcome)?;

    writeln!(page, "<h2>What this does not say</h2>")?;
    list(page, &outcome.limits)?;
    writeln!(page, "<h2>The machine and the run</h2>\n<dl>")?;
    for (name, value) in description(outcome) {
        writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(&name), escape(&value))?;
    }
    writeln!(
        page,
        "</dl>\n<footer>Made by <code>homenode demo</code>, {}.</footer>\n</body>\n</html>",
        escape(&machine.homenode)
    )
}

fn list(page: &mut String, sentences: &[String]) -> fmt::Result {
    writeln!(page, "<ul>")?;
    for sentence in sentences.iter().filter(|sentence| !sentence.is_empty()) {
        writeln!(page, "<li>{}</li>", escape(sentence))?;
    }
    writeln!(page, "</ul>")
}

fn places(page: &mut String, outcome: &Outcome) -> fmt::Result {
    let homes = homes(outcome);
    writeln!(
        page,
        "<h3>Where bytes lie</h3>\n<div class=\"scroll\"><table>\n<tr><th>pool</th><th>files</th>"
    )?;
    for home in &homes {
        writeln!(page, "<th class=\"number\">node {home}</th>")?;
    }
    writeln!(page, "</tr>")?;
    for pool in &outcome.pools {
        for files in &pool.files {
            writeln!(
                page,
                "<tr><td>{}</td><td>{}</td>",
                escape(pool.contestant.name()),
                escape(&files.what)
            )?;
            for home in &homes {
                let bytes = files.bytes_by_node.get(home).copied().unwrap_or(0);
                let place = match files.written_from {
                    Some(node) if node == *home => " local",
                    Some(_) if bytes > 0 => " remote",
                    _ => "",
                };
                writeln!(page, "<td class=\"number{place}\">{}</td>", escape(&human_bytes(bytes)))?;
            }
            writeln!(page, "</tr>")?;
        }
    }
    writeln!(page, "</table></div>")
}

fn accesses(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        page,
        "<h3>Who reached what</h3>\n<p class=\"note\">Every copy in or out of a pool, by the node of the CPU that copied and the \
         node that the bytes lie on. What the kernel moves in its own files is not counted.</p>\n<div class=\"scroll\"><table>\n<tr><th>pool</th><th>CPUs of</th><th>bytes on</th>\
         <th class=\"number\">read</th><th class=\"number\">written</th><th class=\"number\">share</th><th></th></tr>"
    )?;
    for pool in &outcome.pools {
        let (_, all) = pool.state.local_and_all_bytes();
        for cell in &pool.state.accesses {
            let place = if cell.from == cell.home { "local" } else { "remote" };
            writeln!(
                page,
                "<tr><td>{}</td><td>node {}</td><td>node {}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"number\">{}</td><td class=\"{place}\">{place}</td></tr>",
                escape(pool.contestant.name()),
                cell.from,
                cell.home,
                escape(&human_bytes(cell.read_bytes)),
                escape(&human_bytes(cell.written_bytes)),
                percent(cell.read_bytes + cell.written_bytes, all)
            )?;
        }
    }
    writeln!(page, "</table></div>")?;
    for pool in &outcome.pools {
        for spill in &pool.state.spills {
            writeln!(
                page,
                "<p>{}: {} of node {}’s writers spilled to node {}.</p>",
                escape(pool.contestant.name()),
                escape(&human_bytes(spill.bytes)),
                spill.from,
                spill.home
            )?;
        }
    }
    Ok(())
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

    /// Panics unless every element is closed where it was opened. Gives the number of elements.
    pub(super) fn elements(page: &str) -> usize {
        let mut open = Vec::new();
        let mut count = 0;
        let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
        for part in body.split('<').skip(1) {
            let tag = &part[..part.find('>').expect("a tag ends")];
            let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "closed where it was opened: {tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            count += 1;
        }
        assert!(open.is_empty(), "all are closed: {open:?}");
        count
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_else() {
        for machine in ["node:1 pu:2", "node:4 pu:2"] {
            let outcome = sample::outcome(machine);
            let page = of(&outcome);
            assert!(elements(&page) > 100);
            for row in &outcome.rows {
                assert!(page.contains(&escape(&row.title)), "{}", row.title);
            }
            assert!(
                !page.contains("<script") && page.contains("&lt;script&gt;"),
                "what was given is text"
            );
            assert!(page.contains("Headline &lt;of&gt; a test.") && page.contains("not available: the reason"));
            assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url("));
        }
    }
}
