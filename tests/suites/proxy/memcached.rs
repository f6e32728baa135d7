//! memcached behind gate: what it answers is what it answers by itself.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use anyhow::{Result, ensure};
use gate_tests::memcached::Datagrams;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::rng::Rng;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn the_ascii_tests_of_memccapable_pass() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", EVERYONE)?;
    let mut command = Command::new("memccapable");
    command.args(["-a", "-h", &gate.address.ip().to_string(), "-p", &gate.address.port().to_string()]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("All tests passed"), "{said}");
    Ok(())
}

#[test]
fn replies_keep_their_order_and_refusals_their_position() -> Result<()> {
    let store = Listening::memcached()?;
    // 1 RU for a get of a short key and its bytes: three fit the burst.
    let tenants =
        "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.0/8\"]\nquota = \"1 RU/s\"\nburst = \"3.2s\"";
    let price = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    let gate = Listening::gate("memcached", store.address, price, tenants)?;
    store.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n")?;
    let said = gate
        .ask(b"get a\r\nnonsense\r\nget b\r\nget a\r\nget a\r\nnonsense\r\n", b"bucket=poor\r\nERROR\r\n")?;
    let said = String::from_utf8(said)?;
    let expected = "VALUE a 0 1\r\n1\r\nEND\r\nERROR\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\nSERVER_ERROR throttled retry_after_ms=";
    ensure!(said.starts_with(expected) && said.ends_with(" reason=quota bucket=poor\r\nERROR\r\n"), "{said}");
    Ok(())
}

#[test]
fn refusal_latency_is_measured_where_nothing_is_before_it() -> Result<()> {
    let store = Listening::memcached()?;
    // As above; the next would pass after more than a minute.
    let tenants =
        "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.0/8\"]\nquota = \"0.01 RU/s\"\nburst = \"320s\"";
    let price = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, price, tenants)?;
    let said = gate.json(&["queues"])?;
    let refusals = &said["services"][0]["refusals"];
    ensure!(refusals["written"] == 0 && refusals["held_back"] == 0, "{refusals}");
    let mut client = gate.connect()?;
    // Two wait for the answers before them.
    client.write_all(&b"get a\r\n".repeat(5))?;
    let mut said = String::new();
    while said.lines().count() < 5 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    ensure!(said.matches("reason=quota").count() == 2, "{said}");
    // The first of these has no reply.
    client.write_all(b"delete a noreply\r\nget a\r\nnonsense\r\nget a\r\n")?;
    let mut said = String::new();
    while said.lines().count() < 3 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let queues = gate.json(&["queues"])?;
    let refusals = &queues["services"][0]["refusals"];
    ensure!(refusals["written"] == 3 && refusals["held_back"] == 2, "{refusals}");
    let [p50, p99, max] = ["p50", "p99", "max"].map(|counter| refusals["written_ms"][counter].as_f64());
    ensure!(p50 > Some(0.0) && p50 <= p99 && p99 <= max, "{refusals}");
    let printed = String::from_utf8(gate.command(&["queues"])?.stdout)?;
    ensure!(printed.contains("refused at once: 3, written "), "{printed}");
    Ok(())
}

#[test]
fn random_commands_are_answered_as_by_the_store_itself() -> Result<()> {
    let commands = if std::env::var_os("GATE_LONG").is_some() { 1_000_000 } else { 100_000 };
    let direct = Listening::memcached()?;
    let behind = Listening::memcached()?;
    let gate = Listening::gate("memcached", behind.address, "", EVERYONE)?;
    let mut rng = Rng::new(0x5eed);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|number| Client::connect(number, &direct, &gate)).collect::<Result<_>>()?;
    let mut done = 0;
    for round in 0_u64.. {
        for client in &mut clients {
            done += client.send(round, &mut rng)?;
        }
        for client in &mut clients {
            client.compare(round)?;
        }
        if done >= commands {
            break;
        }
    }
    Ok(())
}

