//! A client of HTTP/1.1 that sends what it is given, byte by byte, and reads replies strictly.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, bail, ensure};

/// A connection.
#[derive(Debug)]
pub struct HttpClient(BufReader<TcpStream>);

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The fields, in their order, names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body, and the trailers behind it.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Vec<(String, String)>,
}

impl Reply {
    /// The value of a field; `None` if it is not there.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The reason that gate gives.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.field("gate-reason").unwrap_or("none")
    }
}

impl HttpClient {
    /// Over this connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(bytes).context("cannot send")
    }

    /// Sends a request without a body, with these further lines of its head, and reads the reply.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn ask(&mut self, line: &str, fields: &str) -> Result<Reply> {
        self.send(format!("{line} HTTP/1.1\r\nhost: test\r\n{fields}\r\n").as_bytes())?;
        self.reply(line.starts_with("HEAD "))
    }

    /// The next reply; `is_head` says that it has no body.
    ///
    /// # Errors
    ///
    /// If it is no reply, or does not come whole in time.
    pub fn reply(&mut self, is_head: bool) -> Result<Reply> {
        loop {
            let first = self.line()?;
            let status: u16 =
                first.split(' ').nth(1).and_then(|status| status.parse().ok()).context(first)?;
            let fields = self.fields()?;
            let mut reply = Reply { status, fields, body: Vec::new(), trailers: Vec::new() };
            if status == 100 {
                continue;
            }
            let length = reply.field("content-length").map(str::to_owned);
            let chunked = reply.field("transfer-encoding").map(str::to_owned);
            ensure!(length.is_none() || chunked.is_none(), "two lengths: {reply:?}");
            if is_head || status == 204 || status == 304 {
                return Ok(reply);
            }
            match (length, chunked) {
                (Some(length), _) => {
                    reply.body = vec![0; length.parse()?];
                    self.0.read_exact(&mut reply.body)?;
                }
                (None, Some(coding)) => {
                    ensure!(coding == "chunked", "{coding}");
                    while let len @ 1.. = usize::from_str_radix(&self.line()?, 16)? {
                        let at = reply.body.len();
                        reply.body.resize(at + len, 0);
                        self.0.read_exact(&mut reply.body[at..])?;
                        ensure!(self.line()?.is_empty(), "a chunk without an end");
                    }
                    reply.trailers = self.fields()?;
                }
                (None, None) => drop(self.0.read_to_end(&mut reply.body)?),
            }
            return Ok(reply);
        }
    }

    /// The next bytes, as many as `bytes` has room for.
    ///
    /// # Errors
    ///
    /// If they do not come in time.
    pub fn read_exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        Ok(self.0.read_exact(bytes)?)
    }

    /// True if it ends without another byte.
    ///
    /// # Errors
    ///
    /// If something comes, or nothing in time.
    pub fn is_closed(&mut self) -> Result<bool> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => Err(error.into()),
            _ if rest.is_empty() => Ok(true),
            _ => bail!("{}", String::from_utf8_lossy(&rest)),
        }
    }

    /// The next line, without its end.
    ///
    /// # Errors
    ///
    /// If it does not come whole.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.strip_suffix("\r\n").with_context(|| format!("no line: {line:?}"))?.to_owned())
    }

    fn fields(&mut self) -> Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').with_context(|| line.clone())?;
            fields.push((name.to_lowercase(), value.trim().to_owned()));
        }
    }
}
