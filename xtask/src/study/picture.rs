//! The study as a picture: rejections, response times of the dearest type, and its time at the store beside them.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Row, Study};

/// Draws three charts below each other, each against the rate, with a line for each policy.
///
/// # Errors
///
/// If there is nothing to draw, or the file cannot be written.
pub fn draw(file: &Path, study: &Study, rows: &[Row]) -> Result<()> {
    let root = SVGBackend::new(file, (WIDTH, 3 * CHART_HEIGHT)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let areas = root.split_evenly((3, 1));
    let [p50, _] = study.objective_ms;
    let dearest = study.dearest;
    let of_dearest = |what: &str| format!("{dearest}: {what}, p50, ms (objective {p50})");
    chart(&areas[0], "refused, %", rows, |row| 100.0 * row.refused)?;
    chart(&areas[1], &of_dearest("response time"), rows, |row| row.dearest_response_ms[0])?;
    chart(&areas[2], &of_dearest("time at the store"), rows, |row| row.dearest_processing_ms)?;
    root.present().map_err(failed)
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    rows: &[Row],
    value: fn(&Row) -> f64,
) -> Result<()> {
    let highest = rows.iter().map(value).fold(1.0, f64::max);
    let rates = || rows.iter().map(|row| row.rate);
    let from = rates().fold(f64::INFINITY, f64::min);
    let to = rates().fold(from + 0.1, f64::max);
    let (lines, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut builder = ChartBuilder::on(&lines);
    builder.caption(title, ("sans-serif", 18)).margin(10).x_label_area_size(40).y_label_area_size(60);
    let mut context = builder.build_cartesian_2d(from..to, 0.0..highest * 1.05).map_err(failed)?;
    context.configure_mesh().x_desc("rate, of capacity").draw().map_err(failed)?;
    let mut policies: Vec<&str> = rows.iter().map(|row| row.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    for (number, policy) in policies.into_iter().enumerate() {
        let style = Palette99::pick(number).stroke_width(2);
        let points = rows.iter().filter(|row| row.policy == policy).map(|row| (row.rate, value(row)));
        context.draw_series(LineSeries::new(points, style)).map_err(failed)?;
        let y = 45 + 20 * number as i32;
        legend.draw(&PathElement::new([(0, y), (18, y)], style)).map_err(failed)?;
        legend.draw(&Text::new(policy, (25, y - 6), ("sans-serif", 13))).map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing failed: {error}")
}

/// Pixels.
const WIDTH: u32 = 1_000;
const LEGEND_WIDTH: u32 = 200;
const CHART_HEIGHT: u32 = 320;
