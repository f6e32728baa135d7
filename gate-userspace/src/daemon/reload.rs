//! Another configuration for a running gate: the file read again, or a value set over the admin socket.
//!
//! Both are the same: a new configuration, the file's with the overrides in place, is checked, laid out and put
//! in force, all or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;
use std::sync::Arc;

use super::changes::fingerprint;
use super::error::Error;
use super::fleet;
use super::process::Daemon;
use super::settings::{
    fit_descriptors, hot_key_limits, hot_per_sec, measures_answers, now, prober, rules, sizes,
};
use super::settling::News;
use crate::admin::change::{self, Changed, Done, Order, Override, PendingOrder};
use crate::bypass;
use crate::config::{self, Config};
use crate::control::layout::Layout;
use crate::dispatcher::Dispatcher;
use crate::system_error::with_causes;

impl Daemon {
    /// The change that is due between two ticks, if there is one.
    pub(super) fn change(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.reload) {
            self.service_manager.reloading();
            match self.read_configuration_again()? {
                Some(news) => self.settling.begin(news),
                None => self.service_manager.ready(),
            }
            return Ok(());
        }
        let Some(PendingOrder { order, peer, answer }) = self.changes.waiting.pop_front() else {
            return Ok(());
        };
        let done = match self.carry_out(&order) {
            Err(Error::Lost(lost)) => return Err(lost.into()),
            done => done.map_err(|error| format!("{:#}", anyhow::Error::from(error))),
        };
        match done {
            Ok(done) if !order.dry_run => {
                for Changed { key, from, to } in &done.changed {
                    tracing::info!(key, from, to, uid = peer.uid, pid = peer.pid, saved = order.save, "set");
                }
                self.settling.begin(News::CarriedOut(answer, done));
            }
            // Whoever asked may have left.
            done => drop(answer.send(done)),
        }
        Ok(())
    }

    /// All or nothing: a configuration that is faulty or does not fit changes nothing, and is no news.
    fn read_configuration_again(&mut self) -> Result<Option<News>, Error> {
        let before = self.changes.overrides.borrow().clone();
        // Once: what is noted of the file has to be what was read.
        let reloaded = config::read_text(&self.options.config).map_err(Error::from).and_then(|text| {
            let overrides = sound_overrides(&text, before);
            let (config, layout) = self.prepare(&text, &overrides)?;
            Ok((config, layout, overrides, fingerprint(&text)))
        });
        let reloaded = reloaded.and_then(|reloaded| {
            self.follow_interfaces(&reloaded.0)?;
            Ok(reloaded)
        });
        let (config, layout, overrides, file) = match reloaded {
            Ok(reloaded) => reloaded,
            Err(Error::Config(error)) => {
                // Each fault is an event.
                for fault in error.to_string().lines() {
                    tracing::error!("the configuration stays as it was: {fault}");
                }
                return Ok(None);
            }
            Err(error) => {
                tracing::error!("the configuration stays as it was: {}", with_causes(&error));
                return Ok(None);
            }
        };
        let tenants = config.tenants.len();
        let services = config.services.len();
        let names = self.attached.iter().flat_map(|attached| &attached.interfaces);
        let names: Vec<_> = names.map(|interface| interface.name.clone()).collect();
        let ways_past = bypass::warnings(&config, &names);
        config.warnings().iter().chain(&ways_past).for_each(|warning| tracing::warn!("{warning}"));
        for later in self.put_in_force(config, layout)? {
            tracing::warn!("{later}");
        }
        self.changes.overrides.send_replace(overrides);
        self.changes.file = file;
        Ok(Some(News::ReadAgain { generation: self.maps.generation(), tenants, services }))
    }

    fn carry_out(&mut self, order: &Order) -> Result<Done, Error> {
        let before = self.changes.overrides.borrow().clone();
        let mut overrides = change::after(&before, order).map_err(Error::Order)?;
        let text = config::read_text(&self.options.config)?;
        let edit = |set: &[Override]| edit(&self.options.config, &text, set);
        let old = edit(&before)?;
        let new = edit(&overrides)?;
        let keys = order.unset.iter().chain(order.set.iter().map(|set| &set.key));
        let changed = keys.map(|key| {
            let from = config::value_at(&old, key)?;
            let to = config::value_at(&new, key)?;
            Ok(Changed { key: key.clone(), from, to })
        });
        let changed = changed.collect::<Result<Vec<_>, config::Wrong>>()?;
        let mut file = fingerprint(&text);
        let edited = !changed.is_empty() && file != self.changes.file;
        let mut done = Done { changed, overrides: before, saved: None, later: Vec::new(), edited };
        if done.changed.is_empty() {
            return Ok(done);
        }
        let (config, layout) = self.prepare(&text, &overrides)?;
        let path = self.options.config.clone();
        if order.save {
            let saved = edit(&order.set)?;
            Config::parse(&path.display().to_string(), &saved).map_err(config::Error::from)?;
            overrides.retain(|one| order.set.iter().all(|set| set.key != one.key));
            if !order.dry_run {
                replace(&path, &saved).map_err(|source| Error::Save { path: path.clone(), source })?;
                done.saved = Some(path.display().to_string());
                file = fingerprint(&saved);
            }
        }
        if order.dry_run {
            return Ok(done);
        }
        self.follow_interfaces(&config)?;
        done.later = self.put_in_force(config, layout)?;
        self.changes.file = file;
        done.overrides.clone_from(&overrides);
        self.changes.overrides.send_replace(overrides);
        Ok(done)
    }

    /// A configuration that fits this machine, and its layout.
    fn prepare(&self, text: &str, overrides: &[Override]) -> Result<(Config, Layout), Error> {
        let mut config = Config::parse_with(&self.options.config, text, overrides)?;
        fit_descriptors(&mut config);
        sizes(&config)?;
        self.other_interfaces(&config)?;
        let layout = Layout::build(&config, &self.occupied())?;
        Ok((config, layout))
    }

    /// Returns what counts from the next start only.
    fn put_in_force(&mut self, config: Config, layout: Layout) -> Result<Vec<String>, Error> {
        self.ticker.install(layout, rules(&config))?;
        let now = now(&self.maps);
        self.ticker.tick(now, &[])?;
        let proxied = self.dispatcher.as_ref().map_or(&[][..], Dispatcher::services);
        self.watch.follow(&config, proxied, now)?;
        self.prober = prober(&config, &self.watch)?;
        self.attached.iter_mut().for_each(|attached| attached.measure(measures_answers(&config)));
        self.hot_keys.follow(hot_per_sec(&config))?;
        self.hot_keys.limit(hot_key_limits(&config));
        self.verdicts.follow(config.services.iter().map(|service| service.name.as_str()));
        self.envoy.iter().for_each(|envoy| envoy.follow(&config));
        self.reporter.iter().for_each(|reporter| fleet::follow(reporter, &config));
        self.dispatcher.iter().try_for_each(|dispatcher| dispatcher.follow(&config, &self.maps))?;
        let later = self.changes.started.from_next_start(&config);
        self.changes.later.send_replace(later.clone());
        let later = later.into_iter().map(|key| format!("{key} counts from the next start only")).collect();
        self.changes.config.send_replace(Arc::new(config));
        Ok(later)
    }
}