/// A value that reads like a command.
const VALUE: &str = "set inj 0 0 1\r\nY";

/// Storage lines that are refused.
fn refused_lines() -> Vec<String> {
    let long = "k".repeat(251);
    let flags: String = ('a'..='z').map(|flag| format!(" {flag}")).collect();
    let len = VALUE.len();
    vec![
        format!("set {long} 0 0 {len}"),
        format!("add {long} 0 0 {len} noreply"),
        format!("set k 4294967296 0 {len}"),
        format!("set k -1 0 {len}"),
        format!("set k 0 x {len}"),
        format!("cas k 0 0 {len}"),
        format!("cas k 0 0 {len} x"),
        format!("append k 0 0 {len} noreply more"),
        format!(" set k 0 0 {len}"),
        format!("set k 0 0 +{len}"),
        format!("set k 0 0 {len}\t"),
        format!("set k 0 0 000000000{len}"),
        format!("set k 0 0 {len}\0"),
        "set k 0 0".to_owned(),
        format!("ms {long} {len}"),
        format!("ms k {len}{flags}"),
        format!("ms k {len} ="),
        format!("ms k +{len}"),
        format!("ms eA0KeQ== {len} b"),
    ]
}

#[test]
fn a_value_behind_a_refused_line_is_not_run() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "transports = [\"udp\", \"tcp\"]", EVERYONE)?;
    let mut datagrams = Datagrams::to(Ipv4Addr::LOCALHOST.into(), gate.address)?;
    for line in refused_lines() {
        let request = format!("{line}\r\n{VALUE}\r\nquit\r\n");
        let mut client = gate.connect()?;
        client.write_all(request.as_bytes())?;
        let mut said = String::new();
        client.read_to_string(&mut said)?;
        let answers = usize::from(!line.contains("noreply") || line.contains("more"));
        ensure!(said.lines().count() == answers, "{line:?}: {said:?}");
        if answers > 0 {
            let said = datagrams.ask(&format!("{line}\r\n{VALUE}\r\nget k\r\n"))?;
            ensure!(said.lines().count() == 1, "{line:?}, and what is behind it: {said:?}");
        }
        let said = store.ask(b"get inj\r\n", b"END\r\n")?;
        ensure!(said == b"END\r\n", "{line:?}: its value has been run");
    }
    Ok(())
}

#[test]
fn no_key_is_written_that_ends_an_answer() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", EVERYONE)?;
    // `x\r\ny`
    for request in
        ["ma eA0KeQ== b N0 J1", "mg eA0KeQ== b N0 k v", "mg eA0-KeQ== b N0", "md eA0KeQ== b", "me eA0KeQ== b"]
    {
        let said = gate.ask(format!("{request}\r\n").as_bytes(), b"\r\n")?;
        ensure!(said.ends_with(b"reason=unsupported\r\n"), "{request}: {}", shown(&said));
    }
    ensure!(store.ask(b"mg eA0KeQ== b\r\n", b"\r\n")? == b"EN\r\n");
    let said = gate.ask(b"ms YTrDqQ== 1 b\r\nx\r\nmg YTrDqQ== b v k\r\n", b"x\r\n")?;
    ensure!(said.starts_with(b"HD\r\nVA 1 "), "other bytes are as before: {}", shown(&said));
    Ok(())
}

/// Connections with keys of their own.
const CLIENTS: usize = 8;
/// Keys of each; few, so that commands meet.
const KEYS: u64 = 12;

/// The same client twice: once at the store, once at gate.
struct Client {
    number: usize,
    direct: Side,
    gate: Side,
    sent: Vec<u8>,
}

struct Side {
    stream: TcpStream,
    /// The last cas id that was seen of each key: they differ from store to store.
    cas: HashMap<Vec<u8>, Vec<u8>>,
}

