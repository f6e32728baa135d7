//! `gate cache`: what is kept of the answers of HTTP services.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::cache::{Caches, Purged, VerifiedCaches};
use crate::admin::client;
use crate::admin::document::Versioned;

/// Show what is kept of the answers of HTTP services, remove a URL, or check every file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show what is kept, and how often it was used.
    Status {
        #[command(flatten)]
        source: Source,
    },
    /// Remove a URL from all caches.
    Purge {
        /// The URL, with the host that clients name and with its query.
        url: String,
        #[command(flatten)]
        source: Source,
    },
    /// Read every file and compare it with its name. Fails if one is damaged; it is removed.
    Verify {
        #[command(flatten)]
        source: Source,
    },
}

const EXAMPLES: &str = "\
Examples:
  gate cache status
  gate cache status --json | jq '.caches[].events'
  gate cache purge http://images.example/a.jpg
  gate cache verify

Asks the running gate: needs its admin socket. What is purged is not found again from then on, nor is what is being fetched kept.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Status { source } => status(&source),
        Action::Purge { url, source } => {
            let purged: Purged = client::purge(&source.socket(), &url)?;
            if source.pins.json {
                print::json(&Versioned::new(purged))?;
            } else {
                println!("{}: not kept any more", purged.url);
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::Verify { source } => verify(&source),
    }
}

fn status(source: &Source) -> anyhow::Result<ExitCode> {
    let caches: Caches = source.ask()?;
    if source.pins.json {
        print::json(&Versioned::new(caches))?;
        return Ok(ExitCode::SUCCESS);
    }
    if caches.caches.is_empty() {
        println!("no service has a cache; `cache = {{ dir = \"...\" }}` gives one to a service of HTTP");
        return Ok(ExitCode::SUCCESS);
    }
    let columns =
        ["URLs", "bodies", "disk bytes", "memory bytes", "hits", "misses", "stale", "fetched", "processed"];
    let mut table = Table::new(&[[text("service")].as_slice(), &columns.map(number)].concat());
    for cache in caches.caches {
        let event = |name: &str| cache.events.get(name).copied().unwrap_or(0);
        let counts = [
            cache.records,
            cache.blobs,
            cache.disk_bytes,
            cache.memory_bytes,
            event("memory-hits") + event("disk-hits"),
            event("misses"),
            event("stale"),
            event("fetched"),
            event("processed"),
        ];
        table.add_row(std::iter::once(cache.service).chain(counts.map(print::count)));
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn verify(source: &Source) -> anyhow::Result<ExitCode> {
    let verified: VerifiedCaches = client::verify(&source.socket())?;
    let is_sound = verified.caches.iter().all(|cache| cache.damaged == 0 && cache.missing == 0);
    if source.pins.json {
        print::json(&Versioned::new(verified))?;
    } else {
        for cache in verified.caches {
            let [sound, damaged, missing] = [cache.sound, cache.damaged, cache.missing].map(print::count);
            println!("{}: {sound} sound, {damaged} damaged and removed, {missing} missing", cache.service);
        }
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
