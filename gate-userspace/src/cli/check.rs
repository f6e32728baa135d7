//! `gate check`: whether a configuration is valid, and if not, everything that is wrong with it.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::admin::Token;
use crate::bypass;
use crate::cache::room_warnings;
use crate::config::{ChangedDefault, Config, Error, Fault, Faults, Service, changed_defaults, read_text};
use crate::control::sizes::{Exceeded, counter_bytes, sizes, table_bytes};
use crate::dispatcher;
use crate::kernel::Cpus;
use crate::kernel::stacking::conflict;

/// Say whether a configuration is valid, or everything that is wrong with it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The configuration.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Name each default that has changed, and what restores it: worth a look after an upgrade.
    #[arg(long, short)]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  gate check gate.toml
  gate check --verbose gate.toml         what an upgrade has changed for it
  gate check --json gate.toml | jq .warnings

Warnings do not make a configuration invalid.

Exit status: 0 valid; 1 invalid, with each fault and its line on standard error; 2 wrong usage.";

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    faults: Vec<Fault>,
    warnings: Vec<String>,
    /// Defaults that it relies on, and that were others before.
    changed_defaults: Vec<ChangedDefault>,
    /// Where it would be attached; none if the command line has to say it.
    interfaces: Vec<String>,
    /// The services whose connections gate would get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    intercepted: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Counts {
    services: usize,
    tenants: usize,
    sources: usize,
    /// File descriptors that it may need.
    descriptors: u64,
}

/// The memory of the maps on this machine, in bytes, and the limits of the configuration.
#[derive(Debug, Serialize)]
struct Memory {
    counters: u64,
    counters_allowed: u64,
    tables: u64,
    tables_allowed: u64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display().to_string();
    let report = match read(&args) {
        Ok(config) => match Memory::of(&config, &Cpus::of_machine()?) {
            Ok(memory) => {
                let counts = Some(Counts::of(&config));
                let memory = Some(memory);
                let faults = Vec::new();
                let interfaces = interfaces(&config);
                let mut warnings = config.warnings();
                warnings.extend(config.unaffordable());
                warnings.extend(interface_warning(&config, &interfaces));
                warnings.extend(dispatcher::socket_warnings(&config));
                warnings.extend(room_warnings(&config));
                warnings.extend(missing_token(&config));
                warnings.extend(bypass::warnings(&config, &interfaces));
                let changed_defaults = changed_defaults(&read_text(&args.file)?);
                let intercepted = intercepted(&config);
                Report {
                    file,
                    valid: true,
                    counts,
                    memory,
                    faults,
                    warnings,
                    changed_defaults,
                    interfaces,
                    intercepted,
                }
            }
            Err(exceeded) => {
                let fault = fault_of(&exceeded);
                if !args.json {
                    eprintln!("{file}:{fault}");
                }
                Report::invalid(file, vec![fault])
            }
        },
        Err(Error::Invalid(faults)) if args.json => Report::invalid(file, faults.faults),
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
        if report.interfaces.len() > 1 {
            println!("interfaces, with one budget: {}", report.interfaces.join(", "));
        }
        if let Some(memory) = &report.memory {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let &Memory { counters, counters_allowed, tables, tables_allowed } = memory;
            println!(
                "memory on this machine: counters {} of {} MiB, tables {} of {} MiB",
                mib(counters),
                mib(counters_allowed),
                mib(tables),
                mib(tables_allowed)
            );
        }
        report.intercepted.iter().for_each(|what| println!("intercepted: {what}"));
        report.say_what_prices_follow();
        if args.verbose {
            report.say_changed_defaults();
        }
    }
    Ok(if report.valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configuration, with certificates and keys that can be used.
fn read(args: &Args) -> Result<Config, Error> {
    let config = Config::read(&args.file)?;
    let mut faults = dispatcher::certificate_faults(&config);
    faults.extend(token_fault(&config));
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(Faults { file: args.file.display().to_string(), faults }.into())
    }
}

impl Report {
    /// Says that prices follow what requests read, of the services that have not chosen that.
    fn say_what_prices_follow(&self) {
        let key = |default: &'_ ChangedDefault| {
            Some(default.key.strip_suffix(".price.learn")?.strip_prefix("service.")?.to_owned())
        };
        let names: Vec<_> = self.changed_defaults.iter().filter_map(key).collect();
        if !names.is_empty() {
            println!(
                "prices follow the rows and bytes that requests read (price.learn = \"rows\"; \"off\" keeps them as \
                 configured): {}",
                names.join(", ")
            );
        }
    }