impl Client {
    fn connect(number: usize, direct: &Listening, gate: &Listening) -> Result<Self> {
        let side = |server: &Listening| {
            Ok::<_, anyhow::Error>(Side { stream: server.connect()?, cas: HashMap::new() })
        };
        Ok(Self { number, direct: side(direct)?, gate: side(gate)?, sent: Vec::new() })
    }

    /// Sends a batch of commands, pipelined, to both; returns how many.
    fn send(&mut self, round: u64, rng: &mut Rng) -> Result<usize> {
        let count = 1 + rng.index(40);
        let commands: Vec<Template> = (0..count).map(|_| command(rng, self.number)).collect();
        for (which, side) in [&mut self.direct, &mut self.gate].into_iter().enumerate() {
            let mut batch = Vec::new();
            for command in &commands {
                command.write(&side.cas, &mut batch);
            }
            batch.extend_from_slice(format!("set end{} 0 0 20\r\n{round:020}\r\n", self.number).as_bytes());
            batch.extend_from_slice(format!("get end{}\r\n", self.number).as_bytes());
            side.stream.write_all(&batch)?;
            if which == 0 {
                self.sent = batch;
            }
        }
        Ok(count)
    }

    /// Compares what both said to the last batch.
    fn compare(&mut self, round: u64) -> Result<()> {
        let end = format!("STORED\r\nVALUE end{} 0 20\r\n{round:020}\r\nEND\r\n", self.number);
        let direct = read_until(&mut self.direct.stream, end.as_bytes())?;
        let gate = read_until(&mut self.gate.stream, end.as_bytes())?;
        let direct = self.direct.normal(&direct);
        let gate = self.gate.normal(&gate);
        let differs = direct.iter().zip(&gate).take_while(|(direct, gate)| direct == gate).count();
        let around = |said: &[u8]| shown(&said[differs.saturating_sub(100)..said.len().min(differs + 100)]);
        ensure!(
            direct == gate,
            "client {} round {round}: directly {}\nthrough gate {}\nafter {}",
            self.number,
            around(&direct),
            around(&gate),
            shown(&self.sent),
        );
        Ok(())
    }
}

impl Side {
    /// The conversation, without the parts that cannot be equal: the ids that the store makes up for `gets`, `gats` and the
    /// flag `c`, which are remembered, and the seconds that an item has left.
    fn normal(&mut self, said: &[u8]) -> Vec<u8> {
        let mut normal = Vec::with_capacity(said.len());
        for line in said.split_inclusive(|&byte| byte == b'\n') {
            let words: Vec<&[u8]> = line.trim_ascii_end().split(|&byte| byte == b' ').collect();
            match words[..] {
                [b"VALUE", key, flags, len, cas] if cas.iter().all(u8::is_ascii_digit) => {
                    self.cas.insert(key.to_vec(), cas.to_vec());
                    normal.extend([b"VALUE", key, flags, len, b"<cas>\r\n"].join(&b' '));
                }
                [status @ (b"VA" | b"HD"), ref words @ ..] => {
                    normal.extend_from_slice(status);
                    for word in words {
                        let number = |flag| {
                            word.len() > 1 && word[0] == flag && word[1..].iter().all(u8::is_ascii_digit)
                        };
                        normal.push(b' ');
                        normal.extend_from_slice(match word {
                            _ if number(b'c') => b"c<cas>",
                            // Two stores' seconds do not begin at the same time.
                            _ if number(b't') => b"t<seconds>",
                            word => word,
                        });
                    }
                    normal.extend_from_slice(b"\r\n");
                }
                _ => normal.extend_from_slice(line),
            }
        }
        normal
    }
}

/// A command; some need what only one store knows.
enum Template {
    Plain(Vec<u8>),
    /// `cas` of a key with the id that was seen last.
    Cas {
        key: String,
        value: Vec<u8>,
    },
}

