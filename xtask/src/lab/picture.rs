//! The picture of the story: a row for each scene, what its polite tenants felt beside what was given to the others.

use anyhow::Result;
use plotters::prelude::*;

use super::chart::{Area, WIDTH, drawing};
use super::report::latency;
use super::stage::Seen;

/// A scene's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The scene, and what goes wrong in it.
    pub title: String,
    /// The tenants that gate spares, and those that it holds back.
    pub comparisons: [Comparison; 2],
}

/// One number, without gate and with it. The longest bar belongs to the largest, and the others are in proportion.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The name of the number.
    pub of: String,
    /// From without gate to with it.
    pub bars: Vec<Bar>,
}

/// A number of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// The phase in which it was measured.
    pub phase: &'static str,
    /// The number, of 0 at least.
    pub value: f64,
    /// The number with its unit, and whatever else has to be known of it.
    pub text: String,
}

impl Bar {
    /// A rate.
    pub(super) fn per_sec(phase: &'static str, count: u64, seconds: f64) -> Self {
        let value = count as f64 / seconds.max(0.001);
        let text = if value < 10.0 { format!("{value:.1}") } else { super::report::grouped(value as u64) };
        Self { phase, value, text: format!("{text}/s") }
    }

    /// A latency, in nanoseconds, and the share of a caller's requests that got no answer from the store.
    pub(super) fn latency(phase: &'static str, nanos: u64, seen: &Seen) -> Self {
        let missed = seen.offered.saturating_sub(seen.answered) as f64 / seen.offered.max(1) as f64;
        let text = format!("{}, {:.1} % missed", latency(nanos), missed * 100.0);
        Self { phase, value: nanos as f64, text }
    }
}

/// The height of a row, in pixels.
pub(super) fn height(row: &Row) -> u32 {
    let bars = row.comparisons.iter().map(|comparison| comparison.bars.len()).max().unwrap_or(0);
    BARS_BEGIN + BAR_STEP * bars as u32 + 14
}

/// Draws a row into an area of its height.
pub(super) fn draw(row: &Row, area: &Area<'_>) -> Result<()> {
    let bold = ("sans-serif", 14).into_font().style(FontStyle::Bold);
    area.draw(&Text::new(row.title.clone(), (LEFT, 8), bold)).map_err(drawing)?;
    for (number, comparison) in row.comparisons.iter().enumerate() {
        compare(comparison, area, LEFT + i32::try_from(number)? * (WIDTH as i32 / 2))?;
    }
    Ok(())
}

fn compare(comparison: &Comparison, area: &Area<'_>, left: i32) -> Result<()> {
    let text = |text: &str, x: i32, y: i32| Text::new(text.to_owned(), (x, y), ("sans-serif", 12));
    area.draw(&text(&comparison.of, left, 30)).map_err(drawing)?;
    let longest = comparison.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    for (number, bar) in comparison.bars.iter().enumerate() {
        let top = (BARS_BEGIN + BAR_STEP * number as u32) as i32;
        // A bar of next to nothing is still seen.
        let right = left + PHASE_WIDTH + ((bar.value / longest * BAR_WIDTH) as i32).max(1);
        let color = if number == 0 { WITHOUT_GATE } else { WITH_GATE };
        area.draw(&text(bar.phase, left, top)).map_err(drawing)?;
        let corners = [(left + PHASE_WIDTH, top), (right, top + BAR_STEP as i32 - 4)];
        area.draw(&Rectangle::new(corners, color.filled())).map_err(drawing)?;
        area.draw(&text(&bar.text, right + 6, top)).map_err(drawing)?;
    }
    Ok(())
}

// Told apart by the colour-blind, and in print.
const WITHOUT_GATE: RGBColor = RGBColor(217, 95, 2);
const WITH_GATE: RGBColor = RGBColor(27, 108, 168);
/// Pixels.
const LEFT: i32 = 12;
const PHASE_WIDTH: i32 = 110;
const BAR_WIDTH: f64 = 210.0;
const BAR_STEP: u32 = 18;
const BARS_BEGIN: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::chart;

    fn bar(phase: &'static str, value: f64) -> Bar {
        Bar { phase, value, text: format!("{value} ms") }
    }

    /// The widths of the bars of a picture of one row.
    fn widths(bars: &[f64]) -> Vec<f64> {
        let bars = bars.iter().map(|&value| bar("with gate", value)).collect();
        let comparisons = [
            Comparison { of: "p99".to_owned(), bars },
            Comparison { of: "served".to_owned(), bars: Vec::new() },
        ];
        let row = Row { title: "quotas".to_owned(), comparisons };
        let picture = chart::svg(&[row], &[]).unwrap();
        assert!(picture.contains("quotas") && picture.contains("p99") && picture.contains("with gate"));
        let rectangles = picture.split("<rect ").skip(2);
        let width = |text: &str| text.split("width=\"").nth(1)?.split('"').next()?.parse().ok();
        rectangles.filter_map(width).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        assert_eq!(widths(&[100.0, 50.0, 10.0]), [210.0, 105.0, 21.0]);
        assert_eq!(widths(&[0.0, 1e9]), [1.0, 210.0]);
        assert_eq!(widths(&[0.0, 0.0]), [1.0, 1.0]);
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(Bar::per_sec("with gate", 30, 6.0).text, "5.0/s");
        assert_eq!(Bar::per_sec("with gate", 12_000, 6.0).text, "2,000/s");
        let seen = Seen { offered: 200, answered: 199, ..Seen::default() };
        assert_eq!(Bar::latency("with gate", 2_600_000, &seen).text, "2.6 ms, 0.5 % missed");
        assert_eq!(Bar::latency("with gate", 0, &Seen::default()).text, "-, 0.0 % missed");
    }
}
