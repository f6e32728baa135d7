//! Requests to a gate's admin interface by curl, and by hand.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// An answer as curl has it.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| self.body.clone())
    }

    /// The reason of a failure.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn error(&self) -> Result<String> {
        let document = self.json()?;
        Ok(document["error"].as_str().with_context(|| self.body.clone())?.to_owned())
    }
}

/// curl, with these arguments.
///
/// # Errors
///
/// If it gets no answer.
pub fn curl(arguments: &[&str]) -> Result<Answer> {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--include", "--max-time", "20", "--noproxy", "*"])
        .args(arguments);
    let output = command.output().context("curl: `cargo xtask setup` installs it")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "curl {arguments:?}: {said}");
    parse(&String::from_utf8(output.stdout)?)
}

/// curl over a Unix socket.
///
/// # Errors
///
/// As [`curl`].
pub fn curl_socket(socket: &Path, path: &str, arguments: &[&str]) -> Result<Answer> {
    let socket = socket.to_str().context("a strange path")?;
    let url = format!("http://gate{path}");
    curl(&[&["--unix-socket", socket, &url], arguments].concat())
}

/// Sends bytes and reads until the other end closes.
///
/// # Errors
///
/// If it does not close within the stream's timeout.
pub fn say<S: std::io::Read + Write>(mut stream: S, bytes: &[u8]) -> Result<String> {
    // What is too long may be answered before it is all said.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => drop(other?),
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// An answer's parts.
///
/// # Errors
///
/// If it is no HTTP.
pub fn parse(text: &str) -> Result<Answer> {
    let (mut head, mut body) = text.split_once("\r\n\r\n").with_context(|| format!("no head: {text:?}"))?;
    while head.starts_with("HTTP/1.1 100") {
        (head, body) = body.split_once("\r\n\r\n").context("no second head")?;
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}
