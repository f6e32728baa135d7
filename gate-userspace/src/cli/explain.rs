//! `gate explain`: what the next request of a client would get, and why.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::client;
use crate::admin::document::Versioned;
use crate::explanation::{Asker, Bucket, Expected, Explanation, PriceTerms, Question, Verdict};

/// Say what the next request of a client would get, and why: its tenant, price, buckets and verdict. Nothing is charged.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The service.
    #[arg(long, value_name = "S")]
    service: String,
    /// The address that the client has.
    #[arg(long = "source", value_name = "IP", required_unless_present = "tenant", conflicts_with = "tenant")]
    address: Option<IpAddr>,
    /// The tenant of the client, wherever it is.
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// The user that the client has logged in as.
    #[arg(long, value_name = "U")]
    user: Option<String>,
    /// Ask about a datagram; only of a guarded service.
    #[arg(long)]
    udp: bool,
    /// The command, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    words: Vec<OsString>,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate explain --service cache --source 10.1.2.3 -- get foo
  gate explain --service cache --tenant search --udp -- get foo bar
  gate explain --service db --tenant search --user app -- HGETALL user:1
  gate explain --service cache --tenant search -- set key 0 0 1000
      the value is made up
  gate explain --service logs --source 10.1.2.3 -- GET / 'X-Scope-OrgID: org-1'
      fields count if they are named
  gate explain --service logs --tenant a -- POST /push 'content-length: 100000'
  gate explain --service db --tenant search --json -- GET foo | jq .verdict

A running gate answers. Of a proxied service the first of its threads is asked, whose queue, permits and kept answers are its
own; a guarded one is looked up in the maps, as if the request came in one packet of an open connection. Nothing is taken,
counted or drawn. The limits on connections are left out.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { service, address, tenant, user, udp, words, source } = args;
    let client = match (address, tenant) {
        (Some(address), _) => Asker::Source(address),
        (None, tenant) => Asker::Tenant(tenant.unwrap_or_default()),
    };
    let words = words.into_iter().map(OsString::into_vec).collect();
    let explained = client::explain(&source.socket(), &service, udp, &Question { client, user, words })?;
    if source.pins.json {
        print::json(&Versioned::new(explained))?;
    } else {
        show(&explained);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(explained: &Explanation) {
    let Explanation { service, layer, command, tenant, rule, tier, rung, price, .. } = explained;
    println!("{command} at {service}: {}", verdict(explained));
    match tenant {
        Some(tenant) => println!("tenant {tenant}, tier {tier}: {rule}"),
        None => println!("no tenant: {rule}"),
    }
    let query_type = explained.query_type.iter().map(|name| format!("query type {name}, "));
    println!("{}decided by {layer}", query_type.collect::<String>());
    println!("price {}", terms(price, *rung, explained.query_type.as_deref()));
    if !explained.buckets.is_empty() {
        let mut table = Table::new(&[
            text("bucket"),
            text("of"),
            number("level"),
            number("full"),
            number("a second"),
            number("takes"),
            text(""),
        ]);
        for bucket in &explained.buckets {
            table.add_row([
                bucket.kind.clone(),
                bucket.name.clone(),
                format!("{:.1} {}", bucket.level, bucket.unit),
                format!("{:.1}", bucket.full),
                format!("{:.1}", bucket.per_s),
                format!("{:.3}", bucket.cost),
                answer(bucket),
            ]);
        }
        println!("{table}");
    }
    if explained.hot {
        println!("its key is hot");
    }
    for expected in &explained.estimates {
        let Expected { percentile, expected_ms: ms, objective_ms: limit } = expected;
        println!("p{percentile}: {ms:.2} ms expected, {limit:.2} ms is the objective");
    }
    if let Some(chance) = explained.refused_by_chance {
        println!("a draw refuses {:.1} % of its like", chance * 1e2);
    }
    if !explained.shadowed.is_empty() {
        println!("only counted: {}", explained.shadowed.join(", "));
    }
    explained.notes.iter().for_each(|note| println!("{note}"));
}

fn verdict(explained: &Explanation) -> String {
    let refusal = || {
        let bucket = explained.bucket.as_ref().map_or_else(String::new, |bucket| format!(" of {bucket}"));
        let reason = explained.reason.as_deref().unwrap_or_default();
        let wait = explained.retry_after_ms.filter(|ms| *ms >= LEAST_SHOWN_MS);
        let wait = wait.map_or_else(String::new, |ms| format!(", try again in {ms:.1} ms"));
        let rule = explained.denied_by.as_deref().map_or_else(String::new, |rule| denied_by(rule, explained));
        format!("{reason}{bucket}{rule}{wait}")
    };
    match explained.verdict {
        Verdict::Passes => "passes".to_owned(),
        Verdict::Queued => "waits in the queue".to_owned(),
        Verdict::Cached => "answered by a kept answer".to_owned(),
        Verdict::Joins => "answered by another client's read".to_owned(),
        Verdict::Answered => "answered by gate".to_owned(),
        Verdict::Refused => format!("refused: {}", refusal()),
        Verdict::Dropped => format!("dropped: {}", refusal()),
    }
}

/// The rule that denies a request, and whose it is.
fn denied_by(rule: &str, explained: &Explanation) -> String {
    let service = &explained.service;
    let tenant = explained.tenant.as_deref().unwrap_or("the tenant");
    match rule {
        "deny" | "keys" => format!(", by `{rule}` of {tenant}"),
        "size" => format!(", by `max_request` of {service}"),
        "burst" => ", a price that `burst` and `max_debt` never hold".to_owned(),
        "users" => ", until the client has logged in".to_owned(),
        "tenant_header" => format!(", since the field `tenant_header` of {service} is missing"),
        other => format!(", by `{other}`"),
    }
}

/// `query_type` names a route, whose price class has only a number.
fn terms(price: &PriceTerms, rung: u32, query_type: Option<&str>) -> String {
    let PriceTerms { class, rows, bytes, base_ru, rows_ru, bytes_ru, latency_ru, learned, multiplier, ru } =
        price;
    let class = query_type.filter(|_| class.starts_with("route-")).unwrap_or(class);
    let mut terms = format!(
        "{ru} RU as {class}: {base_ru} + {rows_ru} for {rows} rows + {bytes_ru} for {bytes} bytes + {latency_ru} for latency"
    );
    if *multiplier != 1.0 {
        terms.push_str(&format!(", x{multiplier}"));
    }
    if rung > 0 {
        terms.push_str(&format!(", at rung {rung} of shedding"));
    }
    if *learned {
        terms.push_str("; rows and bytes as the last ones have read");
    }
    terms
}

fn answer(bucket: &Bucket) -> String {
    match bucket.wait_ms {
        _ if bucket.admits => "admits it".to_owned(),
        Some(ms) => format!("lacks it for {ms:.1} ms"),
        None => "never holds as much".to_owned(),
    }
}

/// Less is printed as 0.0, which says nothing.
const LEAST_SHOWN_MS: f64 = 0.05;
