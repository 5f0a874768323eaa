//! Requests per second by cores, of two levels of queues and of one lock, as a picture.

use crate::report::{HOMENODE, Report};
use std::fmt::Write;

const CASE: &str = "noop-512/plug32/qd128";
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 50.0;

/// The row that the figure cannot be without.
pub(super) fn first_case() -> String {
    case(1)
}

fn case(cores: u32) -> String {
    format!("{CASE}/{cores}c")
}

/// Draws the rows of [`CASE`] that were measured: one core, two, and no more than this machine has.
pub(super) fn of(report: &Report) -> String {
    let rows: Vec<_> = (1..=64).map_while(|cores| report.row(&case(cores))).collect();
    let lines = [
        (
            HOMENODE,
            "#1b6ca8",
            rows.iter().map(|row| row.homenode).collect::<Vec<_>>(),
        ),
        (
            "single-lock",
            "#b03a2e",
            rows.iter()
                .filter_map(|row| row.peers.get("single-lock").copied())
                .collect(),
        ),
    ];
    draw(&lines)
}

fn draw(lines: &[(&str, &str, Vec<f64>)]) -> String {
    let most = lines
        .iter()
        .flat_map(|(.., values)| values)
        .copied()
        .fold(1.0, f64::max);
    let cores = lines.iter().map(|(.., values)| values.len()).max().unwrap_or(1);
    let x = |core: usize| MARGIN + (core as f64 + 0.5) / cores as f64 * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - value / most * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">M IOPS by cores: {CASE}</text>\n"
    );
    let mut add = |text: std::fmt::Arguments<'_>| svg.write_fmt(text).expect("writing to a string cannot fail");
    for tick in [0.0, most / 2.0, most] {
        let at = y(tick);
        add(format_args!(
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ccc\"/>\n<text x=\"8\" y=\"{}\">{tick:.0}</text>\n",
            WIDTH - MARGIN,
            at + 4.0
        ));
    }
    for core in 0..cores {
        add(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            x(core),
            HEIGHT - MARGIN + 18.0,
            core + 1
        ));
    }
    for (name, colour, values) in lines {
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(core, value)| format!("{},{}", x(core), y(*value)))
            .collect();
        add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            points.join(" ")
        ));
        for (core, value) in values.iter().enumerate() {
            let (x, y) = (x(core), y(*value));
            add(format_args!(
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>\n<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name} {value:.1}</text>\n",
                x + 6.0,
                y - 6.0
            ));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn figure_shows_a_point_and_a_value_for_each_core() {
        let svg = draw(&[("a", "#000", vec![10.0, 20.0]), ("b", "#111", vec![5.0])]);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a 20.0") && svg.contains("b 5.0"));
        // The most is at the top, and nothing below the axis.
        assert!(svg.contains("cy=\"50\""));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