impl Template {
    fn write(&self, cas: &HashMap<Vec<u8>, Vec<u8>>, out: &mut Vec<u8>) {
        match self {
            Self::Plain(bytes) => out.extend_from_slice(bytes),
            Self::Cas { key, value } => {
                // An id that no store has come to.
                let cas = cas.get(key.as_bytes()).map_or(&b"999999999999"[..], Vec::as_slice);
                out.extend_from_slice(format!("cas {key} 5 0 {} ", value.len()).as_bytes());
                out.extend_from_slice(cas);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

fn any_key(rng: &mut Rng, client: usize) -> String {
    format!("c{client}:{}", rng.below(KEYS))
}

/// Every byte occurs; mostly short, rarely as long as memcached takes, or longer.
fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(2_000) {
        0 => 1_000_000,
        1 => 1_048_000 + rng.index(2_000),
        2..40 => rng.index(100_000),
        40..400 => rng.index(3),
        _ => rng.index(100),
    };
    let mut value = rng.value(len);
    // memcached reads a number past the end of a value that is all white space, into whatever lies there.
    if let Some(first) = value.first_mut().filter(|first| first.is_ascii_whitespace() || **first == 0x0b) {
        *first = b'x';
    }
    value
}

fn command(rng: &mut Rng, client: usize) -> Template {
    let key = any_key(rng, client);
    let noreply = if rng.below(8) == 0 { " noreply" } else { "" };
    let line = match rng.below(24) {
        0..=5 => {
            let verb = rng.pick(&["set", "set", "set", "add", "replace", "append", "prepend"]);
            let value = value(rng);
            let flags = rng.below(1_000);
            let line = format!("{verb} {key} {flags} 0 {}{noreply}\r\n", value.len());
            return Template::Plain([line.as_bytes(), &value, b"\r\n"].concat());
        }
        6..=10 => format!("get {key}\r\n"),
        11 => format!("gets {key}\r\n"),
        12 => format!(
            "{} {key} {} {}\r\n",
            rng.pick(&["get", "gets", "gat 0", "gats 1000"]),
            any_key(rng, client),
            any_key(rng, client)
        ),
        13 => format!("delete {key}{noreply}\r\n"),
        // Never a shorter number: whether memcached pads it with blanks depends on who is just reading it.
        14 => format!(
            "{}{noreply}\r\n",
            rng.pick(&["incr K 1099511627776", "incr K 2199023255552", "decr K x"]).replace('K', &key)
        ),
        15 => format!("touch {key} {}{noreply}\r\n", rng.pick(&["0", "1000"])),
        16 => return Template::Cas { key, value: value(rng) },
        17 => format!("set {key} 0 0 2{noreply}\r\n{}\r\n", 10 + rng.below(89)),
        18 => format!(
            "mg {key}{}\r\n",
            rng.pick(&["", " v", " v q", " f v k Oabc", " q k v", " s v c", " v T0", " k q s"])
        ),
        19 => {
            let value = value(rng);
            let line = format!(
                "ms {key} {}{}\r\n",
                value.len(),
                rng.pick(&["", " q", " k Oab", " F7 q", " MA", " ME q", " c"])
            );
            return Template::Plain([line.as_bytes(), &value, b"\r\n"].concat());
        }
        20 => format!("md {key}{}\r\n", rng.pick(&["", " q", " k Ox q", " I"])),
        21 => format!(
            "ma {key}{}\r\n",
            rng.pick(&[
                " D1099511627776",
                " q D1099511627776",
                " v D1099511627776",
                " D1099511627776 v q",
                " MI t D1099511627776",
                " N0 J3 v D1099511627776"
            ])
        ),
        22 => "mn\r\n".to_owned(),
        _ => rng
            .pick(&[
                "version\r\n",
                "nonsense\r\n",
                "get\r\n",
                "incr c:none x\r\n",
                "\r\n",
                "verbosity 1\r\n",
                "delete\r\n",
                "gat 0\r\n",
                "mg\r\n",
                "touch c:none\r\n",
            ])
            .to_owned(),
    };
    Template::Plain(line.into_bytes())
}
