//! Which CPUs client, store and proxy have.

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// How the CPUs are dealt out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Cores {
    /// Client and store have one CPU between them, with and without a proxy; a proxy has another to itself.
    #[default]
    #[value(name = "apart")]
    Separate,
    /// All share all there are: what a proxy takes, client and store lack.
    Shared,
}

/// The CPUs that each has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dealt {
    proxy: CpuSet,
    others: CpuSet,
}

impl Cores {
    /// Deals out the CPUs that this thread may use.
    ///
    /// # Errors
    ///
    /// If there are too few.
    pub(super) fn deal(self) -> Result<Dealt> {
        let all = sched_getaffinity(THIS_THREAD)?;
        if self == Self::Shared {
            return Ok(Dealt { proxy: all, others: all });
        }
        let mut each = (0..CpuSet::count()).filter(|&cpu| all.is_set(cpu).unwrap_or(false));
        let mut one = || {
            let mut one = CpuSet::new();
            one.set(each.next().context("this takes two CPUs; with fewer, use `--cores shared`")?)?;
            Ok::<_, anyhow::Error>(one)
        };
        Ok(Dealt { proxy: one()?, others: one()? })
    }
}

impl Dealt {
    /// From now on this thread, and what it starts, has a proxy's.
    pub(super) fn bind_proxy(&self) -> Result<()> {
        Ok(sched_setaffinity(THIS_THREAD, &self.proxy)?)
    }

    /// From now on this thread, and what it starts, has those of client and store.
    pub(super) fn bind_others(&self) -> Result<()> {
        Ok(sched_setaffinity(THIS_THREAD, &self.others)?)
    }
}

const THIS_THREAD: Pid = Pid::from_raw(0);
