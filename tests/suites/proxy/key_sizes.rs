//! Reads of whole keys of Redis: priced by the key that they read, asked about before, and refused beyond a number of rows.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::proxy::{Listening, read_until};

const ELEMENTS: u32 = 20_000;
const SERVICE: &str = "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"1 RU\" }\n";
/// With prices that show the rows alone.
const BOUNDED: &str =
    "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }\nmax_rows = \"10000\"\n";
const RICH: &str = "quota = \"1000000 RU/s\"\nburst = \"10s\"";

/// Tenants by number: `127.0.0.N` is `tN`.
fn tenants(numbers: &[u8]) -> String {
    let tenant =
        |number: &u8| format!("[[tenant]]\nname = \"t{number}\"\nsources = [\"127.0.0.{number}\"]\n{RICH}\n");
    numbers.iter().map(tenant).collect()
}

/// A Redis with keys of [`ELEMENTS`] elements of each type, and with small ones.
fn filled(arguments: &[&str]) -> Result<Listening> {
    let store = Listening::redis_with(arguments)?;
    let fill = |command: &str, key: &str, each: &str, count: u32| -> Result<()> {
        let script = format!(
            "for i = 1, {count}, 1000 do local t = {{}} for j = i, math.min(i + 999, {count}) do {each} end \
             redis.call('{command}', '{key}', unpack(t)) end return 1"
        );
        let request = array(&["EVAL", &script, "0"]);
        store.ask(&request, b"\r\n").map(drop)
    };
    let member = "t[#t + 1] = 'm' .. j";
    let scored = "t[#t + 1] = j t[#t + 1] = 'm' .. j";
    let field = "t[#t + 1] = 'f' .. j t[#t + 1] = j";
    for key in ["set", "set-2", "set-3"] {
        fill("SADD", key, member, ELEMENTS)?;
    }
    fill("RPUSH", "list", member, ELEMENTS)?;
    fill("ZADD", "sorted", scored, ELEMENTS)?;
    fill("HSET", "hash", field, ELEMENTS)?;
    fill("SADD", "small", member, 3)?;
    fill("SADD", "small-2", member, 3)?;
    Ok(store)
}

fn array(words: &[&str]) -> Vec<u8> {
    let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>()).into_bytes()
}

/// How often the store has run a command.
fn calls(store: &Listening, command: &str) -> Result<u64> {
    let said = store.ask(b"INFO commandstats\r\nPING\r\n", b"+PONG\r\n")?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let line = format!("cmdstat_{command}:calls=");
    let Some(line) = said.lines().find_map(|text| text.strip_prefix(&line)) else { return Ok(0) };
    Ok(line.split(',').next().unwrap_or_default().parse()?)
}

/// How often an event was counted.
fn counted(gate: &Listening, event: &str) -> Result<u64> {
    let queues = gate.json(&["queues"])?;
    queues["services"][0]["events"][event].as_u64().with_context(|| format!("no {event}: {queues}"))
}

/// The whole reply to lines of words: a mark is sent behind them.
fn ask(stream: &mut TcpStream, line: &str) -> Result<String> {
    stream.write_all(format!("{line}\r\nECHO the-end\r\n").as_bytes())?;
    let mut reply = read_until(stream, END).with_context(|| line.to_owned())?;
    reply.truncate(reply.len() - END.len());
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// A client of one tenant.
struct Client<'g> {
    gate: &'g Listening,
    tenant: u8,
    stream: TcpStream,
}

impl<'g> Client<'g> {
    fn new(gate: &'g Listening, tenant: u8) -> Result<Self> {
        Ok(Self { gate, tenant, stream: gate.connect_from(Ipv4Addr::new(127, 0, 0, tenant))? })
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        ask(&mut self.stream, line)
    }

    fn charged(&self) -> Result<f64> {
        self.gate.charged(&format!("t{}", self.tenant))
    }

