//! The picture of a run, as SVG: a row for each scene, and a chart of what was answered and refused, second by second.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::picture::{self, Row};

/// The course of a run.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// The name of the chart.
    pub title: String,
    /// The counts.
    pub lines: Vec<Line>,
    /// Phases: when each began, in seconds, and its name.
    pub phases: Vec<(f64, String)>,
}

/// Something that was counted.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub label: String,
    /// Seconds since the scene began, and the number in a second.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// Adds a point to a line, which begins with its first.
    pub fn add(&mut self, label: &str, seconds: f64, per_sec: f64) {
        match self.lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push((seconds, per_sec)),
            None => {
                self.lines.push(Line { label: label.to_owned(), points: vec![(seconds, per_sec)] });
            }
        }
    }
}

/// Draws the rows, and the charts below them.
///
/// # Errors
///
/// If the library refuses.
pub fn svg(rows: &[Row], charts: &[Chart]) -> Result<String> {
    let heights = rows.iter().map(picture::height).chain(charts.iter().map(|_| CHART_HEIGHT));
    let mut svg = String::new();
    {
        let height = heights.clone().sum::<u32>().max(CHART_HEIGHT);
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let ends: Vec<u32> = heights
            .scan(0, |end, height| {
                Some({
                    *end += height;
                    *end
                })
            })
            .collect();
        let areas = root.split_by_breakpoints::<u32, u32, _, _>([], &ends);
        for (row, area) in rows.iter().zip(&areas) {
            picture::draw(row, area)?;
        }
        for (chart, area) in charts.iter().zip(&areas[rows.len()..]) {
            draw(chart, area)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(chart: &Chart, area: &Area<'_>) -> Result<()> {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1).fold(10.0, f64::max);
    let (body, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut axes = ChartBuilder::on(&body)
        .caption(&chart.title, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..most * 1.2)
        .map_err(drawing)?;
    axes.configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds")
        .y_desc("requests a second")
        .y_label_formatter(&|number| format!("{number:.0}"))
        .draw()
        .map_err(drawing)?;
    for (seconds, name) in &chart.phases {
        let line = [(*seconds, 0.0), (*seconds, most * 1.2)];
        axes.draw_series(LineSeries::new(line, BLACK.mix(0.4))).map_err(drawing)?;
        let text = Text::new(name.clone(), (*seconds + last / 200.0, most * 1.17), ("sans-serif", 12));
        axes.draw_series([text]).map_err(drawing)?;
    }
    for (number, line) in chart.lines.iter().enumerate() {
        let style = Palette99::pick(number).stroke_width(2);
        axes.draw_series(LineSeries::new(line.points.iter().copied(), style)).map_err(drawing)?;
        let y = 34 + 18 * i32::try_from(number)?;
        legend.draw(&PathElement::new([(0, y), (16, y)], style)).map_err(drawing)?;
        let text = Text::new(line.label.clone(), (22, y - 6), ("sans-serif", 12));
        legend.draw(&text).map_err(drawing)?;
    }
    Ok(())
}

pub(super) fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Pixels.
pub(super) const WIDTH: u32 = 1_000;
const LEGEND_WIDTH: u32 = 190;
const CHART_HEIGHT: u32 = 240;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_lines_and_phases() {
        let mut chart = Chart { title: "tenants".to_owned(), ..Chart::default() };
        chart.phases.push((0.0, "without gate".to_owned()));
        chart.add("hostile refused", 1.0, 18_000.0);
        chart.add("hostile refused", 2.0, 0.0);
        let picture = svg(&[], &[chart.clone(), chart]).unwrap();
        for word in ["<svg", "tenants", "without gate", "hostile refused", "</svg>"] {
            assert!(picture.contains(word), "no {word} in {picture}");
        }
        // The line and its phase's beginning, in both.
        assert!(picture.matches("<polyline").count() >= 4, "{picture}");
    }

    #[test]
    fn a_run_without_a_reading_is_drawn_empty() {
        for charts in [&[][..], &[Chart::default()]] {
            let picture = svg(&[], charts).unwrap();
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }
}
