//! `gate watch`: sampled verdicts, as they come.

use std::process::ExitCode;
use std::time::Duration;

use super::pins::Source;
use super::print;
use crate::admin::client;
use crate::admin::document::Versioned;
use crate::admin::selection::Selection;
use crate::admin::verdicts::{Sampled, Watched};

/// Show sampled verdicts on requests, the oldest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gate watch --refused -f
  gate watch --tenant search --json | jq .verdicts[].query_type

One request in `sample` is shown, with its tenant, query type and result; neither keys nor values are. gate keeps the last
4,096. A running gate answers. At the interface (`xdp`) the query type is `unknown`, sources may be forged, and in a flood fewer refusals
are kept than are counted.")]
pub(super) struct Args {
    /// Show refusals alone.
    #[arg(long)]
    refused: bool,
    /// Show requests of this tenant alone.
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
    /// Go on as more come, until Ctrl-C; with --json a line each.
    #[arg(long, short = 'f')]
    follow: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = args.source.socket();
    let json = args.source.pins.json;
    if let Some(tenant) = &args.tenant {
        let wanted = Selection { tenant: Some(tenant.clone()), ..Selection::default() };
        anyhow::ensure!(
            client::tenants(&path, &wanted)?.matching > 0,
            "there is no tenant {tenant:?}: `gate tenants` lists all. Verdicts name no members of tenants: `gate members` does"
        );
    }
    let mut from = 0;
    loop {
        let Watched { mut verdicts, next } = client::watch(&path, from)?;
        verdicts.retain(|verdict| is_wanted(&args, verdict));
        if json && !args.follow {
            print::json(&Versioned::new(Watched { verdicts, next }))?;
            return Ok(ExitCode::SUCCESS);
        }
        for verdict in &verdicts {
            match json {
                true => println!("{}", serde_json::to_string(verdict)?),
                false => println!("{}", line(verdict)),
            }
        }
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        from = next;
        std::thread::sleep(EVERY);
    }
}

fn is_wanted(args: &Args, verdict: &Sampled) -> bool {
    let is_tenant = args.tenant.is_none() || args.tenant == verdict.tenant;
    is_tenant && (!args.refused || verdict.reason.is_some())
}

/// The time is UTC.
fn line(verdict: &Sampled) -> String {
    let Sampled { at_ms, source, service, tenant, query_type, reason, bucket, layer, weight } = verdict;
    let secs = at_ms / 1_000 % 86_400;
    let ms = at_ms % 1_000;
    let time = format!("{:02}:{:02}:{:02}.{ms:03}", secs / 3_600, secs / 60 % 60, secs % 60);
    let tenant = tenant.as_deref().unwrap_or("nobody");
    let result = match (reason, bucket) {
        (None, _) => "passed".to_owned(),
        (Some(reason), None) => format!("refused {reason}"),
        (Some(reason), Some(bucket)) => format!("refused {reason} of {bucket}"),
    };
    format!("{time} {source} {service} {tenant} {query_type} {result} ({layer}, 1 of {weight})")
}

/// How often the gate is asked for more.
const EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_one_line() {
        let verdict = Sampled {
            at_ms: 86_400_000 + 3_723_004,
            source: "10.0.0.1".to_owned(),
            service: "cache".to_owned(),
            tenant: None,
            query_type: "get".to_owned(),
            reason: Some("quota".to_owned()),
            bucket: Some("get".to_owned()),
            layer: "proxy".to_owned(),
            weight: 64,
        };
        assert_eq!(
            line(&verdict),
            "01:02:03.004 10.0.0.1 cache nobody get refused quota of get (proxy, 1 of 64)"
        );
        let passed = Sampled { reason: None, bucket: None, tenant: Some("a".to_owned()), ..verdict };
        assert_eq!(line(&passed), "01:02:03.004 10.0.0.1 cache a get passed (proxy, 1 of 64)");
    }
}