    /// Checks that a request costs about so much, without the mark behind it.
    fn costs(&mut self, line: &str, ru: f64) -> Result<()> {
        let before = self.charged()?;
        self.ask(line)?;
        let price = self.charged()? - before - MARK_RU;
        ensure!((price - ru).abs() < 0.02 * ru + 0.2, "t{}: {line} cost {price}, not {ru}", self.tenant);
        Ok(())
    }
}

const END: &[u8] = b"$7\r\nthe-end\r\n";
/// `ECHO` costs a row.
const MARK_RU: f64 = 1.0;
const GUESS: f64 = 0.5 + 100.0 * 0.5;
const SMALL: f64 = 0.5 + 3.0 * 0.5;
const LARGE: f64 = 0.5 + ELEMENTS as f64 * 0.5;
/// A question is the read of a row.
const QUESTION: f64 = 1.0;

#[test]
fn a_read_costs_what_its_key_holds_and_no_other_reads_do() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants(&[2, 3, 4, 5]))?;
    let mut client = Client::new(&gate, 2)?;
    client.costs("SMEMBERS small", GUESS)?;
    client.costs("SMEMBERS small", SMALL)?;
    ensure!(calls(&store, "scard")? == 0, "nothing was dear");
    // The first large one is not foreseen; from then on its kind is asked about, whatever the key.
    client.costs("SMEMBERS set", SMALL)?;
    client.costs("SMEMBERS set", LARGE + QUESTION)?;
    client.costs("SMEMBERS set-2", LARGE + QUESTION)?;
    client.costs("SMEMBERS small-2", SMALL + QUESTION)?;
    ensure!(calls(&store, "scard")? == 3 && counted(&gate, "sizes-asked")? == 3);
    client.costs("SUNIONSTORE d small set", GUESS + ELEMENTS as f64 * 0.5 - 50.0)?;
    client.costs("SUNION set small-2 set-3", 2.0 * LARGE + QUESTION * 3.0 + 1.0)?;

    // Other kinds have their own past.
    client.costs("HGETALL hash", GUESS)?;
    client.costs("HGETALL hash", 2.0 * LARGE - 0.5 + QUESTION)?;
    client.costs("HKEYS hash", LARGE + QUESTION)?;
    client.costs("LRANGE list 0 -1", GUESS)?;
    client.costs("LRANGE list 100 -101", LARGE - 100.0 + QUESTION)?;
    client.costs("LRANGE list 0 9", 5.5)?;
    client.costs("ZRANGEBYSCORE sorted -inf +inf", GUESS)?;
    client.costs("ZRANGEBYSCORE sorted 1 5000", 0.5 + 2_500.0 + QUESTION)?;
    client.costs("SORT set LIMIT 0 1 ALPHA", LARGE)?;

    // Another tenant's reads are its own.
    let mut other = Client::new(&gate, 3)?;
    other.costs("SMEMBERS small", GUESS)?;
    other.costs("SMEMBERS small", SMALL)?;

    // On a connection of its own nothing is asked, and what is known holds.
    let mut dedicated = Client::new(&gate, 2)?;
    dedicated.ask("WATCH a")?;
    let before = calls(&store, "scard")?;
    dedicated.costs("SMEMBERS set-2", LARGE)?;
    ensure!(calls(&store, "scard")? == before);
    Ok(())
}

#[test]
fn what_is_asked_about_keeps_its_place_in_a_pipeline() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate("resp", store.address, BOUNDED, &tenants(&[2]))?;
    let clients = 20;
    let rounds = 50;
    let streams = (0..clients).map(|_| Ok(Client::new(&gate, 2)?.stream)).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let run = |(number, stream): (usize, TcpStream)| pipeline_keeps_its_order(number, stream, rounds);
        let threads: Vec<_> =
            streams.into_iter().enumerate().map(|client| scope.spawn(move || run(client))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a client panicked")))
    })?;
    ensure!(calls(&store, "scard")? == u64::from(clients * rounds * 3), "each is asked about once");
    ensure!(calls(&store, "smembers")? == u64::from(clients * rounds * 2));
    Ok(())
}

