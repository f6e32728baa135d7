//! The identity of a client of a proxied Redis: to the store, and to gate.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, check, read_until, shown};
use gate_tests::rng::Rng;
use nix::sys::signal::Signal;

/// Everyone is `source`, until it logs in as alice, who is `poor`, or bob, who is `rich`.
const TENANTS: &str = r#"
    [[tenant]]
    name = "source"
    sources = ["127.0.0.0/8"]
    quota = "unlimited"
    [[tenant]]
    name = "poor"
    users = ["alice"]
    quota = "10 RU/s"
    burst = "1s"
    [[tenant]]
    name = "rich"
    users = ["bob"]
    quota = "unlimited"
"#;

/// alice and bob may do everything, carol may read what begins with `c:`.
const USERS: [&str; 3] = [
    "ACL SETUSER alice on >a-secret ~* &* +@all\r\n",
    "ACL SETUSER bob on >b-secret ~* &* +@all\r\n",
    "ACL SETUSER carol on >c-secret ~c:* &* -@all +get +set +strlen +select\r\n",
];

fn store() -> Result<Listening> {
    let store = Listening::redis()?;
    add_users(&store)?;
    Ok(store)
}

fn add_users(store: &Listening) -> Result<()> {
    for user in USERS {
        store.ask(user.as_bytes(), b"+OK\r\n")?;
    }
    Ok(())
}

/// How many of so many requests are refused for the tenant's quota.
fn throttled(stream: &mut TcpStream, requests: usize) -> Result<usize> {
    stream.write_all("STRLEN none\r\n".repeat(requests).as_bytes())?;
    Ok(lines(stream, requests)?.matches("reason=quota").count())
}

/// So many replies of a line each.
fn lines(stream: &mut TcpStream, count: usize) -> Result<String> {
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while said.windows(2).filter(|pair| pair == b"\r\n").count() < count {
        let len = stream.read(&mut piece)?;
        ensure!(len > 0, "closed after {}", shown(&said));
        said.extend_from_slice(&piece[..len]);
    }
    Ok(String::from_utf8(said)?)
}

#[test]
fn requests_are_charged_to_the_tenant_of_the_logged_in_user() -> Result<()> {
    let store = store()?;
    for (login, poor) in [
        ("", false),
        ("AUTH alice a-secret\r\n", true),
        ("AUTH bob b-secret\r\n", false),
        ("AUTH carol c-secret\r\n", false),
        ("AUTH alice a-secret\r\nAUTH bob b-secret\r\n", false),
        ("AUTH bob b-secret\r\nAUTH alice a-secret\r\n", true),
        ("AUTH alice a-secret\r\nRESET\r\n", false),
    ] {
        // Each with buckets of its own.
        let gate = Listening::gate("resp", store.address, "", TENANTS)?;
        let mut stream = gate.connect()?;
        let answers = login.lines().map(|line| if line == "RESET" { "+RESET\r\n" } else { "+OK\r\n" });
        check(&mut stream, login, &answers.collect::<String>())?;
        let refused = throttled(&mut stream, 200)?;
        ensure!((refused > 100) == poor && (refused > 0) == poor, "{login:?}: {refused} refused");
    }
    Ok(())
}

#[test]
fn a_login_on_a_dedicated_connection_is_charged_as_well() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "WATCH b\r\n", "+OK\r\n")?;
    check(&mut stream, "AUTH alice wrong\r\n", WRONG)?;
    check(&mut stream, "AUTH alice a-secret\r\nACL WHOAMI\r\n", "+OK\r\n$5\r\nalice\r\n")?;
    // It is not refused there, but slowed down: 30 requests at 10 a second, of which 10 are saved up.
    let start = Instant::now();
    check(&mut stream, &"GET a\r\n".repeat(30), &"$-1\r\n".repeat(30))?;
    ensure!(start.elapsed().as_millis() > 1_000, "30 requests took {:?}", start.elapsed());
    Ok(())
}

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

