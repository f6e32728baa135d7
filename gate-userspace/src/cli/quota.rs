//! `gate quota`: the owner of limits that gates share, and what it knows.

mod check;
mod import;
mod in_etcd;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use tonic::transport::ClientTlsConfig;

use super::print;
use super::signals::die_of_closed_pipes;
use super::table::{Table, number, text};
use crate::certificates::Credentials;
use crate::config::{NamedFile, PeerTls, etcd_endpoint};
use crate::fleet::etcd::Members;
use crate::fleet::show::{self, Account, Selection, Shown};

/// Own the limits that several gates share, or show what an owner knows.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Own limits: charge what gates report, and tell each its share.
    Run {
        /// The file with the limits.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Say whether the file of an owner, or limits for etcd, are valid, or everything that is wrong with them.
    Check {
        /// The file with the limits.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the accounts of an owner, and the gates that report to it.
    Show {
        /// Only names that begin so.
        #[arg(default_value = "")]
        name: String,
        /// At most so many.
        #[arg(long, default_value_t = 50, value_name = "COUNT")]
        limit: u32,
        #[command(flatten)]
        owner: OwnerArgs,
    },
    /// Show the limits that are asked for most: demand, level, whether gates are held back, charges and refusals.
    Top {
        /// Only names that begin so.
        #[arg(default_value = "")]
        name: String,
        /// At most so many.
        #[arg(long, default_value_t = 20, value_name = "COUNT")]
        limit: u32,
        #[command(flatten)]
        owner: OwnerArgs,
    },
    /// Explain one limit: its rule, what is left, and each gate's share.
    Explain {
        /// The limit's whole name.
        name: String,
        #[command(flatten)]
        owner: OwnerArgs,
    },
    /// Fill the bucket of one limit and forgive its debt, on the owner's own machine.
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        /// The limit's whole name.
        name: String,
        /// Why: the owner logs it, with who asked for it.
        #[arg(long, value_name = "TEXT")]
        why: String,
        #[command(flatten)]
        owner: OwnerArgs,
    },
    /// Put limits into etcd, where all owners follow them.
    #[command(after_help = APPLY_EXAMPLES)]
    Apply {
        /// The file with the limits: sections `[[limit]]` as in gate.toml, and nothing else.
        file: PathBuf,
        /// Only in the place of the limits of this revision, which `gate quota owners` prints; 0 for none.
        #[arg(long, value_name = "REVISION")]
        revision: Option<u64>,
        /// The file has no limits: lift all that hold.
        #[arg(long)]
        remove_all: bool,
        /// Why: owners log it with each limit that changes, and who applied it.
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
        #[command(flatten)]
        etcd: EtcdArgs,
    },
    /// Make a file with limits of a configuration of envoyproxy/ratelimit, and say what it cannot hold.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// The configuration, in YAML.
        file: PathBuf,
        /// A new file for the limits; without it they are printed.
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Limits count in windows of the calendar, as there; without it they are buckets that fill evenly.
        #[arg(long)]
        calendar: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the owners that are registered in etcd: address, since when, revision.
    #[command(after_help = OWNERS_EXAMPLES)]
    Owners {
        #[command(flatten)]
        etcd: EtcdArgs,
    },
}

#[derive(Debug, clap::Args)]
struct OwnerArgs {
    /// The owner's address, or its host's name, and port.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS", conflicts_with = "etcd")]
    owner: String,
    /// The members of etcd, in place of an address: all owners that are registered there are asked, or the one that owns the limit.
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = etcd_endpoint)]
    etcd: Vec<String>,
    #[command(flatten)]
    certificates: CertificateArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct EtcdArgs {
    /// The members of etcd.
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = etcd_endpoint, default_value = "http://127.0.0.1:2379")]
    etcd: Vec<String>,
    #[command(flatten)]
    certificates: CertificateArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct CertificateArgs {
    /// The certificates that the other side's may lead to; without them it is asked in plain text.
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// The certificate to show it.
    #[arg(long, value_name = "FILE", requires = "ca")]
    certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
}

impl OwnerArgs {
    fn ask(&self, owner: &str, which: Selection<'_>) -> anyhow::Result<Shown> {
        Ok(show::ask(owner, self.certificates.read()?, which)?)
    }

