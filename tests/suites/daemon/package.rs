//! The Debian package: installed, run, upgraded under load, removed and purged, with a service manager and without one.
//!
//! The test installs it in a copy of the machine's system, in memory; with `GATE_LONG=1` in one of a minimal Debian from
//! `debootstrap`. The binary is the one that the other tests run.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE};
use gate_tests::net::{Net, SERVER_INTERFACE};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENT, address};
use gate_tests::system::{System, installed, minimal};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;
use xtask::package::{Compression, Package};
use xtask::{paths, sh};

use super::service_manager::{Successor, ask_anew};

/// The versions that are installed one after the other, of the same program.
const VERSIONS: [&str; 2] = ["0.1.0", "0.1.0+next"];
/// Files that the package installs, one of each kind.
const INSTALLED: [&str; 10] = [
    "/usr/bin/gate",
    "/lib/systemd/system/gate.service",
    "/etc/gate/gate.toml",
    "/usr/share/bash-completion/completions/gate",
    "/usr/share/zsh/vendor-completions/_gate",
    "/usr/share/fish/vendor_completions.d/gate.fish",
    "/usr/share/man/man1/gate-run.1.gz",
    "/usr/share/doc/gate/RECIPES.md",
    "/usr/share/doc/gate/copyright",
    "/usr/share/doc/gate/examples/gate.toml",
];
/// As `systemctl enable` makes it.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/gate.service";
const CONFIGURATION: &str = "/etc/gate/gate.toml";
const PINS: &str = "/sys/fs/bpf/gate";

/// The commands of `systemctl` that the package's scripts use, for the one service that the test manages.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd /run/manager || exit 1
echo "$*" >>asked
runs() { [ -s main ] && [ -e "/proc/$(cat main)" ] && ! grep -q '^State:.Z' "/proc/$(cat main)/status"; }
case " $* " in
*" is-active "*) runs ;;
*" show "*) cat main ;;
*" kill "*"=SIGUSR1 "*) kill -s USR1 "$(cat main)" ;;
*" stop "*)
	runs && kill -s TERM "$(cat main)"
	while runs; do sleep 0.05; done
	;;
esac
"#;

/// A package of each version, which go with this.
struct Packages {
    directory: PathBuf,
    files: Vec<PathBuf>,
}

impl Packages {
    fn build(name: &str) -> Result<Self> {
        let mut this = Self { directory: std::env::temp_dir().join(name), files: Vec::new() };
        for version in VERSIONS {
            let package = Package { gate: &paths::gate(), version, compression: Compression::None };
            this.files.push(package.build(&this.directory)?.file);
        }
        Ok(this)
    }
}

impl Drop for Packages {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A system with a network, in which the package is installed.
struct Host<'a> {
    system: &'a System,
    net: &'a Net,
    packages: [PathBuf; 2],
}

impl<'a> Host<'a> {
    fn new(system: &'a System, net: &'a Net, built: &Packages) -> Result<Self> {
        // A machine that starts no services, as a container, may say so; a machine that is managed by systemd does not.
        let _ = fs::remove_file(system.path("/usr/sbin/policy-rc.d"));
        let packages = ["/tmp/before.deb", "/tmp/after.deb"];
        for (from, to) in built.files.iter().zip(packages) {
            fs::copy(from, system.path(to))?;
        }
        Ok(Self { system, net, packages: packages.map(PathBuf::from) })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        sh::output(self.system.command(&self.net.server, program).args(arguments))
    }

    fn dpkg(&self, action: &str, of: impl AsRef<Path>) -> Result<String> {
        let mut dpkg = self.system.command(&self.net.server, "dpkg");
        // Nothing has to outlive a loss of power, and no index of manual pages is made.
        dpkg.args(["--force-unsafe-io", "--no-triggers", action]).arg(of.as_ref());
        sh::output(&mut dpkg)
    }

    /// Installs a version, which starts nothing.
    fn install(&self, version: usize) -> Result<()> {
        self.dpkg("--install", &self.packages[version])?;
        for file in INSTALLED {
            ensure!(self.system.path(file).is_file(), "{file} is not installed");
        }
        let changed = self.run("dpkg", &["--verify", "gate"])?;
        ensure!(changed.is_empty(), "{changed}");
        ensure!(self.system.path(CONFIGURATION).exists() && !self.system.path(PINS).exists());
        Ok(())
    }

