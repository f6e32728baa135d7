//! One noun for each concept: no item and no file has a name that docs/GLOSSARY.md replaces, and no field, local, parameter or
//! other identifier a word of such a name. Doc comments are sentences with a subject.

use std::fs;

use super::source::{code, sources, workspace};

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
const WITH_SENTENCES: [&str; 12] = [
    "gate-common/src",
    "gate-ebpf/src",
    "gate-userspace/benches",
    "gate-userspace/policy",
    "gate-userspace/protocol",
    "gate-userspace/src",
    "tests/benches",
    "tests/fuzz/checks.rs",
    "tests/fuzz/fuzz_targets",
    "tests/suites",
    "tests/support",
    "xtask/src",
];

/// Words that begin a riddle in place of a sentence.
const RIDDLES: [&str; 6] = ["What", "Whether", "Who", "Whose", "Whom", "It"];

/// Price settlement, the only meaning of the word.
const SETTLEMENT: [(&str, &str); 5] = [
    ("gate-common/src/token_bucket.rs", "settle"),
    ("gate-userspace/src/dispatcher/metrics/cost_samples.rs", "settled"),
    ("gate-userspace/src/dispatcher/tenants/ledger.rs", "settle"),
    ("gate-userspace/src/limits/bucket.rs", "settle"),
    ("gate-userspace/src/limits/table.rs", "settle"),
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

/// Words that no identifier has as a part, with the term to use. Names of tests are prose.
const REPLACED_WORDS: [(&str, &str); 45] = [
    ("alone", "dedicated, single, only"),
    ("apart", "dedicated, separate"),
    ("beside", "predecessor, or what it stands beside"),
    ("coarsely", "check_tcp_bucket"),
    ("court", "context"),
    ("dice", "rng"),
    ("figure", "metrics, estimate"),
    ("figures", "metrics, estimates"),
    ("glance", "peek"),
    ("hear", "read"),
    ("heard", "received"),
    ("hears", "reads"),
    ("insist", "retry_cas"),
    ("landed", "completed"),
    ("landing", "completion"),
    ("lands", "completes"),
    ("lesson", "sample"),
    ("lessons", "samples"),
    ("life", "ttl"),
    ("news", "pending_write"),
    ("nobody", "unknown, unauthenticated"),
    ("owe", "add_debt"),
    ("owed", "debt"),
    ("owes", "debt"),
    ("puppet", "fake_store"),
    ("purse", "buckets"),
    ("redeem", "complete"),
    ("relieve", "drain"),
    ("relieved", "draining"),
    ("spoil", "mark_unmeasurable"),
    ("spoiled", "unmeasurable"),
    ("succession", "hot_restart"),
    ("talk", "conversation, exchange"),
    ("tally", "counters"),
    ("taught", "recorded"),
    ("teach", "record"),
    ("tell", "reply"),
    ("telling", "respond"),
    ("tells", "replies"),
    ("told", "reply, report"),
    ("together", "batch, total"),
    ("town", "fixture"),
    ("who", "identity, client"),
    ("whose", "the noun"),
    ("witness", "recorder"),
];

/// Identifiers with such a word in another sense.
const OTHER_SENSES: [(&str, &str); 5] = [
    ("HALF_LIFE", "the half-life of a decay"),
    ("NOBODY", "Linux' user"),
    ("half_life", "the half-life of a decay"),
    ("half_life_fits", "the half-life of a decay"),
    ("half_life_ticks", "the half-life of a decay"),
];

/// Words before the name of an item.
const KEYWORDS: [&str; 10] =
    ["struct", "enum", "union", "trait", "type", "fn", "mod", "static", "const", "macro_rules!"];

#[test]
fn names_are_those_of_the_glossary() {
    let mut found = Vec::new();
    for room in ROOMS {
        for file in sources(&workspace().join(room)) {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let has_packets = PACKET_ROOMS.iter().any(|room| file.starts_with(workspace().join(room)));
            let of_packets = |name| term_in(&REPLACED_FOR_PACKETS, name).filter(|_| has_packets);
            let term_for = |name| term_in(&REPLACED, name).or_else(|| of_packets(name));
            let of_file = term_for(stem).map(|term| format!("{}: say {term}", file.display()));
            found.extend(of_file);
            let text = fs::read_to_string(&file).unwrap();
            let settles =
                |name: &str| SETTLEMENT.iter().any(|of| file == workspace().join(of.0) && name == of.1);
            let items = items(&text).filter(|(_, name)| !settles(name));
            found.extend(items.filter_map(|(line, name)| {
                Some(format!("{}:{line}: {name}: say {}", file.display(), term_for(name)?))
            }));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn no_identifier_has_a_word_that_the_glossary_replaces() {
    let mut found = Vec::new();
    let mut senses: Vec<_> = OTHER_SENSES.map(|(name, _)| name).to_vec();
    for file in ROOMS.iter().flat_map(|room| sources(&workspace().join(room))) {
        let code = code(&fs::read_to_string(&file).unwrap());
        for (line, name) in identifiers(&code) {
            let Some(term) = replaced_word(name) else { continue };
            senses.retain(|sense| *sense != name);
            if OTHER_SENSES.iter().all(|(sense, _)| *sense != name) {
                found.push(format!("{}:{line}: {name}: say {term}", file.display()));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(senses.is_empty(), "in no source: {senses:?}");
}

#[test]
fn words_are_read_in_every_identifier_but_test_names() {
    let text = "fn f(is_told: bool) {\n    let ToldAll { tellers } = |owed_ns| x.HEARD;\n}\n#[test]\n#[ignore]\nfn is_told() {}\n";
    let found: Vec<_> = identifiers(text).filter(|(_, name)| replaced_word(name).is_some()).collect();
    assert_eq!(found, [(1, "is_told"), (2, "ToldAll"), (2, "owed_ns"), (2, "HEARD")]);
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let mut found = Vec::new();
    for room in WITH_SENTENCES {
        for file in sources(&workspace().join(room)) {
            let text = fs::read_to_string(&file).unwrap();
            found.extend(riddles(&text).map(|(line, text)| format!("{}:{line}: {text}", file.display())));
        }
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

/// The identifiers in `code`, with their lines; the names of tests aside.
fn identifiers(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    code.lines().enumerate().flat_map(move |(number, line)| {
        let is_attribute = line.trim_start().starts_with("#[");
        let is_name = is_test;
        is_test = line.trim() == "#[test]" || is_test && is_attribute;
        let names = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        let test = line.split_once("fn ").filter(|_| is_name).map(|(_, rest)| rest);
        let test = test.and_then(|rest| rest.split('(').next()).unwrap_or_default();
        names.filter(move |name| *name != test).map(move |name| (number + 1, name))
    })
}

/// The term for the first word of an identifier that is replaced.
fn replaced_word(name: &str) -> Option<&'static str> {
    let is_constant = !name.contains(|c: char| c.is_lowercase());
    let begins = |at: usize| !is_constant && name[at..].starts_with(|c: char| c.is_uppercase());
    let starts = (0..name.len()).filter(|&at| at == 0 || name.as_bytes()[at - 1] == b'_' || begins(at));
    let words = starts.map(|at| {
        let end = (at + 1..name.len()).find(|&end| name.as_bytes()[end] == b'_' || begins(end));
        name[at..end.unwrap_or(name.len())].to_lowercase()
    });
    words.into_iter().find_map(|word| term_in(&REPLACED_WORDS, &word))
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
