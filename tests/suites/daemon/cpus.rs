//! A gate on a machine whose CPUs are faked: it reads lists of them that the test writes.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE, Site};
use gate_tests::flood::{Flood, Sink};
use gate_tests::mounts::with_files;
use gate_tests::net::SERVER_INTERFACE;
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use gate_tests::world::pin;
use gate_userspace::kernel::Maps;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const TARGET: &str = "198.18.0.1:11211";
const POLITE: usize = 1;

/// Files that stand for the kernel's lists of CPUs. A gate that is started with them sees no others.
struct FakeCpus {
    directory: PathBuf,
}

impl FakeCpus {
    fn new(site: &Site, possible: &str, online: &str) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("{}-cpus", site.net.server.name()));
        fs::create_dir_all(&directory)?;
        let this = Self { directory };
        fs::write(this.directory.join("possible"), possible)?;
        this.set_online(online)?;
        Ok(this)
    }

    /// The same file with other contents: it stays mounted.
    fn set_online(&self, online: &str) -> Result<()> {
        Ok(fs::write(self.directory.join("online"), online)?)
    }

    /// The same command, in a mount namespace where these files are in the place of the kernel's.
    fn command(&self, site: &Site, command: &Command) -> Command {
        let [possible, online] = ["possible", "online"].map(|list| self.directory.join(list));
        let files = [
            (possible.as_path(), "/sys/devices/system/cpu/possible"),
            (online.as_path(), "/sys/devices/system/cpu/online"),
        ];
        let unshare = site.net.server.command("unshare");
        let mut faked = with_files(unshare, &files, Path::new(command.get_program()));
        faked.args(command.get_args());
        faked
    }

    fn start(&self, site: &Site) -> Result<ChildProcess> {
        let command = self.command(site, &site.command(SERVER_INTERFACE));
        let mut gate = ChildProcess::start("gate", command)?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        Ok(gate)
    }
}

impl Drop for FakeCpus {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn counters_take_no_more_memory_than_check_prints() -> Result<()> {
    if !privilege::root("cpus::counters_take_no_more_memory_than_check_prints") {
        return Ok(());
    }
    let mut text = CONFIG.to_owned();
    for id in 0..9_998 {
        let source = format!("10.0.{}.{}", id >> 8, id & 255);
        write!(text, "[[tenant]]\nname = \"t{id}\"\nsources = [\"{source}\"]\nquota = \"9 RU/s\"\n")?;
    }
    let site = Site::new(&text)?;
    let cpus = FakeCpus::new(&site, "0-63\n", "0-63\n")?;
    let mut check = Command::new(paths::gate());
    check.arg("check").arg("--json").arg(site.config());
    let output = cpus.command(&site, &check).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let memory = |key: &str| report["memory"][key].as_u64().with_context(|| format!("{key} in {report}"));
    let announced = memory("counters")?;
    let allowed = memory("counters_allowed")?;
    ensure!(announced <= allowed && announced < 160 << 20, "{announced} of {allowed} bytes");

    let gate = cpus.start(&site)?;
    let mut charged = 0;
    for map in ["COUNTERS", "RARE_COUNTERS", "TOUCHED", "CPUS"] {
        let data = MapData::from_pin(site.pins().join(map))?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd()))?;
        let bytes = info.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse::<u64>().ok());
        charged += bytes.with_context(|| format!("no memory in {info}"))?;
    }
    ensure!(charged <= announced, "{charged} bytes charged, {announced} announced");
    let maps = Maps::pinned(site.pins(), false)?;
    let rows: Vec<usize> = (0..64).map(|cpu| maps.row_of(cpu)).collect();
    ensure!(rows == (1..=64).collect::<Vec<_>>(), "{rows:?}");
    drop(maps);
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

#[test]
fn a_cpu_that_comes_online_between_ticks_is_counted() -> Result<()> {
    if !privilege::root("cpus::a_cpu_that_comes_online_between_ticks_is_counted") {
        return Ok(());
    }
    let late = std::thread::available_parallelism()?.get() - 1;
    let site = Site::new(&CONFIG.replace("5000 RU/s", "1000000 RU/s"))?;
    // All CPUs but the one that the load runs on; the others have numbers with holes.
    let others = if late == 0 { "7\n".to_owned() } else { format!("{}-{},7\n", 0, late - 1) };
    let cpus = FakeCpus::new(&site, "0-15\n", &others)?;
    let gate = cpus.start(&site)?;
    let maps = Maps::pinned(site.pins(), false)?;
    ensure!(maps.row_of(late) == 0 && maps.row_of(7) != 0);
    let passed = |row: usize| maps.counters.load(maps.row(row).line + POLITE).passed;

    let target: SocketAddr = TARGET.parse()?;
    let sink = Sink::start(&site.net, target)?;
    let source: IpAddr = "198.18.1.1".parse()?;
    // Threads that are started from now on run there as well.
    pin(late);
    let flood = Flood::start(&site.net, &[source], target, 2_000)?;
    wait_until("a CPU without a row counts in the shared one", || Ok(passed(0) > 100))?;
    cpus.set_online(&format!("0-{late},7\n"))?;
    wait_until("it has a row", || Ok(maps.row_of(late) != 0))?;
    let row = maps.row_of(late);
    wait_until("it counts there", || Ok(passed(row) > 100))?;
    let sent = flood.stop();
    wait_until("all arrive", || Ok(sink.received() == sent))?;
    let counted = maps.tenant_counters(POLITE);
    ensure!(counted.passed == sent, "{} of {sent} were counted", counted.passed);
    let strangers: u64 = (0..maps.rows()).filter(|&other| other != 0 && other != row).map(passed).sum();
    ensure!(strangers == 0, "{strangers} were counted in rows of others");
    drop(maps);
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}
