//! gate under a service manager: what it tells systemd, how it is upgraded, and what its unit file grants it.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{ATTACHED, CONFIG, Site};
use gate_tests::fake_store::counter;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE, address, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::lab::net::SERVER_INTERFACE;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// A service manager, as far as it listens: it always does, since a message that finds no room holds up its sender.
struct Manager {
    said: Receiver<String>,
    path: PathBuf,
}

impl Manager {
    fn new() -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("gate-notify-{}-{}", std::process::id(), address().ip()));
        let socket = UnixDatagram::bind(&path)?;
        let (sender, said) = channel();
        std::thread::spawn(move || {
            let mut message = [0; 1_024];
            while let Ok(len) = socket.recv(&mut message) {
                let text = String::from_utf8_lossy(&message[..len]).trim_end().to_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Ok(Self { said, path })
    }

    /// The next message, signs of life included.
    fn any(&self) -> Result<String> {
        self.said.recv_timeout(PATIENCE).context("nothing was said")
    }

    /// The next message that is no sign of life.
    fn next(&self) -> Result<String> {
        loop {
            let message = self.any()?;
            if message != ALIVE {
                return Ok(message);
            }
        }
    }

    /// The main process that is named next. Only that it is ready may be said before.
    fn main_process(&self) -> Result<Successor> {
        loop {
            let message = self.next()?;
            if let Some(pid) = message.strip_prefix("MAINPID=") {
                return Ok(Successor(Pid::from_raw(pid.parse()?)));
            }
            ensure!(message == "READY=1", "{message}");
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.path);
    }
}

const ALIVE: &str = "WATCHDOG=1";

/// A gate that another gate has started. It ends with this.
pub(crate) struct Successor(Pid);

impl Successor {
    pub(crate) fn new(pid: i32) -> Self {
        Self(Pid::from_raw(pid))
    }

    pub(crate) fn runs(&self) -> bool {
        // Its parent is gone, and who adopted it may not have noticed its end.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    fn end(self, by: Signal) -> Result<()> {
        kill(self.0, by)?;
        wait_until("the successor does not end", || Ok(!self.runs()))
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.runs() {
            // It may just have ended.
            let _ = kill(self.0, Signal::SIGKILL);
        }
    }
}

#[test]
fn the_manager_hears_of_start_reload_ticks_and_end() -> Result<()> {
    const TICK: Duration = Duration::from_millis(1_500);
    let manager = Manager::new()?;
    let store = Listening::embedded("memcached")?;
    let ticks = "tick = \"1500ms\"\nstale_after = \"10s\"\ndrain = \"60s\"";
    let watchdog = (&*manager.path, Duration::from_secs(1));
    let mut gate = Listening::gate_with_manager(watchdog, ticks, store.address, EVERYONE)?;
    ensure!(manager.any()? == "READY=1");
    // Ticks are the signs of life, and nothing else is: a gate whose loop hangs gives none.
    let mut before = Instant::now();
    for sign in 0..3 {
        ensure!(manager.any()? == ALIVE);
        let since = before.elapsed();
        ensure!(sign < 2 || since > TICK / 2, "two signs of life within {since:?}");
        before = Instant::now();
    }
    gate.signal(Signal::SIGHUP)?;
    ensure!(manager.next()? == "RELOADING=1" && manager.next()? == "READY=1");
    let (config, _) = gate.files()?;
    std::fs::write(config, "nonsense")?;
    gate.signal(Signal::SIGHUP)?;
    ensure!(manager.next()? == "RELOADING=1" && manager.next()? == "READY=1");
    // A client that stays has it drain.
    let client = gate.connect()?;
    wait_until("it has a client", || Ok(counter(&gate, "accepted")? > counter(&gate, "left")?))?;
    gate.signal(Signal::SIGTERM)?;
    ensure!(manager.next()? == "STOPPING=1" && gate.program().is_running()?);
    drop(client);
    wait_until("it does not end", || Ok(!gate.program().is_running()?))
}

/// Connects, asks and leaves until it is `over`.
pub(crate) fn ask_anew(address: SocketAddr, over: &AtomicBool, count: &AtomicUsize) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        std::io::Write::write_all(&mut stream, b"get none\r\n")?;
        ensure!(read_until(&mut stream, b"\r\n")? == b"END\r\n");
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn an_upgrade_refuses_nobody_and_names_the_new_main_process() -> Result<()> {
    let manager = Manager::new()?;
    let store = Listening::memcached()?;
    let gate = "threads = \"2\"\ndrain = \"0ms\"";
    let watchdog = (&*manager.path, Duration::from_secs(1));
    let mut gate = Listening::gate_with_manager(watchdog, gate, store.address, EVERYONE)?;
    ensure!(manager.next()? == "READY=1");
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    let text = std::fs::read_to_string(&config)?;
    // One that cannot start leaves all as it is.
    std::fs::write(&config, "nonsense")?;
    gate.signal(Signal::SIGUSR1)?;
    gate.program().wait_for("has ended: this one goes on", PATIENCE)?;
    gate.ask(b"get none\r\n", b"END\r\n")?;
    std::fs::write(&config, text)?;

    let address = gate.address;
    let over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_anew(address, &over, &answered))).collect();
        let upgraded = (|| {
            gate.signal(Signal::SIGUSR1)?;
            let successor = manager.main_process()?;
            wait_until("the old one does not end", || Ok(!gate.program().is_running()?))?;
            let before = answered.load(Ordering::Relaxed);
            wait_until("nobody is served", || Ok(answered.load(Ordering::Relaxed) > before + 100))?;
            anyhow::Ok(successor)
        })();
        over.store(true, Ordering::Relaxed);
        let ended = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        ended.collect::<Result<()>>()?;
        let successor = upgraded?;
        ensure!(successor.runs());
        // From now on that one gives the signs of life.
        wait_until("it gives no sign of life", || Ok(manager.any()? == ALIVE))?;
        successor.end(Signal::SIGTERM)
    })
}

