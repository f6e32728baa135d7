//! `gate quota check`: a dry look at the file of an owner, or at limits for etcd.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::super::print;
use crate::config::{Fault, Faults, LimitsIn, QuotaConfig, parse_limits, read_text, short_limits};
use crate::limits::Rules;

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    valid: bool,
    /// How many limits are in it.
    limits: usize,
    faults: Vec<Fault>,
    warnings: Vec<String>,
}

pub(super) fn run(path: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let file = path.display().to_string();
    let text = read_text(path)?;
    let report = match read(&file, &text) {
        Ok((rules, where_)) => {
            let warnings = short_limits(&rules);
            if !json {
                warnings.iter().for_each(|warning| eprintln!("{file}: warning: {warning}"));
                println!("{file}: valid; limits: {}{where_}", rules.list().len());
            }
            Report { file, valid: true, limits: rules.list().len(), faults: Vec::new(), warnings }
        }
        Err(faults) => {
            if !json {
                eprintln!("{faults}");
            }
            Report { file, valid: false, limits: 0, faults: faults.faults, warnings: Vec::new() }
        }
    };
    if json {
        print::json(&report)?;
    }
    Ok(if report.valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The limits of a file of either kind: that of an owner has a section `[quota]`, or can be read as one.
fn read(file: &str, text: &str) -> Result<(Rules, String), Faults> {
    match QuotaConfig::parse(file, text) {
        Ok(config) => {
            let at = format!(", for an owner at {}", config.listen);
            match config.limits {
                LimitsIn::File(rules) => Ok((rules, at)),
                LimitsIn::Etcd(_) => Ok((Rules::default(), format!("{at}; they are in etcd"))),
            }
        }
        // `gate quota apply` takes a document that lifts all limits, and no owner's file has one.
        Err(faults) => match parse_limits(file, text) {
            Ok(document) if document.lifts_all => Ok((document.rules, ", so that all are lifted".to_owned())),
            Ok(_) | Err(_) => Err(faults),
        },
    }
}
