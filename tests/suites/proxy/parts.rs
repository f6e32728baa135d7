//! Tenants by key: whom the requests of one client are charged to.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, shown};
use gate_tests::slow_store::slow_store;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Everyone is `acme`, and `web` can pay for ten requests.
const TENANTS: &str = r#"
    [[tenant]]
    name = "acme"
    sources = ["127.0.0.0/8"]
    quota = "unlimited"
    deny = ["touch", "persist"]
    [[tenant]]
    name = "web"
    part_of = "acme"
    key_prefixes = ["web:", "img:"]
    quota = "10 RU/s"
    burst = "1s"
    deny = ["append"]
    [[tenant]]
    name = "jobs"
    part_of = "acme"
    key_prefixes = ["jobs:", "web:jobs:"]
    quota = "unlimited"
"#;
const PRICE: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }\n";

fn gate(protocol: &str, store: &Listening, service: &str) -> Result<Listening> {
    Listening::gate_with("threads = \"1\"", protocol, store.address, &format!("{PRICE}{service}"), TENANTS)
}

/// Asks on an open connection, and returns the answers, so many lines.
fn lines(stream: &mut TcpStream, asked: impl AsRef<[u8]>, count: usize) -> Result<Vec<String>> {
    stream.write_all(asked.as_ref())?;
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while said.iter().filter(|&&byte| byte == b'\n').count() < count {
        let len = stream.read(&mut piece)?;
        ensure!(len > 0, "closed after {}", shown(&said));
        said.extend_from_slice(&piece[..len]);
    }
    Ok(String::from_utf8(said)?.lines().map(str::to_owned).collect())
}

fn tenant(gate: &Listening, name: &str) -> Result<Value> {
    let mut tenants = gate.json(&["tenants", name])?["tenants"].take();
    Ok(tenants.get_mut(0).context("no such tenant")?.take())
}

/// How many requests of these tenants have passed.
fn passed<const N: usize>(gate: &Listening, names: [&str; N]) -> Result<[u64; N]> {
    let mut passed = [0; N];
    for (passed, name) in passed.iter_mut().zip(names) {
        *passed = tenant(gate, name)?["passed"].as_u64().context("no count")?;
    }
    Ok(passed)
}

/// How many reads have been answered with what was kept.
fn hits(gate: &Listening) -> Result<u64> {
    gate.json(&["queues"])?["services"][0]["events"]["cache-hits"].as_u64().context("no count")
}

#[test]
fn one_connection_is_charged_by_what_its_keys_begin_with() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate("memcached", &store, "")?;
    let mut client = gate.connect()?;
    let asked = "get web:1\r\nget jobs:1\r\nget web:jobs:1\r\nget other\r\nget web\r\n".repeat(50);
    let answers = lines(&mut client, asked, 250)?;
    let mut web = 0;
    let mut others = 0;
    for five in answers.chunks(5) {
        let refused = |answer: &&String| answer.ends_with("reason=quota bucket=web");
        web += five[..1].iter().filter(refused).count();
        others += five[1..].iter().filter(|answer| *answer != "END").count();
    }
    ensure!(web >= 30 && others == 0, "{web} and {others} are refused");
    let counted = tenant(&gate, "web")?;
    ensure!(counted["refused"]["quota"] == web && counted["passed"] == 50 - web, "{counted}");
    ensure!(counted["charged_ru"] == (50 - web) as f64, "{counted}");
    ensure!(passed(&gate, ["jobs", "acme"])? == [100, 100]);

    // What has keys of several is everybody's, and what has several keys of one is that one's.
    ensure!(
        lines(&mut client, "get web:1 jobs:1\r\nget jobs:1 other\r\nversion\r\n", 3)?[..2] == ["END", "END"]
    );
    ensure!(passed(&gate, ["jobs", "acme"])? == [100, 103]);
    ensure!(
        lines(&mut client, "get jobs:1 web:jobs:2 jobs:3\r\nset jobs:1 0 0 1\r\nx\r\n", 2)?
            == ["END", "STORED"]
    );
    ensure!(passed(&gate, ["jobs", "acme"])? == [102, 103]);
    // One that is passed on while it comes.
    let long = [&b"set jobs:long 0 0 500000\r\n"[..], &[b'x'; 500_000], b"\r\n"].concat();
    ensure!(lines(&mut client, long, 1)? == ["STORED"]);
    ensure!(passed(&gate, ["jobs", "acme"])? == [103, 103]);
    wait_until("it is refused", || {
        Ok(lines(&mut client, "get web:1 img:1\r\n", 1)?[0].ends_with("reason=quota bucket=web"))
    })
}

