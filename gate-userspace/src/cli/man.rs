//! `gate man`: manual pages of gate and all its commands.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;

use super::help::{self, is_example};

/// Write manual pages of gate and its commands into a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The directory; it is made if it is not there.
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  gate man /usr/local/share/man/man1 && man gate-queues";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    write(&args.dir).with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for gate and one for each command.
pub(super) fn write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut command = help::command().disable_help_subcommand(true);
    command.build();
    write_all(&command, dir)
}

fn write_all(command: &Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    write_sections(&help::behind_options(command), &mut page)?;
    man.render_version_section(&mut page)?;
    File::create(dir.join(man.get_filename()))?.write_all(&page)?;
    command.get_subcommands().try_for_each(|command| write_all(command, dir))
}

/// Writes what stands behind the options: examples as they are, and the rest filled.
fn write_sections(said: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut last = "";
    for paragraph in said.split("\n\n") {
        let headings = [
            ("Examples:", "EXAMPLES"),
            ("Example:", "EXAMPLES"),
            ("Signals:", "SIGNALS"),
            ("Exit status:", "EXIT STATUS"),
        ];
        let headed = headings.into_iter().find_map(|(begins, heading)| {
            Some((heading, paragraph.strip_prefix(begins)?.trim_start_matches(['\n', ' '])))
        });
        // An example's blanks are its own.
        let (heading, text) = match headed {
            Some((heading, _)) if paragraph.lines().any(is_example) => {
                (heading, paragraph.split_once('\n').map_or("", |(_, text)| text))
            }
            Some(headed) => headed,
            None => ("NOTES", paragraph),
        };
        if heading == last {
            writeln!(page, ".PP")?;
        } else {
            writeln!(page, ".SH \"{heading}\"")?;
        }
        last = heading;
        let is_shown_as_it_is = text.lines().any(is_example);
        if is_shown_as_it_is {
            writeln!(page, ".nf")?;
        }
        for line in text.lines() {
            writeln!(page, "{}", escaped(line))?;
        }
        if is_shown_as_it_is {
            writeln!(page, ".fi")?;
        }
    }
    Ok(())
}

/// A line of text that roff takes for nothing else.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_named_and_examples_are_not_filled() {
        let mut page = Vec::new();
        let said = "Examples:\n  gate run -c a\n                b\n\nSignals: SIGTERM ends\nit.\n\n.dot\n\nmore\n\nExit status: 0 done.";
        write_sections(said, &mut page).unwrap();
        let expected = ".SH \"EXAMPLES\"\n.nf\n  gate run \\-c a\n                b\n.fi\n.SH \"SIGNALS\"\nSIGTERM ends\nit.\n\
                        .SH \"NOTES\"\n\\&.dot\n.PP\nmore\n.SH \"EXIT STATUS\"\n0 done.\n";
        assert_eq!(String::from_utf8(page).unwrap(), expected);
    }
}