#[test]
fn logins_on_dedicated_connections_count_to_max_connections() -> Result<()> {
    let store = store()?;
    let tenants = TENANTS.replace("users = [\"alice\"]", "users = [\"alice\"]\nmax_connections = \"1\"");
    let gate = Listening::gate("resp", store.address, "", &tenants)?;
    let mut first = gate.connect()?;
    let mut second = gate.connect()?;
    check(&mut first, "AUTH alice a-secret\r\n", "+OK\r\n")?;
    check(&mut second, "UNWATCH\r\n", "+OK\r\n")?;
    second.write_all(b"AUTH alice a-secret\r\n")?;
    let mut said = String::new();
    second.read_to_string(&mut said)?;
    ensure!(said.ends_with("reason=limit\r\n"), "{said}");
    check(&mut first, "STRLEN none\r\n", ":0\r\n")
}

#[test]
fn a_failed_login_changes_nothing_and_costs_a_request() -> Result<()> {
    let store = store()?;
    let tenants = TENANTS.replace("10 RU/s", "1 RU/s").replace("burst = \"1s\"", "burst = \"10s\"");
    let gate = Listening::gate("resp", store.address, "", &tenants)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "SET a 1\r\nAUTH alice wrong\r\nGET a\r\n", &format!("+OK\r\n{WRONG}$1\r\n1\r\n"))?;
    check(
        &mut stream,
        "AUTH wrong\r\n",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n",
    )?;
    ensure!(throttled(&mut stream, 100)? == 0, "the name alone made it alice");
    check(&mut stream, "AUTH alice a-secret\r\n", "+OK\r\n")?;
    stream.write_all(&b"AUTH alice wrong\r\n".repeat(25))?;
    let said = lines(&mut stream, 25)?;
    // A login is never refused for what was spent, but it is paid for.
    ensure!(said == WRONG.repeat(25), "{said}");
    stream.write_all(b"STRLEN none\r\n")?;
    let said = lines(&mut stream, 1)?;
    ensure!(said.starts_with("-THROTTLED "), "so many logins leave no debt: {said}");
    Ok(())
}

#[test]
fn unknown_sources_may_log_in_and_have_one_guess() -> Result<()> {
    let store = store()?;
    let tenants = TENANTS.replace("127.0.0.0/8", "192.0.2.0/24");
    let gate = Listening::gate("resp", store.address, "", &tenants)?;
    let unknown = "-NOAUTH Authentication required. reason=unknown-source rule=users\r\n";
    let mut stream = gate.connect()?;
    check(&mut stream, "GET a\r\nHELLO 2\r\nAUTH carol c-secret\r\n", &unknown.repeat(3))?;
    check(&mut stream, "AUTH bob b-secret\r\nGET a\r\n", "+OK\r\n$-1\r\n")?;
    let mut stream = gate.connect()?;
    check(&mut stream, "AUTH bob wrong\r\nAUTH bob b-secret\r\n", WRONG)?;
    ensure!(stream.read(&mut [0; 1])? == 0, "it may guess on");
    Ok(())
}

