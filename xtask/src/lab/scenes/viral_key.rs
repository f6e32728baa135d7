//! A key goes viral: one read of it is in flight at a time, the others are hits, and none shows an old value.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Outcome, WITH, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::place::ask;
use crate::lab::report::grouped;
use crate::lab::stage::{Load, Protocol, Seen, Stage};

const KEY: &str = "viral";
const READS_PER_SEC: u32 = 6_000;
/// How often the key gets another value.
const WRITE_EVERY: Duration = Duration::from_millis(250);

/// gate has found the key by then; what is measured begins with it.
const FOUND: Duration = Duration::from_secs(2);

/// The readers' view, the store's, and what was read after each write.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    readers: Seen,
    /// Reads that the store served.
    store_reads: u64,
    writes: u64,
    /// Reads that followed a write and showed an older value.
    stale: u64,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    stage.start_store(Protocol::Memcached, &["--service-time", "300us"])?;
    let store = stage.place.store();
    let without = measure(stage, WITHOUT, store, part(time, 0.4), None)?;
    let gate = stage.place.gate().to_string();
    let readers = stage.place.source(1).to_string();
    stage.start_gate(&format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\ntransports = [\"tcp\"]\n\
         listen = \"{gate}\"\nbackend = \"{store}\"\nhot_keys = {{ threshold = \"1000\" }}\ndefault = \"writers\"\n\
         # The machine's other work is no reason to refuse.\nshedding = {{ enabled = \"off\" }}\n\
         [[tenant]]\nname = \"readers\"\nsources = [\"{readers}\"]\nquota = \"unlimited\"\n\
         [[tenant]]\nname = \"writers\"\nquota = \"unlimited\"\n"
    ))?;
    let through = stage.place.gate();
    let with = measure(stage, WITH, through, part(time, 0.6), Some(FOUND))?;
    let queues = stage.show("queues")?;
    let event = |name: &str| grouped(queues["services"][0]["events"][name].as_u64().unwrap_or(0));
    let result = format!(
        "once the key is hot, {} reads cost the store {} (in all {} hits, {} joined another's read), {} of {} writes were \
         followed by an old value; without gate {} reads cost it {}",
        grouped(with.readers.answered),
        grouped(with.store_reads),
        event("cache-hits"),
        event("coalesced"),
        with.stale,
        with.writes,
        grouped(without.readers.answered),
        grouped(without.store_reads)
    );
    let seconds = [part(time, 0.4), part(time, 0.6).saturating_sub(FOUND)].map(|time| time.as_secs_f64());
    Ok(Outcome { result, compared: compared([&without, &with], seconds), claim: claim(&without, &with) })
}

fn measure(
    stage: &mut Stage<'_>,
    phase: &str,
    target: std::net::SocketAddr,
    time: Duration,
    from: Option<Duration>,
) -> Result<Measured> {
    let mut counted = stage.place.connect(stage.place.store())?;
    let mut writer = stage.place.connect(target)?;
    let mut reader = stage.place.connect(target)?;
    write(&mut writer, 0)?;
    let mut before = store_reads(&mut counted)?;
    let mut later = from;
    let source = stage.place.source(1);
    let caller = format!("name=readers,source={source},rate={READS_PER_SEC}/s,hot={KEY}:100%,connections=16");
    let load = Load { target, how: &["--tcp"], fill: None, callers: vec![caller] };
    let mut writes = 0_u32;
    let mut stale = 0;
    let played = stage.play(phase, time, &[load], |_, elapsed| {
        if later.take_if(|later| elapsed >= *later).is_some() {
            before = store_reads(&mut counted)?;
        }
        if elapsed >= WRITE_EVERY * (writes + 1) {
            writes += 1;
            write(&mut writer, writes)?;
            // Both on another connection and on the writer's own.
            stale += u64::from(read(&mut reader)? < writes) + u64::from(read(&mut writer)? < writes);
        }
        Ok(())
    })?;
    let store_reads = store_reads(&mut counted)?.saturating_sub(before);
    Ok(Measured {
        readers: from.map_or_else(|| played.of("readers"), |from| played.from(from.as_secs_f64(), "readers")),
        store_reads,
        writes: writes.into(),
        stale,
    })
}

