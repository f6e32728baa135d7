//! docs/ISOLATION.md, of one run.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Machine, Row, Summary, Verdict, count, millis};
use crate::isolation::Group;

/// The document.
pub(super) fn render(machine: &Machine, each: Duration, rounds: usize, rows: &[Row]) -> String {
    let mut text = introduction(machine, each, rounds, rows);
    for group in Group::ALL {
        let words = if group == Group::Dear { DEAR } else { "" };
        let _ = write!(text, "\n## {}\n\n{words}{HEAD}", group.name());
        for row in rows.iter().filter(|row| row.about.group == group) {
            let directly = row.directly.as_ref().map_or_else(|| "| | ".to_owned(), cells);
            let _ = writeln!(
                text,
                "| **{}**, {}. {} | {} {directly}{}| {} |",
                row.behaviour,
                row.store,
                row.about.does,
                millis(row.baseline.p99_us),
                cells(&row.through),
                match row.verdict {
                    Verdict::Kept => "yes",
                    Verdict::Unclear => "unclear",
                    Verdict::NotKept => "**no**",
                }
            );
        }
    }
    text + &not_kept(rows)
}

fn cells(summary: &Summary) -> String {
    format!("| {} | {} ", errors(summary), millis(summary.p99_us))
}

fn errors(summary: &Summary) -> String {
    match summary.errors {
        0 => "0".to_owned(),
        _ => format!("{:.1} %", summary.error_rate().max(0.1)),
    }
}

const HEAD: &str = "\
| what the neighbour does | alone: p99 | directly: errors | p99 | through gate: errors | p99 | kept |
|---|---|---|---|---|---|---|
";

const DEAR: &str = "\
Keys have a million elements (in the suite a tenth, unless it runs with `--long`). A tenant to whom nothing is denied asks one command,
waits for its answer, and asks again. Redis does nothing else meanwhile, so that everybody waits, through gate as directly. *Kept*: no
request of the polite tenant fails; it is given 12 s, where gate lets a store be silent for 10 s (`slow_timeout`).

";

fn introduction(machine: &Machine, each: Duration, rounds: usize, rows: &[Row]) -> String {
    let Machine { date, kernel, cpus, load, nice } = machine;
    let busy = machine.state();
    let priority = match nice {
        0 => String::new(),
        _ => format!(", at a nice value of {nice}"),
    };
    let build = Machine::build();
    format!(
        "# Isolation

What one tenant does, another does not feel. This is the table: what a careless or hostile tenant does, and what a polite
tenant of the same store sees of it, directly and through gate. `cargo xtask bench isolation` measures it and writes this
document; the suite `proxy` runs the same table at reduced size (`cargo xtask test proxy_isolation behaviours`).

Measured on {date} on {busy}: {cpus} processors, Linux {kernel}, a load of {load:.1} before the run{priority}.
`cargo xtask bench isolation --each {each} --rounds {rounds}`{build}: each behaviour for {each} ms, {rounds} times.

**{kept} of {count} are kept**, {unclear} are unclear, and {broken} are not kept, for the reasons [below](#not-kept).

- The polite tenant reads and writes 16 keys of its own, 500 requests a second, open loop: latency counts from when a request
  was due. One in a hundred goes over a new connection. An answer that is wrong, missing for 2 s, or a refusal is an error. Errors
  are those of all rounds; p99 is the median of the rounds. What is above its limit has been measured twice as often again, and the
  median of all those rounds counts.
- *Alone*: through gate, without a neighbour. *Directly*: both ask the store. *Through gate*: both ask gate. *Kept*: no error
  through gate, and a p99 of at most twice its own alone, or 1 ms more if that is larger. *Alone* is the same measurement in all
  rows of a store, and whatever raises it is the machine's: the lowest counts. *Unclear*: no error and a p99 above that limit, but
  the machine alone raised a tenth of the measurements without a neighbour as far.
- The stores are Debian's Redis and memcached with their defaults (Redis saves nothing, memcached takes datagrams). gate runs in
  user space with its defaults. The polite tenant has a quota of 5,000 RU/s, the others of 2,000 RU/s; the hostile one is denied what
  [CONFIGURATION.md](CONFIGURATION.md) recommends, scripts included, and bound to its own keys (`keys = \"own\"`); \"one who may\" is denied nothing.
- All run on one machine. The neighbour's own threads give way to all others (`SCHED_IDLE`), as it would have a machine of its own;
  the processor time that the kernel, the store and gate spend on it counts.
",
        each = each.as_millis(),
        count = rows.len(),
        kept = count(rows, Verdict::Kept),
        unclear = count(rows, Verdict::Unclear),
        broken = count(rows, Verdict::NotKept)
    )
}

const NO_REASON: &str = "Nothing known of gate explains it: to be measured again on a quiet machine.";

fn not_kept(rows: &[Row]) -> String {
    let mut text = "\n## Not kept\n\n".to_owned();
    let failed: Vec<_> = rows.iter().filter(|row| row.verdict == Verdict::NotKept).collect();
    if failed.is_empty() {
        text += "Nothing.\n";
    }
    for row in failed {
        let seen = match &row.through.first_error {
            Some(error) => format!("errors ({}), the first `{error}`", errors(&row.through)),
            None => format!("p99 {}, limit {}", millis(row.through.p99_us), millis(row.limit_us)),
        };
        let reason = row.about.not_kept().map_or(NO_REASON, |entry| entry.reason);
        let _ = writeln!(text, "- **{}** ({seen}). {reason}", row.behaviour);
    }
    text
}
