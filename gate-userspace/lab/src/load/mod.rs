//! The open-loop load generator.
//!
//! When a request is due depends on no answer, and its latency counts from that moment, not from when
//! it was sent: a slow service cannot hide by slowing the generator down (no coordinated omission).
//! The delay that the generator itself adds is measured as its *lag*.
//!
//! Each tenant is a thread of its own, so that a flood does not disturb another tenant's timing.
//! Threads belong to the network namespace of the thread that calls [`start`].
//!
//! - [`plan`]: the tenants, their rates and keys.
//! - [`mix`]: what they ask, with weights.
//! - `workload`: the requests and when each is due; pure.
//! - `memcached`, `resp`, `http`: requests out, answers in; pure.
//! - `udp`, `tcp`: one tenant's thread.
//! - [`counters`]: one tenant's counters and latencies.
//! - [`compare`]: two targets in turn.
//! - [`fill`]: writes what is to be read.
//! - [`store`]: a store to send them to.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gate_common::units::Nanos;
use serde::Serialize;

use gate_system::clock;

pub mod compare;
pub mod counters;
pub mod fill;
mod http;
mod keys;
mod memcached;
pub mod mix;
mod mix_file;
mod parsers;
pub mod plan;
mod protocol;
mod replies;
mod resp;
pub mod store;
mod tcp;
mod udp;
mod workload;

pub use counters::{Counters, Quantiles, TenantSummary};
pub use plan::{Plan, TenantLoad};
pub use protocol::{Protocol, Transport};
use workload::Workload;

/// Starts a run on threads of its own.
///
/// # Errors
/// If a tenant's sockets cannot be made, its sources bound, or a thread started; if the protocol or the transport
/// has no such request ([`Plan::refusal`]).
pub fn start(plan: &Plan) -> Result<Running, StartError> {
    let failed = |tenant: &TenantLoad| {
        let tenant = tenant.name().to_owned();
        move |source| StartError::Sockets { tenant, source }
    };
    if let Some(wrong) = plan.refusal() {
        return Err(StartError::Refused(wrong));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut senders = Vec::new();
    for tenant in &plan.tenants {
        let sender = match plan.transport {
            Transport::Udp => Sender::Udp(udp::Sender::new(plan, tenant).map_err(failed(tenant))?),
            Transport::Tcp => Sender::Tcp(tcp::Sender::new(plan, tenant).map_err(failed(tenant))?),
        };
        senders.push(sender);
    }
    let began = clock::monotonic();
    let mut tenants = Vec::new();
    for (number, (sender, tenant)) in senders.into_iter().zip(&plan.tenants).enumerate() {
        let entry_names = tenant.mix.names();
        let board = Arc::new(Mutex::new(Counters::new(entry_names.len())));
        let mut schedule = Schedule {
            began,
            workload: Workload::new(tenant, plan.seed, number),
            left: plan.count.unwrap_or(u64::MAX),
            duration: plan.duration,
            timeout: plan.timeout,
            stop: Arc::clone(&stop),
            counters: Counters::new(entry_names.len()),
            board: Arc::clone(&board),
            published: Nanos::ZERO,
        };
        let thread = std::thread::Builder::new().name(format!("load {number}")).spawn(move || {
            // Wake on time, not up to 50 µs later. Without it the lag is that much larger.
            let _ = nix::sys::prctl::set_timerslack(1);
            match sender {
                Sender::Udp(sender) => sender.run(&mut schedule),
                Sender::Tcp(mut sender) => sender.run(&mut schedule),
            }
            schedule.publish();
        });
        let thread = thread.map_err(failed(tenant))?;
        tenants.push(RunningTenant { name: tenant.name().to_owned(), entry_names, board, thread });
    }
    Ok(Running { began, stop, tenants, target: plan.target.to_string(), transport: plan.transport })
}

/// A run that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A tenant's sockets failed.
    #[error("tenant {tenant} cannot send")]
    Sockets {
        /// Its name.
        tenant: String,
        /// The system's error.
        source: io::Error,
    },
    /// The protocol or the transport has no such request.
    #[error("{0}")]
    Refused(String),
}

enum Sender {
    Udp(udp::Sender),
    Tcp(tcp::Sender),
}

/// A run under way. Dropped, it ends as soon as it can.
#[derive(Debug)]
pub struct Running {
    began: Nanos,
    stop: Arc<AtomicBool>,
    tenants: Vec<RunningTenant>,
    target: String,
    transport: Transport,
}

