//! Debian's nginx with `image_filter`: a processor of images, and photographs for it.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::lab::process::ChildProcess;

use crate::http_client::HttpClient;
use crate::proxy::{PATIENCE, address};
use crate::wait::until_up;

/// A running nginx that processes images; ends when dropped.
#[derive(Debug)]
pub struct ImageProcessor {
    /// Where it makes `/wN/NAME` of what another server has under `/NAME`: images that are `N` pixels wide.
    pub address: SocketAddr,
    /// Where it does the same of what an origin has, and keeps what it has made by its path, as `proxy_cache` does.
    pub cached: SocketAddr,
    _server: ChildProcess,
    directory: PathBuf,
}

impl ImageProcessor {
    /// One of what is at `blobs`, and of what is at `origin`.
    ///
    /// # Errors
    ///
    /// If nginx or its module is not installed, or it does not come up.
    pub fn start(blobs: SocketAddr, origin: SocketAddr) -> Result<Self> {
        let address = address();
        let cached = crate::proxy::address();
        let directory = std::env::temp_dir().join(format!("images-{}-{}", std::process::id(), address.ip()));
        std::fs::create_dir_all(directory.join("small"))?;
        let config = directory.join("nginx.conf");
        std::fs::write(&config, configuration([address, cached, blobs, origin], &directory))?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&config).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
        let mut server = ChildProcess::start("nginx", command)?;
        until_up(&mut server, "nginx", || Ok(TcpStream::connect(address).is_ok()))?;
        Ok(Self { address, cached, _server: server, directory })
    }

    /// The images that it has made, a line each: status and target.
    ///
    /// # Errors
    ///
    /// If its log cannot be read.
    pub fn made(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.join("made.log"))?)
    }

    /// So many distinct photographs: crops of those that a package of Debian ships.
    ///
    /// # Errors
    ///
    /// If they are not installed, or there are not so many.
    pub fn photographs(&self, count: usize) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(PHOTOGRAPHS).context("photographs: run `cargo xtask setup`")? {
            names.extend(entry?.file_name().into_string().ok().filter(|name| name.ends_with(".jpg")));
        }
        names.sort();
        ensure!(!names.is_empty(), "no photographs in {PHOTOGRAPHS}: run `cargo xtask setup`");
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = HttpClient::new(stream);
        for name in &names {
            let small = client.ask(&format!("GET /small/{name}"), "")?;
            ensure!(small.status == 200, "{name}: {}", small.status);
            std::fs::write(self.directory.join("small").join(name), small.body)?;
        }
        let mut known = HashSet::new();
        let mut all = Vec::new();
        for place in 0.. {
            if all.len() == count {
                break;
            }
            let name = &names[place % names.len()];
            let turn = place / names.len();
            ensure!(turn < 40 * 40, "{} distinct photographs", all.len());
            let size = format!("{}/{}", 120 + turn % 40, 80 + turn / 40);
            let crop = client.ask(&format!("GET /crop/{size}/{name}"), "")?;
            ensure!(crop.status == 200, "{name}: {}", crop.status);
            if known.insert(crop.body.clone()) {
                all.push(crop.body);
            }
        }
        Ok(all)
    }
}

impl Drop for ImageProcessor {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn configuration([address, cached, blobs, origin]: [SocketAddr; 4], directory: &Path) -> String {
    let directory = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {directory}/{name};\n"))
        .concat();
    format!(
        "load_module {MODULE};\ndaemon off;\nmaster_process off;\npid {directory}/pid;\n\
         events {{ worker_connections 1024; }}\nhttp {{\n{temporary}\
         log_format made '$status $request_uri';\naccess_log off;\nimage_filter_buffer 16M;\n\
         image_filter_jpeg_quality 60;\nkeepalive_requests 1000000;\n\
         proxy_cache_path {directory}/kept keys_zone=kept:16m max_size=10g inactive=1d;\n\
         server {{\nlisten {address};\n\
         location ~ ^/w(?<width>[0-9]+)/(?<name>[0-9a-f]+)$ {{ access_log {directory}/made.log made; \
         image_filter resize $width -; proxy_pass http://{blobs}/$name; }}\n\
         location ~ ^/of-origin/w(?<width>[0-9]+)/(?<name>.+)$ {{ access_log {directory}/made.log made; \
         image_filter resize $width -; proxy_pass http://{origin}/$name; }}\n\
         location ~ ^/small/(?<name>.+)$ {{ image_filter resize 240 -; alias {PHOTOGRAPHS}/$name; }}\n\
         location ~ ^/crop/(?<width>[0-9]+)/(?<height>[0-9]+)/(?<name>.+)$ {{ image_filter crop $width $height; \
         alias {directory}/small/$name; }}\n}}\n\
         server {{\nlisten {cached};\nlocation / {{ proxy_cache kept; proxy_cache_valid 200 415 1d; \
         proxy_cache_lock on; proxy_pass http://{address}/of-origin/; }}\n}}\n}}\n"
    )
}

const MODULE: &str = "/usr/lib/nginx/modules/ngx_http_image_filter_module.so";
const PHOTOGRAPHS: &str = "/usr/share/backgrounds";
