//! docs/RECIPES.md: each recipe's files are written, its commands run as they stand, and what they print is compared.
//!
//! A recipe runs in a network of its own, with a `/run` of its own, so that it has the ports and paths that it names. A command that
//! ends in `&` is a program that goes on; `client$` runs at the clients' end. Numbers of two digits and more may be others.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::net::SERVER_INTERFACE;
use gate_tests::privilege;
use gate_tests::wait::{until_up, wait_until};
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// The recipes by their headings, each with the store that its reader has already, and where that listens.
const RECIPES: [(&str, &[&str], &str); 5] = [
    ("Redis users", &["redis-server", "--save", "", "--appendonly", "no"], "127.0.0.1:6379"),
    ("memcached by key prefixes", &MEMCACHED, "127.0.0.1:11211"),
    (
        "HTTP behind nginx, with API keys",
        &["gate", "store", "--protocol", "http", "--listen", "127.0.0.1:8082"],
        "127.0.0.1:8082",
    ),
    (
        "XDP before a guarded memcached",
        &["memcached", "-u", "root", "-l", "198.18.0.1", "-U", "11211"],
        "198.18.0.1:11211",
    ),
    ("Two gates with one limit", &MEMCACHED, "127.0.0.1:11211"),
];
const MEMCACHED: [&str; 5] = ["memcached", "-u", "root", "-l", "127.0.0.1"];

/// Where commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Server,
    Client,
}

/// A command of a recipe, and what it prints.
#[derive(Debug)]
struct Step {
    end: End,
    command: String,
    output: String,
}

fn document(name: &str) -> Result<String> {
    Ok(std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name))?)
}

/// The blocks of a section: language and text.
fn blocks<'t>(text: &'t str, section: &str) -> Result<Vec<(&'t str, &'t str)>> {
    let (_, rest) = text.split_once(&format!("\n## {section}\n")).with_context(|| section.to_owned())?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("\n```").skip(1).step_by(2);
    Ok(blocks.filter_map(|block| block.split_once('\n')).collect())
}

/// The commands of a block, each with the lines up to the next.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        let command = |end, command: &str| Step { end, command: command.to_owned(), output: String::new() };
        if let Some(text) = line.strip_prefix("$ ") {
            steps.push(command(End::Server, text));
        } else if let Some(text) = line.strip_prefix("client$ ") {
            steps.push(command(End::Client, text));
        } else if let Some(step) = steps.last_mut() {
            step.output += &format!("{line}\n");
        }
    }
    steps
}

/// The words of an output that are compared, with `#` for each number of two digits and more, whatever its unit of time.
fn shape(output: &str) -> Vec<Vec<String>> {
    let word = |word: &str| {
        let digits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
        let number: String =
            digits.chars().take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '.')).collect();
        let number = number.trim_end_matches([',', '.']);
        let is_long = number.len() > 1 && !word.contains(':');
        if !is_long {
            return word.to_owned();
        }
        // What is left of a limit may be a debt.
        let unsigned = word.strip_prefix('-').filter(|rest| rest.starts_with(number));
        unsigned.unwrap_or(word).replacen(number, "#", 1)
    };
    output.lines().map(|line| line.split_whitespace().map(word).collect()).collect()
}

/// A recipe's place: its network, its directory, and the programs that it has started.
struct Scene {
    site: Site,
    directory: PathBuf,
    /// Holds the mount namespace with a `/run` of its own.
    holder: ChildProcess,
    programs: Vec<ChildProcess>,
}

