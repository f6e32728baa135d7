//! The help of each command: 80 columns wide, with examples as they are written, and how the command ends.
//!
//! Paragraphs stand behind the options (`after_help`). Lines that begin with two blanks are examples, and stay as they are; other
//! paragraphs are filled. `Examples:`, `Signals:` and `Exit status:` begin sections of their own in a manual page ([`super::man`]).

use clap::{Command, CommandFactory as _};

/// As wide as help is; terminals and pagers have room for that.
pub(super) const WIDTH: usize = 80;

/// The command line, with everything that help and manual pages show.
pub(super) fn command() -> Command {
    completed(super::Cli::command().max_term_width(WIDTH))
}

/// A command and its subcommands, each with its exit status.
fn completed(command: Command) -> Command {
    let short = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = command.get_after_long_help().map(ToString::to_string);
    let names: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.after_help(with_status(&short));
    let command = match long {
        Some(long) => command.after_long_help(with_status(&long)),
        None => command,
    };
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, completed))
}

/// The text behind the options, with the exit status unless it says that itself.
fn with_status(said: &str) -> String {
    let status = if said.contains("Exit status:") { "" } else { EXIT_STATUS };
    let paragraphs = said.split("\n\n").chain([status]).filter(|paragraph| !paragraph.is_empty());
    paragraphs.map(filled).collect::<Vec<_>>().join("\n\n")
}

/// Everything that stands behind a command's options.
pub(super) fn behind_options(command: &Command) -> String {
    let said = command.get_after_long_help().or_else(|| command.get_after_help());
    said.map(ToString::to_string).unwrap_or_default()
}

/// A paragraph as one line, which is wrapped where it is shown; one with examples as it is.
fn filled(paragraph: &str) -> String {
    if paragraph.lines().any(is_example) { paragraph.to_owned() } else { paragraph.replace('\n', " ") }
}

/// True for a line that stays as it is.
pub(super) fn is_example(line: &str) -> bool {
    line.starts_with("  ")
}

const EXIT_STATUS: &str = "Exit status: 0 done; 1 failed, with the reason on standard error; 2 wrong usage.";

#[cfg(test)]
mod tests {
    use super::*;

    /// A command, its subcommands, and theirs.
    fn all(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|command| command.get_name() != "help").flat_map(all);
        [command.clone()].into_iter().chain(below).collect()
    }

    #[test]
    fn help_has_80_columns_and_examples_as_they_are_written() {
        let mut root = command();
        root.build();
        for mut command in all(&root) {
            let name = command.get_bin_name().unwrap_or_default().to_owned();
            let written = behind_options(&command);
            let shown = command.render_long_help().to_string();
            for line in shown.lines() {
                assert!(line.chars().count() <= WIDTH, "{name}: {line}");
            }
            for line in written.lines().filter(|line| is_example(line)) {
                assert!(shown.lines().any(|shown| shown == line), "{name}: {line:?} is wrapped");
            }
            assert!(shown.contains("Exit status: 0 "), "{name} says nothing of how it ends");
        }
    }
}