#[test]
fn databases_and_protocol_versions_have_pools_of_their_own() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", TENANTS)?;
    let mut clients = (0..40).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for (number, client) in clients.iter_mut().enumerate() {
        let database = number % 4;
        check(client, &format!("SELECT {database}\r\nSET k {database}\r\n"), "+OK\r\n+OK\r\n")?;
        if number % 8 >= 4 {
            client.write_all(b"HELLO 3 AUTH bob b-secret SETNAME me\r\n")?;
            let said = read_until(client, b"$7\r\nmodules\r\n*0\r\n")?;
            ensure!(said.starts_with(b"%7\r\n"), "{}", shown(&said));
        }
        // What libraries say of themselves, which this store does not know.
        for greeting in ["SETINFO LIB-NAME me", "MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip"] {
            client.write_all(format!("CLIENT {greeting}\r\n").as_bytes())?;
            let said = read_until(client, b"\r\n")?;
            ensure!(said.starts_with(b"-ERR unknown subcommand"), "{}", shown(&said));
        }
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let nil = if number % 8 >= 4 { "_\r\n" } else { "$-1\r\n" };
        check(client, "GET k\r\nGET none\r\n", &format!("$1\r\n{}\r\n{nil}", number % 4))?;
    }
    // Eight pools of five, the one of this connection, and one that stays ready.
    let said = store.ask(b"CLIENT LIST\r\n", b"\n\r\n")?;
    let connections = String::from_utf8_lossy(&said).matches(" addr=").count();
    ensure!((40..45).contains(&connections), "{connections} connections");
    // Nor did sixty changes cost connections.
    let said = store.ask(b"INFO stats\r\nECHO end\r\n", b"end\r\n")?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let made = said.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    let made: u32 = made.unwrap_or_default().parse()?;
    ensure!(made < 59, "{made} connections in all");
    // What needs a connection of its own is who the client is, on its database, by its name.
    let client = &mut clients[5];
    check(client, "MULTI\r\nGET k\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n")?;
    check(client, "CLIENT GETNAME\r\nACL WHOAMI\r\n", "$2\r\nme\r\n$3\r\nbob\r\n")?;
    check(client, "GET none\r\nSELECT 2\r\nGET k\r\n", "_\r\n+OK\r\n$1\r\n2\r\n")?;
    let refused = "-ERR DB index is out of range\r\n";
    check(&mut clients[1], "SELECT 99\r\nGET k\r\n", &format!("{refused}$1\r\n1\r\n"))?;
    Ok(())
}

#[test]
fn replies_keep_their_order_across_a_login_in_a_pipeline() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut asked = String::new();
    let mut expected = String::new();
    for round in 0..50 {
        for database in 0..3 {
            asked += &format!("SELECT {database}\r\nSET k {round}\r\nGET k\r\nINCR n\r\n");
            let value = round.to_string();
            let count = round + 1;
            expected += &format!("+OK\r\n+OK\r\n${}\r\n{value}\r\n:{count}\r\n", value.len());
        }
    }
    check(&mut gate.connect()?, &asked, &expected)
}

#[test]
fn beyond_the_most_pools_clients_have_connections_of_their_own() -> Result<()> {
    let store = store()?;
    let service = "max_pools = \"2\"";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, TENANTS)?;
    let mut clients = (0..4).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for _ in 0..2 {
        for (database, client) in clients.iter_mut().enumerate() {
            check(
                client,
                &format!("SELECT {database}\r\nINCR n{database}\r\nDEL n{database}\r\n"),
                "+OK\r\n:1\r\n:1\r\n",
            )?;
        }
    }
    check(&mut clients[3], "AUTH bob b-secret\r\nACL WHOAMI\r\n", "+OK\r\n$3\r\nbob\r\n")
}

#[test]
fn no_client_reads_what_the_store_refuses_on_any_thread() -> Result<()> {
    (1..=2).try_for_each(no_client_reads_what_the_store_would_refuse)
}

