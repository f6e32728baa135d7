//! The `gate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gate_userspace::cli::main()
}
