//! `gate check`: whether a configuration is valid, and if not, everything that is wrong with it.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::config::{Config, Error, Fault};

/// Say whether a configuration is valid, or everything that is wrong with it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Counts>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Counts {
    services: usize,
    tenants: usize,
    sources: usize,
    /// File descriptors that it may need.
    descriptors: u64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display().to_string();
    let report = match Config::read(&args.file) {
        Ok(config) => Report {
            file,
            valid: true,
            counts: Some(Counts::of(&config)),
            faults: Vec::new(),
            warnings: config.warnings(),
        },
        Err(Error::Invalid(faults)) if args.json => {
            Report { file, valid: false, counts: None, faults: faults.faults, warnings: Vec::new() }
        }
        Err(Error::Invalid(faults)) => {
            eprintln!("{faults}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if let Some(Counts { services, tenants, sources, descriptors }) = report.counts {
        report.warnings.iter().for_each(|warning| eprintln!("{}: warning: {warning}", report.file));
        println!(
            "{}: valid; services: {services}, tenants: {tenants}, sources: {sources}, file descriptors: {descriptors}",
            report.file
        );
    }
    Ok(if report.valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Counts {
    fn of(config: &Config) -> Self {
        Self {
            services: config.services.len(),
            tenants: config.tenants.len(),
            sources: config.tenants.iter().map(|tenant| tenant.sources.len()).sum(),
            descriptors: config.descriptors(),
        }
    }
}
