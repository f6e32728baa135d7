//! The state of a proxied service that all threads share.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use gate_common::abi::Sample;
use gate_common::units::Nanos;

use super::clients::SharedBounds;
use super::hot_cache::SharedHotCache;
use super::learned_reads::LearnedReads;
use super::metrics::ServiceMetrics;
use super::questions::Questions;
use super::queue::concurrency::SharedLimits;
use super::queue::policy::Policy;
use super::settings::Settings;
use crate::cache::{Cache, OpenError};
use crate::logging::AccessLog;
use crate::policy::range::OutOfRange;
use crate::processing::Processing;

/// A proxied service, as all threads share it.
#[derive(Clone, Debug)]
pub(super) struct SharedService {
    pub(super) settings: Settings,
    /// The way to the thread that explains.
    pub(super) questions: Questions,
    pub(super) metrics: ServiceMetrics,
    /// The admission policy.
    pub(super) policy: Policy,
    /// The hot keys.
    pub(super) hot: SharedHotCache,
    /// The permits, and the limits of the queue.
    pub(super) limits: SharedLimits,
    /// The cache of its answers, once it is open.
    pub(super) cache: Option<Arc<Cache>>,
    /// The log of its requests, once it is open.
    pub(super) access_log: Option<Arc<AccessLog>>,
    /// The processing of originals, if there is one.
    pub(super) processing: Option<Arc<Processing>>,
    /// The bounds of its clients.
    pub(super) bounds: SharedBounds,
    /// The sizes of what its tenants' requests read.
    pub(super) learned_reads: Arc<LearnedReads>,
}

impl SharedService {
    /// Those of these settings, in their order, for `threads` threads and at most `tenants` tenants, at `now`. Samples of
    /// their keys go to `samples`.
    ///
    /// # Errors
    ///
    /// A parameter that the configuration should not have let through.
    pub(super) fn all(
        settings: Vec<Settings>,
        threads: usize,
        tenants: usize,
        samples: &SyncSender<Sample>,
        now: Nanos,
    ) -> Result<Vec<Self>, OutOfRange> {
        let hot = SharedHotCache::of(&settings, threads, samples);
        let with_hot = |(settings, hot)| Self::new(settings, hot, tenants, now);
        settings.into_iter().zip(hot).map(with_hot).collect()
    }

    /// Opens its cache, if it has one; `takes_over` if another gate may still have it.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub(super) fn open_cache(&mut self, takes_over: bool) -> Result<(), OpenError> {
        let settings = self.settings.backend.cache.as_ref();
        let cache = settings.map(|cache| Cache::open(cache, takes_over)).transpose()?;
        let process = self.settings.backend.process.as_ref();
        self.cache = cache.map(|cache| Arc::new(cache.with_process(process)));
        Ok(())
    }

    /// Opens its access log, if it has one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn open_access_log(&mut self) -> io::Result<()> {
        let http = self.settings.backend.http.as_ref();
        let log = http.and_then(|http| http.access_log.as_ref());
        self.access_log = log.map(|log| AccessLog::open(&log.path)).transpose()?;
        Ok(())
    }

    fn new(settings: Settings, hot: SharedHotCache, tenants: usize, now: Nanos) -> Result<Self, OutOfRange> {
        let policy = Policy::new(settings.backend.admission.as_ref(), now)?;
        let types = settings.backend.query_types.clone();
        let limits = SharedLimits::new(settings.parallelism, settings.threads, types.len(), now)?;
        let permits = Arc::clone(&limits.permits);
        let name = settings.name.clone();
        let metrics = ServiceMetrics::new(
            name,
            (settings.threads, settings.stores.len()),
            types,
            policy.clone(),
            (permits, Arc::clone(&limits.shares)),
        )
        .with_places(settings.node_places())
        .with_pauses(settings.pauses.clone());
        Ok(Self {
            questions: Questions::new(&settings.name),
            metrics,
            policy,
            hot,
            limits,
            cache: None,
            access_log: None,
            processing: settings.backend.process.as_ref().map(Processing::new).map(Arc::new),
            bounds: SharedBounds::default(),
            learned_reads: Arc::new(LearnedReads::new(tenants)),
            settings,
        })
    }
}
