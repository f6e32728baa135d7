//! The screen of `gate top`: a line about gate, the views, the table, and a line of keys or of what is wrong.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as Piece};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::detail::Field;
use super::reading::Reading;
use super::rows::widths;
use super::state::{Over, State};
use super::view::View;
use crate::admin::totals::Totals;
use crate::cli::print;
use crate::cli::table::Column;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let lines = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [summary, views, table, footer] = Layout::vertical(lines).areas(frame.area());
    frame.render_widget(self::summary(state), summary);
    frame.render_widget(self::views(state, views.width), views);
    match state.over {
        Over::Nothing => rows(frame, state, table),
        Over::Detail { from } => detail(frame, state, from, table),
        Over::Help => help(frame, table),
    }
    frame.render_widget(self::footer(state), footer);
}

fn summary(state: &State) -> Line<'static> {
    let Some(span) = state.span() else { return Line::raw("gate") };
    let status = &span.now.status;
    let all = |count: fn(&Totals) -> u64| {
        let sum = |reading: &Reading| count(&reading.tenants.totals) as f64;
        let rate = span.rate(span.before.map(sum), sum(span.now));
        rate.map_or_else(|| "-".to_owned(), print::amount)
    };
    let passed = all(|totals| totals.passed);
    let refused = all(|totals| totals.refused.values().sum());
    let at = status.interface.clone().unwrap_or_else(|| "no interface".to_owned());
    let mut pieces = vec![Piece::raw(format!("gate  {passed} passed/s  {refused} refused/s  {at}"))];
    if status.shadow {
        pieces.push(Piece::styled("  shadow: nothing is refused", warning()));
    }
    if status.stale {
        pieces.push(Piece::styled("  heartbeat stale", warning()));
    }
    Line::from(pieces)
}

fn views(state: &State, width: u16) -> Line<'static> {
    let chosen = Style::new().add_modifier(Modifier::REVERSED);
    let whole: usize = View::ALL.iter().map(|view| view.name().len() + 4).sum();
    let names = View::ALL.iter().enumerate().map(|(place, &view)| {
        let style = if view == state.view() { chosen } else { Style::new() };
        // Where they do not fit, the others are numbers.
        let is_short = whole > usize::from(width) && view != state.view();
        let name =
            if is_short { format!("[{}] ", place + 1) } else { format!("[{}]{} ", place + 1, view.name()) };
        Piece::styled(name, style)
    });
    Line::from(names.collect::<Vec<_>>())
}

fn footer(state: &State) -> Line<'static> {
    if let Some(failure) = &state.failure {
        return Line::styled(format!("{failure}; asked again"), warning());
    }
    let (filter, is_typing) = state.filter();
    let mut said = String::new();
    if state.is_held {
        said.push_str("held, Space goes on  ");
    }
    match (filter, is_typing) {
        (filter, true) => said.push_str(&format!("/{filter}_")),
        ("", false) => said.push_str("Tab view  s sort  / filter  Enter detail  ? help  q end"),
        (filter, false) => said.push_str(&format!("/{filter}  / and Esc show all")),
    }
    Line::raw(said)
}

fn rows(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let (rows, place) = state.rows();
    let columns = state.view().columns();
    if rows.is_empty() {
        let said = match state.filter().0 {
            _ if state.is_asking() => "asking",
            "" => nothing(state.view()),
            _ => "nothing has that text",
        };
        frame.render_widget(Paragraph::new(said), area);
        return;
    }
    let widths = widths(columns, &rows, usize::from(area.width));
    let (sorted_by, is_reversed) = state.order();
    let heading = columns.iter().zip(&widths).enumerate().map(|(place, (column, &width))| {
        let mark = match (place == sorted_by, is_reversed) {
            (false, _) => "",
            (true, false) => "*",
            (true, true) => "^",
        };
        aligned(format!("{}{mark}", column.name), *column, width)
    });
    let heading = Row::new(heading).style(Style::new().add_modifier(Modifier::BOLD));
    let body = rows.iter().map(|row| {
        let cells = row.cells.iter().zip(columns).zip(&widths);
        let cells = cells.map(|((cell, column), &width)| aligned(cell.text.clone(), *column, width));
        let style = if row.stands_out { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new(cells).style(style)
    });
    let constraints =
        widths.iter().map(|&width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    let table = Table::new(body, constraints)
        .header(heading)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected(place);
    frame.render_stateful_widget(table, area, &mut selected);
}

/// Why a view is empty.
const fn nothing(view: View) -> &'static str {
    match view {
        View::Tenants => "there are no tenants",
        View::Services => "no service has a backend or a probe",
        View::Types => "no requests of proxied services lately",
        View::Keys => "no key has been sampled",
        View::Sources => "no source has been refused lately",
    }
}

fn aligned(text: String, column: Column, width: usize) -> Cell<'static> {
    let length = text.chars().count();
    let text = if length > width { text.chars().take(width).collect() } else { text };
    let alignment = if column.is_number { Alignment::Right } else { Alignment::Left };
    Cell::new(Line::raw(text).alignment(alignment))
}

