//! gate's own store, asked by the tools of Redis: directly, and through gate.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::Listening;
use gate_userspace::load::{self, Plan, Protocol, Transport};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// The store itself, and a gate before it.
fn both() -> Result<[Listening; 2]> {
    let store = Listening::embedded("resp")?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    Ok([store, gate])
}

/// The output of a tool of Redis.
fn printed(tool: &str, server: &Listening, arguments: &[&str]) -> Result<String> {
    let host = server.address.ip().to_string();
    let port = server.address.port().to_string();
    let output = Command::new(tool).args(["-h", &host, "-p", &port]).args(arguments).output()?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(
        output.status.success(),
        "{tool} {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}

#[test]
fn redis_cli_reads_and_writes() -> Result<()> {
    for server in &both()? {
        for (arguments, expected) in [
            (&["PING"][..], "PONG\n"),
            (&["SET", "a", "one two"], "OK\n"),
            (&["GET", "a"], "one two\n"),
            (&["-3", "MGET", "a", "none"], "one two\n\n"),
            (&["DEL", "a", "none"], "1\n"),
            (&["GET", "a"], "\n"),
            (&["LPUSH", "a", "b"], "ERR unknown command 'lpush'\n\n"),
        ] {
            let said = printed("redis-cli", server, arguments)?;
            ensure!(said == expected, "{arguments:?}: {said:?}, not {expected:?}");
        }
        let info = printed("redis-cli", server, &["INFO"])?;
        ensure!(info.contains("cluster_enabled:0"), "{info}");
    }
    Ok(())
}

#[test]
fn redis_benchmark_is_served() -> Result<()> {
    for server in &both()? {
        for pipelined in ["1", "16"] {
            let said = printed(
                "redis-benchmark",
                server,
                &["-t", "get,set", "-n", "20000", "-c", "20", "-P", pipelined, "--csv"],
            )?;
            let rates: Vec<_> =
                said.lines().filter_map(|line| line.strip_prefix('"')?.split_once("\",\"")).collect();
            for operation in ["SET", "GET"] {
                let (_, rest) =
                    rates.iter().find(|(name, _)| *name == operation).with_context(|| said.clone())?;
                let rate: f64 = rest.split('"').next().unwrap_or_default().parse()?;
                ensure!(rate > 0.0, "{said}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_load_generator_is_answered_in_full() -> Result<()> {
    for server in &both()? {
        let tenant = "name=a,rate=2000/s,keys=uniform:50,reads=50%,value=64B,connections=4".parse();
        let plan = Plan {
            target: server.address,
            transport: Transport::Tcp,
            protocol: Protocol::Resp,
            tenants: vec![tenant.map_err(anyhow::Error::msg)?],
            duration: Nanos::from_secs(1),
            count: None,
            timeout: Nanos::from_secs(10),
            seed: 1,
        };
        let tenant = &load::start(&plan)?.finish().tenants[0];
        ensure!(tenant.answered == tenant.offered && tenant.offered > 1_000, "{tenant:?}");
    }
    Ok(())
}
