//! Limits that another limiter's configuration has.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;

use crate::cli::print;
use crate::cli::signals::die_of_closed_pipes;
use crate::config::{Imported, RatelimitNote, import_ratelimit, read_text};

#[derive(Serialize)]
struct Result {
    limits: usize,
    toml: String,
    not_carried_over: Vec<RatelimitNote>,
}

pub(super) fn import(
    file: &Path,
    output: Option<&Path>,
    by_calendar: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let name = file.display().to_string();
    let Imported { text, limits, notes } = import_ratelimit(&name, &read_text(file)?, by_calendar)?;
    if let Some(output) = output {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).open(output);
        let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        written.with_context(|| format!("cannot write {}", output.display()))?;
    }
    die_of_closed_pipes();
    if json {
        print::json(&Result { limits, toml: text, not_carried_over: notes })?;
        return Ok(ExitCode::SUCCESS);
    }
    for note in &notes {
        eprintln!("{name}:{}: {}", note.line, note.what);
    }
    match output {
        Some(output) => println!("{limits} limits in {}", output.display()),
        None => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}
