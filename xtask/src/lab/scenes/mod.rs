//! The scenes of the story: in each, something goes wrong with a shared store, without gate and with it.
//!
//! A scene measures both, says in one line what came of it, and claims something of the numbers. Claims are ratios with
//! room for a busy machine, and pure: `claim` takes what was measured.

mod costs;
mod cpu_limit;
mod http;
mod objectives;
mod quotas;
mod slow_store;
mod viral_key;

use std::time::Duration;

use anyhow::Result;

use super::picture::Comparison;
use super::stage::Stage;

/// A part of the story.
#[derive(Debug)]
pub struct Scene {
    /// Its name in arguments.
    pub name: &'static str,
    /// The line that is printed before it begins.
    pub says: &'static str,
    /// True if it is about the network interface.
    pub needs_root: bool,
    /// Plays it for so long.
    pub play: fn(&mut Stage<'_>, Duration) -> Result<Outcome>,
}

/// The result of a scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The result beside that without gate, in one line.
    pub result: String,
    /// For the picture: whom gate spares, and whom or what it holds back.
    pub compared: [Comparison; 2],
    /// The claim that does not hold, with its numbers.
    pub claim: Result<(), String>,
}

/// All of them, in the order in which they are played.
pub static SCENES: [Scene; 6] = [
    Scene {
        name: "quotas",
        says: "two tenants share a memcached over UDP, and one asks for 50 times its quota; gate refuses it at the interface",
        needs_root: true,
        play: quotas::play,
    },
    Scene {
        name: "costs",
        says: "two tenants ask equally often, one for a row, one for thousands; a limit on requests is fair to neither, RU are",
        needs_root: false,
        play: costs::play,
    },
    Scene {
        name: "slow-store",
        says: "memcached loses most of its CPU; gate notices, and refuses the lowest tier at the interface, for `critical`",
        needs_root: true,
        play: slow_store::play,
    },
    Scene {
        name: "objectives",
        says: "more is asked than the store can do; Bouncer, then CoDel, keep the answers within an objective",
        needs_root: false,
        play: objectives::play,
    },
    Scene {
        name: "viral-key",
        says: "everyone asks for one key while it is being rewritten; gate answers with one read for all, never with an old value",
        needs_root: false,
        play: viral_key::play,
    },
    Scene {
        name: "http",
        says: "an HTTP service is asked for three times what it can do; gate refuses `batch` with 503, and `critical` keeps its time",
        needs_root: false,
        play: http::play,
    },
];

/// The phases that every scene compares.
const WITHOUT: &str = "without gate";
const WITH: &str = "with gate";

/// The time of a scene besides its phases: programs start and end, and callers wait for their last answers.
const OVERHEAD: Duration = Duration::from_millis(1_500);

/// A part of a scene's time.
fn part(time: Duration, share: f64) -> Duration {
    time.saturating_sub(OVERHEAD).mul_f64(share)
}

/// `part` of `of`, 0 of nothing.
fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Checks a claim: the first that does not hold is the result.
pub(super) fn first_broken<const N: usize>(claims: [(bool, String); N]) -> Result<(), String> {
    claims.into_iter().try_for_each(|(holds, broken)| if holds { Ok(()) } else { Err(broken) })
}
