//! The story: the scenes that fit, one after the other, their results, and the picture of them all.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::chart::{self, Chart};
use super::picture::Row;
use super::scenes::{Outcome, SCENES, Scene};
use super::stage::{Interrupted, Stage};

/// The scenes of a run.
#[derive(Debug)]
pub struct Programme {
    /// Those that are played.
    pub scenes: Vec<&'static Scene>,
    /// How long each lasts.
    pub each: Duration,
    /// Those that are not, and why.
    pub left_out: Vec<(&'static str, &'static str)>,
}

/// The results of what was played.
#[derive(Debug, Default)]
pub struct Played {
    /// By scene.
    pub outcomes: Vec<(&'static str, Outcome)>,
    /// For the picture, by scene.
    pub rows: Vec<Row>,
    /// True if the user ended it.
    pub interrupted: bool,
}

/// The least that a scene takes.
pub const SHORTEST: Duration = Duration::from_secs(10);
/// The length of a scene if nothing is said.
const USUAL: Duration = Duration::from_secs(12);

impl Programme {
    /// The scenes for a run of `time`, of all or of the one that is named, with root or without.
    ///
    /// # Errors
    ///
    /// If there is no scene of that name, it needs root, or not one fits.
    pub fn choose(named: Option<&str>, time: Option<Duration>, root: bool) -> Result<Self> {
        let mut left_out = Vec::new();
        let mut scenes: Vec<&'static Scene> = match named {
            None => SCENES.iter().collect(),
            Some(name) => {
                let found = SCENES.iter().find(|scene| scene.name == name);
                let found =
                    found.with_context(|| format!("no scene is called {name}; there are\n{}", list()))?;
                ensure!(
                    root || !found.needs_root,
                    "the scene {name} needs root: it is about the network interface"
                );
                vec![found]
            }
        };
        scenes.retain(|scene| {
            let fits = root || !scene.needs_root;
            if !fits {
                left_out.push((scene.name, "needs root"));
            }
            fits
        });
        let room = time.map_or(usize::MAX, |time| (time.as_secs() / SHORTEST.as_secs()) as usize);
        if room < scenes.len() {
            left_out.extend(scenes.drain(room..).map(|scene| (scene.name, "no time")));
        }
        let each = time.map_or(USUAL, |time| time / scenes.len().max(1) as u32);
        let programme = Self { scenes, each, left_out };
        if programme.scenes.is_empty() {
            bail!(
                "a scene takes at least {} s: with --for {SHORTEST:?} the first fits; {}",
                SHORTEST.as_secs(),
                programme.what_is_left_out()
            );
        }
        Ok(programme)
    }

    /// The scenes that are left out, with the reason, in one line.
    #[must_use]
    pub fn what_is_left_out(&self) -> String {
        let names: Vec<_> = self.left_out.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        format!("left out: {}", names.join(", "))
    }

    /// Plays them.
    ///
    /// # Errors
    ///
    /// If a program does not start or ends by itself; the message names the scene. Nothing is left behind.
    pub fn play(&self, gate: &Path, network: bool, stop: &Receiver<i32>) -> Result<Played> {
        if !self.left_out.is_empty() {
            println!("{}", self.what_is_left_out());
        }
        let mut played = Played::default();
        for scene in &self.scenes {
            println!("\n== {}: {}", scene.name, scene.says);
            match one(scene, gate, network, self.each, stop) {
                Ok(outcome) => {
                    println!("   {}", outcome.result);
                    match &outcome.claim {
                        Ok(()) => println!("   holds"),
                        Err(broken) => println!("   DOES NOT HOLD: {broken}"),
                    }
                    let title = format!("{}: {}", scene.name, scene.says);
                    played.rows.push(Row { title, comparisons: outcome.compared.clone() });
                    played.outcomes.push((scene.name, outcome));
                }
                Err(error) if error.is::<Interrupted>() => {
                    played.interrupted = true;
                    break;
                }
                Err(error) => return Err(error.context(format!("the scene {} failed", scene.name))),
            }
        }
        Ok(played)
    }
}

fn one(scene: &Scene, gate: &Path, network: bool, time: Duration, stop: &Receiver<i32>) -> Result<Outcome> {
    (scene.play)(&mut Stage::open(gate, network, stop)?, time)
}

impl Played {
    /// Fails with the claims that do not hold.
    ///
    /// # Errors
    ///
    /// If there is one.
    pub fn verdict(&self) -> Result<()> {
        let broken: Vec<_> = self
            .outcomes
            .iter()
            .filter_map(|(name, outcome)| Some(format!("{name}: {}", outcome.claim.as_ref().err()?)))
            .collect();
        ensure!(broken.is_empty(), "what the lab claims does not hold:\n  {}", broken.join("\n  "));
        Ok(())
    }

