//! `gate quota run`: the process that owns limits.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustls::ServerConfig;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::ClientTlsConfig;

use super::in_etcd::APPLIED_BY;
use crate::admin::Server;
use crate::certificates::Credentials;
use crate::clock;
use crate::config::{self, Faults, LimitsDocument, LimitsIn, QuotaConfig, parse_limits};
use crate::descriptors;
use crate::fleet::etcd::{self, Members};
use crate::fleet::membership::Membership;
use crate::fleet::owner::accounts::{ACCOUNT_BYTES, Accounts};
use crate::fleet::owner::counters::Counters;
use crate::fleet::owner::lease::{Lease, LeaseKeeper};
use crate::fleet::owner::{Bounds, Kept, Owner, Port, serve};
use crate::limits::Rules;
use crate::logging;
use crate::system_error::in_words;

pub(super) fn run(path: &Path) -> anyhow::Result<ExitCode> {
    let _log = logging::start()?;
    let config = QuotaConfig::read(path)?;
    let (shown, tls) = Shown::new(credentials(path, &config)?);
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let counters = Arc::new(Counters::default());
    let most = config.memory as usize / ACCOUNT_BYTES;
    let (rules, members) = match config.limits {
        LimitsIn::File(rules) => (rules, None),
        LimitsIn::Etcd(urls) => (Rules::default(), Some(Members::new(urls, shown.to_etcd.subscribe()))),
    };
    let accounts = Arc::new(Accounts::new(rules, most, threads, Arc::clone(&counters)));
    let allowed = descriptors::provide(u64::from(config.max_connections) + OWN_DESCRIPTORS);
    let for_gates = allowed.saturating_sub(OWN_DESCRIPTORS).max(allowed / 2);
    let bounds = Bounds {
        all: u64::from(config.max_connections).min(for_gates) as usize,
        per_source: config.max_connections_per_source as usize,
    };
    let listener = TcpListener::bind(config.listen)
        .map_err(|error| anyhow::anyhow!("cannot listen at {}: {}", config.listen, in_words(&error)))?;
    let metrics = config.metrics.map(listen_to_scrapes).transpose()?;
    let named = config.metrics_limits as usize;
    let mut kept = config.state_file.map(read_debts).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let (lease, registration) =
        members.map(|members| register(&runtime, members, config.listen, &accounts)).unzip();
    let owner = Owner::new(Arc::clone(&accounts), counters, lease);
    let _metrics = metrics
        .map(|listener| Server::start_for_owner(listener, Arc::clone(&owner), named))
        .transpose()
        .context("cannot start the thread for /metrics")?;
    runtime.block_on(async {
        let has_tls = tls.borrow().is_some();
        tracing::info!(listen = %config.listen, tls = has_tls, limits = accounts.rules().rules.list().len(), "owning limits");
        let until = async {
            if let Err(error) = follow_signals(path, &accounts, &shown).await {
                tracing::error!(%error, "no signals can be followed");
            }
            if let Some(registration) = registration {
                registration.leave().await;
            }
        };
        let following = async {
            match &mut kept {
                Some(kept) => kept.follow(&accounts).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = serve(&owner, Port { listener, bounds, tls }, until) => served.map_err(|error| anyhow::anyhow!(error)),
            () = following => Ok(()),
        }
    })?;
    if let Some(kept) = kept {
        kept.end(&accounts);
    }
    Ok(ExitCode::SUCCESS)
}

/// The file of debts, which is there or can be made.
fn read_debts(path: PathBuf) -> anyhow::Result<Kept> {
    let said = path.display().to_string();
    Kept::read(path).map_err(|error| {
        anyhow::anyhow!("cannot read {said} (`state_file` in the section [quota]): {}", in_words(&error))
    })
}

fn listen_to_scrapes(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| {
        anyhow::anyhow!("cannot listen at {address} (`metrics` in the section [quota]): {}", in_words(&error))
    })?;
    tracing::info!(%address, "listening to readers of /metrics");
    Ok(listener)
}

/// The certificates that an owner shows to others, from now on.
struct Shown {
    to_gates: watch::Sender<Option<Arc<ServerConfig>>>,
    to_etcd: watch::Sender<Option<ClientTlsConfig>>,
}

impl Shown {
    /// These certificates, and what the port shows.
    fn new(credentials: Option<Credentials>) -> (Self, watch::Receiver<Option<Arc<ServerConfig>>>) {
        let (client, server) =
            credentials.map(|credentials| (credentials.client, credentials.server)).unzip();
        let (to_gates, tls) = watch::channel(server);
        (Self { to_gates, to_etcd: watch::Sender::new(client) }, tls)
    }

    /// Shows others, if there were any.
    fn follow(&self, credentials: Option<Credentials>) {
        if credentials.is_some() != self.to_gates.borrow().is_some() {
            return tracing::warn!("quota.tls counts from the next start only");
        }
        let (client, server) =
            credentials.map(|credentials| (credentials.client, credentials.server)).unzip();
        self.to_gates.send_replace(server);
        self.to_etcd.send_replace(client);
    }
}

/// Follows signals until one ends the process.
async fn follow_signals(path: &Path, accounts: &Accounts, shown: &Shown) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => follow(path, accounts, shown),
        }
    }
}