    /// Starts the installed program as its unit does.
    fn start(&self, manager: Option<&Manager>) -> Result<ChildProcess> {
        let mut command = self.system.command(&self.net.server, "/usr/bin/gate");
        command.args(["run", "--config", CONFIGURATION]);
        if manager.is_some() {
            command.env("NOTIFY_SOCKET", "/run/manager/notify");
        }
        let mut gate = ChildProcess::start("gate", command)?;
        if let Some(manager) = manager {
            fs::write(&manager.main, gate.id().to_string())?;
        }
        gate.wait_for(ATTACHED, PATIENCE)?;
        Ok(gate)
    }

    /// The process that owns the maps.
    fn owner(&self) -> Result<Option<i32>> {
        let status: serde_json::Value = serde_json::from_str(&self.run("gate", &["status", "--json"])?)?;
        Ok(status["daemon"].as_i64().map(i32::try_from).transpose()?)
    }

    /// True if a program is attached at the interface.
    fn is_attached(&self) -> Result<bool> {
        let mut ip = self.net.server.command("ip");
        Ok(sh::output(ip.args(["link", "show", "dev", SERVER_INTERFACE]))?.contains("xdp"))
    }

    /// Files that are left of the package, and of gates that ran.
    fn left(&self) -> Result<Vec<String>> {
        let is_ours = |file: &String| file.split('/').any(|name| name.starts_with("gate") || name == "_gate");
        let mut left: Vec<_> = self.system.written()?.into_iter().filter(is_ours).collect();
        for directory in ["/run", "/sys/fs/bpf"] {
            for entry in fs::read_dir(self.system.path(directory))? {
                let name = entry?.file_name().into_string().unwrap_or_default();
                left.extend(name.starts_with("gate").then(|| format!("{directory}/{name}")));
            }
        }
        Ok(left)
    }
}

/// The service manager of a host, for one service.
struct Manager {
    socket: UnixDatagram,
    main: PathBuf,
}

impl Manager {
    /// Begins to manage, so that the package's scripts find a service manager.
    fn new(system: &System) -> Result<Self> {
        let directory = system.path("/run/manager");
        fs::create_dir_all(&directory)?;
        fs::create_dir_all(system.path("/run/systemd/system"))?;
        // Not through a link of the machine's.
        let systemctl = system.path("/usr/bin/systemctl");
        let _ = fs::remove_file(&systemctl);
        fs::write(&systemctl, SYSTEMCTL)?;
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755))?;
        let socket = UnixDatagram::bind(directory.join("notify"))?;
        socket.set_read_timeout(Some(Duration::from_millis(10)))?;
        Ok(Self { socket, main: directory.join("main") })
    }

    /// Takes whom gate names for the main process, until it is `over`.
    fn listen(&self, over: &AtomicBool) -> Result<()> {
        let mut message = [0; 1_024];
        while !over.load(Ordering::Relaxed) {
            let Ok(len) = self.socket.recv(&mut message) else { continue };
            let message = String::from_utf8_lossy(&message[..len]);
            if let Some(pid) = message.lines().find_map(|line| line.strip_prefix("MAINPID=")) {
                // `systemctl` reads it meanwhile.
                let new = self.main.with_extension("new");
                fs::write(&new, pid)?;
                fs::rename(new, &self.main)?;
            }
        }
        Ok(())
    }
}

/// Replaces the installed version while clients connect anew for every request, and returns the gate that has taken over.
fn upgrade_under_load(
    host: &Host<'_>,
    manager: Option<&Manager>,
    gate: ChildProcess,
    to: SocketAddr,
) -> Result<Successor> {
    let before = i32::try_from(gate.id())?;
    let over = &AtomicBool::new(false);
    let answered = &AtomicUsize::new(0);
    let more = || {
        let so_far = answered.load(Ordering::Relaxed);
        wait_until("nobody is served", || Ok(answered.load(Ordering::Relaxed) > so_far + 100))
    };
    std::thread::scope(|scope| {
        let client = move || host.net.server.enter(|| ask_anew(to, over, answered))?;
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(client)).collect();
        let managed = manager.map(|manager| scope.spawn(move || manager.listen(over)));
        let upgraded = (|| {
            more()?;
            host.dpkg("--install", &host.packages[1])?;
            if let Some(manager) = manager {
                let main = fs::read_to_string(&manager.main)?;
                ensure!(main != before.to_string(), "the script has not waited for the new program");
            }
            gate.finish(PATIENCE)?;
            wait_until("no gate takes over", || Ok(host.owner()?.is_some_and(|owner| owner != before)))?;
            let after = Successor::new(host.owner()?.context("an owner")?);
            more()?;
            anyhow::Ok(after)
        })();
        over.store(true, Ordering::Relaxed);
        let threads = clients.into_iter().chain(managed);
        let ended: Vec<_> = threads.map(|thread| thread.join().expect("it does not panic")).collect();
        let after = upgraded?;
        ended.into_iter().collect::<Result<()>>()?;
        Ok(after)
    })
}