#[derive(Debug)]
struct RunningTenant {
    name: String,
    entry_names: Vec<String>,
    board: Arc<Mutex<Counters>>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Sends no more; outstanding answers are still waited for, at most the timeout.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True when every tenant is done.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.thread.is_finished())
    }

    /// The counters so far, at most 100 ms old, in the order of the plan.
    #[must_use]
    pub fn progress(&self) -> Summary {
        let tenants = self.tenants.iter().map(|tenant| {
            let counters = tenant.board.lock().unwrap_or_else(PoisonError::into_inner);
            TenantSummary::new(&tenant.name, &tenant.entry_names, &counters)
        });
        Summary {
            target: self.target.clone(),
            transport: self.transport,
            seconds: clock::monotonic().saturating_sub(self.began).0 as f64 / 1e9,
            tenants: tenants.collect(),
        }
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If a tenant's thread has.
    #[must_use]
    pub fn finish(self) -> Summary {
        let target = self.target.clone();
        let transport = self.transport;
        let mut totals = Totals::default();
        totals.add(self);
        totals.summary(target, transport)
    }
}

/// The counters of runs that have ended.
#[derive(Debug, Default)]
pub struct Totals {
    seconds: f64,
    tenants: Vec<(String, Vec<String>, Counters)>,
}

impl Totals {
    /// Waits for the end of a run, and adds its counters. All runs have the same tenants.
    ///
    /// # Panics
    /// If a tenant's thread has.
    pub fn add(&mut self, mut run: Running) {
        for (number, tenant) in run.tenants.drain(..).enumerate() {
            tenant.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let mut counters = tenant.board.lock().unwrap_or_else(PoisonError::into_inner);
            if self.tenants.len() == number {
                let zero = Counters::new(tenant.entry_names.len());
                self.tenants.push((tenant.name, tenant.entry_names, zero));
            }
            self.tenants[number].2.absorb(&mut counters);
        }
        self.seconds += clock::monotonic().saturating_sub(run.began).0 as f64 / 1e9;
    }

    /// Their result.
    #[must_use]
    pub fn summary(&self, target: String, transport: Transport) -> Summary {
        let tenants = self.tenants.iter();
        let tenants =
            tenants.map(|(name, entry_names, counters)| TenantSummary::new(name, entry_names, counters));
        Summary { target, transport, seconds: self.seconds, tenants: tenants.collect() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The address that requests were sent to.
    pub target: String,
    /// Their transport.
    pub transport: Transport,
    /// How long it took, the wait for the last answers included.
    pub seconds: f64,
    /// By tenant, in the order of the plan.
    pub tenants: Vec<TenantSummary>,
}

/// One tenant's schedule and counters, for either transport: when the next request is due, and the result of the others.
struct Schedule {
    began: Nanos,
    workload: Workload,
    left: u64,
    duration: Nanos,
    timeout: Nanos,
    stop: Arc<AtomicBool>,
    counters: Counters,
    board: Arc<Mutex<Counters>>,
    published: Nanos,
}

impl Schedule {
    /// Time since the start of the run.
    fn now(&self) -> Nanos {
        clock::monotonic().saturating_sub(self.began)
    }

    /// When the next request is due; `None` if there is none to come.
    fn due(&self) -> Option<Nanos> {
        let due = self.workload.due();
        (self.left > 0 && due < self.duration).then_some(due)
    }

    /// Takes the next request if it is due by `now`: its place in the mix; its keys are written to `keys`.
    fn take(&mut self, now: Nanos, keys: &mut String) -> Option<(Nanos, usize)> {
        let due = self.due().filter(|&due| due <= now)?;
        self.left -= 1;
        let entry = self.workload.take(keys);
        self.counters.offer(entry);
        Some((due, entry))
    }

    /// Ends the sending when the run was stopped or its time is over; requests that were due until then and
    /// were not sent are counted.
    fn cut_off(&mut self, now: Nanos) {
        let until = if self.stop.load(Ordering::Relaxed) {
            now.min(self.duration)
        } else if now > self.duration.saturating_add(GRACE) {
            self.duration
        } else {
            return;
        };
        let mut key = String::new();
        while let Some((_, entry)) = self.take(until, &mut key) {
            self.counters.leave_unsent(entry);
        }
        self.left = 0;
    }

    /// Publishes the counters, if it is time.
    fn publish_at(&mut self, now: Nanos) {
        if now >= self.published.saturating_add(PUBLISH_EVERY) {
            self.published = now;
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).absorb(&mut self.counters);
    }
}

const PUBLISH_EVERY: Nanos = Nanos::from_millis(100);
/// Requests that are due just before the end may still be sent so long after it.
const GRACE: Nanos = Nanos::from_millis(100);

#[cfg(test)]
mod tests;