fn write(stream: &mut TcpStream, number: u32) -> Result<()> {
    let answer = ask(stream, format!("set {KEY} 0 0 8\r\n{number:08}\r\n").as_bytes(), "\r\n")?;
    anyhow::ensure!(answer == "STORED\r\n", "a write was answered {answer:?}");
    Ok(())
}

/// The number in the value.
fn read(stream: &mut TcpStream) -> Result<u32> {
    let answer = ask(stream, format!("get {KEY}\r\n").as_bytes(), "END\r\n")?;
    let number = answer.lines().nth(1).and_then(|line| line.parse().ok());
    number.with_context(|| format!("a read was answered {answer:?}"))
}

/// How many keys the store has been asked for.
fn store_reads(store: &mut TcpStream) -> Result<u64> {
    let stats = ask(store, b"stats\r\n", "END\r\n")?;
    let count = stats.lines().find_map(|line| line.strip_prefix("STAT cmd_get ")?.parse().ok());
    count.context("the store does not count its reads")
}

/// For so many seconds of each phase.
fn compared([without, with]: [&Measured; 2], seconds: [f64; 2]) -> [Comparison; 2] {
    let phases = [(WITHOUT, without, seconds[0]), (WITH, with, seconds[1])];
    let readers = |(phase, measured, _): (_, &Measured, _)| {
        Bar::latency(phase, measured.readers.latency.p99, &measured.readers)
    };
    let store =
        |(phase, measured, seconds): (_, &Measured, _)| Bar::per_sec(phase, measured.store_reads, seconds);
    [
        Comparison { of: "readers: p99 of their answers".to_owned(), bars: phases.map(readers).into() },
        Comparison {
            of: "reads of the key that the store serves".to_owned(),
            bars: phases.map(store).into(),
        },
    ]
}

fn claim(without: &Measured, with: &Measured) -> Result<(), String> {
    // Two reads follow each write.
    let reads = |measured: &Measured| measured.readers.answered + 2 * measured.writes;
    let [before, after] = [without, with].map(|measured| share(measured.store_reads, reads(measured)));
    let unanswered = share(with.readers.refused + with.readers.unanswered(), with.readers.offered);
    first_broken([
        (before >= 0.9, format!("without gate only {} of the reads reached the store", percent(before))),
        (
            with.readers.answered > 0 && after <= 0.4,
            format!("{} of the reads reached the store", percent(after)),
        ),
        (with.writes >= 3, format!("only {} writes were followed", with.writes)),
        (with.stale == 0, format!("{} reads showed an old value", with.stale)),
        (unanswered <= 0.05, format!("{} of the reads were not answered", percent(unanswered))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_reads_reach_the_store_and_none_is_stale() {
        let readers =
            |answered| Seen { offered: 10_000, answered, lost: 10_000 - answered, ..Seen::default() };
        let measured = |answered, store_reads, writes, stale| Measured {
            readers: readers(answered),
            store_reads,
            writes,
            stale,
        };
        let without = measured(10_000, 10_000, 5, 0);
        for (without, with, broken) in [
            (without, measured(10_000, 800, 20, 0), None),
            (without, measured(10_000, 10_040, 20, 0), Some("100.0 % of the reads reached")),
            (without, measured(10_000, 800, 2, 0), Some("only 2 writes")),
            (without, measured(10_000, 800, 20, 1), Some("1 reads showed an old value")),
            (without, measured(9_000, 800, 20, 0), Some("10.0 % of the reads were not answered")),
            (measured(10_000, 100, 5, 0), measured(10_000, 800, 20, 0), Some("without gate")),
        ] {
            let said = claim(&without, &with).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
