//! memcached as the oracle: what it runs was charged, and no datagram of another client ends up in a value.
//!
//! Random datagrams of text, meta and binary requests, many of them changed, go through XDP to a real memcached. After each one
//! a neighbour asks over the same socket of the store. The answer shows that the datagram has left nothing behind, and that the
//! store is done with it; then the store's own counters are compared with what gate charged. Some of what gate refuses goes to
//! a bare memcached as well, which shows that it does harm there.
//!
//! A failure prints the datagram; `GATE_SEED=<seed>` starts elsewhere, `GATE_LONG=1` sends a million.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_common::abi::Reason;
use gate_tests::daemon::Site;
use gate_tests::memcached::{Memcached, PORT};
use gate_tests::net::{Net, SERVER_V4};
use gate_tests::privilege;
use gate_tests::rng::Rng;
use gate_tests::wait::PATIENCE;
use gate_userspace::kernel::Maps;

const DATAGRAMS: u32 = 3_000;
const MANY: u32 = 1_000_000;
const SEED: u64 = 20_261_128;
const BARE_PORT: u16 = 11_299;
const ATTACKER: &str = "198.18.1.1";
const NEIGHBOUR: &str = "198.18.1.2";
/// Refused datagrams that a bare memcached is shown, and how long it may take for an answer.
const SHOWN: u32 = 20;
const HUNG: Duration = Duration::from_millis(500);

/// A row costs one RU, so that nothing that the store runs for a key is cheaper.
fn config() -> String {
    format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n\
         transports = [\"udp\"]\nprice = {{ base = \"1 RU\", row = \"1 RU\", kib = \"0 RU\" }}\n\
         [[tenant]]\nname = \"attacker\"\nsources = \"{ATTACKER}\"\nquota = \"unlimited\"\n\
         [[tenant]]\nname = \"neighbour\"\nsources = \"{NEIGHBOUR}\"\nquota = \"unlimited\"\n"
    )
}

