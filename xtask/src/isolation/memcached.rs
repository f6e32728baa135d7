//! Requests to memcached.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::traffic::{Reads, Traffic};
use super::{Behaviour, Group, Hostile, Origin, Store};

fn row(name: &'static str, does: &'static str, run: fn(&Hostile<'_>) -> Result<()>) -> Behaviour {
    Behaviour::new(Group::Memcached, Store::Memcached, name, does, run)
}

/// Stores the value that behaviours ask for.
pub(super) fn fill(store: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(store)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(&set("hostile:large", &[b'v'; 500_000]))?;
    let mut said = [0; 8];
    stream.read_exact(&mut said)?;
    ensure!(&said == b"STORED\r\n");
    Ok(())
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A `get` of so many keys.
fn multiget(keys: u64) -> Vec<u8> {
    let keys: String = (0..keys).map(|number| format!(" hostile:{number:05}")).collect();
    format!("get{keys}\r\n").into_bytes()
}

#[rustfmt::skip]
pub(super) fn behaviours() -> Vec<Behaviour> {
    vec![
        row("a hot key", "Reads one key 20,000 times a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10), |_| b"get hostile:hot\r\n".to_vec())
        }),
        row("cache-busting keys", "Reads a new key each time, 20,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10), |number| format!("get hostile:{number}\r\n").into_bytes())
        }),
        row("a pipeline of refusals", "Sends 50,000 requests a second in pipelines of 500 and reads the answers.", |hostile| {
            hostile.send(&Traffic::new(4, 100).batch(500), |_| b"get hostile:none\r\n".to_vec())
        }),
        row("a pipeline of refusals that is not read", "Sends pipelines of 10,000 requests on 10 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::new(10, 20).batch(10_000).reads(Reads::Nothing), |_| b"get hostile:none\r\n".to_vec())
        }),
        row("requests as fast as they go", "Sends pipelines of 100 requests on 8 connections, as fast as it may.", |hostile| {
            hostile.send(&Traffic::new(8, 20_000).batch(100), |_| b"get hostile:none\r\n".to_vec())
        }),
        row("large values", "Stores 900,000 bytes 100 times a second over 10 connections.", |hostile| {
            let request = set("hostile:new", &[b'v'; 900_000]);
            hostile.send(&Traffic::new(10, 100), |_| request.clone())
        }),
        row("values that are too long", "Stores 4,000,000 bytes, more than memcached takes, 20 times a second.", |hostile| {
            let request = set("hostile:new", &[b'v'; 4_000_000]);
            hostile.send(&Traffic::new(10, 20), |_| request.clone())
        }),
        row("reads of large values", "Reads 500 KB 100 times a second over 10 connections.", |hostile| {
            hostile.send(&Traffic::new(10, 100), |_| b"get hostile:large\r\n".to_vec())
        }),
        row("huge multigets", "Reads 10,000 keys in one request, 50 times a second.", |hostile| {
            let request = multiget(10_000);
            hostile.send(&Traffic::new(10, 50), |_| request.clone())
        }),
        row("multigets within its burst", "Reads 200 keys in one request, 1,000 times a second.", |hostile| {
            let request = multiget(200);
            hostile.send(&Traffic::new(10, 1_000), |_| request.clone())
        }),
        row("long lines", "Sends 20,000 blanks in a `touch`, 50 times a second, for which memcached closes.", |hostile| {
            let request = format!("touch hostile:a{}0\r\n", " ".repeat(20_000));
            hostile.send(&Traffic::new(10, 50), |_| request.clone().into_bytes())
        }),
        row("long `gat` lines", "Sends a `gat` of 20 KB, 50 times a second, for which memcached closes.", |hostile| {
            let request = format!("gat 0{}\r\n", " hostile:a".repeat(2_000));
            hostile.send(&Traffic::new(10, 50), |_| request.clone().into_bytes())
        }),
        row("lines without end", "Sends bytes without a line's end, 10 MB a second.", |hostile| {
            hostile.send(&Traffic::new(10, 200), |_| vec![b'x'; 50_000])
        }),
        row("another protocol", "Sends HTTP, TLS and binary requests over 1,000 connections a second.", |hostile| {
            hostile.send(&Traffic::new(100, 1_000).ends(super::traffic::Ends::Answered), |number| {
                match number % 3 {
                    0 => b"GET / HTTP/1.1\r\nHost: store\r\n\r\n".to_vec(),
                    1 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
                    _ => [&b"\x80\x00\x00\x04"[..], &[0; 24]].concat(),
                }
            })
        }),
        row("statistics of gate", "Asks for `stats gate` 5,000 times a second over 2 connections.", |hostile| {
            hostile.send(&Traffic::new(2, 500).batch(10), |_| b"stats gate\r\n".to_vec())
        }),
        row("statistics of the store", "Asks for `stats`, `stats items` and `stats slabs` 5,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(10, 500).batch(10), |number| {
                [&b"stats\r\n"[..], b"stats items\r\n", b"stats slabs\r\n"][number as usize % 3].to_vec()
            })
        }),
        row("`flush_all`", "Empties the store 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(1, 50), |_| b"flush_all\r\n".to_vec())
        }),
        row("administration", "Sends `cache_memlimit`, `verbosity`, `slabs`, `lru_crawler` and `shutdown`.", |hostile| {
            hostile.send(&Traffic::new(5, 100), |number| {
                [
                    &b"cache_memlimit 8\r\n"[..], b"verbosity 2\r\n", b"slabs automove 2\r\n",
                    b"lru_crawler crawl all\r\n", b"shutdown\r\n",
                ][number as usize % 5].to_vec()
            })
        }),
        row("a log that is not read", "Sends `watch fetchers mutations` and `lru_crawler metadump all` on 10 connections and reads nothing.", |hostile| {
            hostile.send(&Traffic::held(10, "watch fetchers mutations\r\nlru_crawler metadump all\r\n").reads(Reads::Nothing), |_| Vec::new())
        }),
        row("writes without answers", "Sends 20,000 `set` with `noreply` a second.", |hostile| {
            hostile.send(&Traffic::new(10, 2_000).batch(10), |number| {
                format!("set hostile:{} 0 0 5 noreply\r\nvalue\r\n", number % 1_000).into_bytes()
            })
        }),
        row("counters on one key", "Increments one key 20,000 times a second over 50 connections.", |hostile| {
            hostile.send(&Traffic::new(50, 2_000).batch(10).first(set("hostile:count", b"1")), |_| b"incr hostile:count 1\r\n".to_vec())
        }),
        row("the polite tenant's keys", "Overwrites and deletes the polite tenant's keys 1,000 times a second.", |hostile| {
            hostile.send(&Traffic::new(5, 1_000), |number| match number % 2 {
                0 => set(&format!("polite:{}", number % 16), b"another"),
                _ => format!("delete polite:{}\r\n", number % 16).into_bytes(),
            })
        }),
        row("`flush_all` by one who may", "A tenant to whom nothing is denied empties the store 50 times a second.", |hostile| {
            hostile.send(&Traffic::new(1, 50), |_| b"flush_all\r\n".to_vec())
        }).by(Origin::Privileged),
    ]
}