fn no_client_reads_what_the_store_would_refuse(threads: usize) -> Result<()> {
    let store = store()?;
    // Every request is looked at, and a key that is asked for twice is hot.
    let eager = &format!("threads = \"{threads}\"\nsample = \"1/1\"\ntick = \"10ms\"");
    let hot = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(eager, "resp", store.address, hot, TENANTS)?;
    let mut bob = gate.connect()?;
    let mut carols = (0..CAROLS).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    check(&mut bob, "AUTH bob b-secret\r\nSET hidden x\r\nSET c:open y\r\n", "+OK\r\n+OK\r\n+OK\r\n")?;
    carols.iter_mut().try_for_each(|carol| check(carol, "AUTH carol c-secret\r\n", "+OK\r\n"))?;
    let refused = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = gets(&store)?;
        // One after the other, so that no two are one read of the store's.
        for _ in 0..100 {
            check(&mut bob, "GET hidden\r\n", "$1\r\nx\r\n")?;
        }
        let both = format!("{refused}$1\r\ny\r\n").repeat(20);
        let asked = "GET hidden\r\nGET c:open\r\n".repeat(20);
        carols.iter_mut().try_for_each(|carol| check(carol, &asked, &both))?;
        // All of hers reach the store, and almost none of bob's.
        let after = gets(&store)?;
        ensure!(after >= before + 20 * CAROLS, "carol was answered without the store");
        if after < before + 20 * CAROLS + 40 {
            break;
        }
        ensure!(Instant::now() < deadline, "it does not become hot");
    }
    // What bob may no longer read he reads for as long as an answer lives, and never again.
    store.ask(b"ACL SETUSER bob resetkeys ~c:*\r\n", b"+OK\r\n")?;
    loop {
        bob.write_all(b"GET hidden\r\n")?;
        let said = read_until(&mut bob, b"\r\n")?;
        if said == refused.as_bytes() {
            break;
        }
        ensure!(said.starts_with(b"$1\r\n") && Instant::now() < deadline, "{}", shown(&said));
        if said == b"$1\r\n" {
            read_until(&mut bob, b"x\r\n")?;
        }
    }
    check(&mut bob, &"GET hidden\r\n".repeat(500), &refused.repeat(500))
}

/// Where there are two threads, each has some.
const CAROLS: u64 = 8;

/// How many reads the store has let through.
fn gets(store: &Listening) -> Result<u64> {
    let said = store.ask(b"INFO commandstats\r\nECHO end\r\n", b"end\r\n")?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let calls = said.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    Ok(calls.and_then(|calls| calls.split(',').next()).unwrap_or("0").parse()?)
}

#[test]
fn a_store_that_comes_back_is_logged_in_to_again() -> Result<()> {
    let store = store()?;
    let address = store.address;
    let gate = Listening::gate("resp", address, "", TENANTS)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "AUTH bob b-secret\r\nSELECT 5\r\nACL WHOAMI\r\n", "+OK\r\n+OK\r\n$3\r\nbob\r\n")?;
    drop(store);
    let users = std::env::temp_dir().join(format!("gate-users-{}", std::process::id()));
    fs::write(&users, "user default on nopass ~* &* +@all\nuser bob on >b-secret ~* &* +@all\n")?;
    let path = users.display().to_string();
    let store = Listening::redis_at(address, &["--aclfile", &path])?;
    // Refused until gate has found it.
    let deadline = Instant::now() + PATIENCE;
    loop {
        stream.write_all(b"SET back 1\r\n")?;
        let said = read_until(&mut stream, b"\r\n")?;
        if said == b"+OK\r\n" {
            break;
        }
        ensure!(said.starts_with(b"-UNAVAILABLE ") || said.starts_with(b"-UNCERTAIN "), "{}", shown(&said));
        ensure!(Instant::now() < deadline, "{}", shown(&said));
    }
    // It listens before it reads its users, but answers only after that.
    fs::remove_file(&users)?;
    check(&mut stream, "ACL WHOAMI\r\n", "$3\r\nbob\r\n")?;
    store.ask(b"SELECT 5\r\nGET back\r\n", b"+OK\r\n$1\r\n1\r\n")?;
    Ok(())
}

#[test]
fn a_user_that_the_store_forgets_reads_why_and_is_closed() -> Result<()> {
    let store = store()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut bob = gate.connect()?;
    let mut other = gate.connect()?;
    check(&mut bob, "AUTH bob b-secret\r\nGET a\r\n", "+OK\r\n$-1\r\n")?;
    check(&mut other, "GET a\r\n", "$-1\r\n")?;
    store.ask(b"ACL DELUSER bob\r\n", b":1\r\n")?;
    let mut said = Vec::new();
    bob.read_to_end(&mut said)?;
    ensure!(said == WRONG.as_bytes(), "{}", shown(&said));
    check(&mut other, "GET a\r\n", "$-1\r\n")?;
    check(&mut gate.connect()?, "AUTH bob b-secret\r\n", WRONG)
}

