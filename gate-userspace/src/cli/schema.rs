//! `gate schema`: the shape of the documents.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;

use super::print;
use crate::admin::document::{SCHEMAS, schema};

/// Print the JSON schema of a document that the admin socket answers with, or that `--json` prints.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gate schema status     of /v1/status and of `gate status --json`
  gate schema tenants    of /v1/tenants and of `gate tenants --json`
  gate schema order      the body of POST /v1/set; `set` is its result, `error`
                         that of any failure

Every document has a `schema_version`. New fields leave it as it is.")]
pub(super) struct Args {
    /// The document.
    #[arg(value_parser = PossibleValuesParser::new(SCHEMAS))]
    name: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    print::json(&schema(&args.name).context("no such document")?)?;
    Ok(ExitCode::SUCCESS)
}
