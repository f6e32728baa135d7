//! `gate top`: tenants, services, query types, hot keys and sources as they change, in a terminal.
//!
//! A thread asks the running gate for what is shown ([`reading`]), the main thread draws ([`screen`]) what a table is made of ([`view`],
//! [`rows`]) and obeys keys ([`state`]). Between two readings nothing is computed and nothing is asked.

mod detail;
#[cfg(test)]
mod fixture;
mod leaves;
mod reading;
mod rows;
mod screen;
mod state;
mod view;

use std::io::{IsTerminal as _, stdin, stdout};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gate_common::units::Nanos;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::reading::{ReadResult, Wanted, ask};
use self::state::{State, Then};
use self::view::View;
use super::pins::Source;

/// Watch tenants, services, query types, hot keys and refused sources as they change, with rates instead of totals.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The table to show first.
    #[arg(value_enum, default_value_t = View::Tenants)]
    view: View,
    /// How often to ask.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Nanos,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate top
  gate top services --every 5s

Keys: Tab or 1 to 5 shows something else, Up and Down select, Enter shows all that is known of the selected row,
s and S sort by the next and the previous column, r turns the order round, / filters, Space holds still, ? helps,
q ends. Rates are of the time between two readings.

Asks the running gate: needs its admin socket (`admin` or `admin_read`).";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        !args.source.pins.json,
        "`gate top` draws on a terminal; `gate tenants --json` and `gate queues --json` print JSON"
    );
    ensure!(
        stdin().is_terminal() && stdout().is_terminal(),
        "`gate top` needs a terminal to draw on; `gate tenants` and `gate queues` print to anything"
    );
    let mut state = State::new(args.view);
    let wanted = state.wanted();
    state.receive(Ok(ask(&args.source, &wanted)?));
    let every = Duration::from(args.every);
    // One that waits: a screen that is slow to draw must not gather readings.
    let (sender, readings) = mpsc::sync_channel(1);
    let (wishes, wished) = mpsc::channel();
    let source = args.source;
    let asking = std::thread::Builder::new().name("asking".to_owned());
    let keep_asking = move || keep_asking(&source, every, wanted, &sender, &wished);
    asking.spawn(keep_asking).context("a thread to ask gate")?;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let shown = show(&mut terminal, &mut state, &readings, &wishes);
    ratatui::restore();
    drop(wishes);
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// Asks every so often, and at once for what is newly wished.
fn keep_asking(
    source: &Source,
    every: Duration,
    mut wanted: Wanted,
    sender: &SyncSender<ReadResult>,
    wished: &Receiver<Wanted>,
) {
    loop {
        match wished.recv_timeout(every) {
            // Of those that have gathered the last one counts.
            Ok(wish) => wanted = wished.try_iter().last().unwrap_or(wish),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if sender.send(ask(source, &wanted)).is_err() {
            return;
        }
    }
}

/// Draws whatever has changed, until a key ends it.
fn show(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    readings: &Receiver<ReadResult>,
    wishes: &Sender<Wanted>,
) -> anyhow::Result<()> {
    let mut wanted = state.wanted();
    loop {
        terminal.draw(|frame| screen::draw(frame, state))?;
        if wanted != state.wanted() {
            wanted = state.wanted();
            // It has ended with the program alone.
            let _ = wishes.send(wanted.clone());
        }
        loop {
            let mut changed = false;
            if event::poll(LOOK_EVERY)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                        Then::End => return Ok(()),
                        Then::Draw => changed = true,
                    },
                    Event::Resize(..) => changed = true,
                    _ => {}
                }
            }
            while let Ok(result) = readings.try_recv() {
                state.receive(result);
                changed = true;
            }
            if changed {
                break;
            }
        }
    }
}

/// A time of 200 ms to 60 s.
fn interval(text: &str) -> Result<Nanos, String> {
    crate::config::units::duration(text, Nanos::from_millis(200), Nanos::from_secs(60))
}

/// How late a reading may be drawn.
const LOOK_EVERY: Duration = Duration::from_millis(100);