#[test]
fn a_manager_that_never_listens_holds_up_nobody() -> Result<()> {
    let path = std::env::temp_dir().join(format!("gate-deaf-{}-{}", std::process::id(), address().ip()));
    let _socket = UnixDatagram::bind(&path)?;
    let store = Listening::memcached()?;
    // A sign of life each 25 ms: there is soon no room for more.
    let watchdog = (&*path, Duration::from_millis(100));
    let mut gate = Listening::gate_with_manager(watchdog, "drain = \"0ms\"", store.address, EVERYONE)?;
    let generation =
        |gate: &Listening| gate.json(&["status"])?["generation"].as_u64().context("no generation");
    let first = generation(&gate)?;
    wait_until("its ticks stand still", || Ok(generation(&gate)? > first + 50))?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for("configuration read again", PATIENCE)?;
    gate.signal(Signal::SIGTERM)?;
    wait_until("it does not end", || Ok(!gate.program().is_running()?))?;
    Ok(std::fs::remove_file(path)?)
}

#[test]
fn an_upgrade_takes_over_maps_and_program() -> Result<()> {
    if !privilege::root("service_manager::an_upgrade_takes_over_maps_and_program") {
        return Ok(());
    }
    let manager = Manager::new()?;
    let site = Site::new(CONFIG)?;
    let mut command = site.command(SERVER_INTERFACE);
    command.env("NOTIFY_SOCKET", &manager.path);
    let mut gate = ChildProcess::start("gate", command)?;
    gate.wait_for(ATTACHED, PATIENCE)?;
    ensure!(manager.next()? == "READY=1");
    gate.signal(Signal::SIGUSR1)?;
    let successor = manager.main_process()?;
    gate.finish(PATIENCE)?;
    let pid = u64::try_from(successor.0.as_raw())?;
    wait_until("it owns nothing", || Ok(site.json(&["status"])?["daemon"].as_u64() == Some(pid)))?;
    successor.end(Signal::SIGTERM)?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// The unit file, with the binary that the tests run.
fn unit(directory: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(paths::workspace().join("gate-userspace/package/gate.service"))?;
    let gate = paths::gate();
    std::fs::create_dir_all(directory)?;
    let unit = directory.join("gate.service");
    std::fs::write(&unit, text.replace("/usr/bin/gate", &gate.to_string_lossy()))?;
    Ok(unit)
}

#[test]
fn the_unit_file_is_sound_and_grants_little() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("gate-unit-{}", std::process::id()));
    let unit = unit(&directory)?;
    let analyze = |arguments: &[&str]| -> Result<(bool, String)> {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (is_sound, said) = analyze(&["verify", "--man=no"])?;
    ensure!(is_sound && said.is_empty(), "{said}");
    // In tenths. One of them is for ports below 1024.
    let (grants_little, said) = analyze(&["security", "--no-pager", "--offline=yes", "--threshold=26"])?;
    ensure!(grants_little, "{said}");
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
