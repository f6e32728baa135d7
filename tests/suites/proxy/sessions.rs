//! Commands that change a client's session (user, database, protocol version) happen as the store says, or nothing behind them does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

mod busy;
mod gone;
mod random;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const POOR: &str =
    "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"200 RU/s\"\nburst = \"20ms\"";

fn ask(client: &mut TcpStream, request: &str) -> Result<String> {
    client.write_all(request.as_bytes())?;
    Ok(String::from_utf8(read_until(client, b"\r\n")?)?)
}

/// Everything up to the end of the connection.
fn rest(client: &mut TcpStream) -> Result<String> {
    let mut said = Vec::new();
    client.read_to_end(&mut said)?;
    Ok(String::from_utf8(said)?)
}

fn add_user(store: &Listening, user: &str, password: &str) -> Result<()> {
    store.ask(format!("ACL SETUSER {user} reset on >{password} ~* &* +@all\r\n").as_bytes(), b"+OK\r\n")?;
    Ok(())
}

/// How often the store has refused a login.
fn failed_logins(store: &Listening) -> Result<u64> {
    let said = String::from_utf8(store.ask(b"INFO commandstats\r\nECHO end\r\n", b"end\r\n")?)?;
    let logins = said.lines().find(|line| line.starts_with("cmdstat_auth:"));
    Ok(logins
        .and_then(|logins| logins.split_once("failed_calls="))
        .map_or("0", |(_, failed)| failed)
        .parse()?)
}