/// Sends requests in one pipeline of which each reply depends on all before.
fn pipeline_keeps_its_order(number: usize, mut stream: TcpStream, rounds: u32) -> Result<()> {
    let mut expected = String::new();
    let mut requests = String::new();
    for round in 0..rounds {
        let key = format!("s{number}");
        requests += &format!(
            "SADD {key} {round}\r\nSMEMBERS {key}\r\nGET {key}x\r\nDEL {key}\r\nSMEMBERS {key}\r\nSMEMBERS set\r\n"
        );
        let len = round.to_string().len();
        expected += &format!(
            ":1\r\n*1\r\n${len}\r\n{round}\r\n$-1\r\n:1\r\n*0\r\n\
             -DENIED reason=too-large rule=max_rows rows={ELEMENTS} price_ru={LARGE}\r\n"
        );
    }
    let said = ask(&mut stream, requests.trim_end())?;
    ensure!(said == expected, "{number}: {said}");
    Ok(())
}

#[test]
fn reads_of_too_many_rows_are_refused_with_their_size_and_price() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate("resp", store.address, BOUNDED, &tenants(&[2]))?;
    let mut client = Client::new(&gate, 2)?;
    let denied = |rows: u32| {
        let price = 0.5 + f64::from(rows) / 2.0;
        format!("-DENIED reason=too-large rule=max_rows rows={rows} price_ru={price}\r\n")
    };
    for (line, rows) in [
        ("SMEMBERS set", ELEMENTS),
        ("HGETALL hash", 2 * ELEMENTS),
        ("HVALS hash", ELEMENTS),
        ("LRANGE list 0 -1", ELEMENTS),
        ("LRANGE list 0 15000", 15_001),
        ("LRANGE list -10001 -1", 10_001),
        ("ZRANGE sorted 0 -1", ELEMENTS),
        ("ZRANGE sorted 0 -1 WITHSCORES", 2 * ELEMENTS),
        ("ZREVRANGEBYSCORE sorted +inf 1", ELEMENTS),
        ("ZRANGE sorted - + BYLEX", ELEMENTS),
        ("SORT list LIMIT 0 1 ALPHA", ELEMENTS),
        ("SORT set ALPHA STORE d", ELEMENTS),
        ("SUNIONSTORE d set set-2 small", 2 * ELEMENTS + 3),
        ("SDIFF set set-2", 2 * ELEMENTS),
        ("ZUNIONSTORE d 2 sorted set", 2 * ELEMENTS),
    ] {
        let said = client.ask(line)?;
        ensure!(said == denied(rows), "{line}: {said}");
    }
    for command in ["smembers", "hgetall", "lrange", "zrange", "sort", "sunionstore", "sdiff", "zunionstore"]
    {
        ensure!(calls(&store, command)? == 0, "{command} has reached the store");
    }
    for (line, said) in [
        ("LRANGE list 0 0", "*1\r\n$2\r\nm1\r\n"),
        ("ZRANGEBYSCORE sorted 1 2", "*2\r\n$2\r\nm1\r\n$2\r\nm2\r\n"),
        ("SUNIONSTORE d small small-2", ":3\r\n"),
        ("SMEMBERS none", "*0\r\n"),
        ("HGETALL list", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ] {
        ensure!(client.ask(line)? == said, "{line}");
    }
    let refused = gate.json(&["tenants"])?["tenants"][0]["refused"]["too-large"].as_u64();
    ensure!(refused == Some(15), "{refused:?}");
    Ok(())
}