#[test]
fn what_memcached_runs_is_charged_and_others_are_answered() -> Result<()> {
    if !privilege::root("executed::what_memcached_runs_is_charged_and_others_are_answered") {
        return Ok(());
    }
    let datagrams = if std::env::var_os("GATE_LONG").is_some() { MANY } else { DATAGRAMS };
    let seed = std::env::var("GATE_SEED").map_or(SEED, |seed| seed.parse().expect("a number"));
    println!("GATE_SEED={seed}, {datagrams} datagrams");
    let mut rng = Rng::new(seed);
    let site = Site::new(&config())?;
    for address in [ATTACKER, NEIGHBOUR] {
        site.net.add_client_address(address.parse()?)?;
    }
    let _memcached = Memcached::start(&site.net)?;
    let gate = site.start(&[])?;
    let maps = Maps::pinned(site.pins(), false)?;
    let mut store = Store::at(&site.net, PORT)?;
    let mut passed = 0;
    let mut refused = 0;
    let mut shown = 0;
    let mut harmful = 0;
    for number in 0..datagrams {
        let (is_plain, text) = datagram(&mut rng);
        let what = || format!("GATE_SEED={seed}, datagram {number}: \"{}\"", text.escape_ascii());
        let counted = || (maps.tenant_counters(1).charged_mru, maps.tenant_counters(1).refused_in_all());
        let ran = store.executed()?;
        let (charged, refusals) = counted();
        store.attacker.send(&text)?;
        ensure!(store.answers(PATIENCE)?, "the neighbour is not answered behind {}", what());
        let ran = store.executed()? - ran;
        let charged = (counted().0 - charged) / 1_000;
        ensure!(charged >= ran, "{ran} rows for {charged} RU: {}", what());
        if counted().1 == refusals {
            passed += 1;
            continue;
        }
        refused += 1;
        ensure!(!is_plain, "{} was refused", what());
        if shown < SHOWN && rng.once_in(8) {
            shown += 1;
            harmful += u32::from(harms_memcached(&site.net, &text)?);
        }
    }
    println!("{passed} passed, {refused} refused; {harmful} of {shown} of these harmful");
    let malformed = maps.tenant_counters(1).refused[Reason::Malformed.index()];
    ensure!(malformed == refused, "{refused} refused, {malformed} of them malformed");
    ensure!(passed.min(refused) > u64::from(datagrams) / 10, "{passed} passed, {refused} refused");
    ensure!(harmful >= SHOWN / 4, "only {harmful} of {shown} refused datagrams do harm");
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// True if memcached by itself runs something for a key, or does not answer a neighbour.
fn harms_memcached(net: &Net, text: &[u8]) -> Result<bool> {
    let _bare = Memcached::start_at(net, BARE_PORT)?;
    let mut store = Store::at(net, BARE_PORT)?;
    let ran = store.executed()?;
    store.attacker.send(text)?;
    Ok(!store.answers(HUNG)? || store.executed()? != ran)
}

/// The ways to a store: two clients' sockets, and a connection past gate.
struct Store {
    attacker: UdpSocket,
    neighbour: UdpSocket,
    connection: BufReader<TcpStream>,
    questions: u64,
}

impl Store {
    fn at(net: &Net, port: u16) -> Result<Self> {
        let server = SocketAddr::new(SERVER_V4.parse()?, port);
        let socket = |source: &str| -> Result<UdpSocket> {
            let source: IpAddr = source.parse()?;
            let socket = net.client.enter(|| UdpSocket::bind((source, 0)))??;
            socket.connect(server)?;
            Ok(socket)
        };
        let connection = net.client.enter(|| TcpStream::connect(server))??;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_nodelay(true)?;
        let attacker = socket(ATTACKER)?;
        let neighbour = socket(NEIGHBOUR)?;
        let mut store = Self { attacker, neighbour, connection: BufReader::new(connection), questions: 0 };
        store.connection.get_mut().write_all(b"set neighbour 0 0 1\r\nn\r\n")?;
        let mut line = String::new();
        store.connection.read_line(&mut line)?;
        ensure!(line == "STORED\r\n", "{line}");
        Ok(store)
    }

    /// True if the neighbour gets the answer to its own question in time.
    fn answers(&mut self, patience: Duration) -> Result<bool> {
        self.questions += 1;
        let [a, b] = (self.questions as u16).to_be_bytes();
        self.neighbour.set_read_timeout(Some(patience))?;
        self.neighbour.send(&[&[a, b, 0, 0, 0, 1, 0, 0], &b"get neighbour\r\n"[..]].concat())?;
        let mut answer = [0; 2_048];
        let Ok(length) = self.neighbour.recv(&mut answer) else { return Ok(false) };
        Ok(answer[..length].starts_with(&[a, b])
            && answer[8..length] == *b"VALUE neighbour 0 1\r\nn\r\nEND\r\n")
    }

    /// The keys that the store has read or written, but for the neighbour's and its connection's.
    fn executed(&mut self) -> Result<u64> {
        self.connection.get_mut().write_all(b"stats\r\n")?;
        let mut sum = 0;
        loop {
            let mut line = String::new();
            self.connection.read_line(&mut line).context("no stats")?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["STAT", name, value] if EXECUTED.contains(&name) => sum += value.parse::<u64>()?,
                ["STAT", ..] => {}
                ["END"] => return Ok(sum - self.questions),
                _ => anyhow::bail!("{line}"),
            }
        }
    }
}

/// memcached's counters of what it has done for keys, each once.
const EXECUTED: [&str; 8] = [
    "cmd_get",
    "cmd_set",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
];

/// A datagram; true with it if it is an ordinary one, which gate has to let through.
fn datagram(rng: &mut Rng) -> (bool, Vec<u8>) {
    let mut is_plain = true;
    let mut text = Vec::new();
    for _ in 0..1 + rng.below(3) {
        if rng.once_in(12) {
            is_plain = false;
            text.extend(binary(rng));
        } else {
            let command = if rng.once_in(2) { storage(rng, &mut is_plain) } else { line(rng).into_bytes() };
            text.extend(command);
        }
    }
    if rng.once_in(4) {
        is_plain = false;
        change(rng, &mut text);
    }
    // Of what is in later fragments gate reads nothing.
    is_plain &= text.len() < 1_400;
    (is_plain, [b"\0\x07\0\0\0\x01\0\0", &text[..]].concat())
}