impl Scene {
    fn new() -> Result<Self> {
        let site = Site::new("")?;
        let directory = std::env::temp_dir().join(format!("recipe-{}", site.net.server.name()));
        std::fs::create_dir_all(&directory)?;
        let mut holder = site.net.server.command("unshare");
        holder.args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs gate /run && echo mounted >&2 && exec sleep 1000",
        ]);
        let mut holder = ChildProcess::start("holder", holder)?;
        holder.wait_for("mounted", PATIENCE)?;
        Ok(Self { site, directory, holder, programs: Vec::new() })
    }

    /// A line of the shell, at one end.
    fn shell(&self, end: End, line: &str) -> Command {
        let namespace = match end {
            End::Server => &self.site.net.server,
            End::Client => &self.site.net.client,
        };
        let mut command = namespace.command("nsenter");
        command.arg("--mount").arg("--target").arg(self.holder.id().to_string());
        let path = std::env::var("PATH").unwrap_or_default();
        let built = paths::gate();
        let built = built.parent().unwrap_or(Path::new("/")).display().to_string();
        let line = format!("cd {} && {line}", self.directory.display());
        command.args(["--", "bash", "-c", &line]).env("PATH", format!("{built}:{path}"));
        // redis-cli prints as for a terminal.
        command.env("FAKETTY", "1");
        command
    }

    /// Starts the store that there is before gate.
    fn store(&mut self, words: &[&str], address: &str) -> Result<()> {
        let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
        let line = format!("exec {}", quoted.join(" "));
        let mut store = ChildProcess::start("store", self.shell(End::Server, &line))?;
        self.until_open(&mut store, address)?;
        self.programs.push(store);
        Ok(())
    }

    fn until_open(&self, program: &mut ChildProcess, address: &str) -> Result<()> {
        let address: SocketAddr = address.parse()?;
        let server = &self.site.net.server;
        until_up(program, "a program", || Ok(server.enter(|| TcpStream::connect(address))?.is_ok()))
    }

    /// Writes a file that names itself in its first line, with this network's interface and pins.
    fn write(&self, text: &str) -> Result<()> {
        let name = text.lines().next().and_then(|line| line.strip_prefix("# ")).context("a file's name")?;
        let pins = format!("[gate]\npin_dir = \"{}\"", self.site.pins().display());
        let text = text.replace("\"eth1\"", &format!("\"{SERVER_INTERFACE}\""));
        let text = if text.contains(SERVER_INTERFACE) { text.replace("[gate]", &pins) } else { text };
        Ok(std::fs::write(self.directory.join(name), text)?)
    }

    fn run(&mut self, step: &Step) -> Result<()> {
        let Step { end, command, output } = step;
        // The pins of this network.
        let has_pins = std::fs::read_to_string(self.directory.join("gate.toml"))?.contains("pin_dir");
        let shows = ["gate tenants", "gate status"].into_iter().find(|shows| command.starts_with(shows));
        let command = match shows {
            Some(shows) if has_pins => {
                command.replacen(shows, &format!("{shows} --pin-dir {}", self.site.pins().display()), 1)
            }
            _ => command.clone(),
        };
        let output = output.replace("eth1", SERVER_INTERFACE);
        if let Some(program) = command.strip_suffix(" &") {
            return self.start(*end, program);
        }
        let mut said = String::new();
        let matches = || {
            let asked = self.shell(*end, &command).output()?;
            said = [asked.stdout, asked.stderr]
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .concat();
            Ok(shape(&said) == shape(&output))
        };
        let mut matches = matches;
        // What shows something shows it once it has been counted.
        let is_right =
            if shows.is_some() { wait_until("the output", &mut matches).is_ok() } else { matches()? };
        ensure!(is_right, "{command}: it is documented to print\n{output}\nand has printed\n{said}");
        Ok(())
    }

    /// Starts a program that goes on, and waits until it serves.
    fn start(&mut self, end: End, line: &str) -> Result<()> {
        let mut program = ChildProcess::start("program", self.shell(end, &format!("exec {line}")))?;
        if line.starts_with("gate run") {
            program.wait_for(" serves ", PATIENCE)?;
        } else if line.starts_with("gate quota run") {
            program.wait_for("owning limits", PATIENCE)?;
        } else if line.starts_with("nginx") {
            self.until_open(&mut program, "127.0.0.1:8080")?;
        } else {
            bail!("nobody knows when {line:?} serves");
        }
        self.programs.push(program);
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.programs.clear();
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs the recipe of that section.
fn follow(section: &str) -> Result<()> {
    let (_, store, address) = RECIPES.iter().find(|(name, ..)| *name == section).context("no such recipe")?;
    let text = document("RECIPES.md")?;
    let mut scene = Scene::new()?;
    let _peer = scene.site.peer()?;
    scene.store(store, address)?;
    let mut count = 0;
    for (language, block) in blocks(&text, section)? {
        match language {
            "toml" | "nginx" => scene.write(block)?,
            "console" => {
                for step in steps(block) {
                    scene.run(&step)?;
                    count += 1;
                }
            }
            other => bail!("a block of {other:?}"),
        }
    }
    ensure!(count > 3, "{count} commands");
    Ok(())
}

#[test]
fn redis_users_are_tenants_as_documented() -> Result<()> {
    if !privilege::root("recipes::redis_users_are_tenants_as_documented") {
        return Ok(());
    }
    follow("Redis users")
}

#[test]
fn key_prefixes_are_tenants_as_documented() -> Result<()> {
    if !privilege::root("recipes::key_prefixes_are_tenants_as_documented") {
        return Ok(());
    }
    follow("memcached by key prefixes")
}

#[test]
fn api_keys_are_nginxs_to_check_as_documented() -> Result<()> {
    if !privilege::root("recipes::api_keys_are_nginxs_to_check_as_documented") {
        return Ok(());
    }
    follow("HTTP behind nginx, with API keys")
}

#[test]
fn packets_to_a_guarded_store_are_judged_as_documented() -> Result<()> {
    if !privilege::root("recipes::packets_to_a_guarded_store_are_judged_as_documented") {
        return Ok(());
    }
    follow("XDP before a guarded memcached")
}

#[test]
fn two_gates_keep_one_limit_as_documented() -> Result<()> {
    if !privilege::root("recipes::two_gates_keep_one_limit_as_documented") {
        return Ok(());
    }
    follow("Two gates with one limit")
}

/// The commands of docs/ROLLING-OUT.md, in their order, at a gate that has the tenant that they name.
#[test]
fn the_steps_of_rolling_out_are_obeyed() -> Result<()> {
    if !privilege::root("recipes::the_steps_of_rolling_out_are_obeyed") {
        return Ok(());
    }
    let recipe = document("RECIPES.md")?;
    let mut scene = Scene::new()?;
    scene.store(&MEMCACHED, "127.0.0.1:11211")?;
    for (_, file) in
        blocks(&recipe, "memcached by key prefixes")?.iter().filter(|(language, _)| *language == "toml")
    {
        scene.write(file)?;
    }
    scene.start(End::Server, "gate run --config gate.toml")?;
    let text = document("ROLLING-OUT.md")?;
    let commands: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    for command in &commands {
        let output = scene.shell(End::Server, command).output()?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let status = scene.shell(End::Server, "gate status").output()?.stdout;
    let status = String::from_utf8(status)?;
    ensure!(commands.len() >= 10 && status.contains(", shadow: nothing is refused, "), "{status}");
    let saved = std::fs::read_to_string(scene.directory.join("gate.toml"))?;
    ensure!(saved.contains("mode = \"enforce\"") && saved.contains("enforce = \"100%\""), "{saved}");
    Ok(())
}

/// The commands of the README's way to one's own service, in their order, with its configuration.
#[test]
fn the_readmes_commands_are_obeyed() -> Result<()> {
    if !privilege::root("recipes::the_readmes_commands_are_obeyed") {
        return Ok(());
    }
    let readme = document("../README.md")?;
    let section = "Before your own service";
    let blocks = blocks(&readme, section)?;
    let (_, rest) = readme.split_once(&format!("\n## {section}\n")).context("no section")?;
    let prose = rest.split("\n## ").next().unwrap_or_default().split("\n```").step_by(2);
    let said = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    // A screen needs a terminal, which another test has.
    let said = said.filter(|words| words.starts_with("gate ") && *words != "gate top");
    let in_blocks = blocks.iter().flat_map(|(_, block)| block.lines());
    let commands: Vec<_> = in_blocks.filter(|line| line.starts_with("gate ")).chain(said).collect();
    let mut scene = Scene::new()?;
    let (store, address) =
        RECIPES.first().map(|(_, store, address)| (store, address)).context("no recipe")?;
    scene.store(store, address)?;
    let (_, config) = blocks.iter().find(|(language, _)| *language == "toml").context("no configuration")?;
    std::fs::write(scene.directory.join("gate.toml"), config)?;
    let status = |scene: &Scene| -> Result<String> {
        Ok(String::from_utf8(scene.shell(End::Server, "gate status").output()?.stdout)?)
    };
    for command in &commands {
        if command.starts_with("gate run ") {
            scene.start(End::Server, command)?;
            continue;
        }
        let output = scene.shell(End::Server, command).output()?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        if *command == "gate set gate.mode enforce" {
            let status = status(&scene)?;
            ensure!(!status.contains("shadow"), "{status}");
        }
    }
    let status = status(&scene)?;
    ensure!(commands.len() == 7 && status.contains("shadow: nothing is refused"), "{commands:?}: {status}");
    Ok(())
}

#[test]
fn each_recipe_of_the_document_is_run() -> Result<()> {
    let text = document("RECIPES.md")?;
    let sections: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    ensure!(sections == RECIPES.map(|(name, ..)| name), "{sections:?}");
    Ok(())
}

#[test]
fn outputs_differ_by_words_and_not_by_large_numbers() {
    assert_eq!(shape("a  12,345 quota 77\n"), shape("a 9,999,999   quota 12\n"));
    assert_eq!(shape("left 23.8"), shape("left -0.5"));
    assert_ne!(shape("refused 0"), shape("refused 12"));
    assert_ne!(shape("DENIED rule=deny"), shape("DENIED rule=keys"));
    assert_ne!(shape("127.0.0.1:9920"), shape("127.0.0.1:9921"));
}

#[test]
fn the_readmes_configuration_is_as_it_says() -> Result<()> {
    let readme = document("../README.md")?;
    let (_, rest) = readme.split_once("\n```toml\n").context("no configuration")?;
    let text = rest.split("\n```").next().unwrap_or_default();
    let place = std::env::temp_dir().join(format!("readme-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let check = |text: &str| -> Result<(bool, String)> {
        std::fs::write(place.join("gate.toml"), text)?;
        let output = Command::new(paths::gate()).args(["check", "gate.toml"]).current_dir(&place).output()?;
        Ok((output.status.success(), String::from_utf8(output.stderr)?))
    };
    let valid = check(text);
    let faulty = check(&text.replacen("5000 RU/s", "5000/s", 1));
    std::fs::remove_dir_all(&place)?;
    ensure!(valid?.0);
    let (is_valid, said) = faulty?;
    ensure!(!is_valid && readme.contains(&format!("\n{}\n", said.trim_end())), "{said}");
    Ok(())
}