#[test]
fn gate_checks_a_password_itself_if_it_knows_its_hash() -> Result<()> {
    let store = store()?;
    // SHA-256 of "b-secret".
    let hash =
        String::from_utf8(Command::new("sh").args(["-c", "printf b-secret | sha256sum"]).output()?.stdout)?;
    let hash = hash.split_whitespace().next().unwrap_or_default();
    let tenants = TENANTS.replace("\"bob\"", &format!("\"bob #{hash}\""));
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", &tenants)?;
    store.ask(b"ACL SETUSER bob >another\r\n", b"+OK\r\n")?;
    // The store would take it, gate does not, on either kind of connection.
    check(&mut gate.connect()?, "AUTH bob another\r\n", WRONG)?;
    let mut own = gate.connect()?;
    check(&mut own, "CLIENT REPLY ON\r\n", "+OK\r\n")?;
    check(&mut own, "AUTH bob another\r\n", WRONG)?;
    check(&mut own, "ACL WHOAMI\r\n", "$7\r\ndefault\r\n")?;
    let mut first = gate.connect()?;
    check(&mut first, "AUTH bob b-secret\r\nGET a\r\n", "+OK\r\n$-1\r\n")?;
    // The pool is there: the store is not asked again.
    store.ask(b"ACL SETUSER bob resetpass >another\r\n", b"+OK\r\n")?;
    check(&mut gate.connect()?, "AUTH bob b-secret\r\nACL WHOAMI\r\n", "+OK\r\n$3\r\nbob\r\n")
}

#[test]
fn clients_without_auth_are_the_configured_user_or_none() -> Result<()> {
    let store = Listening::redis()?;
    add_users(&store)?;
    store.ask(b"ACL SETUSER default resetpass >d-secret\r\n", b"+OK\r\n")?;
    let noauth = "-NOAUTH Authentication required.\r\n";
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "GET a\r\nSELECT 1\r\nGET a\r\n", &noauth.repeat(3))?;
    check(&mut stream, "AUTH d-secret\r\nSET a 1\r\nGET a\r\n", "+OK\r\n+OK\r\n$1\r\n1\r\n")?;

    let file = std::env::temp_dir().join(format!("gate-password-{}", std::process::id()));
    fs::write(&file, "b-secret\n")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let service = format!("store_user = \"bob\"\nstore_password_file = \"{}\"", file.display());
    let gate = Listening::gate("resp", store.address, &service, TENANTS)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "ACL WHOAMI\r\nSELECT 1\r\nACL WHOAMI\r\n", "$3\r\nbob\r\n+OK\r\n$3\r\nbob\r\n")?;
    check(&mut stream, "MULTI\r\nACL WHOAMI\r\nDISCARD\r\n", "+OK\r\n+QUEUED\r\n+OK\r\n")?;
    check(&mut gate.connect()?, "AUTH alice a-secret\r\nACL WHOAMI\r\n", "+OK\r\n$5\r\nalice\r\n")?;
    fs::remove_file(&file)?;
    Ok(())
}