#[test]
fn redis_is_charged_so_too_also_on_a_connection_of_its_own() -> Result<()> {
    let store = Listening::redis()?;
    let gate = gate("resp", &store, "")?;
    let mut client = gate.connect()?;
    let answers = lines(&mut client, "STRLEN web:1\r\nSTRLEN jobs:1\r\n".repeat(50), 100)?;
    let (web, jobs): (Vec<_>, Vec<_>) =
        answers.chunks(2).map(|two| (two[0].ends_with("reason=quota bucket=web"), two[1] == ":0")).unzip();
    let refused = web.iter().filter(|refused| **refused).count();
    ensure!(refused >= 30 && jobs.iter().all(|served| *served), "{answers:?}");
    // A key may be anything.
    let binary = b"*2\r\n$6\r\nSTRLEN\r\n$9\r\njobs:\0\xff\r\n\r\n*2\r\n$6\r\nSTRLEN\r\n$1\r\n\0\r\n";
    ensure!(lines(&mut client, binary, 2)? == [":0", ":0"]);
    ensure!(
        lines(&mut client, "MSET jobs:1 a web:1 b\r\nMSET jobs:1 a web:jobs:1 b\r\nPING\r\n", 3)?.len() == 3
    );
    ensure!(passed(&gate, ["jobs", "acme"])? == [52, 3]);

    // What is denied to the whole is to its parts.
    let denied = lines(
        &mut client,
        "PERSIST jobs:1\r\nPERSIST other\r\nAPPEND web:1 x\r\nAPPEND jobs:1 x\r\nAPPEND other x\r\n",
        5,
    )?;
    let unsupported: Vec<_> = denied.iter().map(|answer| answer.contains("reason=unsupported")).collect();
    ensure!(unsupported == [true, true, true, false, false], "{denied:?}");
    let refused = |name: &str| Ok::<_, anyhow::Error>(tenant(&gate, name)?["refused"]["unsupported"].clone());
    ensure!(refused("jobs")? == 1 && refused("acme")? == 1 && refused("web")? == 1);

    let [jobs, acme] = passed(&gate, ["jobs", "acme"])?;
    let answers = lines(&mut client, "MULTI\r\nAPPEND jobs:1 x\r\nSTRLEN other\r\nEXEC\r\n", 6)?;
    ensure!(answers == ["+OK", "+QUEUED", "+QUEUED", "*2", ":3", ":1"], "{answers:?}");
    ensure!(passed(&gate, ["jobs", "acme"])? == [jobs + 1, acme + 3]);
    Ok(())
}

#[test]
fn the_whole_caps_the_parts_that_charge_it() -> Result<()> {
    let store = Listening::redis()?;
    let tenants = TENANTS
        .replacen("quota = \"unlimited\"", "quota = \"10 RU/s\"\nburst = \"1s\"", 1)
        .replace("\"web:jobs:\"]", "\"web:jobs:\"]\ncharge = [\"acme\"]");
    let gate = Listening::gate_with("", "resp", store.address, PRICE, &tenants)?;
    let mut client = gate.connect()?;
    let answers = lines(&mut client, "STRLEN jobs:1\r\n".repeat(50), 50)?;
    let refused = answers.iter().filter(|answer| answer.ends_with("reason=quota bucket=acme")).count();
    ensure!(refused >= 30, "{answers:?}");
    // Its own requests find nothing left, the other part's quota is its own.
    ensure!(lines(&mut client, "STRLEN other\r\nSTRLEN web:1\r\n", 2)?[1] == ":0");
    ensure!(tenant(&gate, "jobs")?["refused"]["quota"] == refused);
    Ok(())
}

#[test]
fn a_client_that_logs_in_has_its_tenants_parts() -> Result<()> {
    let store = Listening::redis()?;
    store.ask(b"ACL SETUSER alice on >secret ~* &* +@all\r\n", b"+OK\r\n")?;
    let tenants = TENANTS.replacen("sources = [\"127.0.0.0/8\"]", "users = [\"alice\"]", 1)
        + "[[tenant]]\nname = \"guest\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";
    let gate = Listening::gate_with("", "resp", store.address, PRICE, &tenants)?;
    let mut client = gate.connect()?;
    ensure!(lines(&mut client, "STRLEN jobs:1\r\n", 1)? == [":0"]);
    ensure!(passed(&gate, ["guest", "jobs"])? == [1, 0]);
    ensure!(lines(&mut client, "AUTH alice secret\r\nSTRLEN jobs:1\r\n", 2)? == ["+OK", ":0"]);
    ensure!(passed(&gate, ["guest", "jobs", "acme"])? == [2, 1, 0], "{:?}", gate.json(&["tenants"])?);
    ensure!(lines(&mut client, "RESET\r\nSTRLEN jobs:1\r\n", 2)? == ["+RESET", ":0"]);
    ensure!(passed(&gate, ["guest", "jobs"])?[1] == 1);
    Ok(())
}

#[test]
fn requests_refused_in_the_queue_are_refunded_where_charged() -> Result<()> {
    let service = format!("{PRICE}parallelism = \"1\"\nadmission = \"off\"\ndeadline = \"5ms\"\n");
    let backend = slow_store(Duration::from_millis(1))?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", backend, &service, TENANTS)?;
    let mut client = gate.connect()?;
    let answers = lines(&mut client, "delete jobs:1\r\n".repeat(200), 200)?;
    let late = answers.iter().filter(|answer| answer.ends_with("reason=deadline")).count() as u64;
    ensure!(late > 0 && late < 200, "{late} are late");
    let jobs = tenant(&gate, "jobs")?;
    ensure!(jobs["passed"] == 200 - late && jobs["charged_ru"] == (200 - late) as f64, "{jobs}");
    ensure!(jobs["refused"]["deadline"] == late, "{jobs}");
    ensure!(tenant(&gate, "acme")?["refused"] == Value::Object(serde_json::Map::new()));
    Ok(())
}