#[test]
fn session_commands_are_not_refused_for_quota() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    let gate = Listening::gate("resp", store.address, "", POOR)?;
    let mut refused = 0;
    for round in 0..60 {
        gate.connect()?.write_all(&b"PING\r\n".repeat(8))?;
        let mut client = gate.connect()?;
        let command = ["SELECT 7", "AUTH alice a-secret", "RESET", "CLIENT SETNAME me"][round % 4];
        let said = ask(&mut client, &format!("{command}\r\n"))?;
        ensure!(said == "+OK\r\n" || said == "+RESET\r\n", "{command}: {said}");
        if command == "SELECT 7" {
            let said = ask(&mut client, &format!("SET k{round} 1\r\n"))?;
            refused += usize::from(said.contains("reason=quota"));
        }
    }
    ensure!(refused > 0, "nothing was refused: the quota is not spent");
    let said = store.ask(b"DBSIZE\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn who_waits_goes_by_a_quota_that_is_changed_meanwhile() -> Result<()> {
    let store = Listening::redis()?;
    let quota = "quota = \"0.02 RU/s\"\nburst = \"50s\"\nmax_debt = \"100s\"";
    let gate = Listening::gate("resp", store.address, "", &EVERYONE.replace("quota = \"unlimited\"", quota))?;
    let mut client = gate.connect()?;
    // The burst, and then debts as large as may be: the last waits for 50 s.
    client.write_all((["SELECT 1\r\n"; 4].concat() + "ECHO end\r\n").as_bytes())?;
    let mut said = read_until(&mut client, &b"+OK\r\n".repeat(3))?;
    let set = gate.command(&["set", "tenant.all.quota", "unlimited"])?;
    ensure!(set.status.success(), "{set:?}");
    said.extend(read_until(&mut client, b"end\r\n")?);
    ensure!(said == b"+OK\r\n+OK\r\n+OK\r\n+OK\r\n$3\r\nend\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn what_is_behind_a_refused_session_command_is_refused() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "store_timeout = \"300ms\"", EVERYONE)?;
    for command in ["SELECT 7", "HELLO 3", "AUTH alice a-secret", "RESET"] {
        let mut client = gate.connect()?;
        // Its thread may have been connecting when the store stopped, or for as long as that takes.
        wait_until("it is not served", || Ok(ask(&mut client, "GET a\r\n")? == "$-1\r\n"))?;
        store.stall()?;
        client.write_all(format!("{command}\r\nSET a 1\r\nMULTI\r\nSET b 1\r\nEXEC\r\n").as_bytes())?;
        let said = rest(&mut client)?;
        store.signal(Signal::SIGCONT)?;
        let lines: Vec<&str> = said.lines().collect();
        let is_refusal =
            |line: &&str| line.starts_with("-UNAVAILABLE ") && line.ends_with(" reason=store-down");
        ensure!(lines.len() == 5 && lines.iter().all(is_refusal), "{command}: {said}");
    }
    wait_until("it is not served again", || Ok(ask(&mut gate.connect()?, "GET a\r\n")? == "$-1\r\n"))?;
    let said = store.ask(b"DBSIZE\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_transaction_behind_a_refused_watch_does_not_run() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate(
        "resp",
        store.address,
        "",
        &POOR.replace("200 RU/s", "10 RU/s").replace("20ms", "1s"),
    )?;
    let mut client = gate.connect()?;
    client.write_all((["PING\r\n"; 30].concat() + "WATCH a\r\n").as_bytes())?;
    let mut said = String::new();
    while said.lines().count() < 31 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let said = format!("{}\r\n", said.lines().nth(30).unwrap_or_default());
    ensure!(said.starts_with("-THROTTLED "), "{said}");
    let refused_at = Instant::now();
    wait_until("the bucket is full again", || Ok(refused_at.elapsed() > Duration::from_millis(1_500)))?;
    let transaction = "GET a\r\nMULTI\r\nSET a 1\r\nEXEC\r\nECHO end\r\n";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let echoed = "$3\r\nend\r\n";
    client.write_all(transaction.as_bytes())?;
    let refused = String::from_utf8(read_until(&mut client, echoed.as_bytes())?)?;
    ensure!(refused == format!("$-1\r\n{said}{said}{aborted}{echoed}"), "{refused}");
    // It was this one alone.
    wait_until("no transaction runs", || {
        client.write_all(transaction.as_bytes())?;
        let said = read_until(&mut client, echoed.as_bytes())?;
        Ok(said.ends_with(b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$3\r\nend\r\n"))
    })
}

#[test]
fn only_the_clients_own_credentials_decide_its_login() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    for database in ["0", "9"] {
        add_user(&store, "alice", "old")?;
        let mut client = gate.connect()?;
        ensure!(ask(&mut client, "AUTH alice old\r\n")? == "+OK\r\n");
        ensure!(ask(&mut client, &format!("SELECT {database}\r\n"))? == "+OK\r\n");
        ensure!(ask(&mut client, "SET k 1\r\n")? == "+OK\r\n");
        store.ask(b"ACL SETUSER alice resetpass >new\r\n", b"+OK\r\n")?;
        let said = ask(&mut client, "AUTH alice new\r\n")?;
        ensure!(said == "+OK\r\n", "database {database}: {said}");
        client.write_all(b"ACL WHOAMI\r\nGET k\r\n")?;
        let said = String::from_utf8(read_until(&mut client, b"\r\n1\r\n")?)?;
        ensure!(said == "$5\r\nalice\r\n$1\r\n1\r\n", "database {database}: {said}");
    }
    for before in ["PING", "SELECT 9", "HELLO 3", "CLIENT SETNAME n"] {
        let mut client = gate.connect()?;
        client.write_all(format!("{before}\r\nECHO behind\r\n").as_bytes())?;
        read_until(&mut client, b"behind\r\n")?;
        store.ask(b"CONFIG SET requirepass m\r\n", b"+OK\r\n")?;
        let said = ask(&mut client, "AUTH m\r\n")?;
        ensure!(said == "+OK\r\n", "behind {before}: {said}");
        store.ask(b"AUTH m\r\nCONFIG SET requirepass \"\"\r\n", b"+OK\r\n+OK\r\n")?;
    }
    Ok(())
}

#[test]
fn a_failed_login_is_one_failed_login_at_the_store() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    let mut shared = gate.connect()?;
    let mut dedicated = gate.connect()?;
    ensure!(ask(&mut dedicated, "WATCH a\r\n")? == "+OK\r\n");
    // So that connections are kept for the next one.
    ensure!(ask(&mut shared, "AUTH alice a-secret\r\n")? == "+OK\r\n");
    for client in [&mut shared, &mut dedicated] {
        let before = failed_logins(&store)?;
        let said = ask(client, "AUTH alice wrong\r\n")?;
        ensure!(said.starts_with("-WRONGPASS"), "{said}");
        // The store has seen all that gate asks when it has answered this.
        ask(client, "PING\r\n")?;
        let asked = failed_logins(&store)? - before;
        ensure!(asked == 1, "{asked} logins for one");
    }
    let hello = "HELLO 3\r\nSUBSCRIBE c\r\n";
    for (begin, end) in [("MULTI\r\n", "EXEC\r\n"), (hello, ""), ("MULTI\r\n", "DISCARD\r\n")] {
        let before = failed_logins(&store)?;
        let mut client = gate.connect()?;
        client.write_all(format!("{begin}AUTH alice wrong\r\n{end}ECHO the-end\r\n").as_bytes())?;
        let said = String::from_utf8(read_until(&mut client, b"the-end\r\n")?)?;
        let asked = failed_logins(&store)? - before;
        ensure!(asked == u64::from(end != "DISCARD\r\n"), "{asked} logins for one: {said}");
        let whoami = ask(&mut client, "ACL WHOAMI\r\n")?;
        ensure!(whoami.starts_with("$7\r\n"), "{whoami}");
    }
    Ok(())
}

