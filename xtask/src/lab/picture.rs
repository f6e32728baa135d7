//! The lab as a picture: what each tenant offered, what passed and its quota, second by second.

use std::fmt::Write as _;

use super::report::{Rates, grouped};
use super::tenants::Tenant;

/// Pixels.
const WIDTH: f64 = 760.0;
const PANEL_HEIGHT: f64 = 130.0;
/// The axis and its numbers.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 30.0;
/// Between two panels.
const GAP: f64 = 22.0;

const PASSED: &str = "#3b7dd8";
const REFUSED: &str = "#f0b8b0";
const QUOTA: &str = "#444444";

/// Draws a panel for each tenant: what passed, with what was refused on top of it, and the quota as a line.
#[must_use]
pub fn svg(tenants: &[Tenant], rates: &[Rates]) -> String {
    let height = TOP + BOTTOM + PANEL_HEIGHT * tenants.len() as f64;
    let last = rates.last().map_or(1.0, |rates| rates.seconds);
    let mut panels = String::new();
    for (place, tenant) in tenants.iter().enumerate() {
        let axes = Axes { top: TOP + PANEL_HEIGHT * place as f64, last, most: most(tenant, rates) };
        panels += &axes.panel(tenant, rates);
    }
    let legend = [(PASSED, "passed"), (REFUSED, "refused")].into_iter().enumerate().map(|(place, (colour, text))| {
        let x = LEFT + 110.0 * place as f64;
        format!(
            "<rect x=\"{x}\" y=\"12\" width=\"14\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"21\">{text}</text>\n",
            x + 20.0
        )
    });
    let legend: String = legend.collect();
    let quota_x = LEFT + 220.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{legend}\
         <path d=\"M{quota_x} 17h14\" stroke=\"{QUOTA}\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{}\" y=\"21\">quota; requests per second, by second</text>\n{panels}\
         <text x=\"{LEFT}\" y=\"{y}\">0 s</text><text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{last:.0} s</text>\n</svg>\n",
        quota_x + 20.0,
        WIDTH - RIGHT,
        y = height - 12.0,
    )
}

/// The most that a panel has to show: the quota, or what was offered in the busiest second.
fn most(tenant: &Tenant, rates: &[Rates]) -> f64 {
    let offered = rates.iter().map(|rates| {
        let (passed, refused) = rates.of(tenant);
        passed + refused
    });
    offered.fold(f64::from(tenant.quota_ru_per_sec), f64::max)
}

/// The axes of a panel.
struct Axes {
    /// Where the panel begins.
    top: f64,
    /// The last second.
    last: f64,
    /// The largest number.
    most: f64,
}

impl Axes {
    fn panel(&self, tenant: &Tenant, rates: &[Rates]) -> String {
        let quota = f64::from(tenant.quota_ru_per_sec);
        let mut panel = String::new();
        let mut before = 0.0;
        for rates in rates {
            let (passed, refused) = rates.of(tenant);
            panel += &self.bar(before, rates.seconds, 0.0, passed, PASSED);
            panel += &self.bar(before, rates.seconds, passed, passed + refused, REFUSED);
            before = rates.seconds;
        }
        let bottom = self.y(0.0);
        let right = WIDTH - RIGHT;
        let quota_y = self.y(quota);
        // The number at the top would be written over the quota's.
        if quota_y - self.y(self.most) > 14.0 {
            panel += &label(self.y(self.most), self.most);
        }
        panel += &label(quota_y, quota);
        let _ = writeln!(
            panel,
            "<path d=\"M{LEFT} {bottom:.1}H{right}\" stroke=\"black\" stroke-width=\"0.5\"/>\
             <path d=\"M{LEFT} {quota_y:.1}H{right}\" stroke=\"{QUOTA}\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{}\" y=\"{:.1}\" font-size=\"14\">{}</text>",
            right + 12.0,
            (bottom + self.y(self.most)) / 2.0,
            tenant.name,
        );
        panel
    }

    /// A bar from one second to another, and from one number up to another.
    fn bar(&self, from: f64, to: f64, bottom: f64, top: f64, colour: &str) -> String {
        let x = self.x(from);
        let y = self.y(top);
        let width = self.x(to) - x;
        let height = self.y(bottom) - y;
        if height < 0.05 {
            return String::new();
        }
        format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>\n"
        )
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.last
    }

    fn y(&self, number: f64) -> f64 {
        self.top + PANEL_HEIGHT - (PANEL_HEIGHT - GAP) * number / self.most
    }
}

/// A number at the vertical axis.
fn label(y: f64, number: f64) -> String {
    let x = LEFT - 6.0;
    let y = y + 4.0;
    format!("<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>\n", grouped(number.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tenants::LOOPBACK_TENANTS;

    #[test]
    fn a_panel_shows_what_passed_what_was_refused_and_the_quota() {
        let rate = |seconds, refused| Rates {
            seconds,
            per_sec: [("hostile".to_owned(), (2_000.0, refused))].into(),
        };
        let picture = svg(&LOOPBACK_TENANTS, &[rate(1.0, 18_000.0), rate(2.0, 0.0)]);
        for word in ["polite", "bursty", "hostile", ">20,000<", ">2,000<", "2 s", "</svg>"] {
            assert!(picture.contains(word), "no {word} in {picture}");
        }
        let bars = |colour: &str| picture.matches(&format!("fill=\"{colour}\"/>\n")).count();
        assert_eq!((bars(PASSED), bars(REFUSED)), (2, 1));
    }

    #[test]
    fn a_run_without_a_reading_is_drawn_empty() {
        let picture = svg(&LOOPBACK_TENANTS, &[]);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}