#[test]
fn requests_lost_to_a_hung_store_count_where_charged() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate("memcached", &store, "store_timeout = \"100ms\"\n")?;
    let mut client = gate.connect()?;
    ensure!(lines(&mut client, "get jobs:1\r\n", 1)? == ["END"]);
    store.stall()?;
    let answers = lines(&mut client, "get jobs:1\r\nget other\r\nget jobs:2\r\n", 3);
    store.signal(Signal::SIGCONT)?;
    let answers = answers?;
    ensure!(answers.iter().all(|answer| answer.ends_with("reason=store-down")), "{answers:?}");
    for (name, refused) in [("jobs", 2), ("acme", 1)] {
        let counted = tenant(&gate, name)?;
        ensure!(counted["refused"]["store-down"] == refused, "{counted}");
    }
    Ok(())
}

#[test]
fn a_part_may_be_left_out_of_what_is_kept_of_hot_keys() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = TENANTS.replace("\"web:jobs:\"]", "\"web:jobs:\"]\ncache = \"off\"");
    let service = format!("{PRICE}hot_keys = {{ threshold = \"1\" }}\nshedding.enabled = \"off\"\n");
    let eager = "threads = \"1\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let gate = Listening::gate_with(eager, "memcached", store.address, &service, &tenants)?;
    let mut client = gate.connect()?;
    let mut read = |key: &str| -> Result<u64> {
        let before = hits(&gate)?;
        for _ in 0..50 {
            ensure!(lines(&mut client, format!("get {key}\r\n"), 1)? == ["END"]);
        }
        Ok(hits(&gate)? - before)
    };
    wait_until("both keys are hot", || {
        let hits = read("other")?;
        read("jobs:1")?;
        let keys = gate.json(&["hotkeys"])?["keys"].take();
        let mut keys = keys.as_array().context("no list")?.iter();
        Ok(hits == 50 && keys.any(|key| key["key"] == "jobs:1" && key["hot"] == true))
    })?;
    ensure!(read("other")? > 0 && read("jobs:1")? == 0);
    Ok(())
}

#[test]
fn datagrams_that_gate_charges_itself_are_charged_by_key() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate("memcached", &store, "transports = [\"udp\", \"tcp\"]\n")?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(gate.address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 2048];
    for (request, charged) in
        [("get jobs:1\r\n", [1, 0]), ("get other\r\n", [1, 1]), ("get jobs:2\r\n", [2, 1])]
    {
        socket.send(&[b"\0\x07\0\0\0\x01\0\0", request.as_bytes()].concat())?;
        let len = socket.recv(&mut answer)?;
        ensure!(answer[..len].ends_with(b"END\r\n"), "{}", shown(&answer[..len]));
        ensure!(passed(&gate, ["jobs", "acme"])? == charged, "{request}");
    }
    Ok(())
}

#[test]
fn a_reload_moves_keys_to_another_part() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate("memcached", &store, "")?;
    let mut client = gate.connect()?;
    ensure!(lines(&mut client, "get jobs:1\r\n", 1)? == ["END"]);
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    let new =
        "[[tenant]]\nname = \"new\"\npart_of = \"acme\"\nkey_prefixes = \"jobs:1\"\nquota = \"unlimited\"\n";
    std::fs::write(config, text.replace("\"jobs:\", ", "") + new)?;
    gate.signal(Signal::SIGHUP)?;
    // The thread follows at its next tick.
    wait_until("the new part is charged", || {
        ensure!(lines(&mut client, "get jobs:1\r\n", 1)? == ["END"]);
        Ok(gate.command(&["tenants", "new"])?.status.success() && passed(&gate, ["new"])? > [0])
    })?;
    let [jobs, acme] = passed(&gate, ["jobs", "acme"])?;
    ensure!(lines(&mut client, "get jobs:2\r\nget web:jobs:1\r\n", 2)? == ["END", "END"]);
    ensure!(passed(&gate, ["jobs", "acme"])? == [jobs + 1, acme + 1]);
    Ok(())
}

#[test]
fn what_is_said_of_the_whole_by_hand_holds_for_its_parts() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate("memcached", &store, "")?;
    let mut client = gate.connect()?;
    ensure!(lines(&mut client, "get jobs:1\r\n", 1)? == ["END"]);
    gate.json(&["set", "tenant.acme.refuse", "on"])?;
    wait_until("it is refused", || {
        Ok(lines(&mut client, "get jobs:1\r\n", 1)?[0].ends_with("reason=penalty"))
    })?;
    ensure!(tenant(&gate, "jobs")?["refuse"] == true);
    gate.json(&["set", "--unset", "tenant.acme.refuse"])?;
    wait_until("it is served", || Ok(lines(&mut client, "get jobs:1\r\n", 1)? == ["END"]))
}