#[test]
fn a_question_about_a_long_key_misleads_nobody() -> Result<()> {
    let store = filled(&[])?;
    for longest in ["1KiB", "64KiB"] {
        let service = format!("{BOUNDED}connections = \"1\"\nmax_request = \"{longest}\"\n");
        let gate =
            Listening::gate_with("threads = \"1\"", "resp", store.address, &service, &tenants(&[1, 2]))?;
        let mut other = Client::new(&gate, 2)?;
        for len in [900, 1_010, 1_500, 4_000, 5_000, 65_500, 65_512] {
            let key = "k".repeat(len);
            let sort = format!("*2\r\n$4\r\nSORT\r\n${len}\r\n{key}\r\n");
            for request in [format!("HGETALL {key}\r\n"), sort] {
                let mut hostile = gate.connect_from(Ipv4Addr::new(127, 0, 0, 1))?;
                hostile.write_all(request.as_bytes())?;
                read_until(&mut hostile, b"\r\n")?;
                for number in 0..3 {
                    let said = other.ask(&format!("ECHO {len}-{number}"))?;
                    ensure!(said.contains(&format!("\r\n{len}-{number}\r\n")), "{longest}, {len}: {said}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_question_overtakes_nothing_of_its_client() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, BOUNDED, &tenants(&[1]))?;
    let mut client = Client::new(&gate, 1)?;
    // Those that are slow wait for each other, and what is behind them waits as well.
    let slow = "SINTER small small-2\r\n".repeat(6);
    let said = client.ask(&format!("{slow}RENAME set renamed\r\nSMEMBERS renamed"))?;
    ensure!(said.contains("+OK\r\n-DENIED reason=too-large rule=max_rows rows=20000 "), "{said}");
    Ok(())
}

#[test]
fn of_options_that_are_repeated_the_largest_counts() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate("resp", store.address, BOUNDED, &tenants(&[1]))?;
    let mut client = Client::new(&gate, 1)?;
    for line in [
        "ZRANGEBYSCORE sorted -inf +inf LIMIT 0 1 LIMIT 0 -1",
        "ZRANGE sorted -inf +inf BYSCORE LIMIT 0 1 LIMIT 0 -1",
        "ZREVRANGEBYLEX sorted + - LIMIT 0 5 LIMIT 0 -1",
    ] {
        let said = client.ask(line)?;
        ensure!(said.contains("rule=max_rows"), "{line}: {}", &said[..said.len().min(200)]);
    }
    Ok(())
}

#[test]
fn a_question_about_nonsense_ends_no_questions() -> Result<()> {
    let store = filled(&[])?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, BOUNDED, &tenants(&[1, 2]))?;
    let mut hostile = Client::new(&gate, 1)?;
    let mut other = Client::new(&gate, 2)?;
    for (nonsense, all) in [
        ("ZRANGEBYSCORE sorted a b", "ZRANGEBYSCORE sorted -inf +inf"),
        ("ZRANGE sorted a b BYSCORE", "ZRANGE sorted -inf +inf BYSCORE"),
        ("ZRANGEBYLEX sorted a b", "ZRANGEBYLEX sorted - +"),
    ] {
        let said = hostile.ask(nonsense)?;
        ensure!(said.starts_with("-ERR min or max"), "{said}");
        for client in [&mut hostile, &mut other] {
            let said = client.ask(all)?;
            ensure!(said.contains("rule=max_rows"), "{all}: {}", &said[..said.len().min(200)]);
        }
    }
    Ok(())
}

#[test]
fn within_a_transaction_what_is_known_is_refused() -> Result<()> {
    let store = filled(&[])?;
    let gate =
        Listening::gate("resp", store.address, &format!("{BOUNDED}ask_sizes = \"off\"\n"), &tenants(&[2]))?;
    let mut client = Client::new(&gate, 2)?;
    // Nothing is asked: the first read shows the size.
    ensure!(client.ask("SMEMBERS set")?.starts_with("*20000\r\n"));
    ensure!(client.ask("SMEMBERS set")?.starts_with("-DENIED reason=too-large rule=max_rows rows=20000 "));
    ensure!(calls(&store, "scard")? == 0);
    let said = client.ask("MULTI\r\nSMEMBERS set\r\nEXEC")?;
    ensure!(said.contains("DENIED reason=too-large rule=max_rows") && said.contains("-EXECABORT"), "{said}");
    Ok(())
}

#[test]
fn a_store_that_does_not_tell_sizes_is_priced_as_before() -> Result<()> {
    let store = filled(&["--rename-command", "SCARD", "", "--rename-command", "HLEN", "hidden-hlen"])?;
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants(&[2]))?;
    let mut client = Client::new(&gate, 2)?;
    client.costs("SMEMBERS set", GUESS)?;
    // The question was charged; the answer is none, and the next one is not asked.
    client.costs("SMEMBERS set", LARGE + QUESTION)?;
    client.costs("SMEMBERS set", LARGE)?;
    client.costs("HGETALL hash", GUESS)?;
    client.costs("HGETALL hash", 2.0 * LARGE - 0.5 + QUESTION)?;
    ensure!(counted(&gate, "sizes-untold")? == 2 && counted(&gate, "sizes-asked")? == 2);
    Ok(())
}

#[test]
fn a_store_that_lies_about_sizes_is_believed_once() -> Result<()> {
    // What it calls `SCARD` says 1 of each key that there is.
    let store = filled(&["--rename-command", "SCARD", "", "--rename-command", "EXISTS", "SCARD"])?;
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants(&[2]))?;
    let mut client = Client::new(&gate, 2)?;
    client.costs("SMEMBERS set", GUESS)?;
    client.costs("SMEMBERS set", 1.0 + QUESTION)?;
    client.costs("SMEMBERS set", LARGE + QUESTION)?;
    ensure!(counted(&gate, "sizes-told-wrong")? == 1);
    Ok(())
}

#[test]
fn removed_keys_are_freed_later_with_the_same_answer() -> Result<()> {
    let store = filled(&[])?;
    store.ask(b"ACL SETUSER limited on >p ~* +@all -unlink\r\n", b"+OK\r\n")?;
    store.ask(b"ACL SETUSER own on >p ~s* +@all\r\n", b"+OK\r\n")?;
    let tenants = format!("{}users = [\"limited\", \"own\"]\n", tenants(&[2]));
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants)?;
    let mut client = Client::new(&gate, 2)?;
    // The store has told what a user may do once there is a connection.
    client.ask("PING")?;
    let count = |expected: [u64; 2]| -> Result<()> {
        let found = [calls(&store, "del")?, calls(&store, "unlink")?];
        // gate's own question, for each connection, has no key and does not run.
        ensure!(found == expected, "{found:?}, not {expected:?}");
        Ok(())
    };
    ensure!(client.ask("DEL set small none")? == ":2\r\n");
    ensure!(client.ask("del")?.starts_with("-ERR wrong number of arguments for 'del' command"));
    count([0, 1])?;
    client.ask("SADD s 1")?;
    // Within a transaction it stays what it is; on a connection of its own it does not.
    ensure!(client.ask("MULTI\r\nDEL s\r\nEXEC")? == "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    count([1, 1])?;
    ensure!(client.ask("SADD s 1\r\nWATCH a\r\nDEL s\r\nUNWATCH")? == ":1\r\n+OK\r\n:1\r\n+OK\r\n");
    count([1, 2])?;
    // A user that may not send it, and one that may with keys of its own.
    ensure!(client.ask("AUTH limited p\r\nPING")? == "+OK\r\n+PONG\r\n");
    ensure!(client.ask("DEL list")? == ":1\r\n");
    count([2, 2])?;
    ensure!(client.ask("AUTH own p\r\nPING")? == "+OK\r\n+PONG\r\n");
    ensure!(client.ask("DEL sorted")? == ":1\r\n");
    ensure!(client.ask("DEL hash")?.starts_with("-NOPERM"));
    count([2, 3])?;
    Ok(())
}

#[test]
fn keys_are_removed_at_once_where_that_is_wanted() -> Result<()> {
    for (arguments, service) in
        [(&["--rename-command", "UNLINK", ""][..], ""), (&[], "unlink = \"off\"\nmax_rows = \"10000\"\n")]
    {
        let store = filled(arguments)?;
        let gate = Listening::gate("resp", store.address, &format!("{SERVICE}{service}"), &tenants(&[2]))?;
        let mut client = Client::new(&gate, 2)?;
        ensure!(client.ask("DEL small set-2")? == ":2\r\n", "{service}");
        ensure!([calls(&store, "del")?, calls(&store, "unlink")?] == [1, 0], "{service}");
    }
    Ok(())
}
