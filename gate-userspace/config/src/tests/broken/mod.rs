//! A good configuration, what breaks it, and what is then printed.

mod backends;
mod http;
mod intercept;
mod members;
mod service;
mod tenant;
mod tls;
mod whole_keys;

/// Good as it stands.
pub(super) const GOOD: &str = r#"[gate]
interface = "eth1"
[[service]]
name = "cache"
protocol = "memcached"
listen = "198.18.0.1:11211"
[[tenant]]
name = "polite"
sources = ["198.18.1.0/24", "fd00:1::/64"]
quota = "5000 RU/s"
[[tenant]]
name = "hostile"
sources = ["198.18.2.1"]
quota = "2000 RU/s"
"#;

/// A text in [`GOOD`], its replacement, and every fault as it is then printed, after the file's name.
pub(super) type Broken = (&'static str, &'static str, &'static [&'static str]);

/// Every row is refused.
pub(super) const BROKEN: [&[Broken]; 10] = [
    GATE,
    service::ROWS,
    whole_keys::ROWS,
    intercept::ROWS,
    backends::ROWS,
    http::ROWS,
    tenant::ROWS,
    members::ROWS,
    tls::ROWS,
    DOCUMENT,
];

const GATE: &[Broken] = &[
    (
        "\"eth1\"",
        "\"a name that is too long\"",
        &[
            r#"2: gate.interface = "a name that is too long": must be the name of an interface, up to 15 bytes, e.g. "eth1""#,
        ],
    ),
    ("\"eth1\"", "7", &[r#"2: gate.interface = 7: must be in quotes: "7""#]),
    ("\"eth1\"", "[\"eth1\", 7]", &[r#"2: gate.interface[1] = 7: must be in quotes: "7""#]),
    ("\"eth1\"", "[]", &["2: gate.interface = []: is empty; give at least one, or leave the key out"]),
    (
        "\"eth1\"",
        "[\"eth1\", \"eth2\",\n\"eth1\"]",
        &[r#"3: gate.interface[2] = "eth1": is listed already, on line 2: name each interface once"#],
    ),
    (
        "\"eth1\"",
        r#"["a", "b", "c", "d", "e", "f", "g", "h", "i"]"#,
        &[r#"2: gate.interface[8] = "i": is one too many: there may be 8"#],
    ),
    ("interface", "interfaze", &[r#"2: gate.interfaze = "eth1": unknown key; did you mean interface?"#]),
    (
        "interface",
        "\"inter face\"",
        &[r#"2: gate."inter face" = "eth1": unknown key; did you mean interface?"#],
    ),
    (
        "[gate]\n",
        "[gate]\nxdp = \"of\"\n",
        &[r#"2: gate.xdp = "of": must be "auto", "native", "generic" or "off""#],
    ),
    ("[gate]\n", "[gate]\nmode = true\n", &[r#"2: gate.mode = true: must be "enforce" or "shadow""#]),
    ("[gate]\n", "[gate]\nenforce = \"101%\"\n", &[r#"2: gate.enforce = "101%": must be from 0% to 100%"#]),
    ("[gate]\n", "[gate]\nenforce = 0.5\n", &[r#"2: gate.enforce = 0.5: must be a percentage, e.g. "100%""#]),
    ("[gate]\n", "[gate]\ntick = \"1ms\"\n", &[r#"2: gate.tick = "1ms": must be from 10ms to 10s"#]),
    (
        "[gate]\n",
        "[gate]\ntick = 100\n",
        &[r#"2: gate.tick = 100: must be a time, e.g. "100ms" (ns, us, ms, s, min, h, d)"#],
    ),
    (
        "[gate]\n",
        "[gate]\ntick = \"600ms\"\n",
        &[r#"2: gate.tick = "600ms": stale_after (1s) must be at least two ticks (1.2s)"#],
    ),
    (
        "[gate]\n",
        "[gate]\nstale_after = \"150ms\"\n",
        &[r#"2: gate.stale_after = "150ms": stale_after (150ms) must be at least two ticks (200ms)"#],
    ),
    (
        "[gate]\n",
        "[gate]\nsample = 64\n",
        &[r#"2: gate.sample = 64: must be from "1/1" to "1/65536", e.g. "1/64""#],
    ),
    (
        "[gate]\n",
        "[gate]\nsample = \"1/0\"\n",
        &[r#"2: gate.sample = "1/0": must be from "1/1" to "1/65536", e.g. "1/64""#],
    ),
    (
        "[gate]\n",
        "[gate]\nprefix_memory = \"64MB\"\n",
        &[r#"2: gate.prefix_memory = "64MB": must be a size, e.g. "64MiB" (B, KiB, MiB, GiB)"#],
    ),
    (
        "[gate]\n",
        "[gate]\ncounter_memory = \"a lot\"\n",
        &[r#"2: gate.counter_memory = "a lot": must be a size, e.g. "64MiB" (B, KiB, MiB, GiB)"#],
    ),
    (
        "[gate]\n",
        "[gate]\npin_dir = \"../bpf\"\n",
        &[r#"2: gate.pin_dir = "../bpf": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#],
    ),
    (
        "[gate]\n",
        "[gate]\nadmin = \"on\"\n",
        &[
            r#"2: gate.admin = "on": must be "off" or an absolute path without "..", e.g. "/run/gate/gate.sock""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\nadmin = \"/run/a.sock\"\nadmin_read = \"/run/a.sock\"\n",
        &[
            r#"3: gate.admin_read = "/run/a.sock": is the socket of `admin`, which accepts changes: name another path"#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\nadmin_http = \"localhost:9911\"\nadmin_hosts = \"a:1\"\nadmin_token_file = \"token\"\n",
        &[
            r#"2: gate.admin_http = "localhost:9911": must be "off" or an address and a port, e.g. "127.0.0.1:9911" or "[::1]:9911""#,
            r#"3: gate.admin_hosts = "a:1": must be the name of a host without a port, e.g. "gate.example""#,
            r#"4: gate.admin_token_file = "token": must be an absolute path without "..", e.g. "/etc/gate/admin-token""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\nadmin_hosts = \"gate.example\"\n",
        &[r#"2: gate.admin_hosts = "gate.example": is of no use without `admin_http`"#],
    ),
    (
        "[gate]\n",
        "[gate]\nadmin_read = \"on\"\n",
        &[
            r#"2: gate.admin_read = "on": must be "off" or an absolute path without "..", e.g. "/run/gate-read/gate.sock""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\nalgorithm = \"leaky\"\non_stale = 1979-05-27\n",
        &[
            r#"2: gate.algorithm = "leaky": must be "token-bucket" or "rejection-rate""#,
            r#"3: gate.on_stale = 1979-05-27: must be "bucket" or "pass""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\ntcp_in_debt = \"reset\"\ndeep_debt = \"0s\"\ndrain = \"25h\"\n",
        &[
            r#"2: gate.tcp_in_debt = "reset": must be "off", "reset-syn", "drop-syn" or "drop-data""#,
            r#"3: gate.deep_debt = "0s": must be from 1s to 3600s"#,
            r#"4: gate.drain = "25h": must be from 0ns to 86400s"#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\ncharged_mark = 4096\n",
        &[
            r#"2: gate.charged_mark = 4096: must be "off" or one bit from "0x1" to "0x80000000", e.g. "0x1000""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\ncharged_mark = \"0x3000\"\n",
        &[
            r#"2: gate.charged_mark = "0x3000": must be "off" or one bit from "0x1" to "0x80000000", e.g. "0x1000""#,
        ],
    ),
    ("[gate]\ninterface = \"eth1\"", "gate = 1", &["1: gate = 1: must be a table: gate = { ... }"]),
];

const DOCUMENT: &[Broken] = &[
    (
        GOOD,
        "",
        &[
            "1: service: is missing; write at least one [[service]]",
            "1: tenant: is missing; write at least one [[tenant]]",
        ],
    ),
    (
        "[gate]",
        "[server]\nport = 1\n[gate]",
        &["1: server: unknown key; known here: envoy, fleet, gate, limit, service, tenant"],
    ),
    (
        "[[tenant]]\nname = \"polite\"",
        "[[tenants]]\nname = \"polite\"",
        &["7: tenants: unknown key; did you mean tenant?"],
    ),
    ("\"eth1\"", "\"eth1", &[r#"2: gate.interface: interface = "eth1: invalid basic string, expected `"`"#]),
    (
        "\"eth1\"",
        "eth1",
        &["2: gate.interface: interface = eth1: string values must be quoted, expected literal string"],
    ),
    (
        "quota = \"5000 RU/s\"",
        "quota = 5000 RU/s",
        &["10: tenant[0].quota: quota = 5000 RU/s: string values must be quoted, expected literal string"],
    ),
    (
        "quota = \"5000 RU/s\"",
        "quota = \"1 RU\"\nquota = \"5000 RU/s\"",
        &[
            r#"10: tenant[0].quota = "1 RU": must be a rate in request units, e.g. "5000 RU/s""#,
            r#"11: tenant[0].quota: quota = "5000 RU/s": duplicate key"#,
        ],
    ),
    (
        "[[tenant]]\nname = \"hostile\"",
        "[[tenant]\nname = \"hostile\"",
        &["11: [[tenant]: unclosed array table, expected `]`"],
    ),
    ("[gate]", "[gate", &["1: [gate: unclosed table, expected `]`"]),
    (
        "\"198.18.2.1\"]",
        "\"198.18.2.1\"",
        &[r#"14: tenant[1].quota: quota = "2000 RU/s": missing comma between array elements, expected `,`"#],
    ),
    ("quota = \"2000", "quota", &[r#"14: tenant[1]: quota RU/s": key with no value, expected `=`"#]),
];