#[test]
fn denied_commands_are_refused_wherever_they_come_up() -> Result<()> {
    let deny = r#"
        [[tenant]]
        name = "all"
        sources = ["127.0.0.0/8"]
        quota = "unlimited"
        deny = ["flushall", "CONFIG SET", "unknown", "flush_all", "select"]
    "#;
    let refused = "-DENIED reason=unsupported rule=deny\r\n";
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", deny)?;
    let mut stream = gate.connect()?;
    check(&mut stream, "SET a 1\r\nFlushAll\r\nGET a\r\n", &format!("+OK\r\n{refused}$1\r\n1\r\n"))?;
    check(&mut stream, "config SET maxmemory 1\r\nSELECT 1\r\nNONSENSE\r\n", &refused.repeat(3))?;
    // In a transaction: none of it is done.
    let unknown =
        "-ERR unknown command 'DENIED reason=unsupported rule=deny', with args beginning with: \r\n";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    check(
        &mut stream,
        "MULTI\r\nSET a 2\r\nFLUSHALL\r\nEXEC\r\nGET a\r\n",
        &format!("+OK\r\n+QUEUED\r\n{unknown}{aborted}$1\r\n1\r\n"),
    )?;
    // One that is too long to be gathered is left out whole.
    let long = "x".repeat(3 << 20);
    let asked = format!("WATCH b\r\n*2\r\n$8\r\nNONSENSE\r\n${}\r\n{long}\r\nGET a\r\n", long.len());
    check(&mut stream, &asked, &format!("+OK\r\n{unknown}$1\r\n1\r\n"))?;

    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "transports = [\"tcp\", \"udp\"]", deny)?;
    let refused = "SERVER_ERROR denied reason=unsupported rule=deny\r\n";
    let asked = "set a 0 0 1\r\n1\r\nflush_all\r\nflush_all noreply\r\nget a\r\n";
    check(&mut gate.connect()?, asked, &format!("STORED\r\n{refused}VALUE a 0 1\r\n1\r\nEND\r\n"))?;
    // And by a sender of datagrams, whose place another had before.
    for _ in 0..3 {
        let sender = UdpSocket::bind("127.0.0.1:0")?;
        sender.set_read_timeout(Some(PATIENCE))?;
        sender.send_to(b"\0\x07\0\0\0\x01\0\0flush_all\r\n", gate.address)?;
        let mut answer = [0; 512];
        let len = sender.recv(&mut answer)?;
        ensure!(answer[8..len] == *refused.as_bytes(), "{}", shown(&answer[..len]));
    }
    Ok(())
}

#[test]
fn a_reload_changes_whose_users_are_and_what_is_denied() -> Result<()> {
    let store = store()?;
    let mut gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut before = gate.connect()?;
    check(&mut before, "AUTH bob b-secret\r\nDBSIZE\r\n", "+OK\r\n:0\r\n")?;
    let (config, _) = gate.files()?;
    let text = fs::read_to_string(config)?;
    let text =
        text.replace("[\"alice\"]", "[\"carol\"]").replace("[\"bob\"]", "[\"bob\"]\ndeny = \"DBSIZE\"");
    fs::write(config, text)?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for("configuration read again", PATIENCE)?;
    before.write_all(b"DBSIZE\r\n")?;
    ensure!(read_until(&mut before, b"\r\n")?.ends_with(b"reason=unsupported rule=deny\r\n"));
    for (login, poor) in [("AUTH alice a-secret\r\n", false), ("AUTH carol c-secret\r\n", true)] {
        let mut stream = gate.connect()?;
        check(&mut stream, login, "+OK\r\n")?;
        ensure!((throttled(&mut stream, 200)? > 0) == poor, "{login}");
    }
    Ok(())
}

#[test]
fn the_tools_of_redis_log_in_through_gate() -> Result<()> {
    let store = store()?;
    store.ask(b"ACL SETUSER default resetpass >d-secret\r\n", b"+OK\r\n")?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let host = gate.address.ip().to_string();
    let port = gate.address.port().to_string();
    let run = |tool: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(tool).args(["-h", &host, "-p", &port]).args(arguments).output()?;
        ensure!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    for version in ["-2", "-3"] {
        let said = run("redis-cli", &[version, "--user", "bob", "--pass", "b-secret", "ACL", "WHOAMI"])?;
        ensure!(said.trim().trim_matches('"') == "bob", "{said}");
        let said = run("redis-cli", &[version, "-a", "d-secret", "-n", "3", "SET", "where", "three"])?;
        ensure!(said.trim() == "OK", "{said}");
    }
    let benchmark =
        ["-a", "d-secret", "-n", "2000", "-c", "20", "-q", "-P", "16", "--dbnum", "2", "-t", "set,get"];
    let said = run("redis-benchmark", &benchmark)?;
    ensure!(said.contains("GET: ") && !said.contains("Error") && !said.contains("NOAUTH"), "{said}");
    Ok(())
}

