//! Where the commands that show something find it: in the pinned maps, or at a running gate.

use std::path::PathBuf;

use crate::admin::change::{Done, Order, Override};
use crate::admin::document::Document;
use crate::admin::interception::Interception;
use crate::admin::listing::Tenants;
use crate::admin::selection::Selection;
use crate::admin::status::{Status, is_stale};
use crate::admin::tenants::Tenant;
use crate::admin::{self, client};
use crate::kernel::{self, Maps};
use crate::mounts::hiding_namespace;

/// Where to find the maps.
#[derive(Debug, clap::Args)]
pub(super) struct Pins {
    /// Where the gate has pinned its maps.
    #[arg(long, value_name = "DIR", default_value = DEFAULT)]
    pub(super) pin_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Where to find the maps, or the daemon.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    #[command(flatten)]
    pub(super) pins: Pins,
    /// Where the gate listens, if its configuration says so (`admin`) [default: below /run/gate, by the name of
    /// the pin directory].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Pins {
    /// Opens the maps to be read.
    pub(super) fn maps(&self) -> kernel::Result<Maps> {
        Maps::pinned(&self.pin_dir, false)
    }
}

/// The remedy where nobody runs, as far as this process can see.
fn how_to_find() -> String {
    match hiding_namespace() {
        None => START_ONE.to_owned(),
        Some(name) => format!(
            ". `ip netns exec` hides /sys/fs/bpf with a /sys of its own: enter the namespace by `nsenter --net=/run/netns/{name} gate ...`, \
             which leaves it there"
        ),
    }
}

const START_ONE: &str =
    "; start one with `gate run`, or name the place of another with --pin-dir or --socket";

impl Source {
    /// Reads the pinned maps; where none can be read, asks the daemon.
    pub(super) fn read<D: Document>(&self, from_maps: impl FnOnce(&Maps) -> D) -> anyhow::Result<D> {
        self.read_or(from_maps, || self.ask())
    }

    /// As [`Source::read`], with the way to ask the daemon.
    pub(super) fn read_or<D>(
        &self,
        from_maps: impl FnOnce(&Maps) -> D,
        ask: impl FnOnce() -> Result<D, client::Error>,
    ) -> anyhow::Result<D> {
        // A socket that is named takes precedence.
        let maps = if self.socket.is_some() { None } else { Some(self.pins.maps()) };
        match maps {
            Some(Ok(maps)) => Ok(from_maps(&maps)),
            Some(Err(error)) => ask().map_err(|asked| self.nobody(&error, asked)),
            None => Ok(ask()?),
        }
    }

    /// The fault where neither the maps nor a daemon can be read, in one line.
    fn nobody(&self, maps: &kernel::Error, asked: client::Error) -> anyhow::Error {
        match (maps, asked) {
            (kernel::Error::NoPins { directory }, client::Error::NoDaemon { path, .. }) => anyhow::anyhow!(
                "no gate runs here: nothing is pinned in {}, and nobody listens at {}{}",
                directory.display(),
                path.display(),
                how_to_find(),
            ),
            (_, asked) => anyhow::anyhow!("{maps:#}: {asked}"),
        }
    }

    /// The interception that a gate without pinned maps has left behind, or that stands still: nobody else can tell of it.
    pub(super) fn interception_alone(&self) -> Option<Interception> {
        if self.socket.is_some() || self.pins.maps().is_ok() {
            return None;
        }
        Interception::read(&self.pins.pin_dir).filter(|interception| !interception.is_alive())
    }

    /// The status of the daemon that owns these maps, if it answers: it knows more than they hold.
    pub(super) fn daemon_status(&self, maps: &Maps) -> Option<Status> {
        // A stopped daemon would keep this waiting.
        if is_stale(maps) { None } else { self.ask().ok() }
    }

    /// The names of the limits of the daemon that owns these maps, as far as tenants were refused by limits: the maps do not hold
    /// them.
    pub(super) fn name_limits(&self, maps: &Maps, tenants: &mut [Tenant]) {
        let of_limit = |tenant: &Tenant| tenant.quota_refused.iter().any(|refused| refused.kind == "limit");
        if !tenants.iter().any(of_limit) || is_stale(maps) {
            return;
        }
        let Ok(Tenants { tenants: known, .. }) = self.ask() else { return };
        for tenant in tenants {
            let same = known.iter().find(|known| (known.id, &known.name) == (tenant.id, &tenant.name));
            let limits = same.into_iter().flat_map(|known| &known.quota_refused);
            let limits = limits.filter(|refused| refused.kind == "limit" && !refused.name.is_empty());
            let limits: Vec<_> = limits.map(|refused| (refused.name.as_str(), refused.count)).collect();
            tenant.name_limits(|_, _| limits);
        }
    }

    /// The overrides of the daemon that owns these maps. The maps do not hold them: the list is empty if no
    /// daemon answers.
    pub(super) fn overrides(&self, maps: &Maps) -> Vec<Override> {
        self.daemon_status(maps).map_or_else(Vec::new, |Status { overrides, .. }| overrides)
    }

    /// Asks the daemon.
    pub(super) fn ask<D: Document>(&self) -> Result<D, client::Error> {
        client::read(&self.socket())
    }

    /// Asks the daemon for the tenants that are selected.
    pub(super) fn tenants(&self, wanted: &Selection) -> Result<Tenants, client::Error> {
        client::tenants(&self.socket(), wanted)
    }

    /// Has the daemon carry out an order.
    pub(super) fn change(&self, order: &Order) -> Result<Done, client::Error> {
        client::change(&self.socket(), order)
    }

    /// Where the daemon listens.
    pub(super) fn socket(&self) -> PathBuf {
        let default = || admin::default_path(&self.pins.pin_dir);
        self.socket.clone().unwrap_or_else(default)
    }
}

const DEFAULT: &str = "/sys/fs/bpf/gate";
