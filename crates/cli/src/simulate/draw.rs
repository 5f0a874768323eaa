//! A figure as SVG.

use homenode_sim::figures::{Figure, Point};
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Width and height in pixels, and those of the legend below.
const SIZE: (u32, u32) = (800, 460);
const LEGEND_LINE: u32 = 18;
const COLORS: [RGBColor; 8] = [
    RGBColor(0x5a, 0x5f, 0x6b),
    RGBColor(0xb8, 0x47, 0x00),
    RGBColor(0x00, 0x67, 0xa8),
    RGBColor(0x00, 0x73, 0x4c),
    RGBColor(0x7a, 0x3d, 0x9c),
    RGBColor(0xa3, 0x81, 0x00),
    RGBColor(0xc4, 0x30, 0x60),
    RGBColor(0x22, 0x22, 0x22),
];

/// Returns the picture: the median of each series as a line, and the range of all runs as a bar at each point.
pub(super) fn svg(figure: &Figure) -> Result<String, String> {
    let mut text = String::new();
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let (mut first, mut last) = (f64::MAX, f64::MIN);
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for point in points() {
        (first, last) = (first.min(point.x), last.max(point.x));
        (least, most) = (least.min(point.low), most.max(point.high));
    }
    let y = 0.0..most * 1.05;
    match figure.is_logarithmic {
        [true, _] => draw(figure, (first..last).log_scale().base(2.0), y, &mut text)?,
        [false, true] => draw(figure, first..last, (least * 0.9..most * 1.1).log_scale(), &mut text)?,
        _ if figure.categories.is_empty() => draw(figure, first..last, y, &mut text)?,
        _ => draw(figure, first - 0.5..last + 0.5, y, &mut text)?,
    }
    Ok(text)
}

fn draw<X, Y>(figure: &Figure, x: X, y: Y, text: &mut String) -> Result<(), String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let failed = |error: &dyn std::fmt::Display| format!("cannot draw {}: {error}", figure.title);
    let legend = u32::try_from(figure.series.len()).map_err(|error| failed(&error))? * LEGEND_LINE;
    let root = SVGBackend::with_string(text, (SIZE.0, SIZE.1 + legend)).into_drawing_area();
    let result = (|| {
        root.fill(&WHITE)?;
        let (chart, below) = root.split_vertically(SIZE.1);
        let mut chart = ChartBuilder::on(&chart)
            .caption(&figure.title, ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(66)
            .build_cartesian_2d(x, y)?;
        #[expect(clippy::cast_possible_truncation, reason = "a category is a small whole number")]
        let label = |x: &f64| match figure.categories.get(x.round().max(0.0) as usize) {
            Some(name) if (x - x.round()).abs() < 0.01 => name.clone(),
            _ if figure.categories.is_empty() => x.to_string(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xe3, 0xe5, 0xea))
            .x_desc(format!("{} — simulated", figure.axes[0]))
            .y_desc(figure.axes[1])
            .x_labels(if figure.categories.is_empty() {
                12
            } else {
                2 * figure.categories.len() + 1
            })
            .x_label_formatter(&label)
            .label_style(("sans-serif", 12))
            .draw()?;
        for (series, color) in figure.series.iter().zip(COLORS.iter().cycle()) {
            let line = |of: fn(&Point) -> f64| series.points.iter().map(move |point| (point.x, of(point)));
            let range =
                |point: &Point| PathElement::new([(point.x, point.low), (point.x, point.high)], color.mix(0.35));
            chart.draw_series(series.points.iter().map(range))?;
            if figure.categories.is_empty() {
                chart.draw_series(LineSeries::new(line(|point| point.median), color.stroke_width(2)))?;
            }
            chart.draw_series(line(|point| point.median).map(|at| Circle::new(at, 3, color.filled())))?;
        }
        for (place, (series, color)) in (0..).zip(figure.series.iter().zip(COLORS.iter().cycle())) {
            let middle = place * i32::try_from(LEGEND_LINE).unwrap_or(18) + 9;
            below.draw(&PathElement::new([(76, middle), (96, middle)], color.stroke_width(3)))?;
            below.draw(&Text::new(series.name.clone(), (104, middle - 6), ("sans-serif", 12)))?;
        }
        root.present()
    })();
    result.map_err(|error: DrawingAreaErrorKind<_>| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_sim::figures::{ALL, Effort};

    #[test]
    fn every_figure_is_drawn() {
        let effort = Effort {
            draws: 1,
            seed: 1,
            is_small: true,
        };
        for (name, make) in ALL {
            let figure = make(&effort);
            let picture = svg(&figure).unwrap();
            assert!(
                picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"),
                "{name}"
            );
            for series in &figure.series {
                assert!(
                    picture.contains(&series.name.replace('\'', "&apos;")) || picture.contains(&series.name),
                    "{name}: {}",
                    series.name
                );
            }
            assert!(picture.contains("simulated"), "{name}");
        }
    }
}
