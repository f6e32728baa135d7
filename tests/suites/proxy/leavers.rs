//! Clients that leave while their requests wait: those that are gone are let go whatever the store does, and those that have only ended
//! their own side get what the store itself would give them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
/// Longer than any test waits: nothing but that its client has left lets a client go.
const PATIENT: &str = "store_timeout = \"120s\"\nslow_timeout = \"120s\"";
const CLIENTS: usize = 24;

fn resp(words: &[&[u8]]) -> Vec<u8> {
    let words = words.iter().map(|word| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat());
    [format!("*{}\r\n", words.len()).into_bytes(), words.collect::<Vec<_>>().concat()].concat()
}

/// Has the client's end of a connection tell gate that it is gone, whatever is unread.
fn reset(client: TcpStream) -> Result<()> {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    Ok(setsockopt(&client.as_fd(), sockopt::Linger, &at_once)?)
}

/// The open connections of clients, by gate's own count; and its sockets.
fn held(gate: &mut Listening) -> Result<(u64, usize)> {
    let clients = gate.json(&["queues"])?["services"][0]["store"]["clients"].as_u64().context("no count")?;
    let files = std::fs::read_dir(Path::new("/proc").join(gate.program().id().to_string()).join("fd"))?;
    let sockets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    Ok((clients, sockets.filter(|at| at.to_string_lossy().starts_with("socket:")).count()))
}

/// The words of clients before the store is stopped, its answer, and the words that follow.
type Scene = (&'static str, Vec<u8>, &'static [u8], Vec<u8>);

/// Each scene's clients reset their connections while the store is stopped, for longer than the test lasts.
fn all_are_let_go(protocol: &str, store: &Listening, scenes: &[Scene]) -> Result<()> {
    let mut gate = Listening::gate_with("threads = \"2\"", protocol, store.address, PATIENT, EVERYONE)?;
    for (name, before, answer, request) in scenes {
        let mut clients = (0..CLIENTS).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
        for client in &mut clients {
            client.write_all(before)?;
            read_until(client, answer)?;
        }
        wait_until("not all are in", || Ok(held(&mut gate)?.0 == CLIENTS as u64))?;
        // Some are left over to the stopped store: those are its connections to gate.
        let (_, open) = held(&mut gate)?;
        store.stall()?;
        for client in &mut clients {
            client.set_nonblocking(true)?;
            // What does not fit into the socket stays unsaid.
            let _ = client.write(request)?;
        }
        // One that stays has its requests at the store, or behind it.
        let mut stays = clients.pop().context("no client")?;
        clients.into_iter().try_for_each(reset)?;
        let left = || -> Result<bool> {
            let (clients, sockets) = held(&mut gate)?;
            Ok(clients == 1 && sockets + CLIENTS / 2 < open)
        };
        let gone = wait_until("clients that are gone hold their sockets", left);
        store.signal(Signal::SIGCONT)?;
        gone.with_context(|| format!("{protocol}: {name}"))?;
        stays.set_nonblocking(false)?;
        stays.shutdown(Shutdown::Write)?;
        // Whatever the store says to it, it is served to its end.
        let _ = stays.read_to_end(&mut Vec::new());
        wait_until("the last one is still there", || Ok(held(&mut gate)?.0 == 0))?;
    }
    Ok(())
}

#[test]
fn clients_of_redis_that_reset_are_let_go_at_once() -> Result<()> {
    let store = Listening::redis()?;
    let none: &[u8] = b"";
    let get = resp(&[b"GET", b"a"]);
    let scene = |name, request: Vec<u8>| (name, Vec::new(), none, request);
    all_are_let_go(
        "resp",
        &store,
        &[
            scene("a read", get.clone()),
            scene("a write", resp(&[b"SET", b"a", b"1"])),
            scene("a pipeline", get.repeat(3_000)),
            scene("a slow read", resp(&[b"SMEMBERS", b"s"])),
            scene("a script", resp(&[b"EVAL", b"return 1", b"0"])),
            scene("a blocking read", resp(&[b"BLPOP", b"q", b"0"])),
            scene("a subscription", resp(&[b"SUBSCRIBE", b"c"])),
            scene("a login", resp(&[b"AUTH", b"alice", b"secret"])),
            scene("another database", [resp(&[b"SELECT", b"3"]), get.clone()].concat()),
            scene("a long value", resp(&[b"SET", b"a", &[b'v'; 300_000]])),
            ("a transaction", resp(&[b"MULTI"]), b"+OK\r\n", [get, resp(&[b"EXEC"])].concat()),
            ("more of one", resp(&[b"SUBSCRIBE", b"c"]), b":1\r\n", resp(&[b"SUBSCRIBE", b"d"])),
        ],
    )
}

#[test]
fn clients_of_memcached_that_reset_are_let_go_at_once() -> Result<()> {
    let store = Listening::memcached()?;
    let scene = |name, request: Vec<u8>| -> Scene { (name, Vec::new(), b"", request) };
    let long = [&b"set a 0 0 300000\r\n"[..], &[b'v'; 300_000], b"\r\n"].concat();
    all_are_let_go(
        "memcached",
        &store,
        &[
            scene("a read", b"get a\r\n".to_vec()),
            scene("a write", b"set a 0 0 1\r\n1\r\n".to_vec()),
            scene("a pipeline", b"get a\r\nset b 0 0 1\r\n1\r\n".repeat(2_000)),
            scene("a long value", long),
        ],
    )
}

