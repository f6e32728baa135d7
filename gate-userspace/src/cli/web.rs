//! `gate web`: the link of the page that a running gate shows.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::config::Config;
use crate::system_error::in_words;

/// Print the link of the page that the running gate shows, with the token that has it show keys.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The configuration that gate runs with.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  gate web --config gate.toml
  ssh -L 9911:127.0.0.1:9911 HOST    another machine's page; open the link here

The page is there if `admin_http` in the section [gate] is set. The token of `admin_token_file` stands behind #: a browser
does not send that part, and the page sends it to gate alone. Whoever has the link sees keys.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let address = config.gate.admin_http.context(
        "there is no page: set admin_http = \"127.0.0.1:9911\" in the section [gate], and start gate anew",
    )?;
    let token = config.gate.admin_token_file.map(|path| {
        let text = fs::read_to_string(&path);
        text.map_err(|error| {
            anyhow::anyhow!(
                "{} (`admin_token_file` in the section [gate]): {}",
                path.display(),
                in_words(&error)
            )
        })
    });
    let token = token.transpose()?;
    println!("{}", link(address, token.as_deref().map(str::trim)));
    Ok(ExitCode::SUCCESS)
}

fn link(address: SocketAddr, token: Option<&str>) -> String {
    // From this machine every address is reached by its own.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let fragment = token.map_or_else(String::new, |token| format!("#token={}", escaped(token)));
    format!("http://{}/{fragment}", SocketAddr::new(ip, address.port()))
}

/// The token with all escaped that has a meaning of its own in a query.
fn escaped(token: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    token.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_this_machine_and_carry_tokens_whole() {
        for (address, token, expected) in [
            ("127.0.0.1:9911", None, "http://127.0.0.1:9911/"),
            ("0.0.0.0:80", Some("a-b"), "http://127.0.0.1:80/#token=a-b"),
            ("[::]:80", Some("a+b&c="), "http://[::1]:80/#token=a%2Bb%26c%3D"),
        ] {
            assert_eq!(link(address.parse().unwrap(), token), expected);
        }
    }
}
