//! Limits and owners in etcd.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;

use super::{EtcdArgs, OwnerArgs};
use crate::cli::print;
use crate::cli::signals::die_of_closed_pipes;
use crate::cli::table::{Table, number, text};
use crate::config::{LIFTS_ALL, LimitsDocument, parse_limits, read_text};
use crate::fleet::etcd::{self, Members};
use crate::fleet::membership::{Member, View};
use crate::fleet::show::{Account, Selection, Shown};

#[derive(Serialize)]
struct Applied {
    revision: u64,
    limits: usize,
}

pub(super) fn apply(
    file: &Path,
    (expected, remove_all): (Option<u64>, bool),
    why: Option<&str>,
    args: &EtcdArgs,
) -> anyhow::Result<ExitCode> {
    let mut text = read_text(file)?;
    let LimitsDocument { rules, lifts_all } = parse_limits(&file.display().to_string(), &text)?;
    match (rules.list().is_empty(), remove_all) {
        (true, false) => anyhow::bail!(
            "{} has no limits: all that hold would be lifted. --remove-all says that this is meant",
            file.display()
        ),
        (false, true) => {
            anyhow::bail!("{} has limits: --remove-all takes a file without any", file.display())
        }
        (true, true) if !lifts_all => text.insert_str(0, LIFTS_ALL),
        (true, true) | (false, false) => {}
    }
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    anyhow::ensure!(
        why.len() <= MOST_WHY && !why.chars().any(char::is_control),
        "--why is for one line of at most {MOST_WHY} bytes"
    );
    let host = nix::unistd::gethostname().map(|host| host.to_string_lossy().into_owned()).unwrap_or_default();
    text.insert_str(0, &format!("{APPLIED_BY}uid {} at {host}{why}\n", nix::unistd::getuid()));
    let revision = block_on(etcd::apply(&args.members()?, &text, expected))??;
    die_of_closed_pipes();
    let limits = rules.list().len();
    if args.json {
        print::json(&Applied { revision, limits })?;
    } else {
        println!("{limits} limits applied, revision {revision}");
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Registered {
    owners: Vec<Owner>,
    /// The last change among owners and limits.
    revision: u64,
    /// That of the limits; 0 if there are none.
    limits_revision: u64,
}

#[derive(Serialize)]
struct Owner {
    address: String,
    /// Seconds of Unix time.
    since: u64,
    revision: u64,
}

pub(super) fn owners(args: &EtcdArgs) -> anyhow::Result<ExitCode> {
    let view = read(&args.members()?)?;
    die_of_closed_pipes();
    if args.json {
        let owner = |member: &Member| Owner {
            address: member.address.clone(),
            since: member.since,
            revision: member.revision,
        };
        print::json(&Registered {
            owners: view.owners.iter().map(owner).collect(),
            revision: view.revision,
            limits_revision: view.limits_revision(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[text("owner"), text("since"), number("revision")]);
    for member in &view.owners {
        table.add_row([
            member.address.clone(),
            httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(member.since.min(MOST_SECS))),
            member.revision.to_string(),
        ]);
    }
    println!("{table}");
    match view.limits_revision() {
        0 => println!("no limits; `gate quota apply` puts some there"),
        revision => println!("limits of revision {revision}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The accounts of all owners, and the gates that report to any.
pub(super) fn show(args: &OwnerArgs, which: Selection<'_>) -> anyhow::Result<Shown> {
    let mut all = Shown::default();
    for member in &read(&args.members()?)?.owners {
        let shown = args.ask(&member.address, which)?;
        all.accounts.extend(shown.accounts);
        all.total += shown.total;
        all.kept.extend(shown.kept.into_iter().map(|why| format!("{}: {why}", member.address)));
        for (event, count) in shown.counters {
            *all.counters.entry(event).or_default() += count;
        }
        for gate in shown.gates {
            match all.gates.iter_mut().find(|known| known.name == gate.name) {
                Some(known) => {
                    known.is_connected |= gate.is_connected;
                    known.reports += gate.reports;
                    known.limits += gate.limits;
                }
                None => all.gates.push(gate),
            }
        }
    }
    if which.most_used {
        let used = |account: &Account| (account.demand_ru, account.charged_ru + account.refused_ru);
        all.accounts.sort_by(|a, b| {
            let a = used(a);
            let b = used(b);
            b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
        });
    } else {
        all.accounts.sort_by(|a, b| a.name.cmp(&b.name));
    }
    all.accounts.truncate(which.limit as usize);
    all.gates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// The address of the owner of a name.
pub(super) fn owner_of(members: &Members, name: &str) -> anyhow::Result<String> {
    let view = read(members)?;
    let owner =
        view.owner_of(name).context("no owner is registered in etcd: is `gate quota run` running?")?;
    Ok(owner.address.clone())
}

fn read(members: &Members) -> anyhow::Result<View> {
    Ok(block_on(etcd::read(members))??)
}

fn block_on<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

/// The beginning of the first line of limits in etcd, before who put them there and why.
pub(super) const APPLIED_BY: &str = "# applied by ";
const MOST_WHY: usize = 256;
/// The end of the year 9999, the last that a date is written of.
const MOST_SECS: u64 = 253_402_300_799;
