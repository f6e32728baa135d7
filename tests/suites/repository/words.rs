//! One noun for each concept: no type, function, macro, module or file has a name that docs/GLOSSARY.md replaces. Doc
//! comments are sentences with a subject.

use std::fs;
use std::path::{Path, PathBuf};

/// Files, or directories with everything in them, whose names follow the glossary.
const ROOMS: [&str; 9] = [
    "gate-common/src",
    "gate-ebpf/src",
    "gate-userspace/benches",
    "gate-userspace/policy",
    "gate-userspace/protocol",
    "gate-userspace/src",
    "gate-userspace/tests",
    "tests",
    "xtask/src",
];

/// Rooms whose doc comments begin with a subject, or a verb.
const WITH_SENTENCES: [&str; 15] = [
    "gate-common/src",
    "gate-userspace/policy/src",
    "gate-userspace/protocol/src",
    "gate-userspace/src/admin",
    "gate-userspace/src/cli",
    "gate-userspace/src/config",
    "gate-userspace/src/control",
    "gate-userspace/src/daemon",
    "gate-userspace/src/kernel",
    "gate-userspace/src/load",
    "gate-userspace/src/probe.rs",
    "gate-userspace/src/sim",
    "tests/suites",
    "tests/support",
    "xtask/src",
];

/// Words that begin a riddle in place of a sentence.
const RIDDLES: [&str; 6] = ["What", "Whether", "Who", "Whose", "Whom", "It"];

/// Price settlement, the only meaning of the word.
const SETTLEMENT: [(&str, &str); 3] = [
    ("gate-common/src/token_bucket.rs", "settle"),
    ("gate-userspace/src/dispatcher/metrics/cost_samples.rs", "settled"),
    ("gate-userspace/src/dispatcher/tenants/ledger.rs", "settle"),
];

/// Names that the glossary replaces, with the term to use.
const REPLACED: [(&str, &str); 58] = [
    ("Court", "PacketContext"),
    ("Case", "Scratch"),
    ("Purse", "Buckets"),
    ("Glance", "HeaderPeek"),
    ("glance", "peek"),
    ("insist", "retry_cas"),
    ("coarsely", "check_tcp_bucket"),
    ("alone", "dedicated"),
    ("Apart", "DedicatedWrites"),
    ("apart", "dedicated_writes"),
    ("Ticket", "CacheRole"),
    ("redeem", "complete"),
    ("ask_life", "query_ttl"),
    ("Life", "Ttl"),
    ("life", "ttl"),
    ("landing", "completion"),
    ("landed", "completed"),
    ("Lesson", "CostSamples"),
    ("Lessons", "CostSamples"),
    ("lessons", "cost_samples"),
    ("teach", "record"),
    ("spoil", "mark_unmeasurable"),
    ("Together", "Batch"),
    ("together", "batch"),
    ("Relieved", "Draining"),
    ("relieve", "drain"),
    ("see_off", "drain"),
    ("Beside", "predecessor"),
    ("succession", "hot_restart"),
    ("hear", "read"),
    ("tell", "reply"),
    ("telling", "respond"),
    ("told", "reply"),
    ("has_news", "pending_write"),
    ("figures", "metrics"),
    ("Figures", "Metrics"),
    ("Tally", "Counters"),
    ("tally", "counters"),
    ("Asked", "InFlight"),
    ("Held", "InFlight"),
    ("Waiting", "InFlight"),
    ("Outgoing", "InFlight"),
    ("Course", "Route"),
    ("Turn", "ReplySlot"),
    ("Way", "CacheDecision"),
    ("After", "NextStep"),
    ("Facts", "RequestMeta"),
    ("Pause", "Backoff"),
    ("settle", "stabilise, or refund"),
    ("settled", "done"),
    ("Talk", "Conversation"),
    ("Mail", "Mailbox"),
    ("Puppet", "FakeStore"),
    ("puppet", "fake_store"),
    ("town", "fixture"),
    ("dice", "rng"),
    ("Dice", "Rng"),
    ("Witness", "Recorder"),
];

/// Names that are replaced where packets are processed, and fine elsewhere.
const REPLACED_FOR_PACKETS: [(&str, &str); 6] = [
    ("Load", "Payload"),
    ("also", "charge_parents"),
    ("file", "parse_into"),
    ("forget", "compiler_barrier"),
    ("peek", "read_once"),
    ("judge", "process_packet"),
];

