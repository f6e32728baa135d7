//! A kernel under qemu, and what its console says.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::emulator::Emulator;
use super::initramfs::Suite;

/// How long a guest may take. It takes a minute where it has a core to itself.
const PATIENCE: Duration = Duration::from_secs(600);
/// How many lines of a failed guest's console are shown.
const SHOWN: usize = 40;

/// The result of a guest.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The kernel's own name.
    kernel: String,
    /// Tests that passed.
    pub(super) passed: u64,
    /// Tests that failed.
    pub(super) failed: u64,
    /// The tests that were left out, by name.
    pub(super) not_run: Vec<String>,
    /// How many instructions the verifier walked.
    walked: Option<u64>,
    /// How many packets the fixtures judged.
    packets: Option<u64>,
    /// Suites that did not end well, or not at all.
    broken: Vec<&'static str>,
    took: Duration,
    /// Its console.
    pub(super) log: PathBuf,
}

/// Boots `image`, writes its console to `log`, and says what its suites came to.
///
/// # Errors
///
/// If qemu cannot be run.
pub(super) fn boot(
    emulator: &Emulator,
    (image, initramfs): (&Path, &Path),
    log: &Path,
    suites: &[Suite],
) -> Result<Outcome> {
    let started = Instant::now();
    let console = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut qemu = emulator.command();
    // Emulated, so that it runs where there is no KVM. No disk and no network card.
    qemu.args(["-accel", "tcg", "-cpu", "max", "-m", "1500", "-smp", "1", "-no-reboot", "-nic", "none"]);
    qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio"]);
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    // A kernel that panics ends the guest. It must not judge its timer by a CPU that others want as well.
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"]);
    qemu.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
    let mut guest = Guest(qemu.spawn().context("cannot run qemu-system-x86_64")?);
    while guest.0.try_wait()?.is_none() && started.elapsed() < PATIENCE {
        thread::sleep(LOOK_EVERY);
    }
    drop(guest);
    let said = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let outcome = read(&String::from_utf8_lossy(&said), suites);
    Ok(Outcome { took: started.elapsed(), log: log.to_owned(), ..outcome })
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running qemu; dropping it ends it.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and needs not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The results of `suites` on a console.
fn read(console: &str, suites: &[Suite]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut fine = Vec::new();
    for line in console.lines() {
        // The harness prints a test's name before the test runs, and the test's own lines come behind it.
        let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest.trim());
        if let (true, Some(kernel)) = (outcome.kernel.is_empty(), line.strip_prefix("kernel: ")) {
            outcome.kernel = kernel.trim().to_owned();
        } else if let Some(walked) = after("instructions walked by the verifier: ") {
            outcome.walked = walked.parse().ok();
        } else if let Some(packets) = after("packets judged as their rows say: ") {
            outcome.packets = packets.parse().ok();
        } else if let Some(what) = after("not run: ") {
            outcome.not_run.push(what.to_owned());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            outcome.passed += counted(result, "passed;");
            outcome.failed += counted(result, "failed;");
        } else if let Some(ended) = line.strip_prefix("suite ") {
            fine.extend(ended.trim().strip_suffix(" ended: 0"));
        }
    }
    let broken = suites.iter().map(|suite| suite.name).filter(|name| !fine.contains(name));
    outcome.broken = broken.collect();
    outcome
}

/// The number before a word of the harness' result.
fn counted(result: &str, word: &str) -> u64 {
    let words: Vec<_> = result.split(' ').collect();
    words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

impl Outcome {
    /// True if all that was to run has passed.
    pub(super) fn fine(&self) -> bool {
        self.broken.is_empty() && self.failed == 0 && self.passed > 0
    }

    /// The last lines of its console.
    pub(super) fn end_of_log(&self) -> String {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = if self.fine() { "ok" } else { "FAILED" };
        let kernel = if self.kernel.is_empty() { "did not boot" } else { &self.kernel };
        write!(f, "{result} in {:.0} s ({kernel})", self.took.as_secs_f32())?;
        write!(f, "; {} passed, {} failed", self.passed, self.failed)?;
        if let Some(packets) = self.packets {
            write!(f, "; {packets} packets of the fixtures")?;
        }
        if let Some(walked) = self.walked {
            write!(f, "; the verifier walked {walked} instructions")?;
        }
        if !self.broken.is_empty() {
            write!(f, "; did not end well: {}", self.broken.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suite; 2] = [Suite::new("kernels"), Suite::new("fixtures")];
    const KERNELS: &str = "kernel: 6.1.0-56-cloud-amd64 #1 SMP\r\n\
        test the_verifier_walks ... instructions walked by the verifier: 422792\r\nok\r\n\
        test result: ok. 2 passed; 0 failed; 2 ignored; 0 measured\r\nsuite kernels ended: 0\r\n";

    #[test]
    fn a_console_says_what_became_of_each_suite() {
        let fixtures = "not run: linear sizes (needs Linux 6.18)\r\npackets judged as their rows say: 210\r\n\
                        test result: ok. 3 passed; 0 failed; 0 ignored\r\nsuite fixtures ended: 0\r\n";
        let outcome = read(&[KERNELS, fixtures].concat(), &SUITES);
        assert!(outcome.fine());
        assert_eq!((outcome.passed, outcome.walked, outcome.packets), (5, Some(422_792), Some(210)));
        assert_eq!(outcome.not_run, ["linear sizes (needs Linux 6.18)"]);
        let line = outcome.to_string();
        assert!(line.starts_with("ok in 0 s (6.1.0-56-cloud-amd64 #1 SMP); 5 passed, 0 failed"), "{line}");
    }

    #[test]
    fn a_suite_that_fails_or_never_ends_is_a_failure() {
        for (console, broken) in [
            ("", vec!["kernels", "fixtures"]),
            ("Kernel panic", vec!["kernels", "fixtures"]),
            (KERNELS, vec!["fixtures"]),
            (&format!("{KERNELS}suite fixtures ended: 101\n"), vec!["fixtures"]),
        ] {
            let outcome = read(console, &SUITES);
            assert!(!outcome.fine() && outcome.to_string().starts_with("FAILED"), "{outcome}");
            assert_eq!(outcome.broken, broken);
        }
    }
}
