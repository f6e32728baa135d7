//! `gate run`: attach to an interface and protect.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ipnet::IpNet;

use crate::config;
use crate::daemon::{self, Options};
use crate::logging;

/// Attach to an interface and protect the configured services, until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The configuration (`gate check FILE` says whether it is valid).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Attach to this interface rather than to the configuration's; can be given several times.
    #[arg(long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Pin maps and link here rather than where the configuration says.
    #[arg(long, value_name = "DIR")]
    pin_dir: Option<PathBuf>,
    /// Take over from a gate that runs already, without an unprotected moment; it serves the clients that it has to
    /// their end (`drain`).
    #[arg(long)]
    takeover: bool,
    /// Print each step of the packets of this source, an address or a prefix, through the XDP program. At most 100
    /// packets a second are traced.
    #[arg(long, value_name = "SOURCE", value_parser = config::prefix)]
    trace: Option<IpNet>,
}

const EXAMPLES: &str = "\
Examples:
  gate run --config gate.toml                    protect what gate.toml says
  gate run --config gate.toml --interface eth1   at this interface
  gate run --config gate.toml --takeover         upgrade a running gate
  gate run --config gate.toml --takeover --trace 10.1.2.3
      what becomes of that client's packets, until the next takeover

Signals: SIGTERM serves the clients of proxied services to their end (`drain`), then detaches; a second one, or
SIGINT, ends at once. SIGHUP reads the configuration again; SIGUSR1 starts the program that is
installed now, which takes over; SIGUSR2 hands over.

Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let _log = logging::start()?;
    end_on_panic();
    let Args { config, interfaces, pin_dir, takeover, trace } = args;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(daemon::run(Options { config, interfaces, pin_dir, takeover, trace }))?;
    Ok(ExitCode::SUCCESS)
}

/// A panic in a task would leave its clients without an answer, and one in a thread the others without it: the whole
/// process ends, with the panic's message, and whoever supervises it starts another. Where nobody reads standard error
/// the message is lost after a while, and the process ends all the same.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let abort_later = || {
            std::thread::sleep(PANIC_MESSAGE);
            std::process::abort()
        };
        // Without a thread the message is waited for.
        let _ = std::thread::Builder::new().name("panic".to_owned()).spawn(abort_later);
        logging::flush();
        print(panic);
        let _ = writeln!(io::stderr(), "gate: ended by a panic; XDP goes on with what is in the maps");
        std::process::abort();
    }));
}

/// How long a panic's message may take: longer than the log's last lines do.
const PANIC_MESSAGE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "GATE_TEST_PANICS";

    #[test]
    fn a_panic_in_a_task_ends_the_process_with_its_message() {
        if std::env::var_os(CHILD).is_some() {
            end_on_panic();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let _ = tokio::task::spawn_local(async { panic!("of no use") }).await;
            });
            unreachable!("it has ended");
        }
        let name = "a_panic_in_a_task_ends_the_process_with_its_message";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("of no use") && said.contains("ended by a panic"), "{said}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGABRT));
    }
}
