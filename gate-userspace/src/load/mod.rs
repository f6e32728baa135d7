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
//! - `workload`: the requests and when each is due; pure.
//! - `memcached`, `resp`: requests out, answers in; pure.
//! - `udp`, `tcp`: one tenant's thread.
//! - [`counters`]: one tenant's counters and latencies.
//! - [`store`]: a store to send them to.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gate_common::units::Nanos;
use serde::Serialize;

use crate::clock;

pub mod counters;
mod memcached;
pub mod plan;
mod resp;
pub mod store;
mod tcp;
mod udp;
mod workload;

pub use counters::{Counters, Quantiles, TenantSummary};
pub use plan::{Plan, Protocol, TenantLoad, Transport};
use workload::{Request, Workload};

/// Starts a run on threads of its own.
///
/// # Errors
/// If a tenant's sockets cannot be made, its sources bound, or a thread started.
pub fn start(plan: &Plan) -> Result<Running, StartError> {
    let failed = |tenant: &TenantLoad| {
        let tenant = tenant.name().to_owned();
        move |source| StartError { tenant, source }
    };
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
        let board = Arc::new(Mutex::new(Counters::new()));
        let mut schedule = Schedule {
            began,
            workload: Workload::new(tenant, plan.seed, number),
            left: plan.count.unwrap_or(u64::MAX),
            duration: plan.duration,
            timeout: plan.timeout,
            stop: Arc::clone(&stop),
            counters: Counters::new(),
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
        tenants.push(RunningTenant { name: tenant.name().to_owned(), board, thread });
    }
    Ok(Running { began, stop, tenants, target: plan.target.to_string(), transport: plan.transport })
}

/// A run that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("tenant {tenant} cannot send")]
pub struct StartError {
    /// The tenant whose sockets failed.
    pub tenant: String,
    /// The system's error.
    pub source: io::Error,
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
            TenantSummary::new(&tenant.name, &counters)
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
    pub fn finish(mut self) -> Summary {
        let mut finished = Vec::new();
        for tenant in self.tenants.drain(..) {
            tenant.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            finished.push((tenant.name, tenant.board));
        }
        let tenants = finished.iter().map(|(name, board)| {
            TenantSummary::new(name, &board.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Summary { tenants: tenants.collect(), ..self.progress() }
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

    /// Takes the next request if it is due by `now`.
    fn take<'k>(&mut self, now: Nanos, key: &'k mut String) -> Option<(Nanos, Request<'k>)> {
        let due = self.due().filter(|&due| due <= now)?;
        self.left -= 1;
        self.counters.offered += 1;
        Some((due, self.workload.take(key)))
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
        while self.take(until, &mut key).is_some() {
            self.counters.unsent += 1;
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