    /// For `--json`.
    #[must_use]
    pub fn json(&self) -> Value {
        let scenes = self.outcomes.iter().map(|(name, Outcome { result, claim, .. })| {
            json!({ "name": name, "result": result, "holds": claim.is_ok(), "broken": claim.as_ref().err() })
        });
        scenes.collect()
    }
}

/// Draws the rows and charts into `file`, by default one for temporary files, and prints where that is.
///
/// # Errors
///
/// If it cannot be written.
pub fn draw(rows: &[Row], charts: &[Chart], file: Option<&Path>) -> Result<()> {
    let svg = chart::svg(rows, charts)?;
    let path = file.map_or_else(default_picture, Path::to_owned);
    let mut options = OpenOptions::new();
    // Nobody else's file is written to in a directory that all users share.
    let options = if file.is_some() {
        options.write(true).create(true).truncate(true)
    } else {
        options.write(true).create_new(true)
    };
    let written = options.open(&path).and_then(|mut file| file.write_all(svg.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    println!("\npicture: {}", path.display());
    Ok(())
}

fn default_picture() -> PathBuf {
    std::env::temp_dir().join(format!("gate-story-{}.svg", std::process::id()))
}

/// All scenes, a line each.
#[must_use]
pub fn list() -> String {
    let lines = SCENES.iter().map(|scene| {
        let root = if scene.needs_root { " (needs root)" } else { "" };
        format!("  {:<12}{}{root}", scene.name, scene.says)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::picture::Comparison;

    fn names(programme: &Programme) -> Vec<&str> {
        programme.scenes.iter().map(|scene| scene.name).collect()
    }

    #[test]
    fn scenes_that_fit_are_played_and_the_others_named() {
        let all = ["quotas", "costs", "slow-store", "objectives", "viral-key", "http"];
        for (seconds, root, played, left_out) in [
            (None, true, &all[..], "left out: "),
            (
                None,
                false,
                &["costs", "objectives", "viral-key", "http"],
                "left out: quotas (needs root), slow-store (needs root)",
            ),
            (
                Some(10),
                true,
                &all[..1],
                "left out: costs (no time), slow-store (no time), objectives (no time), viral-key (no time), http (no time)",
            ),
            (
                Some(29),
                false,
                &["costs", "objectives"],
                "quotas (needs root), slow-store (needs root), viral-key (no time), http (no time)",
            ),
            (Some(60), true, &all, "left out: "),
            (Some(600), true, &all, "left out: "),
        ] {
            let time = seconds.map(Duration::from_secs);
            let programme = Programme::choose(None, time, root).unwrap();
            assert_eq!(names(&programme), played, "{seconds:?} {root}");
            assert!(programme.what_is_left_out().ends_with(left_out), "{}", programme.what_is_left_out());
            assert!(programme.each >= SHORTEST, "{:?}", programme.each);
            assert!(time.is_none_or(|time| programme.each * played.len() as u32 <= time));
        }
    }

    #[test]
    fn what_cannot_be_played_is_an_error_that_says_why() {
        for (named, seconds, root, said) in [
            (None, Some(9), true, "left out: quotas (no time), costs (no time)"),
            (Some("costs"), Some(9), false, "at least 10 s"),
            (Some("nonsense"), None, true, "no scene is called nonsense; there are\n  quotas"),
            (Some("quotas"), None, false, "quotas needs root"),
        ] {
            let error = Programme::choose(named, seconds.map(Duration::from_secs), root).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(names(&Programme::choose(Some("costs"), None, false).unwrap()), ["costs"]);
    }

    #[test]
    fn a_claim_that_does_not_hold_fails_the_story() {
        let nothing = || Comparison { of: String::new(), bars: Vec::new() };
        let outcome = |claim: Result<(), String>| Outcome {
            result: String::new(),
            compared: [nothing(), nothing()],
            claim,
        };
        let mut played = Played { outcomes: vec![("a", outcome(Ok(())))], ..Played::default() };
        assert!(played.verdict().is_ok());
        played.outcomes.push(("b", outcome(Err("was late".to_owned()))));
        let error = played.verdict().unwrap_err().to_string();
        assert!(error.contains("b: was late") && !error.contains("a:"), "{error}");
        assert_eq!(played.json()[1]["holds"], false);
    }
}
