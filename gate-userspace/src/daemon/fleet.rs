//! The owners of limits that this gate shares with others.

use super::error::Error;
use crate::certificates::Credentials;
use crate::config::Config;
use crate::control::tick::Ticker;
use crate::fleet::gate::book::{Book, Settings};
use crate::fleet::gate::reporter::Reporter;
use crate::fleet::gate::shared::SharedBook;
use crate::kernel::Maps;

/// Begins to report to the owners that the configuration names, if it does; beside the gate that this one takes over from.
pub(super) fn join(
    config: &Config,
    maps: &Maps,
    ticker: &mut Ticker,
    takes_over: bool,
) -> Result<Option<Reporter>, Error> {
    let Some(fleet) = &config.fleet else { return Ok(None) };
    let settings = Settings { interval: config.gate.tick, on_lost: fleet.on_lost };
    let name = fleet.name.clone().unwrap_or_else(host_name);
    let book = SharedBook::new(Book::new(settings));
    if takes_over {
        book.lock().take_over();
    }
    ticker.share(Some(book.clone()));
    let credentials = Credentials::of_gate(fleet).transpose().map_err(|fault| Error::System {
        what: "reading the certificates of the section [fleet]",
        source: std::io::Error::other(fault.to_string()),
    })?;
    let tls = credentials.map(|credentials| credentials.client);
    let reporter = Reporter::start(&book, &name, fleet.owners.clone(), tls, maps.clock());
    reporter
        .map(Some)
        .map_err(|source| Error::System { what: "starting the reports to the owners of limits", source })
}

/// Reads the certificates again. Those in use stay in place of ones that cannot be used.
pub(super) fn follow(reporter: &Reporter, config: &Config) {
    match config.fleet.as_ref().and_then(Credentials::of_gate) {
        Some(Ok(credentials)) => reporter.follow_tls(credentials.client),
        Some(Err(fault)) => tracing::error!("the certificate in use stays: line {fault}"),
        None => {}
    }
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "gate".to_owned())
}