/// The rooms where packets are processed.
const PACKET_ROOMS: [&str; 2] = ["gate-ebpf/src", "tests/support/model"];

/// Words before the name of an item.
const KEYWORDS: [&str; 10] =
    ["struct", "enum", "union", "trait", "type", "fn", "mod", "static", "const", "macro_rules!"];

#[test]
fn names_are_those_of_the_glossary() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for room in ROOMS {
        let files = sources(&workspace.join(room));
        assert!(!files.is_empty(), "{room} holds no source: has it moved?");
        for file in files {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let has_packets = PACKET_ROOMS.iter().any(|room| file.starts_with(workspace.join(room)));
            let of_packets = |name| term_in(&REPLACED_FOR_PACKETS, name).filter(|_| has_packets);
            let term_for = |name| term_in(&REPLACED, name).or_else(|| of_packets(name));
            let of_file = term_for(stem).map(|term| format!("{}: say {term}", file.display()));
            found.extend(of_file);
            let text = fs::read_to_string(&file).unwrap();
            let settles =
                |name: &str| SETTLEMENT.iter().any(|of| file == workspace.join(of.0) && name == of.1);
            let items = items(&text).filter(|(_, name)| !settles(name));
            found.extend(items.filter_map(|(line, name)| {
                Some(format!("{}:{line}: {name}: say {}", file.display(), term_for(name)?))
            }));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for file in WITH_SENTENCES.iter().flat_map(|room| sources(&workspace.join(room))) {
        let text = fs::read_to_string(&file).unwrap();
        found.extend(riddles(&text).map(|(line, text)| format!("{}:{line}: {text}", file.display())));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn only_the_beginning_of_a_paragraph_is_looked_at() {
    let text = "//! What it is.\n/// The store.\n/// It answers.\n///\n/// Whether it does.\n// What else\nfn f() {}\n";
    assert_eq!(riddles(text).map(|(line, _)| line).collect::<Vec<_>>(), [1, 5]);
}

#[test]
fn the_glossary_has_no_name_that_it_replaces() {
    let glossary = include_str!("../../../docs/GLOSSARY.md");
    let names = glossary.split('`').skip(1).step_by(2);
    let found: Vec<_> =
        names.filter(|name| *name != "settle" && term_in(&REPLACED, name).is_some()).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn every_kind_of_item_is_found_and_nothing_else() {
    let text = [
        "pub(crate) struct Court<'a> {",
        "    let tally = 1; // fn insist",
        "    let text = \"fn insist\";",
        "async fn hear(&self) {}",
        "mod alone;",
        "macro_rules! peek { () => {} }",
        "    pub const fn told() {}",
        "impl Fine {",
    ];
    let text = text.join("\n");
    let names: Vec<_> = items(&text).collect();
    assert_eq!(names, [(1, "Court"), (4, "hear"), (5, "alone"), (6, "peek"), (7, "told")]);
    assert!(term_in(&REPLACED, "Court").is_some() && term_in(&REPLACED, "Courtesy").is_none());
}

/// The paragraphs of doc comments that begin with a word of [`RIDDLES`], with their lines.
fn riddles(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut follows_text = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let line = line.trim_start();
        let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        let begins = !std::mem::replace(&mut follows_text, text.is_some());
        let first = text?.split(|c: char| !c.is_alphabetic()).next()?;
        (begins && RIDDLES.contains(&first)).then_some((number + 1, line))
    })
}

fn term_in(list: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    list.iter().find(|(replaced, _)| *replaced == name).map(|(_, term)| *term)
}

/// The items that are defined in `text`, with their lines; comments and string literals aside.
fn items(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let code = line.split("//").next().and_then(|code| code.split('"').next()).unwrap_or_default();
        let mut words = code.split_whitespace().skip_while(|word| !KEYWORDS.contains(word));
        let name = words.by_ref().find(|word| !KEYWORDS.contains(word))?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        (end > 0).then(|| (number + 1, &name[..end]))
    })
}

/// The Rust files at or below `path`.
fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let below = entries.flat_map(|entry| sources(&entry.unwrap().path()));
    below.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}
