//! memcached's commands: lines are split, words are split, and what memcached would do is written down.

use gate_common::abi::ServiceState;

/// The commands of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commands {
    /// The price of all commands, before any multiplier.
    pub price: u64,
    /// True if the client waits for a reply.
    pub answerable: bool,
    /// True if the price of a part is the upper bound for so many bytes.
    pub bounded: bool,
}

/// Reads a payload of `len` bytes, frame header included, of which only `payload` is shown; `None` if it is malformed. Where
/// the daemon reads the whole, the rest may be hidden.
#[must_use]
pub fn memcached(payload: &[u8], len: usize, prices: &ServiceState, is_read_again: bool) -> Option<Commands> {
    if len <= 8 || payload.len() < 8 || payload[4..6] != [0, 1] {
        return None;
    }
    let read = read(&payload[8..], len, len - payload.len(), prices, false);
    read.filter(|commands| !commands.bounded || is_read_again)
}

/// Reads a segment's payload of `len` bytes, of which only `payload` is shown, where it is priced by its lines.
#[must_use]
pub fn segment(payload: &[u8], len: usize, prices: &ServiceState) -> Option<Commands> {
    read(payload, len, len - payload.len(), prices, true)
}

/// Reads lines, with so many bytes `hidden` behind them. A segment may end within a line or its data, and whatever would make
/// a datagram malformed ends the belief in data.
fn read(
    mut rest: &[u8],
    len: usize,
    mut hidden: usize,
    prices: &ServiceState,
    is_segment: bool,
) -> Option<Commands> {
    let mut price = (len as u64 * u64::from(prices.kib_mru)).div_ceil(1024);
    let mut answerable = false;
    let mut bounded = false;
    let mut is_doubtful = false;
    while !rest.is_empty() || hidden > 0 {
        if hidden > 0 && !rest.contains(&b'\n') {
            let command = u64::from(prices.base_mru) + u64::from(prices.latency_mru[7]);
            let bytes = (rest.len() + hidden) as u64;
            price += bytes * command.max(u64::from(prices.row_mru).div_ceil(2));
            bounded = true;
            break;
        }
        let is_odd = rest.first().is_some_and(|first| [0x80, b' '].contains(first));
        if is_odd && !is_segment {
            return None;
        }
        is_doubtful |= is_odd;
        let end = rest.iter().position(|&byte| byte == b'\n');
        let mut line = &rest[..end.unwrap_or(rest.len())];
        if end.is_none() && !is_segment {
            return None;
        }
        rest = end.map_or(&[], |end| &rest[end + 1..]);
        if end.is_some() && line.len() > 1 && line.ends_with(b"\r") {
            line = &line[..line.len() - 1];
        }
        let command = Command::of(line);
        price += u64::from(prices.base_mru)
            + command.rows as u64 * u64::from(prices.row_mru)
            + u64::from(prices.latency_mru[command.class]);
        answerable |= line.first().is_some_and(u8::is_ascii_lowercase) && !command.quiet;
        if command.is_storage && command.data.is_none() && end.is_some() {
            if !is_segment {
                return None;
            }
            is_doubtful = true;
        }
        if let Some(data) = command.data.filter(|_| end.is_some() && !is_doubtful) {
            let beyond = (data + 2).saturating_sub(rest.len());
            if beyond > hidden && is_segment {
                break;
            }
            hidden = hidden.checked_sub(beyond)?;
            rest = &rest[data + 2 - beyond..];
        }
    }
    Some(Commands { price: price.min(u64::from(u32::MAX)), answerable, bounded })
}

/// One line.
struct Command {
    class: usize,
    rows: usize,
    quiet: bool,
    is_storage: bool,
    /// Bytes of data that every memcached takes.
    data: Option<usize>,
}

impl Command {
    fn of(line: &[u8]) -> Self {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        let (name, words) = match words.split_first() {
            // A command must start the line and be followed by a space.
            Some((name, words)) if line.starts_with(name) && line.len() > name.len() => (*name, words),
            Some((_, words)) => (&b""[..], words),
            None => (&b""[..], &[][..]),
        };
        let noreply = line.len() > 8 && line.ends_with(b" noreply");
        let one = words.len().min(1);
        let q = words.iter().skip(1).any(|word| word == b"q");
        let command = |class: usize, rows: usize, quiet: bool| Self {
            class,
            rows,
            quiet,
            is_storage: false,
            data: None,
        };
        let get = |rows: usize| command(usize::from(rows > 1), rows, false);
        let write = |class: usize| command(class, one, noreply);
        let meta = |class: usize| command(class, one, q);
        let store = |quiet: bool, data| Self { is_storage: true, data, ..command(2, one, quiet) };
        match name {
            b"get" | b"gets" | b"bget" => get(words.len()),
            b"gat" | b"gats" => get(words.len().saturating_sub(1)),
            b"set" | b"add" | b"replace" | b"append" | b"prepend" => {
                store(noreply, storage(line, words, false))
            }
            b"cas" => store(noreply, storage(line, words, true)),
            b"delete" => write(3),
            b"incr" | b"decr" => write(4),
            b"touch" => write(5),
            b"mg" => meta(0),
            b"ms" => store(q, meta_storage(line, words)),
            b"md" => meta(3),
            b"ma" => meta(4),
            b"me" => meta(6),
            _ => {
                let class = if line.starts_with(b" ") { 7 } else { 6 };
                command(class, words.len(), noreply)
            }
        }
    }
}

/// The number in a word of digits, if it is no larger.
fn number(word: &[u8], largest: u64) -> Option<u64> {
    let digits = word.len() <= 19 && word.iter().all(u8::is_ascii_digit);
    let number: u64 = digits.then(|| std::str::from_utf8(word).ok()?.parse().ok()).flatten()?;
    (number <= largest).then_some(number)
}

const LONGEST_DATA: u64 = i32::MAX as u64 - 2;

fn storage(line: &[u8], words: &[&[u8]], unique: bool) -> Option<usize> {
    let least = 4 + usize::from(unique);
    if words.len() < least || words.len() > least + 1 || odd(line) || words[0].len() > 250 {
        return None;
    }
    // memcached since 1.6.40 takes no longer numbers of 32 bits.
    if words[1..4].iter().any(|number| number.len() > 11) {
        return None;
    }
    number(words[1], u64::from(u32::MAX))?;
    number(
        words[2].strip_prefix(b"-").filter(|digits| !digits.is_empty()).unwrap_or(words[2]),
        i32::MAX as u64,
    )?;
    if unique {
        number(words[4], u64::MAX)?;
    }
    number(words[3], LONGEST_DATA).map(|length| length as usize)
}

fn meta_storage(line: &[u8], words: &[&[u8]]) -> Option<usize> {
    if words.len() < 2 || words.len() > 16 || odd(line) || words[0].len() > 250 || words[1].len() > 11 {
        return None;
    }
    if words[2..].iter().any(|flag| !flag[0].is_ascii_alphabetic()) {
        return None;
    }
    number(words[1], LONGEST_DATA).map(|length| length as usize)
}

/// A zero byte ends a line for some memcached, and a carriage return is a blank or part of a word.
fn odd(line: &[u8]) -> bool {
    line.contains(&0) || line.contains(&b'\r')
}
