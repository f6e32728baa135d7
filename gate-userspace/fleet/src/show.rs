//! The accounts of an owner and its gates, for people.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tonic::transport::{Channel, ClientTlsConfig};
use tonic::{Response, Status};

use super::endpoint::endpoint;
use super::wire::{MAX_MESSAGE, QuotaClient, ResetReply, ResetRequest, ShowReply, ShowRequest, decoded};
use gate_system::system_error::with_causes;

/// The accounts of an owner, and its gates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shown {
    /// Accounts, by name.
    pub accounts: Vec<Account>,
    /// How many accounts there are in all.
    pub total: u64,
    /// The gates that report to it, by name.
    pub gates: Vec<Gate>,
    /// The events since the owner started, by name, and how often each.
    pub counters: BTreeMap<String, u64>,
    /// Why the limits in force are not those that an owner has found last, if so.
    pub kept: Vec<String>,
}

/// The account of a limit. Amounts are in request units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// The name or pattern that it has its limit from; empty since there is none.
    pub rule: String,
    /// The limit, per second.
    pub per_sec_ru: f64,
    /// The demand at all gates, refusals included, per second.
    pub demand_ru: f64,
    /// The content of the bucket, below zero in debt.
    pub left_ru: f64,
    /// True while gates are held back to their shares.
    pub is_held_back: bool,
    /// Charged since the account was made.
    pub charged_ru: f64,
    /// Refused since the account was made.
    pub refused_ru: f64,
    /// By gate.
    pub shares: Vec<Share>,
}

/// The share of a gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Its name.
    pub gate: String,
    /// The demand there, per second.
    pub demand_ru: f64,
    /// The proportion that it has been granted, from 0 to 1.
    pub granted: f64,
}

/// A gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// True while it reports.
    pub is_connected: bool,
    /// The number of its last report.
    pub reports: u64,
    /// How many limits it has reported.
    pub limits: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error(
        "no owner of limits answers at {0}: start one with `gate quota run`, or name another with --owner{1}"
    )]
    NoOwner(String, String),
    /// A refusal.
    #[error("the owner at {0} refused: {1}")]
    Refused(String, String),
    /// The system's.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// The accounts that are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'s> {
    /// Those whose names begin so.
    pub prefix: &'s str,
    /// At most so many.
    pub limit: u32,
    /// The most used ones, in the order of their use.
    pub most_used: bool,
}

/// Asks an owner, in plain text without `tls`, for accounts.
///
/// # Errors
///
/// [`Error`].
pub fn ask(owner: &str, tls: Option<ClientTlsConfig>, which: Selection<'_>) -> Result<Shown, Error> {
    let Selection { prefix, limit, most_used } = which;
    let request = ShowRequest { prefix: prefix.to_owned(), limit, most_used };
    let reply = call(owner, tls, async |mut client| client.show(request).await)?;
    Ok(reply.into())
}

/// Fills the bucket of one account, which `operator` asks for and `why`. Returns what was in it, in request units, below zero in debt; `None` if there is
/// no such account.
///
/// # Errors
///
/// [`Error`].
pub fn reset(
    owner: &str,
    tls: Option<ClientTlsConfig>,
    name: &str,
    (operator, why): (&str, &str),
) -> Result<Option<f64>, Error> {
    let request = ResetRequest { name: name.to_owned(), operator: operator.to_owned(), why: why.to_owned() };
    let ResetReply { is_known, level } = call(owner, tls, async |mut client| client.reset(request).await)?;
    Ok(is_known.then_some(level as f64 / 1e3))
}

/// One question to an owner.
fn call<T>(
    owner: &str,
    tls: Option<ClientTlsConfig>,
    ask: impl AsyncFnOnce(QuotaClient<Channel>) -> Result<Response<T>, Status>,
) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let no_owner = |error| {
        let cause = with_causes(&error);
        // That says it all.
        let cause = if cause.contains("Connection refused") { String::new() } else { format!(" ({cause})") };
        Error::NoOwner(owner.to_owned(), cause)
    };
    let endpoint = endpoint(owner, tls).map_err(no_owner)?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    runtime.block_on(async {
        let channel = endpoint.connect().await.map_err(no_owner)?;
        let reply = ask(QuotaClient::new(channel).max_decoding_message_size(MAX_MESSAGE)).await;
        let reply = reply.map_err(|status| Error::Refused(owner.to_owned(), with_causes(&status)))?;
        Ok(reply.into_inner())
    })
}

impl From<ShowReply> for Shown {
    fn from(reply: ShowReply) -> Self {
        let ru = |milli: u64| milli as f64 / 1e3;
        let share = |share: super::wire::Share| Share {
            gate: share.gate,
            demand_ru: ru(share.demand_per_sec),
            granted: f64::from(share.granted_ppm) / 1e6,
        };
        let account = |account: super::wire::Account| Account {
            name: account.name,
            rule: account.rule,
            per_sec_ru: decoded(account.per_sec, account.nano_per_sec).nano() as f64 / 1e9,
            demand_ru: ru(account.demand_per_sec),
            left_ru: account.level as f64 / 1e3,
            is_held_back: account.held_back,
            charged_ru: ru(account.charged),
            refused_ru: ru(account.refused),
            shares: account.shares.into_iter().map(share).collect(),
        };
        let gate = |gate: super::wire::Gate| Gate {
            name: gate.name,
            is_connected: gate.connected,
            reports: gate.number,
            limits: gate.limits,
        };
        Self {
            accounts: reply.accounts.into_iter().map(account).collect(),
            total: reply.total,
            gates: reply.gates.into_iter().map(gate).collect(),
            counters: reply.counters.into_iter().map(|counter| (counter.name, counter.count)).collect(),
            kept: Some(reply.kept).filter(|why| !why.is_empty()).into_iter().collect(),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