/// Requests that wait at a service, all tiers together.
fn queued(gate: &Listening) -> Result<u64> {
    let service = gate.json(&["queues"])?["services"][0].clone();
    let tiers = service["tiers"].as_array().context("no tiers")?;
    tiers.iter().map(|tier| tier["waiting"].as_u64().context("no count")).sum()
}

#[test]
fn requests_of_clients_that_reset_leave_the_queue_at_once() -> Result<()> {
    let store = Listening::redis()?;
    let service = format!(
        "parallelism = \"1\"\nhot_keys.cache = \"off\"\nadmission = \"off\"\ncodel = {{ target = \"60s\" }}\n{PATIENT}"
    );
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, &service, EVERYONE)?;
    let ask = |request: &[u8]| -> Result<TcpStream> {
        let mut client = gate.connect()?;
        client.write_all(request)?;
        Ok(client)
    };
    gate.ask(&resp(&[b"SET", b"a", b"1"]), b"+OK\r\n")?;
    store.stall()?;
    let _first = ask(&resp(&[b"GET", b"first"]))?;
    // One that stays is before those that leave, and one behind.
    let mut stays = vec![ask(&resp(&[b"GET", b"a"]))?];
    wait_until("it does not wait", || Ok(queued(&gate)? == 1))?;
    let leaves = (0..20).map(|_| ask(&resp(&[b"INCR", b"n"]).repeat(3))).collect::<Result<Vec<_>>>()?;
    wait_until("they do not wait", || Ok(queued(&gate)? == 61))?;
    stays.push(ask(&resp(&[b"GET", b"a"]))?);
    wait_until("the last does not wait", || Ok(queued(&gate)? == 62))?;
    let mut half_closed = Vec::new();
    for (number, client) in leaves.into_iter().enumerate() {
        if number % 2 == 0 {
            reset(client)?;
        } else {
            // It may still read.
            client.shutdown(Shutdown::Write)?;
            half_closed.push(client);
        }
    }
    wait_until("their requests wait on", || Ok(queued(&gate)? == 32))?;
    store.signal(Signal::SIGCONT)?;
    for client in &mut stays {
        ensure!(read_until(client, b"1\r\n1\r\n")? == b"$1\r\n1\r\n");
    }
    for mut client in half_closed {
        let mut said = String::new();
        client.read_to_string(&mut said)?;
        ensure!(said.lines().count() == 3 && said.lines().all(|line| line.starts_with(':')), "{said}");
    }
    let said = gate.ask(&resp(&[b"GET", b"n"]), b"30\r\n")?;
    ensure!(said == b"$2\r\n30\r\n", "requests of clients that left were sent: {}", shown(&said));
    Ok(())
}

/// All that a server says to a client that sends this and ends its side.
fn half_closed(server: &Listening, asked: &[u8]) -> Result<Vec<u8>> {
    let mut client = server.connect()?;
    client.write_all(asked)?;
    client.shutdown(Shutdown::Write)?;
    let mut said = Vec::new();
    client.read_to_end(&mut said)?;
    Ok(said)
}

#[test]
fn half_closed_clients_get_the_answers_that_redis_gives() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let busy: &[u8] = b"local t = redis.call('TIME') local e = t[1] * 1000000 + t[2] + 300000 repeat \
                        t = redis.call('TIME') until t[1] * 1000000 + t[2] > e return 'done'";
    let busy = resp(&[b"EVAL", busy, b"0"]);
    let transaction = [resp(&[b"MULTI"]), resp(&[b"SET", b"k", b"v"]), resp(&[b"EXEC"])].concat();
    let get = resp(&[b"GET", b"k"]);
    for (name, asked) in [
        ("reads", get.repeat(100)),
        ("what takes long", [&busy[..], &get].concat()),
        ("a transaction", [&transaction[..], &get].concat()),
        ("one that takes long", [resp(&[b"MULTI"]), busy.clone(), resp(&[b"EXEC"]), get.clone()].concat()),
        ("one without end", [resp(&[b"MULTI"]), get.clone()].concat()),
        (
            "a blocking read of what is there",
            [resp(&[b"RPUSH", b"q", b"1"]), resp(&[b"BLPOP", b"q", b"0"])].concat(),
        ),
        ("a blocking read", [get.clone(), resp(&[b"BLPOP", b"none", b"0"])].concat()),
        ("a subscription", [get.clone(), resp(&[b"SUBSCRIBE", b"c", b"d"])].concat()),
        ("a long value", [resp(&[b"SET", b"long", &[b'v'; 300_000]]), get.clone()].concat()),
        ("half a value", [&get[..], b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$10\r\nhalf"].concat()),
        ("another database", [resp(&[b"SELECT", b"3"]), get.clone()].concat()),
    ] {
        let directly = half_closed(&store, &asked).with_context(|| name.to_owned())?;
        for _ in 0..3 {
            let through = half_closed(&gate, &asked).with_context(|| name.to_owned())?;
            ensure!(through == directly, "{name}: {} instead of {}", shown(&through), shown(&directly));
        }
    }
    Ok(())
}
