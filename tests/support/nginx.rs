//! Debian's nginx on loopback.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use xtask::lab::process::ChildProcess;

use crate::proxy::address;
use crate::tls::Issued;
use crate::wait::until_up;

/// A running nginx with files of its own; ends when dropped.
#[derive(Debug)]
pub struct Nginx {
    /// Where it listens.
    pub address: SocketAddr,
    _server: ChildProcess,
    directory: PathBuf,
}

impl Nginx {
    /// One that serves a file `/N` of so many bytes for each of `files`, and says at `/echo` what it was asked, once it has
    /// read the whole body. At `/limited` is the file `/100`, 400 times a second, one after the other.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not come up.
    pub fn start(files: &[usize]) -> Result<Self> {
        Self::start_with(address(), files, None)
    }

    /// The same, which speaks TLS alone and shows this certificate.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_with_tls(files: &[usize], shown: &Issued) -> Result<Self> {
        Self::start_with(address(), files, Some(shown))
    }

    /// The same at this address, which its certificate may name.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_with_tls_at(address: SocketAddr, files: &[usize], shown: &Issued) -> Result<Self> {
        Self::start_with(address, files, Some(shown))
    }

    fn start_with(address: SocketAddr, files: &[usize], tls: Option<&Issued>) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("nginx-{}-{}", std::process::id(), address.ip()));
        let www = directory.join("www");
        std::fs::create_dir_all(&www)?;
        for &len in files {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            std::fs::write(www.join(len.to_string()), bytes)?;
        }
        let config = directory.join("nginx.conf");
        std::fs::write(&config, configuration(address, &directory.display().to_string(), tls))?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&config).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
        let mut server = ChildProcess::start("nginx", command)?;
        until_up(&mut server, "nginx", || Ok(TcpStream::connect(address).is_ok()))?;
        Ok(Self { address, _server: server, directory })
    }

    /// Writes a file, in place of the one that was there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Ok(std::fs::write(self.directory.join("www").join(name), bytes)?)
    }

    /// The requests for files that it has answered, a line each: status and target.
    ///
    /// # Errors
    ///
    /// If its log cannot be read.
    pub fn statuses(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.join("status.log"))?)
    }

    /// The requests that it has answered, a line each: method, target, and the fields that say how long the body is.
    ///
    /// # Errors
    ///
    /// If its log cannot be read.
    pub fn seen(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.join("access.log"))?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn configuration(address: SocketAddr, directory: &str, tls: Option<&Issued>) -> String {
    // What it asks itself it asks plainly.
    let (inner, listen) = match tls {
        None => (address, format!("listen {address};")),
        Some(Issued { certificate, key }) => {
            let inner = self::address();
            let files =
                format!("ssl_certificate {};\nssl_certificate_key {};", certificate.display(), key.display());
            (inner, format!("listen {address} ssl;\nlisten {inner};\n{files}"))
        }
    };
    let mut temporary = String::new();
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(temporary, "{name}_temp_path {directory}/{name};");
    }
    let echo = "$request_method $request_uri for=$http_x_forwarded_for proto=$http_x_forwarded_proto \
                host=$http_x_forwarded_host real=$http_x_real_ip tenant=$http_x_scope_orgid tier=$http_x_tier \
                length=$http_content_length coding=$http_transfer_encoding";
    format!(
        "daemon off;\nmaster_process off;\npid {directory}/pid;\nevents {{ worker_connections 1024; }}\nhttp {{\n\
         {temporary}log_format seen '$request_method $request_uri [$http_content_length] [$http_transfer_encoding]';\n\
         log_format status '$status $request_uri';\naccess_log {directory}/access.log seen;\naccess_log {directory}/status.log status;\nclient_max_body_size 0;\n\
         underscores_in_headers on;\ndefault_type text/plain;\nlimit_req_zone $uri zone=limited:1m rate=400r/s;\nserver {{\n\
         {listen}\nroot {directory}/www;\nlocation /echo {{ proxy_pass http://{inner}/whole; proxy_set_header Echo \"{echo}\"; }}\n\
         location /whole {{ access_log off; return 200 \"$http_echo\\n\"; }}\n\
         location = /limited {{ limit_req zone=limited burst=100000; alias {directory}/www/100; }}\n\
         location /close {{ keepalive_timeout 0; return 200 \"closed\\n\"; }}\n}}\n}}\n"
    )
}