/// A command without a value.
fn line(rng: &mut Rng) -> String {
    let keys = |rng: &mut Rng| {
        let many = rng.mostly(3, 1, &[2, 5, 200, 480]);
        vec!["k"; many].join(" ")
    };
    match rng.below(10) {
        0..3 => format!("get {}\r\n", keys(rng)),
        3 => format!("gets {}\r\n", keys(rng)),
        4 => format!("gat 0 {}\r\n", keys(rng)),
        5 => "delete x\r\n".to_owned(),
        6 => "incr n 1\r\n".to_owned(),
        7 => "mg k v t q\r\nmn\r\n".to_owned(),
        8 => "ma n\nmd x\n".to_owned(),
        _ => "touch k 0\r\nversion\r\n".to_owned(),
    }
}

/// A storage command with its value, sometimes in a form that not all memcached take.
fn storage(rng: &mut Rng, is_plain: &mut bool) -> Vec<u8> {
    let value = match rng.below(4) {
        0 => rng.bytes(20),
        1 => b"v".to_vec(),
        // To who has lost count, these are commands.
        2 => line(rng).trim_end().into(),
        _ => {
            let behind = line(rng);
            format!("set y 0 0 {}", behind.len().saturating_sub(2)).into_bytes()
        }
    };
    let verb = rng.pick(&["set", "set", "set", "add", "replace", "append", "prepend", "cas", "ms"]);
    let form = |rng: &mut Rng, number: String| match rng.below(14) {
        0 => format!("+{number}"),
        1 => format!("00000000000000000000{number}"),
        2 => format!("0000000000{number}"),
        3 => format!("{number}\0"),
        4 => format!("{number}\r "),
        5 => format!("{number}\t"),
        6 => format!("-{number}"),
        7 => format!(" {number} "),
        8 => "4294967296".to_owned(),
        9 => "2147483647".to_owned(),
        10 => format!("{number} 0"),
        11 => format!("{number}x"),
        12 => String::new(),
        _ => format!("S{number}"),
    };
    let key = if rng.once_in(20) { "k".repeat(250 + rng.index(3)) } else { rng.pick(&["x", "n"]).to_owned() };
    let length = value.len();
    let mut words = match verb {
        "ms" => vec![key, length.to_string(), "T0".to_owned()],
        "cas" => [&key, "0", "0", &length.to_string(), "1"].map(str::to_owned).into(),
        _ => [&key, "0", "0", &length.to_string()].map(str::to_owned).into(),
    };
    *is_plain &= words[0].len() <= 250;
    let mut before = "";
    if rng.once_in(3) {
        *is_plain = false;
        match rng.below(8) {
            0 => before = rng.pick(&[" ", "  ", "        ", "\t", "\r"]),
            1 => words.push(rng.pick(&["noreply", "1", "-", "{x", "q", "1 2", "Sx"]).to_owned()),
            2 => words = vec![words.join("\t")],
            _ => {
                let at = 1 + rng.index(words.len() - 1);
                words[at] = form(rng, words[at].clone());
            }
        }
    }
    let end = if rng.once_in(6) { "\n" } else { "\r\n" };
    let line = format!("{before}{verb} {}{end}", words.join(" "));
    [line.as_bytes(), &value, b"\r\n"].concat()
}

/// A request of the binary protocol, whose body may be longer than it.
fn binary(rng: &mut Rng) -> Vec<u8> {
    let body = rng.mostly(2, 1, &[0, 9, 100, 1_000_000]) as u32;
    let operation = rng.pick(&[0x00, 0x01, 0x0a, 0x0c, 0x0d, 0x11]);
    let extras = if [0x01, 0x11].contains(&operation) { 8 } else { 0 };
    let head = [0x80, operation, 0, 1, extras, 0, 0, 0];
    [&head[..], &(body + u32::from(extras)).to_be_bytes(), &[0; 12], &vec![0; extras.into()], b"k"].concat()
}

/// Changes some bytes.
fn change(rng: &mut Rng, text: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(2) {
        let at = rng.index(text.len());
        let byte = rng.pick(b" \t\r\n\0+-0159kqS\x80\xff");
        match rng.below(4) {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            2 if text.len() > 1 => _ = text.remove(at),
            _ => text.truncate(at + 1),
        }
    }
}