#[test]
fn random_identity_changes_are_answered_as_by_the_store() -> Result<()> {
    let direct = store()?;
    let behind = store()?;
    let tenants = TENANTS.replace("10 RU/s", "unlimited");
    let gate = Listening::gate("resp", behind.address, "max_pools = \"6\"", &tenants)?;
    let mut rng = Rng::new(0x1d3a);
    let mut below = |end: usize| rng.index(end);
    for round in 0..150 {
        // Clients come and go, so that there are pools of every kind.
        let mut client = [direct.connect()?, gate.connect()?];
        for batch in 0..4 {
            let mut asked = String::new();
            for _ in 0..1 + below(12) {
                let key = format!("c:{}", below(3));
                let database = below(4);
                asked += &match below(16) {
                    0 => "AUTH alice a-secret".to_owned(),
                    1 => "AUTH bob b-secret".to_owned(),
                    2 => "AUTH carol c-secret".to_owned(),
                    3 => "AUTH bob wrong".to_owned(),
                    4 => "HELLO 3".to_owned(),
                    5 => "HELLO 2 AUTH alice a-secret SETNAME one".to_owned(),
                    6 => format!("SELECT {}", database * 5),
                    7 => format!("SELECT {database}"),
                    8 => ["RESET", "CLIENT SETNAME two", "HELLO 4", "AUTH x y z"][database].to_owned(),
                    // Logins inside of transactions are another test's (`sessions::random`): gate refuses some.
                    9 if batch == 3 => ["WATCH w", "EXEC", "DISCARD", "CLIENT GETNAME"][database].to_owned(),
                    10 => "ACL WHOAMI".to_owned(),
                    11 => format!("INCR {key}"),
                    12 => format!("GET hidden{database}"),
                    13 => format!("HGETALL none{database}"),
                    14 => format!("SET {key} {}", below(1000)),
                    _ => format!("GET {key}"),
                };
                asked += "\r\n";
            }
            let end = format!("the-end-{round}-{batch}");
            asked += &format!("GET {end}\r\nNOSUCH{end}\r\n");
            let [directly, through] = client.each_mut().map(|stream| -> Result<String> {
                stream.write_all(asked.as_bytes())?;
                let mut said = Vec::new();
                // Redis says the name of a command that it does not know.
                while !String::from_utf8_lossy(&said).contains(&format!("NOSUCH{end}'"))
                    || !said.ends_with(b"\r\n")
                {
                    let mut piece = [0; 4096];
                    let len = stream.read(&mut piece)?;
                    ensure!(len > 0, "closed after {}", shown(&said));
                    said.extend_from_slice(&piece[..len]);
                }
                Ok(without_ids(&String::from_utf8(said)?))
            });
            let directly = directly?;
            let through = through?;
            ensure!(directly == through, "{asked}directly {directly:?}\nthrough gate {through:?}");
        }
    }
    Ok(())
}

/// The reply to `HELLO`, without the number of the connection.
fn without_ids(said: &str) -> String {
    let mut parts = said.split("$2\r\nid\r\n:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |said, part| said + "id" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn a_user_without_select_stays_in_the_database_it_had() -> Result<()> {
    let store = store()?;
    store.ask(b"ACL SETUSER dave on >d-secret ~* -@all +set +get\r\n", b"+OK\r\n")?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut said = Vec::new();
    for server in [&store, &gate] {
        let mut stream = server.connect()?;
        check(&mut stream, "SELECT 9\r\nAUTH dave d-secret\r\n", "+OK\r\n+OK\r\n")?;
        check(&mut stream, "SET x 9\r\n", "+OK\r\n")?;
        stream.write_all(b"SELECT 3\r\nGET x\r\n")?;
        said.push(lines(&mut stream, 3)?);
    }
    ensure!(
        said[0] == said[1] && said[1].starts_with("-NOPERM") && said[1].ends_with("\r\n9\r\n"),
        "{said:?}"
    );
    let database = store.ask(b"SELECT 9\r\nSTRLEN x\r\nSELECT 0\r\nSTRLEN x\r\n", b":0\r\n")?;
    ensure!(database == b"+OK\r\n:1\r\n+OK\r\n:0\r\n", "{}", shown(&database));
    Ok(())
}