/// Puts in force what has been read again; what is faulty changes nothing.
fn follow(path: &Path, accounts: &Accounts, shown: &Shown) {
    let read = QuotaConfig::read(path).map_err(anyhow::Error::from);
    let read = read.and_then(|config| Ok((credentials(path, &config)?, config)));
    let (credentials, config) = match read {
        Ok(read) => read,
        Err(error) => {
            accounts.keep(Some(format!("the file is faulty: {error}")));
            // Each fault is an event.
            for fault in error.to_string().lines() {
                tracing::error!("limits and certificates stay as they were: {fault}");
            }
            return;
        }
    };
    shown.follow(credentials);
    match config.limits {
        LimitsIn::File(rules) => {
            accounts.follow(clock::monotonic(), rules, "SIGHUP");
            tracing::info!(limits = accounts.rules().rules.list().len(), "limits read again");
        }
        LimitsIn::Etcd(_) => tracing::info!("the limits are in etcd, and are followed there"),
    }
}

/// The certificates of an owner, if it has any.
fn credentials(path: &Path, config: &QuotaConfig) -> anyhow::Result<Option<Credentials>> {
    let credentials = config.tls.as_ref().map(Credentials::read).transpose();
    credentials.map_err(|fault| {
        let file = path.display().to_string();
        config::Error::from(Faults { file, faults: vec![fault] }).into()
    })
}

/// An owner's place in etcd.
struct Registration {
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Registration {
    /// Gives it up.
    async fn leave(self) {
        // Both fail only if the task has ended.
        let _ = self.leave.send(());
        let _ = self.task.await;
    }
}

/// Follows etcd, and registers there once the limits are known.
fn register(
    runtime: &Runtime,
    members: Members,
    address: SocketAddr,
    accounts: &Arc<Accounts>,
) -> (Lease, Registration) {
    let (membership, source) = Membership::new();
    let (lease, keeper) = Lease::new(address, membership.clone());
    let (leave, left) = oneshot::channel();
    runtime.spawn(etcd::follow(members.clone(), source));
    let task = runtime.spawn(keep_place(members, address, keeper, membership, Arc::clone(accounts), left));
    (lease, Registration { leave, task })
}

async fn keep_place(
    members: Members,
    address: SocketAddr,
    keeper: LeaseKeeper,
    mut membership: Membership,
    accounts: Arc<Accounts>,
    left: oneshot::Receiver<()>,
) {
    let left = async { drop(left.await) };
    tokio::pin!(left);
    let mut limits = LimitsInForce::default();
    while membership.view().as_of == 0 {
        tokio::select! {
            () = membership.changed() => {}
            () = &mut left => return,
        }
    }
    limits.follow(&membership, &accounts);
    let releasing = release_moved(address, membership.clone(), &accounts);
    let following = async {
        loop {
            membership.changed().await;
            limits.follow(&membership, &accounts);
        }
    };
    tokio::select! {
        () = etcd::register(members, address, keeper, left) => {}
        () = following => {}
        () = releasing => {}
    }
}

/// Releases what other owners have taken over, once no gate reports it here any more.
async fn release_moved(address: SocketAddr, mut membership: Membership, accounts: &Accounts) {
    let address = address.to_string();
    loop {
        membership.changed().await;
        sleep(MOVED).await;
        let view = membership.view();
        accounts
            .release_moved(|name| view.owner_of(name.as_str()).is_none_or(|owner| owner.address == address));
    }
}

/// The limits from etcd that are in force.
#[derive(Default)]
struct LimitsInForce {
    /// That of the last ones that were looked at; `None` at the start.
    revision: Option<u64>,
}

impl LimitsInForce {
    fn follow(&mut self, membership: &Membership, accounts: &Accounts) {
        let view = membership.view();
        let revision = view.limits_revision();
        if self.revision.replace(revision) == Some(revision) {
            return;
        }
        let text = view.limits.as_ref().map(|limits| &*limits.text);
        match limits_to_follow(text) {
            Ok(rules) => {
                accounts.follow(clock::monotonic(), rules, applied_by(text));
                tracing::info!(revision, limits = accounts.rules().rules.list().len(), "limits from etcd");
            }
            Err(why) => {
                let limits = accounts.rules().rules.list().len();
                tracing::error!(revision, limits, "the limits stay as they were: {why}");
                accounts.keep(Some(why));
            }
        }
    }
}

/// The first line of a document that `gate quota apply` has put there: who did, and why.
fn applied_by(text: Option<&str>) -> &str {
    let line = text.and_then(|text| text.lines().next()).and_then(|line| line.strip_prefix(APPLIED_BY));
    line.unwrap_or("etcd")
}

/// The limits that etcd's document says: it is missing or empty by mistake, unless it says that there are none.
fn limits_to_follow(text: Option<&str>) -> Result<Rules, String> {
    let text = text
        .ok_or_else(|| "gate/limits is not in etcd; `gate quota apply FILE` puts limits there".to_owned())?;
    let LimitsDocument { rules, lifts_all } =
        parse_limits("gate/limits", text).map_err(|faults| format!("gate/limits is faulty:\n{faults}"))?;
    if rules.list().is_empty() && !lifts_all {
        return Err("gate/limits is empty; `gate quota apply FILE --remove-all` lifts all limits".to_owned());
    }
    Ok(rules)
}

/// How long gates may take to follow a change among the owners: several ticks.
const MOVED: Duration = Duration::from_secs(1);
/// Standard streams, the runtime's, the listening sockets, and the clients of `/metrics`.
const OWN_DESCRIPTORS: u64 = 512;
