//! redis-server as an owner: a script that takes what was given out of each name's limit by GCRA, in batches.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::gates::cost;
use super::lasts;

/// The theoretical arrival time of each name, which what was given out moves on, whatever that makes of it: it has been given
/// out already. The answer is 1 where the name is over its limit.
const GCRA: &str = "\
local now, per_unit, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local over = {}
for place, key in ipairs(KEYS) do
  local arrival = math.max(tonumber(redis.call('GET', key)) or now, now) + ARGV[3 + place] * per_unit
  redis.call('SET', key, arrival, 'PX', 60000)
  over[place] = (arrival - now > burst) and 1 or 0
end
return over";

/// A connection that runs the script over and over.
pub(super) struct Script {
    stream: TcpStream,
    /// The command up to the time, and after it.
    command: [String; 2],
    entries: usize,
    from: Instant,
}

impl Script {
    /// Loads it, for batches of so many names with this quota, in request units a second.
    pub(super) fn load(redis: SocketAddr, entries: usize, quota: u32) -> Result<Self> {
        let mut stream = TcpStream::connect(redis)?;
        stream.set_nodelay(true)?;
        write!(stream, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{GCRA}\r\n", GCRA.len())?;
        let mut answer = [0; 47];
        stream.read_exact(&mut answer)?;
        let digest = std::str::from_utf8(&answer[5..45])?;
        let mut head = format!("*{}\r\n", 3 + entries + 3 + entries);
        let add = |head: &mut String, word: &str| write!(head, "${}\r\n{word}\r\n", word.len());
        add(&mut head, "EVALSHA")?;
        add(&mut head, digest)?;
        add(&mut head, &entries.to_string())?;
        for name in 0..entries {
            add(&mut head, &format!("shop/user={name:07}"))?;
        }
        let mut tail = String::new();
        // Microseconds for a thousandth of a request unit, and for a second's worth.
        add(&mut tail, &format!("{}", 1e3 / f64::from(quota)))?;
        add(&mut tail, "1000000")?;
        for name in 0..entries {
            add(&mut tail, &cost(name).to_string())?;
        }
        Ok(Self { stream, command: [head, tail], entries, from: Instant::now() })
    }

    /// Runs it for this time. Returns how many entries.
    pub(super) fn run_for(&mut self, time: Duration) -> Result<u64> {
        let from = Instant::now();
        let mut entries = 0;
        let head = format!("*{}\r\n", self.entries);
        let mut answer = vec![0; head.len() + self.entries * ":0\r\n".len()];
        while entries == 0 || lasts(from, time) {
            let now = self.from.elapsed().as_micros().to_string();
            let [before, after] = &self.command;
            let command = format!("{before}${}\r\n{now}\r\n{after}", now.len());
            self.stream.write_all(command.as_bytes())?;
            self.stream.read_exact(&mut answer)?;
            ensure!(
                answer.starts_with(head.as_bytes()) && answer.ends_with(b"\r\n"),
                "no answer of the script's"
            );
            entries += self.entries as u64;
        }
        Ok(entries)
    }
}