/// The text of a file with these values in place of its own.
fn edit(file: &Path, text: &str, set: &[Override]) -> Result<String, Error> {
    config::edit(text, set).map_err(|wrong| match Config::parse(&file.display().to_string(), text) {
        // Where the fault is, and how to mend it.
        Err(faults) if matches!(wrong, config::Wrong::Syntax(_)) => config::Error::from(faults).into(),
        _ => wrong.into(),
    })
}

/// Puts a file with this text in the place of another, at once and with its owner and mode; where that is a link,
/// in the place of what it leads to.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = path.canonicalize()?;
    let old = fs::metadata(&path)?;
    let new = path.with_added_extension(format!("{}.new", std::process::id()));
    let written = write_new(&new, text, &old).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // The first error says more.
        let _ = fs::remove_file(&new);
    }
    written?;
    // So that it is there after a power cut.
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn write_new(path: &Path, text: &str, like: &fs::Metadata) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    fchown(&file, Some(like.uid()), Some(like.gid()))?;
    file.set_permissions(like.permissions())?;
    file.sync_all()
}

/// The overrides whose section the file of this text still has.
pub(super) fn sound_overrides(text: &str, mut overrides: Vec<Override>) -> Vec<Override> {
    overrides.retain(|one| match config::value_at(text, &one.key) {
        Err(config::Wrong::NoSuchSection { .. }) => {
            tracing::warn!(key = one.key, value = one.value, "no longer set: its section is gone");
            false
        }
        _ => true,
    });
    overrides
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_through_links() {
        let place = std::env::temp_dir().join(format!("gate-replace-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        let file = place.join("gate.toml");
        let link = place.join("link.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("gate.toml", &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2);
        fs::remove_dir_all(&place).unwrap();
    }
}