/// The configuration of a gate that is attached at the interface, and serves this address before that store.
fn configuration(proxied: SocketAddr, store: SocketAddr) -> String {
    format!(
        "[gate]\ninterface = \"{SERVER_INTERFACE}\"\ndrain = \"0ms\"\n{CONFIG}\n\
         [[service]]\nname = \"proxied\"\nprotocol = \"memcached\"\ntransports = [\"tcp\"]\nlisten = \"{proxied}\"\n\
         backend = \"{store}\"\n{PATIENT}\n[[tenant]]\nname = \"local\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n"
    )
}

/// Installs, configures, runs, upgrades, removes and purges the package.
fn upgrade_and_remove(host: &Host<'_>, manager: Option<&Manager>, store: SocketAddr) -> Result<()> {
    host.install(0)?;
    let valid = host.run("gate", &["check", CONFIGURATION])?;
    ensure!(valid.contains("valid; services: 1, tenants: 1"), "{valid}");

    let proxied = address();
    let config = configuration(proxied, store);
    let file = host.system.path(CONFIGURATION);
    fs::write(&file, &config)?;
    let gate = host.start(manager)?;
    let successor = upgrade_under_load(host, manager, gate, proxied)?;
    ensure!(successor.runs() && host.is_attached()?);
    ensure!(fs::read_to_string(&file)? == config, "the configuration was replaced");
    let version = host.run("dpkg-query", &["--show", "gate"])?;
    ensure!(version.trim() == format!("gate\t{}", VERSIONS[1]), "{version}");

    host.dpkg("--remove", "gate")?;
    ensure!(!successor.runs() && !host.is_attached()?);
    let kept = ["/etc/gate", "/var/lib/dpkg/info/gate."];
    let left = host.left()?;
    ensure!(left.iter().all(|file| kept.iter().any(|kept| file.starts_with(kept))), "{left:?}");
    ensure!(fs::read_to_string(&file)? == config, "the configuration is gone");
    host.dpkg("--purge", "gate")?;
    let left = host.left()?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Removes the package while a gate that was killed has left its program at the interface, and purges it while the service is
/// enabled and pins and an administrator's file are left.
fn remove_after_a_kill(host: &Host<'_>, manager: Option<&Manager>, store: SocketAddr) -> Result<()> {
    host.install(1)?;
    fs::write(host.system.path(CONFIGURATION), configuration(address(), store))?;
    let enabled = host.system.path(ENABLED);
    fs::create_dir_all(enabled.parent().context("a directory")?)?;
    symlink("/lib/systemd/system/gate.service", enabled)?;
    let gate = host.start(manager)?;
    gate.signal(Signal::SIGKILL)?;
    ensure!(gate.finish(PATIENCE).is_err() && host.is_attached()?);
    host.dpkg("--remove", "gate")?;
    ensure!(!host.is_attached()?);
    fs::create_dir(host.system.path(PINS))?;
    fs::write(host.system.path("/etc/gate/admin-token"), "a file of the administrator's")?;
    host.dpkg("--purge", "gate")?;
    let left = host.left()?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_package_upgrades_under_load_and_purges_without_a_trace() -> Result<()> {
    if !privilege::root("package::a_package_upgrades_under_load_and_purges_without_a_trace") {
        return Ok(());
    }
    let net = Net::open()?;
    let packages = Packages::build(net.server.name())?;
    let store = net.server.enter(Listening::memcached)??;
    let lower = if std::env::var_os("GATE_LONG").is_some() { minimal()? } else { installed().to_owned() };
    System::within(&lower, |system| {
        let host = Host::new(system, &net, &packages)?;
        upgrade_and_remove(&host, None, store.address).context("without systemd")?;
        let manager = Manager::new(system)?;
        upgrade_and_remove(&host, Some(&manager), store.address).context("with systemd")?;
        remove_after_a_kill(&host, Some(&manager), store.address)
    })
}