    /// Names the changed defaults, each with its line. Who has had no other version wants to know nothing of them.
    fn say_changed_defaults(&self) {
        if self.changed_defaults.is_empty() {
            return;
        }
        println!("defaults that have changed, relied on, and what restores them:");
        self.changed_defaults
            .iter()
            .for_each(|ChangedDefault { key, restore }| println!("  {key}: {restore}"));
    }

    fn invalid(file: String, faults: Vec<Fault>) -> Self {
        Self {
            file,
            valid: false,
            counts: None,
            memory: None,
            faults,
            warnings: Vec::new(),
            changed_defaults: Vec::new(),
            interfaces: Vec::new(),
            intercepted: Vec::new(),
        }
    }
}

impl Memory {
    fn of(config: &Config, cpus: &Cpus) -> Result<Self, Exceeded> {
        let sizes = sizes(config, cpus, dispatcher::cores())?;
        let counters_allowed = config.gate.counter_memory;
        let tables_allowed = config.gate.prefix_memory;
        let counters = counter_bytes(&sizes);
        let tables = table_bytes(&sizes);
        Ok(Self { counters, counters_allowed, tables, tables_allowed })
    }
}

/// The services whose connections gate would get, in words.
fn intercepted(config: &Config) -> Vec<String> {
    let sentence = |service: &Service| {
        let intercept = service.intercept?;
        let at: Vec<_> = service.listen.iter().map(ToString::to_string).collect();
        let local = if intercept.local { ", this machine's own connections too" } else { "" };
        let lost = if intercept.refuse { "are refused" } else { "reach the store" };
        let store = &service.backend.as_ref()?.address;
        Some(format!(
            "new connections to {} at {}{local}; the store is reached at {store}, and while gate is lost they {lost}",
            service.name,
            at.join(", ")
        ))
    };
    config.services.iter().filter_map(sentence).collect()
}

fn interfaces(config: &Config) -> Vec<String> {
    config.gate.interfaces.iter().map(|listed| listed.name.as_str().to_owned()).collect()
}

/// Warns of interfaces that cannot be had together on this machine: the configuration may be another one's.
fn interface_warning(config: &Config, interfaces: &[String]) -> Option<String> {
    let (place, wrong) = conflict(interfaces).ok()??;
    Some(format!("line {}", config.gate.interface_fault(place, wrong.to_string())))
}

/// Memory beyond what is allowed, as a fault of the key that allows it.
/// The fault of the file that `admin_token_file` names. One that is not there may be where gate is to run.
fn token_fault(config: &Config) -> Option<Fault> {
    let path = config.gate.admin_token_file.as_ref().filter(|path| path.exists())?;
    let message = Token::read(path).err()?;
    let value = Some(format!("{:?}", path.display().to_string()));
    Some(Fault { line: 1, path: "gate.admin_token_file".to_owned(), value, message })
}

/// That the file of `admin_token_file` is not there.
fn missing_token(config: &Config) -> Option<String> {
    let path = config.gate.admin_token_file.as_ref().filter(|path| !path.exists())?;
    Some(format!("gate.admin_token_file: there is no {}: without it gate does not start", path.display()))
}

fn fault_of(exceeded: &Exceeded) -> Fault {
    let key = match exceeded {
        Exceeded::PrefixMemory { .. } => "prefix_memory",
        Exceeded::CounterMemory { .. } => "counter_memory",
    };
    Fault { line: 1, path: format!("gate.{key}"), value: None, message: exceeded.to_string() }
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