#[test]
fn replies_that_a_client_wants_again_are_those_of_its_requests() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    store.ask(b"ACL SETUSER bob reset on >a-secret ~* &* +@all -client\r\n", b"+OK\r\n")?;
    let of_alice =
        "[[tenant]]\nname = \"a\"\nusers = [\"alice\"]\nquota = \"unlimited\"\ndeny = [\"FLUSHALL\"]";
    let gate = Listening::gate("resp", store.address, "", &format!("{EVERYONE}\n{of_alice}"))?;
    let silence = "CLIENT REPLY OFF\r\nINCR n\r\nMULTI\r\nINCR n\r\nEXEC\r\nCLIENT REPLY ON\r\n";
    for begin in ["CLIENT REPLY ON\r\n", silence, &format!("GET x\r\n{silence}")] {
        let before = failed_logins(&store)?;
        let mut client = gate.connect()?;
        let failed = "AUTH alice wrong\r\nACL WHOAMI\r\nFLUSHALL\r\n";
        let logged_in = "AUTH alice a-secret\r\nACL WHOAMI\r\nFLUSHALL\r\nECHO the-end\r\n";
        client.write_all(format!("{begin}{failed}{logged_in}").as_bytes())?;
        let said = String::from_utf8(read_until(&mut client, b"the-end\r\n")?)?;
        let said = said.trim_start_matches("$-1\r\n");
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
        let expected = format!(
            "+OK\r\n{wrong}$7\r\ndefault\r\n+OK\r\n+OK\r\n$5\r\nalice\r\n-ERR unknown command 'DENIED"
        );
        ensure!(said.starts_with(&expected), "{begin}: {said}");
        let asked = failed_logins(&store)? - before;
        ensure!(asked == 1, "{asked} logins for one");
    }
    // bob may not be silent. His answers are not taken for those to a login.
    let mut client = gate.connect()?;
    let asked = "AUTH bob a-secret\r\nCLIENT REPLY OFF\r\nSET a 1\r\nCLIENT REPLY ON\r\nAUTH alice wrong\r\nFLUSHALL\r\nACL WHOAMI\r\n";
    client.write_all(asked.as_bytes())?;
    let said = String::from_utf8(read_until(&mut client, b"bob\r\n")?)?;
    let starts = ["+OK", "-NOPERM", "+OK", "-NOPERM", "-", "+OK", "$3", "bob"];
    let is_so = said.lines().zip(starts).all(|(line, start)| line.starts_with(start));
    ensure!(is_so && said.lines().count() == starts.len(), "{said}");
    Ok(())
}

#[test]
fn a_login_in_a_transaction_counts_once_that_has_run() -> Result<()> {
    let store = Listening::redis()?;
    ["alice", "bob", "carol"].iter().try_for_each(|user| add_user(&store, user, "a-secret"))?;
    let of_bob = "[[tenant]]\nname = \"b\"\nusers = [\"bob\"]\nquota = \"unlimited\"\ndeny = [\"FLUSHALL\"]";
    let gate = Listening::gate("resp", store.address, "", &format!("{EVERYONE}\n{of_bob}"))?;
    let mut client = gate.connect()?;
    let as_alice = "MULTI\r\nAUTH alice wrong\r\nHGETALL a\r\nAUTH carol a-secret\r\nAUTH alice a-secret\r\nEXEC\r\nACL WHOAMI\r\n";
    client.write_all(as_alice.as_bytes())?;
    let said = String::from_utf8(read_until(&mut client, b"alice\r\n")?)?;
    ensure!(
        said.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n-WRONGPASS"),
        "{said}"
    );
    // bob is another tenant's, who may not do what is behind.
    client.write_all(b"MULTI\r\nAUTH bob a-secret\r\nFLUSHALL\r\nEXEC\r\nACL WHOAMI\r\nAUTH bob a-secret\r\nFLUSHALL\r\nACL WHOAMI\r\n")?;
    let said = String::from_utf8(read_until(&mut client, b"bob\r\n")?)?;
    let replies: Vec<&str> = said.lines().collect();
    ensure!(
        replies[1].starts_with("-ERR unknown command 'DENIED") && replies[3].starts_with("-EXECABORT"),
        "{said}"
    );
    ensure!(replies[5] == "alice" && replies[6] == "+OK" && replies[7].contains("DENIED"), "{said}");
    Ok(())
}

