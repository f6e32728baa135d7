//! `gate quota`: the owner of limits that gates share, and what it knows.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::print;
use super::table::{Table, number, text};
use crate::config::QuotaConfig;
use crate::fleet::owner::accounts::{ACCOUNT_BYTES, Accounts};
use crate::fleet::owner::counters::Counters;
use crate::fleet::owner::{Owner, serve};
use crate::fleet::show;

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
    /// The owner's address.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS")]
    owner: SocketAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  gate quota run --config quota.toml
  gate quota show
  gate quota show shop/ --limit 10 --json
  gate quota explain acme

SIGHUP makes an owner read its limits again; SIGTERM and SIGINT end it.";

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
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let counters = Arc::new(Counters::default());
    let most = config.memory as usize / ACCOUNT_BYTES;
    let accounts = Arc::new(Accounts::new(config.rules, most, threads, Arc::clone(&counters)));
    let owner = Owner::new(Arc::clone(&accounts), counters);
    let listener = TcpListener::bind(config.listen)
        .with_context(|| format!("cannot listen at {}: is another owner running?", config.listen))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        tracing::info!(listen = %config.listen, limits = accounts.rules().rules.list().len(), "owning limits");
        let until = async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => return,
                    _ = terminate.recv() => return,
                    _ = hang_up.recv() => match QuotaConfig::read(path) {
                        Ok(config) => {
                            accounts.follow(crate::clock::monotonic(), config.rules);
                            tracing::info!(limits = accounts.rules().rules.list().len(), "limits read again");
                        }
                        Err(error) => tracing::error!("the limits stay as they were:\n{error}"),
                    },
                }
            }
        };
        serve(&owner, listener, until).await.map_err(|error| anyhow::anyhow!(error))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn show_accounts(name: &str, limit: u32, owner: &OwnerArgs) -> anyhow::Result<ExitCode> {
    let shown = show::ask(owner.owner, name, limit)?;
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
    let shown = show::ask(owner.owner, name, 10_000)?;
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
