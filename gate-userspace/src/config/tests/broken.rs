//! A good configuration, what breaks it, and what is then printed.

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

/// What stands in [`GOOD`], what takes its place, and every fault as it is then printed, after the file's name.
pub(super) type Broken = (&'static str, &'static str, &'static [&'static str]);

/// The second tenant, and after it a service that can tell keys.
const SECOND: &str = "sources = [\"198.18.2.1\"]\nquota = \"2000 RU/s\"\n";
macro_rules! second {
    ($text:literal) => {
        concat!(
            $text,
            "quota = \"2000 RU/s\"\n[[service]]\nname = \"proxied\"\nprotocol = \"resp\"\n\
             listen = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n"
        )
    };
}

/// Every row is refused.
pub(super) const BROKEN: &[Broken] = &[
    // [gate]
    (
        "\"eth1\"",
        "\"a name that is too long\"",
        &[
            r#"2: gate.interface = "a name that is too long": must be the name of an interface, up to 15 bytes, e.g. "eth1""#,
        ],
    ),
    ("\"eth1\"", "7", &[r#"2: gate.interface = 7: must be in quotes: "7""#]),
    ("\"eth1\"", "[\"eth1\"]", &[r#"2: gate.interface = ["eth1"]: must be one value, not a list"#]),
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
        &[r#"2: gate.tick = 100: must be a time, e.g. "100ms" (ns, us, ms, s, min, h)"#],
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
        "[gate]\nalgorithm = \"leaky\"\non_stale = 1979-05-27\n",
        &[
            r#"2: gate.algorithm = "leaky": must be "token-bucket" or "rejection-rate""#,
            r#"3: gate.on_stale = 1979-05-27: must be "bucket" or "pass""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\ntcp_in_debt = \"reset\"\ndeep_debt = \"0s\"\n",
        &[
            r#"2: gate.tcp_in_debt = "reset": must be "off", "reset-syn", "drop-syn" or "drop-data""#,
            r#"3: gate.deep_debt = "0s": must be from 1s to 3600s"#,
        ],
    ),
    ("[gate]\ninterface = \"eth1\"", "gate = 1", &["1: gate = 1: must be a table: gate = { ... }"]),
    // [[service]]
    ("[[service]]", "[service]", &["3: service: must be a list of tables: write [[service]]"]),
    (
        "protocol = \"memcached\"\n",
        "",
        &[r#"3: service[0].protocol: is missing, e.g. protocol = "memcached""#],
    ),
    (
        "\"memcached\"",
        "\"http\"",
        &[r#"5: service[0].protocol = "http": must be "memcached", "resp" or "opaque""#],
    ),
    (
        "listen = \"198.18.0.1:11211\"\n",
        "",
        &[r#"3: service[0].listen: is missing, e.g. listen = "198.18.0.1:11211""#],
    ),
    (
        "198.18.0.1:11211",
        "198.18.0.1",
        &[
            r#"6: service[0].listen = "198.18.0.1": must be an address and a port, e.g. "198.18.0.1:11211" or "[::]:11211""#,
        ],
    ),
    (
        "198.18.0.1:11211",
        "198.18.0.1:0",
        &[r#"6: service[0].listen = "198.18.0.1:0": must have a port from 1 to 65535"#],
    ),
    (
        "198.18.0.1:11211",
        "[::ffff:198.18.0.1]:11211",
        &[r#"6: service[0].listen = "[::ffff:198.18.0.1]:11211": must be written as IPv4: 198.18.0.1"#],
    ),
    (
        "198.18.0.1:11211",
        "localhost:11211",
        &[
            r#"6: service[0].listen = "localhost:11211": must be an address and a port, e.g. "198.18.0.1:11211" or "[::]:11211""#,
        ],
    ),
    (
        "\"198.18.0.1:11211\"",
        "[\"198.18.0.1:11211\",\n\"0.0.0.0:11211\"]",
        &[r#"7: service[0].listen[1] = "0.0.0.0:11211": overlaps 198.18.0.1:11211, on line 6"#],
    ),
    (
        "[[tenant]]\nname = \"polite\"",
        "[[service]]\nname=\"copy\"\nprotocol=\"opaque\"\nlisten=\"0.0.0.0:11211\"\n[[tenant]]\nname = \"polite\"",
        &[r#"10: service[1].listen = "0.0.0.0:11211": overlaps 198.18.0.1:11211, on line 6"#],
    ),
    (
        "[[tenant]]\nname = \"polite\"",
        "[[service]]\nname=\"cache\"\nprotocol=\"resp\"\nlisten=\"0.0.0.0:6379\"\ntransports=[\"udp\"]\n[[tenant]]\nname = \"polite\"",
        &[
            r#"8: service[1].name = "cache": is taken, on line 4"#,
            r#"11: service[1].transports[0] = "udp": RESP has no UDP transport; write ["tcp"]"#,
        ],
    ),
    (
        "listen",
        "transports = []\nlisten",
        &["6: service[0].transports = []: is empty; give at least one, or leave the key out"],
    ),
    (
        "listen",
        "transports = [\"udp\", \"sctp\"]\nlisten",
        &[r#"6: service[0].transports[1] = "sctp": must be "udp" or "tcp""#],
    ),
    (
        "listen",
        "default = \"polit\"\nlisten",
        &[r#"6: service[0].default = "polit": no tenant has this name; did you mean "polite"?"#],
    ),
    (
        "listen",
        "default = \"anonymous\"\nlisten",
        &[
            r#"6: service[0].default = "anonymous": no tenant has this name; add a [[tenant]] with name = "anonymous""#,
        ],
    ),
    (
        "listen",
        "unknown_syn = \"reset\"\nlisten",
        &[r#"6: service[0].unknown_syn = "reset": must be "pass" or "drop""#],
    ),
    (
        "listen",
        "price = { base = \"1\", rows = \"1 RU\" }\nlisten",
        &[
            r#"6: service[0].price.base = "1": must be a price in request units, e.g. "0.5 RU""#,
            r#"6: service[0].price.rows = "1 RU": unknown key; did you mean row?"#,
        ],
    ),
    (
        "listen",
        "price.kib = \"9999999 RU\"\nlisten",
        &[r#"6: service[0].price.kib = "9999999 RU": must be at most 1000000 RU"#],
    ),
    (
        "listen",
        "price.learn = \"yes\"\nprice.range = \"0\"\nlisten",
        &[
            r#"6: service[0].price.learn = "yes": must be "on" or "off""#,
            r#"7: service[0].price.range = "0": must be a whole number from 1 to 1000"#,
        ],
    ),
    (
        "listen",
        "price = { learn = \"on\", range = \"4\" }\nlisten",
        &[
            r#"6: service[0].price.learn = "on": means something only beside backend: gate learns from how long the store takes for what it passes on"#,
        ],
    ),
    (
        "listen",
        "price.range = \"4\"\nlisten",
        &[r#"6: service[0].price.range = "4": means something only beside learn: other prices do not move"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nprice = { learn = \"on\", base = \"0.009 RU\" }\nlisten",
        &[
            r#"7: service[0].price.base = "0.009 RU": must be at least 0.01 RU where prices learn: no request is free"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nprice = { learn = \"on\", range = \"200\" }\nlisten",
        &[
            r#"16: tenant[1].quota = "2000 RU/s": would refuse a full frame of 1500 bytes for good: at 693.000 RU, which prices may come to learn, it takes 346.5ms at this rate, and burst (100ms) and max_debt (200ms) together allow less; raise one of the three"#,
        ],
    ),
    (
        "listen",
        "price = \"1 RU\"\nlisten",
        &[r#"6: service[0].price = "1 RU": must be a table: price = { ... }"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1\"\nlisten",
        &[
            r#"6: service[0].backend = "127.0.0.1": must be an address and a port, e.g. "198.18.0.1:11211" or "[::]:11211""#,
        ],
    ),
    (
        "[gate]\n",
        "[gate]\nxdp = \"off\"\nthreads = \"0\"\n",
        &[
            r#"3: gate.threads = "0": must be a whole number from 1 to 256"#,
            r#"5: service[0].backend: is missing, and xdp = "off" leaves a service without one unprotected; e.g. backend = "127.0.0.1:11212""#,
        ],
    ),
    (
        "listen",
        "backend = \"198.18.0.1:11211\"\nlisten",
        &[r#"6: service[0].backend = "198.18.0.1:11211": is an address of the service itself"#],
    ),
    (
        "listen",
        "backend = \"0.0.0.0:11212\"\nlisten",
        &[
            r#"6: service[0].backend = "0.0.0.0:11212": must be the store's own address, e.g. "127.0.0.1:11212""#,
        ],
    ),
    (
        "\"memcached\"",
        "\"opaque\"\nbackend = \"127.0.0.1:11212\"",
        &[
            r#"6: service[0].backend = "127.0.0.1:11212": what is opaque cannot be proxied; protocol = "memcached" or "resp" can"#,
        ],
    ),
    (
        "listen",
        "max_depth = \"1\"\nlisten",
        &[r#"6: service[0].max_depth = "1": means something only beside backend"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nconnections = \"65\"\nstore_timeout = \"1us\"\nmax_request = \"1B\"\nmax_depth = \"many\"\nmax_output = \"1KiB\"\nmax_clients = \"0\"\nmax_datagrams = \"0\"\nclient_memory = \"1KiB\"\nlisten",
        &[
            r#"7: service[0].connections = "65": must be a whole number from 1 to 64"#,
            r#"8: service[0].store_timeout = "1us": must be from 1ms to 600s"#,
            r#"9: service[0].max_request = "1B": must be from 1KiB to 512MiB"#,
            r#"10: service[0].max_depth = "many": must be a whole number from 1 to 100000"#,
            r#"11: service[0].max_output = "1KiB": must be from 64KiB to 4GiB"#,
            r#"12: service[0].max_clients = "0": must be a whole number from 1 to 1000000"#,
            r#"13: service[0].max_datagrams = "0": must be a whole number from 1 to 1000000"#,
            r#"14: service[0].client_memory = "1KiB": must be from 1MiB to 64GiB"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"4\"\ncodel = { law = \"red\", target = \"200ms\", interval = \"100ms\", standard = \"5ms\", batch = \"6ms\", critical = \"1ms\" }\nlisten",
        &[
            r#"8: service[0].codel.batch = "6ms": must not be above standard (5ms)"#,
            r#"8: service[0].codel.critical = "1ms": unknown key; known here: batch, best-effort, interval, law, standard, target"#,
            r#"8: service[0].codel.law = "red": must be "overload", "rfc8289" or "off""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"4\"\ncodel = { target = \"200ms\", interval = \"100ms\" }\nlisten",
        &[r#"8: service[0].codel.interval = "100ms": interval (100ms) must be at least the target (200ms)"#],
    ),
    (
        "listen",
        "deadline = \"1s\"\nparallelism = \"4\"\nlisten",
        &[r#"7: service[0].parallelism = "4": means something only beside backend"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ndeadline = \"1s\"\nlisten",
        &[r#"7: service[0].deadline = "1s": means something only beside parallelism"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"0\"\nadmission = \"bouncy\"\nobjectives = { get = { p50 = \"2ms\", p90 = \"1ms\" }, gte = { p50 = \"1ms\" } }\nmax_queue_wait = \"1s\"\nclient_timeout = \"1ms\"\nlisten",
        &[
            r#"7: service[0].parallelism = "0": must be a whole number from 1 to 100000"#,
            r#"8: service[0].admission = "bouncy": must be "bouncer", "max-queue-length", "max-queue-wait", "accept-fraction" or "off""#,
            r#"9: service[0].objectives.get.p90 = "1ms": must not be below p50 (2ms)"#,
            r#"9: service[0].objectives.gte: unknown key; did you mean get?"#,
            r#"10: service[0].max_queue_wait = "1s": means something only beside admission = "max-queue-wait""#,
            r#"11: service[0].client_timeout = "1ms": must be from 100ms to 3600s"#,
        ],
    ),
    // How a service is watched, and what it sheds.
    (
        "listen",
        "shedding.floor = \"2ms\"\nlisten",
        &[r#"6: service[0].shedding: means something only beside backend or probe"#],
    ),
    (
        "listen",
        "probe = \"10ms\"\nlisten",
        &[
            r#"6: service[0].probe = "10ms": must be a table: probe = { ... }"#,
            r#"6: service[0].probe.every: is missing, e.g. every = "10ms""#,
        ],
    ),
    ("listen", "probe = {}\nlisten", &[r#"6: service[0].probe.every: is missing, e.g. every = "10ms""#]),
    (
        "listen",
        "probe.every = \"10us\"\nprobe.timeout = \"2min\"\nlisten",
        &[
            r#"6: service[0].probe.every = "10us": must be from 1ms to 10s"#,
            r#"7: service[0].probe.timeout = "2min": must be from 1ms to 60s"#,
        ],
    ),
    (
        "\"memcached\"\n",
        "\"opaque\"\nprobe.every = \"10ms\"\n",
        &[r#"6: service[0].probe: gate cannot ask what is opaque; protocol = "memcached" or "resp" it can"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nprobe.every = \"10ms\"\nlisten",
        &[
            r#"7: service[0].probe: means something only without backend: gate sees how long it takes what it passes on"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding = { enabled = \"yes\", floor = \"0s\", learn_after = \"1ms\", settle = \"1ms\" }\nlisten",
        &[
            r#"7: service[0].shedding.enabled = "yes": must be "on" or "off""#,
            r#"7: service[0].shedding.floor = "0s": must be from 1µs to 3600s"#,
            r#"7: service[0].shedding.learn_after = "1ms": must be from 1s to 86400s"#,
            r#"7: service[0].shedding.settle = "1ms": must be from 10ms to 60s"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding = { short = \"2min\", long = \"1min\" }\nlisten",
        &[r#"7: service[0].shedding.long = "1min": must be longer than short (120s)"#],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding.short = \"50ms\"\nlisten",
        &[r#"7: service[0].shedding.short = "50ms": must be from 100ms to 3600s"#],
    ),
    (
        "listen",
        "probe.every = \"100ms\"\nshedding.short = \"100ms\"\nlisten",
        &[
            r#"7: service[0].shedding.short = "100ms": half of short (100ms) has 0 probes, fewer than min_samples (1): nothing would ever be said"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding.min_samples = \"51\"\nlisten",
        &[
            r#"7: service[0].shedding.min_samples = "51": half of short (1s) has 50 probes, fewer than min_samples (51): nothing would ever be said"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding.shed_below = { batch = \"60%\", critical = \"0%\", lowest = \"1%\" }\nlisten",
        &[
            r#"7: service[0].shedding.shed_below.critical = "0%": must be above 0%, e.g. "50%""#,
            r#"7: service[0].shedding.shed_below.lowest = "1%": unknown key; known here: batch, best-effort, critical, standard"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding.shed_below.batch = \"60%\"\nlisten",
        &[
            r#"7: service[0].shedding.shed_below.batch = "60%": best-effort must not give way later than batch (60.0%)"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding.restore_above = \"50%\"\nlisten",
        &[
            r#"7: service[0].shedding.restore_above = "50%": must be above all of shed_below (50.0%) and below 100%"#,
        ],
    ),
    (
        "listen",
        "probe.every = \"10ms\"\nshedding = { wait = \"2s\", longest_wait = \"1s\" }\nlisten",
        &[r#"7: service[0].shedding.longest_wait = "1s": must not be below wait (2s)"#],
    ),
    // Hot keys.
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nhot_keys = { cache = \"yes\", threshold = \"0\", max_value = \"17MiB\", memory = \"1KiB\", ttl = \"4s\" }\nlisten",
        &[
            r#"7: service[0].hot_keys.cache = "yes": must be "on" or "off""#,
            r#"7: service[0].hot_keys.max_value = "17MiB": must be from 1B to 16MiB"#,
            r#"7: service[0].hot_keys.memory = "1KiB": must be from 64KiB to 16GiB"#,
            r#"7: service[0].hot_keys.threshold = "0": must be a whole number from 1 to 1000000000"#,
            r#"7: service[0].hot_keys.ttl = "4s": must be from 1ms to 3s"#,
        ],
    ),
    (
        "listen",
        "hot_keys = { tll = \"1s\" }\nlisten",
        &[
            r#"6: service[0].hot_keys: means something only beside backend"#,
            r#"6: service[0].hot_keys.tll = "1s": unknown key; did you mean ttl?"#,
        ],
    ),
    // [[tenant]]
    ("name = \"polite\"\n", "", &[r#"7: tenant[0].name: is missing, e.g. name = "polite""#]),
    ("\"polite\"", "\"\"", &[r#"8: tenant[0].name = "": must be 1 to 48 letters, digits, '-', '_' or '.'"#]),
    (
        "\"polite\"",
        "\"two words\"",
        &[r#"8: tenant[0].name = "two words": must be 1 to 48 letters, digits, '-', '_' or '.'"#],
    ),
    ("\"hostile\"", "\"polite\"", &[r#"12: tenant[1].name = "polite": is taken, on line 8"#]),
    ("quota = \"5000 RU/s\"\n", "", &[r#"7: tenant[0].quota: is missing, e.g. quota = "5000 RU/s""#]),
    ("\"5000 RU/s\"", "\"-5\"", &[r#"10: tenant[0].quota = "-5": must be above 0, e.g. "5000 RU/s""#]),
    (
        "\"5000 RU/s\"",
        "\"0 RU/s\"",
        &[r#"10: tenant[0].quota = "0 RU/s": must be above 0, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "5000",
        &[r#"10: tenant[0].quota = 5000: must be a rate in request units, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "\"5000/s\"",
        &[r#"10: tenant[0].quota = "5000/s": must be a rate in request units, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "\"1 RU/s\"",
        &[
            r#"10: tenant[0].quota = "1 RU/s": would refuse a full frame of 1500 bytes for good: at 2.465 RU it takes 2.465s at this rate, and burst (100ms) and max_debt (200ms) together allow less; raise one of the three"#,
        ],
    ),
    (
        "\"5000 RU/s\"",
        "\"50000000000 RU/s\"",
        &[r#"10: tenant[0].quota = "50000000000 RU/s": must be at most 1000000000 RU/s, or "unlimited""#],
    ),
    (
        "quota = \"5000",
        "qouta = \"5000",
        &[
            r#"7: tenant[0].quota: is missing, e.g. quota = "5000 RU/s""#,
            r#"10: tenant[0].qouta = "5000 RU/s": unknown key; did you mean quota?"#,
        ],
    ),
    (
        "quota = \"5000",
        "burst = \"1ms\"\nquota = \"5000",
        &[r#"10: tenant[0].burst = "1ms": must be from 4ms to 3600s"#],
    ),
    (
        "quota = \"5000",
        "max_debt = \"1 year\"\nquota = \"5000",
        &[r#"10: tenant[0].max_debt = "1 year": must be a time, e.g. "100ms" (ns, us, ms, s, min, h)"#],
    ),
    (
        "quota = \"5000",
        "reply_budget = \"2GiB/s\"\nquota = \"5000",
        &[r#"10: tenant[0].reply_budget = "2GiB/s": must be from 0B/s to 1GiB/s"#],
    ),
    (
        "quota = \"5000",
        "tcp_quota = \"1 B/s\"\nquota = \"5000",
        &[r#"10: tenant[0].tcp_quota = "1 B/s": must be from 1KiB/s to 512GiB/s"#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"65\"\nrefuse = \"yes\"\nquota = \"5000",
        &[
            r#"10: tenant[0].multiplier = "65": must be from 1 to 64"#,
            r#"11: tenant[0].refuse = "yes": must be "on" or "off""#,
        ],
    ),
    (
        "quota = \"5000",
        "multiplier = \"0.5\"\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = "0.5": must be from 1 to 64"#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"x4\"\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = "x4": must be a factor, e.g. "4""#],
    ),
    (
        "quota = \"5000",
        "multiplier = 4\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = 4: must be in quotes: "4""#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"8\"\nburst = \"8ms\"\nmax_debt = \"0s\"\ncharge = \"hostile\"\nquota = \"2000",
        &[
            r#"10: tenant[0].multiplier = "8": would refuse a full frame of 1500 bytes for good: 19.720 RU is more than burst and max_debt of polite together allow; up to "6" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "\"5000 RU/s\"\n[[tenant]]\n",
        "\"5000 RU/s\"\nmultiplier = \"64\"\ncharge = \"hostile\"\n[[tenant]]\nburst = \"4ms\"\n",
        &[
            r#"11: tenant[0].multiplier = "64": would refuse a full frame of 1500 bytes for good: 157.760 RU is more than burst and max_debt of hostile together allow; up to "9" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "quota = \"5000",
        "tier = \"gold\"\nquota = \"5000",
        &[r#"10: tenant[0].tier = "gold": must be "critical", "standard", "batch" or "best-effort""#],
    ),
    (
        "quota = \"5000",
        "candidate = \"0.1 RU/s\"\nquota = \"5000",
        &[
            r#"10: tenant[0].candidate = "0.1 RU/s": would refuse a full frame of 1500 bytes for good: at 2.465 RU it takes 24.65s at this rate, and burst (100ms) and max_debt (200ms) together allow less; raise one of the three"#,
        ],
    ),
    (
        "quota = \"5000",
        "max_connections = \"0\"\nmax_outstanding = \"many\"\nquota = \"5000",
        &[
            r#"10: tenant[0].max_connections = "0": must be a whole number from 1 to 1000000"#,
            r#"11: tenant[0].max_outstanding = "many": must be a whole number from 1 to 1000000"#,
        ],
    ),
    (
        "listen",
        "query_types = { mine = [\"get\"] }\nlisten",
        &["6: service[0].query_types: means something only beside backend"],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nquery_types.mine = [\"gets\", \"gte\", \"HGETALL\"]\n\
         query_types.other = [\"GETS\", \"unknown\"]\ntiers = { mine = \"batch\", mien = \"batch\" }\n\
         parallelism = \"4\"\nobjectives = { other = { p50 = \"0s\" }, ohter = { p50 = \"1ms\" } }\nlisten",
        &[
            r#"7: service[0].query_types.mine[1] = "gte": no command has this name; did you mean "get"?"#,
            r#"7: service[0].query_types.mine[2] = "HGETALL": must be a command of the service's protocol, e.g. "gets", "incr""#,
            r#"8: service[0].query_types.other[0] = "GETS": is of a type already, on line 7"#,
            r#"8: service[0].query_types.other[1] = "unknown": must be a command of the service's protocol, e.g. "gets", "incr""#,
            r#"9: service[0].tiers.mien = "batch": unknown key; did you mean mine?"#,
            r#"11: service[0].objectives.ohter: unknown key; did you mean other?"#,
            r#"11: service[0].objectives.other.p50 = "0s": must be from 10µs to 3600s"#,
        ],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:11212\"\n[service.query_types]\nreports = [\"SORT\", \"CONFIG|GET\", \"gets\"]\n\
         scan = [\"config get\", \"GET nonsense\", 7]\nempty = []\nnone = { }\n[[service]]\nname = \"x\"\nprotocol = \"memcached\"\n",
        &[
            r#"3: service[0].listen: is missing, e.g. listen = "198.18.0.1:11211""#,
            r#"8: service[0].query_types.reports[2] = "gets": no command has this name; did you mean "get"?"#,
            r#"9: service[0].query_types.scan[0] = "config get": is of a type already, on line 8"#,
            r#"9: service[0].query_types.scan[1] = "GET nonsense": must be a command of the service's protocol, e.g. "SORT", "CONFIG GET""#,
            r#"9: service[0].query_types.scan[2] = 7: must be in quotes: "7""#,
            r#"10: service[0].query_types.empty = []: is empty; give at least one, or leave the key out"#,
            r#"11: service[0].query_types.none = { }: must be one value, not a table"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nquery_types.default = \"get\"\nquery_types.Gets = \"gets\"\n\
         query_types.1st = \"incr\"\nquery_types.refusals = \"ms\"\nquery_types.\"a.b\" = \"decr\"\nquery_types.unknown = \"mg\"\nlisten",
        &[
            r#"7: service[0].query_types.default = "get": stands for every type in objectives; choose another name"#,
            r#"8: service[0].query_types.Gets = "gets": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; did you mean get?"#,
            r#"9: service[0].query_types.1st = "incr": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; e.g. reports"#,
            r#"10: service[0].query_types.refusals = "ms": names other figures in gate's statistics; choose another name"#,
            r#"11: service[0].query_types."a.b" = "decr": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; e.g. reports"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntiers = { scan = \"low\", scna = \"batch\" }\nlisten",
        &[
            r#"7: service[0].tiers.scan = "low": must be "critical", "standard", "batch" or "best-effort""#,
            r#"7: service[0].tiers.scna = "batch": unknown key; did you mean scan?"#,
        ],
    ),
    (
        "quota = \"5000",
        "charge = [\"hostil\", \"polite\"]\nquota = \"5000",
        &[
            r#"10: tenant[0].charge[0] = "hostil": no tenant has this name; did you mean "hostile"?"#,
            r#"10: tenant[0].charge[1] = "polite": is charged anyway: it is the tenant itself"#,
        ],
    ),
    // Parts.
    (
        "sources = [\"198.18.2.1\"]\n",
        "part_of = \"polite\"\nkey_prefixes = \"web:\"\n",
        &[
            r#"13: tenant[1].part_of = "polite": means something only if a service has a backend: gate sees no other requests' keys"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "sources = [\"198.18.2.1\"]\nkey_prefixes = [\"web:\", \"\"]\n",
        &[
            r#"14: tenant[1].key_prefixes = ["web:", ""]: means something only beside part_of"#,
            r#"14: tenant[1].key_prefixes[1] = "": must be 1 to 250 bytes; what begins with none is charged to the whole anyway"#,
        ],
    ),
    (
        SECOND,
        second!("part_of = \"polite\"\nmax_connections = \"7\"\nsources = [\"198.18.2.1\"]\n"),
        &[
            r#"11: tenant[1].key_prefixes: is missing, e.g. key_prefixes = ["web:", "img:"]"#,
            r#"14: tenant[1].max_connections = "7": belongs into the tenant that this is a part of, whose clients they are"#,
            r#"15: tenant[1].sources = ["198.18.2.1"]: belongs into the tenant that this is a part of, whose clients they are"#,
        ],
    ),
    (
        SECOND,
        second!("part_of = \"plite\"\nkey_prefixes = [\"web:\"]\n"),
        &[r#"13: tenant[1].part_of = "plite": no tenant has this name; did you mean "polite"?"#],
    ),
    (
        SECOND,
        second!("part_of = \"hostile\"\nkey_prefixes = [\"web:\"]\n"),
        &[r#"13: tenant[1].part_of = "hostile": is the tenant itself"#],
    ),
    (
        SECOND,
        second!(
            "part_of = \"polite\"\nkey_prefixes = [\"web:\",\n\"img:\", \"web:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\npart_of = \"polite\"\nkey_prefixes = \"img:\"\n"
        ),
        &[
            r#"15: tenant[1].key_prefixes[2] = "web:": is taken, on line 14"#,
            r#"20: tenant[2].key_prefixes = "img:": is taken, on line 15"#,
        ],
    ),
    (
        SECOND,
        second!(
            "part_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\npart_of = \"hostile\"\nkey_prefixes = \"web:\"\n"
        ),
        &[
            r#"18: tenant[2].part_of = "hostile": is a part itself: of "polite", which its own parts would have to be of too"#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"\n[[tenant]]\n",
        "listen = \"198.18.0.1:11211\"\nbackend = \"127.0.0.1:2\"\ndefault = \"part\"\n\
         [[tenant]]\nname = \"part\"\npart_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n[[tenant]]\n",
        &[r#"8: service[0].default = "part": is a part, which has no clients of its own; name "polite""#],
    ),
    (
        "listen = \"198.18.0.1:11211\"\n[[tenant]]\n",
        "listen = \"198.18.0.1:11211\"\nbackend = \"127.0.0.1:2\"\n[[tenant]]\nname = \"part\"\nburst = \"4ms\"\n\
         part_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n[[tenant]]\nmultiplier = \"64\"\n",
        &[
            r#"15: tenant[1].multiplier = "64": would refuse a full frame of 1500 bytes for good: 157.760 RU is more than burst and max_debt of part together allow; up to "4" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "quota = \"5000",
        "charge = [\"hostile\", \"hostile\"]\nquota = \"5000",
        &[r#"10: tenant[0].charge[1] = "hostile": is named twice"#],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "",
        &[
            r#"11: tenant[1].sources: is missing, and no service or tenant names this one: nothing would be charged to it; e.g. sources = ["198.18.1.0/24"]"#,
        ],
    ),
    (
        "198.18.2.1",
        "198.18.1.7/24",
        &[
            r#"13: tenant[1].sources[0] = "198.18.1.7/24": has bits beyond its length; the prefix is "198.18.1.0/24""#,
        ],
    ),
    ("198.18.2.1", "198.18.1.0/24", &[r#"13: tenant[1].sources[0] = "198.18.1.0/24": is taken, on line 9"#]),
    (
        "198.18.2.1",
        "198.18.1.0/33",
        &[
            r#"13: tenant[1].sources[0] = "198.18.1.0/33": must be an address or a prefix, e.g. "198.18.1.0/24" or "fd00:1::/64""#,
        ],
    ),
    (
        "198.18.2.1",
        "::ffff:198.18.2.1",
        &[r#"13: tenant[1].sources[0] = "::ffff:198.18.2.1": must be written as IPv4: 198.18.2.1"#],
    ),
    (
        "[\"198.18.2.1\"]",
        "[]",
        &["13: tenant[1].sources = []: is empty; give at least one, or leave the key out"],
    ),
    (
        "[\"198.18.2.1\"]",
        "[\"198.18.2.1\", 5, { a = 1 }]",
        &[
            r#"13: tenant[1].sources[1] = 5: must be an address or a prefix, e.g. "198.18.1.0/24" or "fd00:1::/64""#,
            "13: tenant[1].sources[2] = { a = 1 }: must be one value, not a table",
        ],
    ),
    // Users and commands.
    (
        "sources = [\"198.18.2.1\"]",
        "users = \"alice\"",
        &[
            r#"13: tenant[1].users = "alice": means something only if a service with protocol = "resp" has a backend: gate sees no other logins"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]",
        "users = [\"alice\", \"\", \"a b\", \"bob #12\", \"alice\"]",
        &[
            r#"13: tenant[1].users = ["alice", "", "a b", "bob #12", "alice"]: means something only if a service with protocol = "resp" has a backend: gate sees no other logins"#,
            r#"13: tenant[1].users[1] = "": must be the name of a user, 1 to 128 letters without blanks, e.g. "alice""#,
            r##"13: tenant[1].users[2] = "a b": behind a user's name must be "#" and 64 hexadecimal digits, SHA-256 of a password"##,
            r##"13: tenant[1].users[3] = "bob #12": behind a user's name must be "#" and 64 hexadecimal digits, SHA-256 of a password"##,
            r#"13: tenant[1].users[4] = "alice": is taken, on line 13"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]",
        "sources = \"198.18.2.1\"\ndeny = [\"FLUSHAL\", \"KEYS\", \"GET a\", \"\"]",
        &[
            r#"14: tenant[1].deny[0] = "FLUSHAL": no command has this name; did you mean "flushall"?"#,
            r#"14: tenant[1].deny[2] = "GET a": must be a command of Redis or memcached, e.g. "FLUSHALL", "CONFIG SET", or "unknown" for those that gate does not know"#,
            r#"14: tenant[1].deny[3] = "": must be a command of Redis or memcached, e.g. "FLUSHALL", "CONFIG SET", or "unknown" for those that gate does not know"#,
        ],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:6379\"\nstore_user = \"a b\"\nstore_password_file = \"x\"\nmax_pools = \"0\"\n",
        &[
            r#"7: service[0].store_user = "a b": must be the name of a user, 1 to 128 letters without blanks, e.g. "alice""#,
            r#"8: service[0].store_password_file = "x": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"9: service[0].max_pools = "0": must be a whole number from 1 to 4096"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\ntransports = \"tcp\"\nmax_pools = \"1\"\nlisten",
        &[r#"8: service[0].max_pools = "1": means something only with protocol = "resp""#],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:6379\"\nstore_user = \"gate\"\n",
        &[r#"7: service[0].store_user = "gate": has no password: write store_password_file as well"#],
    ),
    // The document.
    (
        GOOD,
        "",
        &[
            "1: service: is missing; write at least one [[service]]",
            "1: tenant: is missing; write at least one [[tenant]]",
        ],
    ),
    ("[gate]", "[server]\nport = 1\n[gate]", &["1: server: unknown key; known here: gate, service, tenant"]),
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