fn detail(frame: &mut Frame<'_>, state: &State, from: usize, area: Rect) {
    let (name, fields) = state.detail();
    let block = Block::bordered().title(format!(" {name} "));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if fields.is_empty() {
        frame.render_widget(Paragraph::new("it is gone"), inner);
        return;
    }
    let widest = fields.iter().map(|field| field.value.chars().count()).max().unwrap_or(0).min(MOST_OF_VALUE);
    let lines = fields.iter().skip(from).flat_map(|Field { words, value, rate }| {
        let rate = rate.map_or_else(String::new, |rate| format!(" (now {} a second)", print::amount(rate)));
        let indent = widest + 2;
        let room = usize::from(inner.width).saturating_sub(indent).max(LEAST_OF_WORDS);
        let words = wrapped(&format!("{words}{rate}"), room);
        let first = |place: usize| if place == 0 { value.as_str() } else { "" };
        let line =
            move |(place, words): (usize, String)| Line::raw(format!("{:>widest$}  {words}", first(place)));
        words.into_iter().enumerate().map(line).collect::<Vec<_>>()
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
}

/// A text in lines of at most so many characters, broken between words where that can be.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The most characters of a value beside its words.
const MOST_OF_VALUE: usize = 24;
/// The fewest characters in a line of words.
const LEAST_OF_WORDS: usize = 8;

fn help(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Clear, area);
    let lines: Vec<_> = HELP.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

const HELP: [&str; 14] = [
    "Tab, 1 to 5   the next view; one of them",
    "Up, Down      select a row",
    "Enter         all that is known of it",
    "s, S          sort by the next, the previous column",
    "r             the other way round",
    "/             filter: type, Enter keeps it, Esc ends it",
    "Space         hold still, and go on",
    "q, Esc        close this; end",
    "",
    "Rates are of the time between two readings;",
    "those of services and types of the last 10 to 20 s.",
    "Sources are estimates that halve every 60 s.",
    "Yellow: refused, down, or in a queue that stands.",
    "* the column that rows are sorted by, ^ reversed",
];

const fn warning() -> Style {
    Style::new().fg(Color::Red)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::fixture::empty;
    use super::super::reading::Documents;
    use super::*;
    use crate::admin::hotkeys::Key;

    fn state() -> State {
        let mut state = State::new(View::Keys);
        let mut reading = empty(1, Documents::Hotkeys);
        reading.hotkeys.keys = (0..100)
            .map(|place| Key {
                rank: place + 1,
                service: "cache".to_owned(),
                key: format!("user:{place}"),
                estimate: 1_000_000 - place as u64,
                error: 12,
                hot: place == 0,
                limited: false,
            })
            .collect();
        state.receive(Ok(reading));
        state
    }

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_table_fits_every_width() {
        for (width, there, not_there) in [
            (20, vec!["user:0", "[1]", "[4]keys", "key"], vec!["cache"]),
            (80, vec!["user:0", "1,000,000", "asked*", "cache", "hot", "? help"], vec![]),
            (300, vec!["user:0", "1,000,000", "cache"], vec![]),
        ] {
            let drawn = drawn(&state(), width, 12);
            for text in there {
                assert!(drawn.contains(text), "{text} at {width}:\n{drawn}");
            }
            for text in not_there {
                assert!(!drawn.contains(text), "{text} at {width}:\n{drawn}");
            }
        }
    }

    #[test]
    fn tabs_are_named_and_give_way_to_numbers() {
        let wide = drawn(&state(), 60, 10);
        assert!(wide.contains("[1]tenants [2]services [3]types [4]keys [5]sources "), "{wide}");
        let narrow = drawn(&state(), 30, 10);
        assert!(narrow.contains("[1] [2] [3] [4]keys [5] "), "{narrow}");
    }

    #[test]
    fn terminals_without_room_are_no_fault() {
        let mut state = state();
        for over in [Over::Nothing, Over::Detail { from: 0 }, Over::Help] {
            state.over = over;
            for (width, height) in [(1, 1), (1, 50), (2, 3), (20, 2), (500, 1)] {
                drawn(&state, width, height);
            }
        }
    }

    #[test]
    fn the_selected_row_is_always_in_sight() {
        let mut state = state();
        state.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        let drawn = drawn(&state, 80, 10);
        assert!(drawn.contains("user:99") && !drawn.contains("user:0 "), "{drawn}");
    }

    #[test]
    fn what_is_wrong_is_said_in_the_last_line() {
        let mut state = state();
        state.failure = Some("no gate listens at /run/gate.sock".to_owned());
        assert!(drawn(&state, 80, 10).contains("no gate listens at /run/gate.sock; asked again"));
    }

    #[test]
    fn a_selected_row_shows_all_its_fields() {
        let mut state = state();
        state.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        let drawn = drawn(&state, 80, 14);
        for text in ["cache user:0", "The upper bound of its requests", "1,000,000", "Its service"] {
            assert!(drawn.contains(text), "{text}:\n{drawn}");
        }
    }
}
