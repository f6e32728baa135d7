//! Line charts as SVG, for `--plot`.

use std::ops::Range;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Some lines over one pair of axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis, with its unit.
    pub x_label: String,
    /// The label of the vertical axis, with its unit.
    pub y_label: String,
    /// True for a logarithmic horizontal axis; then every x must be above 0.
    pub log_x: bool,
    /// The lines, drawn in this order.
    pub series: Vec<Series>,
}

/// One line of a [`Chart`].
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Its points, from left to right. One that is not finite is left out.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// A line with a dot at every point: measured, few points.
    Dots,
    /// A line without markers: measured, many points.
    Line,
    /// A thin grey line: a limit or an objective to compare with.
    Reference,
}

/// Why a picture could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// There is no chart, or a chart has no finite point.
    #[error("chart {title:?} has nothing to draw")]
    Empty {
        /// Its title.
        title: String,
    },
    /// The library refused.
    #[error("drawing failed: {0}")]
    Drawing(String),
}

/// Draws `charts` below each other under one `title`.
///
/// # Errors
///
/// [`PlotError`], if there is nothing to draw.
pub fn to_svg(title: &str, charts: &[Chart]) -> Result<String, PlotError> {
    if charts.is_empty() {
        return Err(PlotError::Empty { title: title.to_owned() });
    }
    let mut svg = String::new();
    let height = TITLE_HEIGHT + CHART_HEIGHT * charts.len() as u32;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let body = root.titled(title, ("sans-serif", 24)).map_err(drawing)?;
        for (chart, area) in charts.iter().zip(body.split_evenly((charts.len(), 1))) {
            draw(chart, &area)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(chart: &Chart, area: &Area<'_>) -> Result<(), PlotError> {
    let (x, y) = ranges(chart).ok_or_else(|| PlotError::Empty { title: chart.title.clone() })?;
    let (lines, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut builder = ChartBuilder::on(&lines);
    builder.caption(&chart.title, ("sans-serif", 18)).margin(10).x_label_area_size(45).y_label_area_size(70);
    if chart.log_x {
        draw_lines(chart, builder.build_cartesian_2d(x.log_scale(), y).map_err(drawing)?)?;
    } else {
        draw_lines(chart, builder.build_cartesian_2d(x, y).map_err(drawing)?)?;
    }
    draw_legend(chart, &legend)
}

fn draw_lines<X>(
    chart: &Chart,
    mut context: ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, RangedCoordf64>>,
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    context
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_desc(&chart.x_label)
        .y_desc(&chart.y_label)
        .draw()
        .map_err(drawing)?;
    for (series, style) in styled(chart) {
        context.draw_series(LineSeries::new(finite(series), style)).map_err(drawing)?;
        if series.stroke == Stroke::Dots {
            let dot = |point| Circle::new(point, 3, style.filled());
            context.draw_series(finite(series).map(dot)).map_err(drawing)?;
        }
    }
    Ok(())
}

/// Beside the lines, never above them.
fn draw_legend(chart: &Chart, area: &Area<'_>) -> Result<(), PlotError> {
    for (row, (series, style)) in styled(chart).enumerate() {
        let y = 45 + 20 * row as i32;
        area.draw(&PathElement::new([(0, y), (18, y)], style)).map_err(drawing)?;
        area.draw(&Text::new(series.label.as_str(), (25, y - 6), ("sans-serif", 13))).map_err(drawing)?;
    }
    Ok(())
}

/// Each line with its colour.
fn styled(chart: &Chart) -> impl Iterator<Item = (&Series, ShapeStyle)> {
    let mut colours = 0..;
    chart.series.iter().map(move |series| match series.stroke {
        Stroke::Reference => (series, BLACK.mix(0.5).stroke_width(1)),
        Stroke::Dots | Stroke::Line => (series, Palette99::pick(colours.next().unwrap_or(0)).stroke_width(2)),
    })
}

fn finite(series: &Series) -> impl Iterator<Item = (f64, f64)> + '_ {
    series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
}

/// The range of the axes: all points, from zero upwards, never an empty range.
fn ranges(chart: &Chart) -> Option<(Range<f64>, Range<f64>)> {
    let points = || chart.series.iter().flat_map(finite);
    let span = |value: fn((f64, f64)) -> f64| {
        points().map(value).fold(None, |span: Option<Range<f64>>, at| match span {
            None => Some(at..at),
            Some(span) => Some(span.start.min(at)..span.end.max(at)),
        })
    };
    let x = span(|point| point.0)?;
    let y = span(|point| point.1)?;
    let x = if x.start < x.end {
        x
    } else if chart.log_x {
        x.start / 2.0..x.start * 2.0
    } else {
        x.start - 0.5..x.start + 0.5
    };
    let top = if y.end > 0.0 { y.end * 1.05 } else { 1.0 };
    Some((x, y.start.min(0.0)..top))
}

fn drawing(error: impl std::fmt::Display) -> PlotError {
    PlotError::Drawing(error.to_string())
}

/// Pixels. Wide enough for a dozen labels on an axis, high enough for three charts on a screen.
const WIDTH: u32 = 1_000;
const LEGEND_WIDTH: u32 = 180;
const CHART_HEIGHT: u32 = 320;
const TITLE_HEIGHT: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)], log_x: bool) -> Chart {
        Chart {
            title: "Rejected".into(),
            x_label: "load".into(),
            y_label: "%".into(),
            log_x,
            series: [Stroke::Dots, Stroke::Line, Stroke::Reference]
                .map(|stroke| Series { label: format!("{stroke:?}"), points: points.to_vec(), stroke })
                .into(),
        }
    }

    #[test]
    fn a_picture_names_its_charts_axes_and_lines() {
        let charts = [chart(&[(1.0, 2.0), (2.0, f64::NAN), (3.0, 0.5)], false)];
        let svg = to_svg("Study", &charts).unwrap();
        for word in ["<svg", "Study", "Rejected", "load", "%", "Dots", "Line", "Reference", "</svg>"] {
            assert!(svg.contains(word), "no {word:?} in {svg}");
        }
        assert_eq!(svg, to_svg("Study", &charts).unwrap());
    }

    #[test]
    fn odd_spans_still_have_axes() {
        for points in [&[(1.0, 0.0)][..], &[(5.0, -1.0), (5.0, 1.0)], &[(1e-9, 1e12), (1e9, 1e-12)]] {
            for log_x in [false, true] {
                to_svg("Study", &[chart(points, log_x)]).unwrap();
            }
        }
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(matches!(to_svg("Study", &[]), Err(PlotError::Empty { title }) if title == "Study"));
        let empty = chart(&[(f64::INFINITY, 1.0)], false);
        assert!(matches!(to_svg("Study", &[empty]), Err(PlotError::Empty { title }) if title == "Rejected"));
    }
}
