//! `gate quota`: the owner of limits that gates share, and what it knows.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::print;
use super::table::{Table, number, text};
use crate::certificates::Credentials;
use crate::config::{self, Faults, NamedFile, PeerTls, QuotaConfig};
use crate::daemon::descriptors;
use crate::fleet::owner::accounts::{ACCOUNT_BYTES, Accounts};
use crate::fleet::owner::counters::Counters;
use crate::fleet::owner::{Bounds, Owner, Port, serve};
use crate::fleet::show::{self, Shown};

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
    /// Explain one limit: its rule, what is left, and each gate's share.
    Explain {
        /// The limit's whole name.
        name: String,
        #[command(flatten)]
        owner: OwnerArgs,
    },
}

#[derive(Debug, clap::Args)]
struct OwnerArgs {
    /// The owner's address, or its host's name, and port.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS")]
    owner: String,
    /// The certificates that the owner's may lead to; without them it is asked in plain text.
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// The certificate to show the owner.
    #[arg(long, value_name = "FILE", requires = "ca")]
    certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl OwnerArgs {
    fn ask(&self, name: &str, limit: u32) -> anyhow::Result<Shown> {
        let tls = match (&self.ca, &self.certificate, &self.key) {
            (Some(ca), Some(certificate), Some(key)) => {
                let tls = PeerTls {
                    ca: NamedFile::of_argument(ca.clone(), "--ca"),
                    certificate: NamedFile::of_argument(certificate.clone(), "--certificate"),
                    key: NamedFile::of_argument(key.clone(), "--key"),
                };
                let credentials = Credentials::read(&tls);
                Some(
                    credentials.map_err(|fault| anyhow::anyhow!("{}: {}", fault.path, fault.message))?.client,
                )
            }
            _ => None,
        };
        Ok(show::ask(&self.owner, tls, name, limit)?)
    }
}

/// Standard streams, the runtime's and the listening socket.
const OWN_DESCRIPTORS: u64 = 64;
const EXAMPLES: &str = "\
Examples:
  gate quota run --config quota.toml
  gate quota show
  gate quota show shop/ --limit 10 --json
  gate quota explain acme
  gate quota show --owner quota-1.example:9920 --ca ca.pem --certificate me.pem --key me.key

SIGHUP makes an owner read its limits and certificates again; SIGTERM and SIGINT end it.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Run { config } => own(&config),
        Action::Show { name, limit, owner } => show_accounts(&name, limit, &owner),
        Action::Explain { name, owner } => explain(&name, &owner),
    }
}

fn own(path: &Path) -> anyhow::Result<ExitCode> {
    super::log_to_stderr()?;
    let config = QuotaConfig::read(path)?;
    let credentials = credentials(path, &config)?;
    let has_tls = credentials.is_some();
    let (to_tls, tls) = watch::channel(credentials.map(|credentials| credentials.server));
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let counters = Arc::new(Counters::default());
    let most = config.memory as usize / ACCOUNT_BYTES;
    let accounts = Arc::new(Accounts::new(config.rules, most, threads, Arc::clone(&counters)));
    let owner = Owner::new(Arc::clone(&accounts), counters);
    let bounds = Bounds {
        all: config.max_connections as usize,
        per_source: config.max_connections_per_source as usize,
    };
    descriptors::provide(u64::from(config.max_connections) + OWN_DESCRIPTORS);
    let listener = TcpListener::bind(config.listen)
        .with_context(|| format!("cannot listen at {}: is another owner running?", config.listen))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        tracing::info!(listen = %config.listen, tls = has_tls, limits = accounts.rules().rules.list().len(), "owning limits");
        let until = async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => return,
                    _ = terminate.recv() => return,
                    _ = hang_up.recv() => follow(path, &accounts, &to_tls),
                }
            }
        };
        let port = Port { listener, bounds, tls };
        serve(&owner, port, until).await.map_err(|error| anyhow::anyhow!(error))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Puts in force what has been read again; what is faulty changes nothing.
fn follow(path: &Path, accounts: &Accounts, tls: &watch::Sender<Option<Arc<ServerConfig>>>) {
    let read = QuotaConfig::read(path).map_err(anyhow::Error::from);
    let read = read.and_then(|config| Ok((credentials(path, &config)?, config)));
    let (credentials, config) = match read {
        Ok(read) => read,
        Err(error) => return tracing::error!("limits and certificates stay as they were:\n{error}"),
    };
    if credentials.is_some() == tls.borrow().is_some() {
        tls.send_replace(credentials.map(|credentials| credentials.server));
    } else {
        tracing::warn!("quota.tls counts from the next start only");
    }
    accounts.follow(crate::clock::monotonic(), config.rules);
    tracing::info!(limits = accounts.rules().rules.list().len(), "limits read again");
}

/// The certificates of an owner, if it has any.
fn credentials(path: &Path, config: &QuotaConfig) -> anyhow::Result<Option<Credentials>> {
    let credentials = config.tls.as_ref().map(Credentials::read).transpose();
    credentials.map_err(|fault| {
        let file = path.display().to_string();
        config::Error::from(Faults { file, faults: vec![fault] }).into()
    })
}

fn show_accounts(name: &str, limit: u32, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let shown = owner.ask(name, limit)?;
    if owner.json {
        print::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = ["RU/s", "left RU", "charged RU", "refused RU", "gates"].map(number);
    let mut table =
        Table::new(&[[text("limit"), text("rule")].as_slice(), &columns, &[text("state")]].concat());
    for account in &shown.accounts {
        table.add_row([
            account.name.clone(),
            account.rule.clone(),
            print::amount(account.per_sec_ru),
            left(account.left_ru),
            print::amount(account.charged_ru),
            print::amount(account.refused_ru),
            account.shares.len().to_string(),
            state(account.is_held_back).to_owned(),
        ]);
    }
    println!("{table}");
    let left_out = shown.total.saturating_sub(shown.accounts.len() as u64);
    if name.is_empty() && left_out > 0 {
        println!("{left_out} more; --limit shows them");
    }
    let connected = shown.gates.iter().filter(|gate| gate.is_connected).count();
    println!("{connected} of {} gates connected", shown.gates.len());
    Ok(ExitCode::SUCCESS)
}

fn explain(name: &str, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let shown = owner.ask(name, 10_000)?;
    let account = shown.accounts.into_iter().find(|account| account.name == name);
    let Some(account) = account else {
        anyhow::bail!(
            "the owner at {} has no account of {name:?}: no gate has reported it, or no rule fits it",
            owner.owner
        );
    };
    if owner.json {
        print::json(&account)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}: {} RU/s by the rule {:?}", account.name, account.per_sec_ru, account.rule);
    println!("left: {} RU, {}", left(account.left_ru), state(account.is_held_back));
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

/// The content of a bucket, which may be a debt.
fn left(amount: f64) -> String {
    if amount < 0.0 { format!("-{}", print::amount(-amount)) } else { print::amount(amount) }
}

const fn state(is_held_back: bool) -> &'static str {
    if is_held_back { "held back" } else { "free" }
}
