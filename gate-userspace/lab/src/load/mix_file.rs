//! A mix from a file, with every fault that it has.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::keys::Keys;
use super::mix::{Command, Entry, KEY, Mix};
use super::parsers;
use gate_config::{Fault, Faults};

/// Reads a mix.
///
/// # Errors
/// If the file cannot be read, or with everything that is wrong with it.
pub(super) fn read(file: &Path) -> Result<Mix, String> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    parse(&text).map_err(|faults| Faults { file: name, faults }.to_string())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    request: Vec<Spanned<Written>>,
}

/// A request as it is written. Anything may be any value, so that each fault has its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    command: Option<Spanned<Value>>,
    weight: Option<Spanned<Value>>,
    name: Option<Spanned<Value>>,
    keys: Option<Spanned<Value>>,
    prefix: Option<Spanned<Value>>,
    count: Option<Spanned<Value>>,
    value: Option<Spanned<Value>>,
    script: Option<Spanned<Value>>,
}

fn parse(text: &str) -> Result<Mix, Vec<Fault>> {
    let mut reader = Reader { text, path: String::new(), header: 0..0, faults: Vec::new() };
    let file: File = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            reader.fault("", error.span().unwrap_or(0..0), None, error.message().to_owned());
            return Err(reader.faults);
        }
    };
    if file.request.is_empty() {
        reader.fault("", 0..0, None, "has no request; add e.g. [[request]] command = \"get\"".to_owned());
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (number, written) in file.request.into_iter().enumerate() {
        reader.path = format!("request[{number}]");
        reader.header = written.span();
        let Some((entry, name)) = reader.entry(&written.into_inner()) else { continue };
        if entries.iter().any(|other| other.name == entry.name) {
            let message = format!("another request is counted as {}: give this one a `name`", entry.name);
            reader.fault("name", name, None, message);
        }
        entries.push(entry);
    }
    if reader.faults.is_empty() { Ok(Mix { entries, by_request: true }) } else { Err(reader.faults) }
}

struct Reader<'a> {
    text: &'a str,
    /// The section that is read, and where it begins.
    path: String,
    header: Range<usize>,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    /// A request, and where its name is written.
    fn entry(&mut self, written: &Written) -> Option<(Entry, Range<usize>)> {
        let weight = self.get("weight", &written.weight, |value| integer(value, MAX_WEIGHT));
        let count = self.get("count", &written.count, |value| integer(value, MAX_COUNT));
        let count = count.unwrap_or(10) as usize;
        let script = self.get("script", &written.script, text);
        let command = self.get("command", &written.command, |value| command(value, count, script.clone()));
        if written.command.is_none() {
            let message = format!("is missing; known are {COMMANDS}, or a list of words");
            self.fault("command", self.header.clone(), None, message);
        }
        let has_script = matches!(command, Some(Command::Script { .. }));
        if let (Some(_), Some(given), false) = (&command, &written.script, has_script) {
            self.fault("script", given.span(), None, "needs command = \"script\"".to_owned());
        }
        let has_count = matches!(command, Some(Command::MultiGet { .. } | Command::Range { .. }));
        if let (Some(_), Some(given), false) = (&command, &written.count, has_count) {
            self.fault("count", given.span(), None, "needs command = \"mget\" or \"range\"".to_owned());
        }
        let keys = self.get("keys", &written.keys, keys);
        let name = self.get("name", &written.name, name);
        let prefix = self.get("prefix", &written.prefix, |value| {
            parsers::plain("prefix", str_of(value)?, parsers::MAX_NAME)
        });
        let value_bytes = self.get("value", &written.value, |value| parsers::value_bytes(str_of(value)?));
        let command = command?;
        if written.name.is_some() && name.is_none() {
            return None;
        }
        let name_at = written.name.as_ref().or(written.command.as_ref()).map_or(0..0, Spanned::span);
        let entry = Entry {
            name: name.unwrap_or_else(|| command.to_string()),
            weight: weight.unwrap_or(1) as u32,
            command,
            keys: keys.unwrap_or(Keys::Uniform { count: 1_000 }),
            prefix: prefix.unwrap_or_default(),
            value_bytes: value_bytes.unwrap_or(100),
        };
        Some((entry, name_at))
    }

    fn get<T>(
        &mut self,
        key: &str,
        value: &Option<Spanned<Value>>,
        parse: impl Fn(&Value) -> Result<T, String>,
    ) -> Option<T> {
        let value = value.as_ref()?;
        match parse(value.get_ref()) {
            Ok(parsed) => Some(parsed),
            Err(message) => {
                let shown = self.text[value.span()].to_owned();
                let shown = (shown.len() <= 60 && !shown.contains('\n')).then_some(shown);
                self.fault(key, value.span(), shown, message);
                None
            }
        }
    }

    fn fault(&mut self, key: &str, at: Range<usize>, value: Option<String>, message: String) {
        let line = 1 + self.text[..at.start.min(self.text.len())].matches('\n').count();
        let path = if key.is_empty() { String::new() } else { format!("{}.{key}", self.path) };
        self.faults.push(Fault { line, path, value, message });
    }
}

