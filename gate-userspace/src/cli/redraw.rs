//! A text that is shown anew every second: in place on a terminal, one after the other elsewhere.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::Duration;

use ratatui::crossterm::terminal;

use super::table::width_of;

/// Shows what `text` returns every second, until the process is ended. A failure is shown in its place, the first one returned.
///
/// # Errors
///
/// Of `text` the first time, and of standard output.
pub(super) fn every_second(mut text: impl FnMut() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let mut shown = Ok(text()?);
    let mut is_first = true;
    loop {
        let mut out = stdout().lock();
        match (screen(), &shown) {
            (Some(screen), shown) => {
                let start = if is_first { CLEAR } else { "" };
                let text = shown.as_ref().map_or_else(failed, String::clone);
                write!(out, "{start}{}", screen.frame(&text))?;
            }
            (None, Ok(text)) if is_first => writeln!(out, "{text}")?,
            (None, Ok(text)) => writeln!(out, "\n{text}")?,
            (None, Err(error)) => eprintln!("gate: {}", failed(error)),
        }
        out.flush()?;
        drop(out);
        is_first = false;
        std::thread::sleep(EVERY);
        shown = text();
    }
}

fn failed(error: &anyhow::Error) -> String {
    format!("{error:#}; asked again")
}

/// A terminal that says how large it is.
#[derive(Clone, Copy, Debug)]
struct Screen {
    columns: usize,
    rows: usize,
}

/// The screen of standard output; `None` if it is no terminal, or one that nobody has told its size.
fn screen() -> Option<Screen> {
    let (columns, rows) = terminal::size().ok().filter(|_| stdout().is_terminal())?;
    (columns > 0 && rows > 0).then_some(Screen { columns: columns.into(), rows: rows.into() })
}

impl Screen {
    /// The sequence that puts a text in the place of the last one. What has no room is counted in the last line.
    fn frame(self, text: &str) -> String {
        let lines: Vec<_> = text.lines().collect();
        let fits = |rows: usize| {
            let taken = lines.iter().scan(0, |taken, line| {
                *taken += width_of(line).div_ceil(self.columns).max(1);
                Some(*taken)
            });
            taken.take_while(|taken| *taken <= rows).count()
        };
        let mut shown = fits(self.rows);
        let mut more = String::new();
        if shown < lines.len() {
            shown = fits(self.rows - 1);
            more = format!("{} more lines", lines.len() - shown);
            more.truncate(self.columns);
        }
        let last = (!more.is_empty()).then_some(more.as_str());
        let shown: Vec<_> = lines[..shown].iter().copied().chain(last).collect();
        format!("{HOME}{}{REST_OF_LINE}{REST_OF_SCREEN}", shown.join(&format!("{REST_OF_LINE}\n")))
    }
}

const EVERY: Duration = Duration::from_secs(1);
/// To the first column of the first line.
const HOME: &str = "\x1b[H";
const CLEAR: &str = "\x1b[2J";
/// Clears what is behind the cursor.
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_overwrites_the_last_one_and_fits_the_screen() {
        // What of a line wraps is one line to it.
        let mut terminal = vt100::Parser::default();
        for (columns, rows, text, shown) in [
            (20, 3, "one\ntwo", "one\ntwo"),
            (20, 3, "a line that is longer", "a line that is longer"),
            (20, 3, "one\ntwo\nthree", "one\ntwo\nthree"),
            (20, 3, "one\ntwo\nthree\nfour", "one\ntwo\n2 more lines"),
            (20, 3, "a line that is longer\ntwo\nthree", "a line that is longer\n2 more lines"),
            (4, 1, "one\ntwo\nthree", "3 mo"),
            (20, 3, "", ""),
        ] {
            let size = |count| std::num::NonZero::new(count).unwrap();
            terminal.screen_mut().set_size(size(rows), size(columns));
            let screen = Screen { columns: columns.into(), rows: rows.into() };
            // A terminal in cooked mode sends a carriage return with each newline.
            terminal.process(screen.frame(text).replace('\n', "\r\n").as_bytes());
            assert_eq!(terminal.screen().contents(), shown, "{text:?} on {columns} x {rows}");
        }
    }
}