#[test]
fn a_login_that_fails_in_its_middle_ends_its_client() -> Result<()> {
    let store = Listening::redis()?;
    add_user(&store, "alice", "a-secret")?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    for before in ["GET a", "WATCH a"] {
        for behind in ["BAD", "SETNAME", "SETNAME \"a b\"", "AUTH alice wrong"] {
            let mut client = gate.connect()?;
            let hello = format!("{before}\r\nHELLO 3 AUTH alice a-secret {behind}\r\nSET a 1\r\n");
            client.write_all(hello.as_bytes())?;
            let said = rest(&mut client)?;
            let last = said.lines().last().unwrap_or_default();
            ensure!(said.lines().count() == 2 && last.starts_with("-ERR gate takes a login"), "{said}");
        }
    }
    let said = store.ask(b"DBSIZE\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_full_store_says_so_to_clients_that_need_a_connection() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    let mut admin = store.connect()?;
    ensure!(ask(&mut gate.connect()?, "PING\r\n")? == "+PONG\r\n");
    ensure!(ask(&mut admin, "CONFIG SET maxclients 12\r\n")? == "+OK\r\n");
    let full = "-ERR max number of clients reached\r\n";
    let mut held = Vec::new();
    for request in ["WATCH a", "MULTI", "SUBSCRIBE c", "BLPOP l 1", "SELECT 3"] {
        // One that is let in holds what one of gate's own questions has left.
        loop {
            let mut client = gate.connect()?;
            let said = ask(&mut client, &format!("{request}\r\n"))?;
            if said == full {
                break;
            }
            ensure!(!said.starts_with('-') && held.len() < 40, "{request}: {said}");
            held.push(client);
        }
    }
    let said = ask(&mut gate.connect()?, "GET a\r\n")?;
    ensure!(said == "$-1\r\n", "{said}");
    Ok(())
}

#[test]
fn a_lost_connection_refuses_no_read_and_ends_no_client() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let mut admin = store.connect()?;
    let mut clients = (0..8).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        ensure!(ask(client, "GET a\r\n")? == "$-1\r\n");
    }
    for round in 0..60_u64 {
        admin.write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")?;
        read_until(&mut admin, b"\r\n")?;
        thread::park_timeout(Duration::from_millis([0, 1, 5, 0, 0, 30][round as usize % 6]));
        for client in &mut clients {
            let said = ask(client, "GET a\r\n")?;
            ensure!(said == "$-1\r\n", "round {round}: {said}");
        }
        // Also those that are closed as soon as they are there, or before.
        let in_a_row = if round % 5 == 0 { 6 } else { 0 };
        for _ in 0..in_a_row {
            admin.write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")?;
            read_until(&mut admin, b"\r\n")?;
        }
        if round % 10 == 0 {
            let said = ask(&mut gate.connect()?, "SELECT 3\r\n")?;
            ensure!(said == "+OK\r\n", "round {round}: {said}");
        }
    }
    Ok(())
}

#[test]
fn a_slow_command_costs_no_other_client_its_answer() -> Result<()> {
    let store = Listening::redis()?;
    let service = "store_timeout = \"300ms\"\nslow_timeout = \"10s\"";
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, service, EVERYONE)?;
    let script = "EVAL \"local t = redis.call('TIME'); local e = t[1] * 1000 + t[2] / 1000 + 1200; \
                  repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > e; return 7\" 0\r\n";
    let mut others = (0..8).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for (slow, end) in [(script.to_owned(), ":7\r\n"), (format!("MULTI\r\n{script}EXEC\r\n"), "*1\r\n:7\r\n")]
    {
        let mut client = gate.connect()?;
        client.write_all(slow.as_bytes())?;
        wait_until("the store is not busy", || {
            let mut direct = store.connect()?;
            direct.set_read_timeout(Some(Duration::from_millis(20)))?;
            direct.write_all(b"PING\r\n")?;
            Ok(direct.read(&mut [0; 7]).is_err())
        })?;
        for (number, other) in others.iter_mut().enumerate() {
            // One of them needs a connection of its own, and one a new identity.
            let request = ["INCR n\r\n", "GET a\r\n", "SELECT 3\r\n", "WATCH a\r\n"][number % 4];
            other.write_all(request.as_bytes())?;
        }
        for (number, other) in others.iter_mut().enumerate() {
            let said = String::from_utf8(read_until(other, b"\r\n")?)?;
            ensure!(!said.starts_with('-'), "{number} behind {slow:?}: {said}");
        }
        read_until(&mut client, end.as_bytes())?;
    }
    Ok(())
}
