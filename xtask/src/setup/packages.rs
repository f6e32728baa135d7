//! The programs from Debian's packages, and the check for each.

use super::Purpose;
use super::toolchain::DEBIAN_PACKAGES;
use crate::sh;

/// A program, or a file of a library, the package that holds it, and the least that needs it.
const PROGRAMS: &[(&str, &str, Purpose)] = &[
    ("dpkg-shlibdeps", "dpkg-dev", Purpose::Package),
    ("ip", "iproute2", Purpose::Run),
    ("git", "git", Purpose::Test),
    ("memcached", "memcached", Purpose::Run),
    ("chromedriver", "chromium-driver", Purpose::Test),
    ("memccapable", "libmemcached-tools", Purpose::Test),
    ("redis-server", "redis-server", Purpose::Run),
    ("redis-cli", "redis-tools", Purpose::Test),
    ("/usr/lib/python3/dist-packages/redis/client.py", "python3-redis", Purpose::Test),
    ("/usr/lib/python3/dist-packages/pymemcache/__init__.py", "python3-pymemcache", Purpose::Test),
    ("curl", "curl", Purpose::Test),
    ("pip3", "python3-pip", Purpose::Fleet),
    ("openssl", "openssl", Purpose::Test),
    ("etcd", "etcd-server", Purpose::Fleet),
    // A test generates gate's messages anew and compares them.
    ("protoc", "protobuf-compiler", Purpose::Test),
    ("nginx", "nginx-light", Purpose::Test),
    (
        "/usr/lib/nginx/modules/ngx_http_image_filter_module.so",
        "libnginx-mod-http-image-filter",
        Purpose::Test,
    ),
    // Photographs.
    ("/usr/share/backgrounds/Bridge_by_Sander_Klootwijk.jpg", "lomiri-wallpapers-16.04", Purpose::Test),
    ("h2load", "nghttp2-client", Purpose::Test),
    ("wrk", "wrk", Purpose::Test),
    ("systemd-analyze", "systemd", Purpose::Test),
    ("prometheus", "prometheus", Purpose::Test),
    ("debootstrap", "debootstrap", Purpose::Test),
    ("nft", "nftables", Purpose::Test),
    ("nutcracker", "nutcracker", Purpose::Test),
    ("haproxy", "haproxy", Purpose::Bench),
    ("xdp-filter", "xdp-tools", Purpose::Bench),
    ("ethtool", "ethtool", Purpose::Bench),
    ("busybox", "busybox-static", Purpose::Kernels),
    ("cpio", "cpio", Purpose::Kernels),
];

/// The packages of the programs that `purpose` needs and that are not there.
pub(super) fn missing(purpose: Purpose) -> Vec<&'static str> {
    let needed = PROGRAMS.iter().filter(|(_, _, least)| purpose.includes(*least));
    let missing = needed.filter(|(program, _, _)| sh::find(program).is_none());
    missing.map(|(_, package, _)| *package).collect()
}

/// The command to type where set-up may not install anything.
pub(super) fn how_to_get(packages: &[&str], toolchain: bool) -> String {
    let mut text = format!(
        "missing: {}\n\nAs root, `cargo xtask setup` installs them on Debian 12. By hand:\n\n    \
         sudo apt-get install --no-install-recommends {}\n",
        packages.join(", "),
        packages.join(" ")
    );
    if toolchain {
        text += &format!(
            "\nInstead of {} a nightly compiler with the source of core will do, and a bpf-linker for its LLVM:\n\n    \
             rustup toolchain install nightly --profile minimal --component rust-src\n    \
             cargo install bpf-linker\n",
            DEBIAN_PACKAGES.join(", ")
        );
    }
    text
}