    fn members(&self) -> anyhow::Result<Members> {
        self.certificates.members(&self.etcd)
    }

    /// The address of the owner of a name.
    fn address_for(&self, name: &str) -> anyhow::Result<String> {
        if self.etcd.is_empty() { Ok(self.owner.clone()) } else { in_etcd::owner_of(&self.members()?, name) }
    }
}

impl EtcdArgs {
    fn members(&self) -> anyhow::Result<Members> {
        self.certificates.members(&self.etcd)
    }
}

impl CertificateArgs {
    /// The members of etcd at these URLs.
    fn members(&self, urls: &[String]) -> anyhow::Result<Members> {
        let tls = self.read()?;
        let is_encrypted = |url: &String| url.starts_with("https:");
        anyhow::ensure!(
            tls.is_some() || !urls.iter().any(is_encrypted),
            "a member of etcd with https is shown a certificate, and checked: add --ca, --certificate and --key"
        );
        Ok(Members::fixed(urls.to_vec(), tls))
    }

    fn read(&self) -> anyhow::Result<Option<ClientTlsConfig>> {
        let (Some(ca), Some(certificate), Some(key)) = (&self.ca, &self.certificate, &self.key) else {
            return Ok(None);
        };
        let tls = PeerTls {
            ca: NamedFile::of_argument(ca.clone(), "--ca"),
            certificate: NamedFile::of_argument(certificate.clone(), "--certificate"),
            key: NamedFile::of_argument(key.clone(), "--key"),
        };
        let credentials = Credentials::read(&tls);
        let credentials =
            credentials.map_err(|fault| anyhow::anyhow!("{}: {}", fault.path, fault.message))?;
        Ok(Some(credentials.client))
    }
}

const EXAMPLES: &str = "\
Examples:
  gate quota check quota.toml
  gate quota run --config quota.toml
  gate quota show
  gate quota show shop/ --limit 10 --json
  gate quota top --json
  gate quota explain acme
  gate quota explain acme --etcd http://127.0.0.1:2379
  gate quota show --owner quota-1.example:9920 \\
      --ca ca.pem --certificate me.pem --key me.key
  gate quota apply limits.toml
  gate quota owners

SIGHUP makes an owner read its limits and certificates again; SIGTERM and SIGINT end it.";

const APPLY_EXAMPLES: &str = "\
Examples:
  gate quota apply limits.toml
  gate quota apply limits.toml \\
      --etcd http://127.0.0.1:2379,http://127.0.0.1:22379
  gate quota apply limits.toml --revision 42 --json
  gate quota apply limits.toml --why 'acme has moved to a larger plan'
  gate quota apply /dev/null --remove-all

The file is checked first, and every fault is named with its line. All of its limits hold, or none: of two that apply at once one is \
refused, and may look at what the other has applied.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  gate quota import ratelimit.yaml --output limits.toml
  gate quota import ratelimit.yaml --calendar
  gate quota import ratelimit.yaml | diff limits.toml -

What was not carried over is on standard error, by line. The file can be checked and applied by `gate quota apply`, and its sections copied into
gate.toml and quota.toml.";

const RESET_EXAMPLES: &str = "\
Examples:
  gate quota reset acme --why 'a faulty gate charged too much'

Gates are told within a tick. The owner's log says who it was, and why.";

const OWNERS_EXAMPLES: &str = "\
Examples:
  gate quota owners
  gate quota owners --etcd http://127.0.0.1:2379 --json";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Check { file, json } => check::run(&file, json),
        Action::Run { config } => run::run(&config),
        Action::Show { name, limit, owner } => {
            show_accounts(Selection { prefix: &name, limit, most_used: false }, &owner)
        }
        Action::Top { name, limit, owner } => {
            show_accounts(Selection { prefix: &name, limit, most_used: true }, &owner)
        }
        Action::Explain { name, owner } => explain(&name, &owner),
        Action::Reset { name, why, owner } => reset(&name, &why, &owner),
        Action::Apply { file, revision, remove_all, why, etcd } => {
            in_etcd::apply(&file, (revision, remove_all), why.as_deref(), &etcd)
        }
        Action::Import { file, output, calendar, json } => {
            import::import(&file, output.as_deref(), calendar, json)
        }
        Action::Owners { etcd } => in_etcd::owners(&etcd),
    }
}