fn command(value: &Value, count: usize, script: Option<String>) -> Result<Command, String> {
    if let Value::Array(words) = value {
        let words: Result<Vec<String>, String> =
            words.iter().map(|word| str_of(word).map(str::to_owned)).collect();
        let words = words?;
        if words.first().is_none_or(|first| first.is_empty() || first.contains(KEY)) {
            return Err("must begin with a command of Redis, e.g. [\"HGETALL\", \"{key}\"]".to_owned());
        }
        return Ok(Command::Custom { words });
    }
    match str_of(value)? {
        "get" => Ok(Command::Get),
        "set" => Ok(Command::Set),
        "mget" => Ok(Command::MultiGet { count }),
        "delete" => Ok(Command::Delete),
        "range" => Ok(Command::Range { rows: count }),
        "script" => {
            let body = script.filter(|body| !body.is_empty());
            let body = body.ok_or("needs a script, e.g. script = \"return redis.call('GET', KEYS[1])\"")?;
            Ok(Command::Script { body })
        }
        _ => Err(format!("unknown; known are {COMMANDS}, or a list of words, e.g. [\"HGETALL\", \"{KEY}\"]")),
    }
}

fn keys(value: &Value) -> Result<Keys, String> {
    match value {
        Value::Integer(_) => integer(value, parsers::MAX_KEYS).map(|count| Keys::Uniform { count }),
        Value::String(text) => parsers::keys(text),
        _ => Err("must be a number, or like \"zipf:1000:0.99\"".to_owned()),
    }
}

fn integer(value: &Value, max: u64) -> Result<u64, String> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    let number = number.filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("must be a whole number from 1 to {max}"))
}

/// Shown in tables: anything that stays in its line.
fn name(value: &Value) -> Result<String, String> {
    let name = str_of(value)?;
    if (1..=parsers::MAX_NAME).contains(&name.len()) && !name.contains(char::is_control) {
        return Ok(name.to_owned());
    }
    Err(format!("must be a name of 1 to {} bytes in one line", parsers::MAX_NAME))
}

fn text(value: &Value) -> Result<String, String> {
    str_of(value).map(str::to_owned)
}

fn str_of(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "must be text in quotes".to_owned())
}

const COMMANDS: &str = "get, mget, set, delete, range, script";
const MAX_WEIGHT: u64 = 1_000_000;
const MAX_COUNT: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_with_its_defaults() {
        let mix = parse(
            "[[request]]\ncommand = \"get\"\n[[request]]\ncommand = \"mget\"\nweight = 3\ncount = 5\nkeys = \"zipf:9:1.1\"\n\
             prefix = \"p\"\nname = \"five\"\n[[request]]\ncommand = \"set\"\nvalue = \"1MiB\"\nkeys = 7\n[[request]]\n\
             command = [\"HGETALL\", \"h:{key}\"]\n",
        )
        .unwrap();
        let [get, five, set, custom] = &mix.entries[..] else { panic!("{mix:?}") };
        assert_eq!((get.weight, get.keys, get.value_bytes), (1, Keys::Uniform { count: 1_000 }, 100));
        assert_eq!((five.weight, &five.command), (3, &Command::MultiGet { count: 5 }));
        assert_eq!((&five.prefix("a")[..], five.keys), ("p", Keys::Zipf { count: 9, exponent: 1.1 }));
        assert_eq!((&set.prefix("a")[..], set.keys.count(), set.value_bytes), ("a", 7, 1 << 20));
        assert_eq!(mix.names(), ["get", "five", "set", "HGETALL"]);
        assert_eq!(custom.command.to_string(), "HGETALL");
    }

    #[test]
    fn every_fault_has_its_line_and_its_remedy() {
        for (text, expected) in [
            ("", "1: has no request; add e.g. [[request]]"),
            ("[[requests]]\n", "1: unknown field `requests`"),
            ("[[request]]\nweight = 1\n", "1: request[0].command: is missing; known are get"),
            ("[[request]]\ncommand = \"got\"\n", "2: request[0].command = \"got\": unknown; known are get"),
            (
                "[[request]]\ncommand = \"get\"\nweight = 0\n",
                "3: request[0].weight = 0: must be a whole number from 1 to 1000000",
            ),
            ("[[request]]\ncommand = \"get\"\nweight = -1\n", "3: request[0].weight = -1: must be a whole"),
            ("[[request]]\ncommand = \"get\"\nkeys = 0\n", "3: request[0].keys = 0: must be a whole number"),
            (
                "[[request]]\ncommand = \"get\"\nkeys = \"zipf\"\n",
                "3: request[0].keys = \"zipf\": must be like",
            ),
            (
                "[[request]]\ncommand = \"set\"\nvalue = \"2MiB\"\n",
                "3: request[0].value = \"2MiB\": must be from 0B to 1MiB",
            ),
            ("[[request]]\ncommand = \"get\"\ncount = 3\n", "3: request[0].count: needs command = \"mget\""),
            (
                "[[request]]\ncommand = \"mget\"\ncount = 100001\n",
                "3: request[0].count = 100001: must be a whole number from 1 to 100000",
            ),
            ("[[request]]\ncommand = \"script\"\n", "2: request[0].command = \"script\": needs a script"),
            ("[[request]]\ncommand = \"get\"\nscript = \"x\"\n", "3: request[0].script: needs command"),
            ("[[request]]\ncommand = []\n", "2: request[0].command = []: must begin with a command"),
            ("[[request]]\ncommand = \"get\"\ncolour = 1\n", "3: unknown field `colour`"),
            ("[[request]]\ncommand = \"get\"\nname = \"\"\n", "3: request[0].name = \"\": must be a name"),
            (
                "[[request]]\ncommand = \"get\"\n[[request]]\ncommand = \"get\"\n",
                "4: request[1].name: another request is counted as get: give this one a `name`",
            ),
            ("[[request]\n", "1: "),
        ] {
            let faults = parse(text).expect_err(text);
            let said = faults[0].to_string();
            assert!(said.starts_with(expected), "{text:?}: {said}");
        }
        let both = "[[request]]\ncommand = \"get\"\nweight = 0\nkeys = 0\n";
        assert_eq!(parse(both).unwrap_err().len(), 2);
    }
}