fn show_accounts(which: Selection<'_>, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let shown =
        if owner.etcd.is_empty() { owner.ask(&owner.owner, which)? } else { in_etcd::show(owner, which)? };
    die_of_closed_pipes();
    if owner.json {
        print::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = ["RU/s", "asked RU/s", "left RU", "charged RU", "refused RU", "gates"].map(number);
    let mut table =
        Table::new(&[[text("limit"), text("rule")].as_slice(), &columns, &[text("state")]].concat());
    for account in &shown.accounts {
        table.add_row([
            account.name.clone(),
            account.rule.clone(),
            if account.rule.is_empty() { "none".to_owned() } else { in_column(account.per_sec_ru) },
            print::amount(account.demand_ru),
            left(account.left_ru),
            print::amount(account.charged_ru),
            print::amount(account.refused_ru),
            account.shares.len().to_string(),
            state(account).to_owned(),
        ]);
    }
    println!("{table}");
    let left_out = shown.total.saturating_sub(shown.accounts.len() as u64);
    if which.prefix.is_empty() && left_out > 0 {
        println!("{left_out} more; --limit shows them");
    }
    let connected = shown.gates.iter().filter(|gate| gate.is_connected).count();
    println!("{connected} of {} gates connected", shown.gates.len());
    shown.kept.iter().for_each(|why| println!("the last good limits are in force: {why}"));
    Ok(ExitCode::SUCCESS)
}

fn reset(name: &str, why: &str, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let address = owner.address_for(name)?;
    let operator = format!("uid {}", nix::unistd::getuid());
    let left_before = show::reset(&address, owner.certificates.read()?, name, (&operator, why))?;
    die_of_closed_pipes();
    let Some(left_before) = left_before else {
        anyhow::bail!("the owner at {address} has no account of {name:?}");
    };
    if owner.json {
        print::json(&serde_json::json!({ "name": name, "left_before_ru": left_before }))?;
    } else {
        println!("{name}: the bucket is full again; {} RU were left", left(left_before));
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(name: &str, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let address = owner.address_for(name)?;
    let shown = owner.ask(&address, Selection { prefix: name, limit: 10_000, most_used: false })?;
    die_of_closed_pipes();
    let account = shown.accounts.into_iter().find(|account| account.name == name);
    let Some(account) = account else {
        anyhow::bail!(
            "the owner at {address} has no account of {name:?}: no gate has reported it, or no rule fits it"
        );
    };
    if owner.json {
        print::json(&account)?;
        return Ok(ExitCode::SUCCESS);
    }
    if account.rule.is_empty() {
        println!("{}: no limit any more; each gate goes by its own quota", account.name);
    } else {
        let (amount, unit) = rate(account.per_sec_ru);
        println!("{}: {amount} RU/{unit} by the rule {:?}", account.name, account.rule);
        println!("left: {} RU, {}", left(account.left_ru), state(&account));
    }
    for share in &account.shares {
        let percent = share.granted * 100.0;
        println!(
            "  {}: asked for {} RU/s, granted {percent:.1} %",
            share.gate,
            print::amount(share.demand_ru)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A rate and its unit of time: the shortest in which there is one.
fn rate(per_sec: f64) -> (String, &'static str) {
    let units = [("s", 1.0), ("min", 60.0), ("hour", 3_600.0), ("day", 86_400.0), ("month", 2_592_000.0)];
    let (unit, secs) = units.into_iter().find(|(_, secs)| per_sec * secs > 0.999).unwrap_or(("s", 1.0));
    let amount = if unit == "s" { per_sec } else { (per_sec * secs * 100.0).round() / 100.0 };
    (print::amount(amount), unit)
}

/// A rate in a column of rates per second.
fn in_column(per_sec: f64) -> String {
    match rate(per_sec) {
        (amount, "s") => amount,
        (amount, unit) => format!("{amount}/{unit}"),
    }
}

/// The content of a bucket, which may be a debt.
fn left(amount: f64) -> String {
    if amount < 0.0 { format!("-{}", print::amount(-amount)) } else { print::amount(amount) }
}

fn state(account: &Account) -> &'static str {
    match account {
        Account { rule, .. } if rule.is_empty() => "no limit",
        Account { is_held_back: true, .. } => "held back",
        Account { is_held_back: false, .. } => "free",
    }
}
