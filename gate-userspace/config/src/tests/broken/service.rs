//! Faults of a `[[service]]`.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    ("[[service]]", "[service]", &["3: service: must be a list of tables: write [[service]]"]),
    (
        "protocol = \"memcached\"\n",
        "",
        &[r#"3: service[0].protocol: is missing, e.g. protocol = "memcached""#],
    ),
    (
        "\"memcached\"",
        "\"https\"",
        &[r#"5: service[0].protocol = "https": must be "memcached", "resp", "http" or "opaque""#],
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
        "unknown_syn_rate = \"fast\"\nlisten",
        &[r#"6: service[0].unknown_syn_rate = "fast": must be a rate, e.g. "2000/s", or "unlimited""#],
    ),
    (
        "listen",
        "hot_key_limit = \"0/s\"\nlisten",
        &[r#"6: service[0].hot_key_limit = "0/s": must be above 0, e.g. "2000/s""#],
    ),
    (
        "listen",
        "hot_key_limit = \"2000\"\nlisten",
        &[r#"6: service[0].hot_key_limit = "2000": must be a rate, e.g. "2000/s""#],
    ),
    (
        "listen",
        "hot_key_limit = \"99/s\"\nlisten",
        &[r#"6: service[0].hot_key_limit = "99/s": must be at least 100/s"#],
    ),
    (
        "protocol = \"memcached\"",
        "hot_key_limit = \"2000/s\"\nprotocol = \"opaque\"",
        &[r#"5: service[0].hot_key_limit = "2000/s": only memcached over UDP shows its keys; remove it"#],
    ),
    (
        "listen",
        "hot_key_limit = \"2000/s\"\ntransports = \"tcp\"\nlisten",
        &[r#"6: service[0].hot_key_limit = "2000/s": only memcached over UDP shows its keys; remove it"#],
    ),
    (
        "listen",
        "hot_key_limit = \"2000/s\"\nbackend = \"127.0.0.1:11211\"\nlisten",
        &[
            r#"6: service[0].hot_key_limit = "2000/s": means nothing with a backend: there hot_keys says what becomes of hot keys"#,
        ],
    ),
    (
        "listen",
        "tcp_price = \"keys\"\nlisten",
        &[r#"6: service[0].tcp_price = "keys": must be "bytes" or "lines""#],
    ),
    (
        "protocol = \"memcached\"",
        "tcp_price = \"lines\"\nprotocol = \"opaque\"",
        &[r#"5: service[0].tcp_price = "lines": only memcached over TCP has lines; write "bytes""#],
    ),
    (
        "listen",
        "tcp_price = \"lines\"\ntransports = \"udp\"\nlisten",
        &[r#"6: service[0].tcp_price = "lines": only memcached over TCP has lines; write "bytes""#],
    ),
    (
        "listen",
        "tcp_price = \"lines\"\nbackend = \"127.0.0.1:11211\"\nlisten",
        &[r#"6: service[0].tcp_price = "lines": means nothing with a backend: gate reads each request"#],
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
            r#"6: service[0].price.learn = "yes": must be "rows", "on" or "off""#,
            r#"7: service[0].price.range = "0": must be a whole number from 1 to 1000"#,
        ],
    ),
    (
        "listen",
        "price = { learn = \"on\", range = \"4\" }\nlisten",
        &[
            r#"6: service[0].price.learn = "on": means something only beside backend: gate learns from the replies to what it passes on"#,
        ],
    ),
    (
        "listen",
        "price.learn = \"rows\"\nlisten",
        &[
            r#"6: service[0].price.learn = "rows": means something only beside backend: gate learns from the replies to what it passes on"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nprice = { learn = \"rows\", range = \"4\" }\nlisten",
        &[
            r#"7: service[0].price.range = "4": means something only beside learn = "on": rows and bytes cost as much as ever"#,
        ],
    ),
    (
        "listen",
        "price.range = \"4\"\nlisten",
        &[
            r#"6: service[0].price.range = "4": means something only beside learn = "on": rows and bytes cost as much as ever"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nprice = { learn = \"on\", settle = \"later\" }\nlisten",
        &[r#"7: service[0].price.settle = "later": must be "next" or "debt""#],
    ),
    (
        "listen",
        "price.settle = \"debt\"\nlisten",
        &[
            r#"6: service[0].price.settle = "debt": means something only beside learn: without it nobody knows what a request has cost"#,
        ],
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
            r#"6: service[0].backend = "127.0.0.1": must be an address and a port or a host name and a port, e.g. "198.18.0.1:11211" or "cache.example:11211""#,
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
        "proxy_protocol = \"on\"\ntrusted = \"127.0.0.1\"\nlisten",
        &[
            r#"6: service[0].proxy_protocol = "on": means something only beside backend"#,
            r#"7: service[0].trusted = "127.0.0.1": means something only beside backend"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nproxy_protocol = \"v2\"\ntrusted = \"proxies\"\nlisten",
        &[
            r#"7: service[0].proxy_protocol = "v2": must be "on" or "off""#,
            r#"8: service[0].trusted = "proxies": must be an address or a prefix, e.g. "198.18.1.0/24" or "fd00:1::/64""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nproxy_protocol = \"on\"\nlisten",
        &[
            r#"7: service[0].proxy_protocol = "on": leaves nobody who may say whose a connection is; write trusted as well, e.g. trusted = ["198.18.3.0/24"]"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\ntrusted = \"127.0.0.1\"\nlisten",
        &[r#"7: service[0].trusted = "127.0.0.1": means something only beside proxy_protocol = "on""#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nproxy_protocol = \"on\"\ntrusted = [\"127.0.0.1\", \"::/0\"]\nlisten",
        &[
            r#"8: service[0].trusted[1] = "::/0": would let anyone say who it is; name the proxies' own addresses"#,
        ],
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
            r#"6: service[0].backend = "127.0.0.1:11212": what is opaque cannot be proxied; protocol = "memcached", "resp" or "http" can"#,
        ],
    ),
    (
        "listen",
        "max_depth = \"1\"\nlisten",
        &[r#"6: service[0].max_depth = "1": means something only beside backend"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nslow_timeout = \"slow\"\nlisten",
        &[r#"7: service[0].slow_timeout = "slow": must be a time, e.g. "100ms" (ns, us, ms, s, min, h, d)"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nstore_timeout = \"2s\"\nslow_timeout = \"1s\"\nlisten",
        &[r#"8: service[0].slow_timeout = "1s": must be at least store_timeout (2s)"#],
    ),
    (
        "listen",
        "slow_timeout = \"1s\"\nlisten",
        &[r#"6: service[0].slow_timeout = "1s": means something only beside backend"#],
    ),
    (
        "listen",
        "backend = \"cache:0\"\nlisten",
        &[r#"6: service[0].backend = "cache:0": must have a port from 1 to 65535"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nconnections = \"65\"\nstore_timeout = \"1us\"\nmax_request = \"1B\"\nmax_depth = \"many\"\nmax_output = \"1KiB\"\nmax_clients = \"0\"\nmax_datagrams = \"0\"\nclient_memory = \"1KiB\"\ntenant_memory = \"0.5%\"\nlisten",
        &[
            r#"7: service[0].connections = "65": must be a whole number from 1 to 64"#,
            r#"8: service[0].store_timeout = "1us": must be from 1ms to 600s"#,
            r#"9: service[0].max_request = "1B": must be from 1KiB to 512MiB"#,
            r#"10: service[0].max_depth = "many": must be a whole number from 1 to 100000"#,
            r#"11: service[0].max_output = "1KiB": must be from 64KiB to 4GiB"#,
            r#"12: service[0].max_clients = "0": must be a whole number from 1 to 1000000"#,
            r#"13: service[0].max_datagrams = "0": must be a whole number from 1 to 1000000"#,
            r#"14: service[0].client_memory = "1KiB": must be from 1MiB to 64GiB"#,
            r#"15: service[0].tenant_memory = "0.5%": must be from 1% to 100%"#,
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
        "backend = \"127.0.0.1:11212\"\nparallelism = \"off\"\ndeadline = \"1s\"\nobjectives = { get = { p50 = \"1ms\" } }\nlisten",
        &[
            r#"8: service[0].deadline = "1s": means nothing beside parallelism = "off""#,
            r#"9: service[0].objectives: means nothing beside parallelism = "off""#,
        ],
    ),
    (
        "listen",
        "deadline = \"1s\"\nlisten",
        &[r#"6: service[0].deadline = "1s": means something only beside backend"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"automatic\"\nlisten",
        &[r#"7: service[0].parallelism = "automatic": must be a whole number from 1 to 100000, auto or off"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = [\"auto\", \"4\"]\nlisten",
        &[r#"7: service[0].parallelism = ["auto", "4"]: must be one value, not a list"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"0\"\nadmission = \"bouncy\"\nobjectives = { get = { p50 = \"2ms\", p90 = \"1ms\" }, gte = { p50 = \"1ms\" } }\nmax_queue_wait = \"1s\"\nclient_timeout = \"1ms\"\nlisten",
        &[
            r#"7: service[0].parallelism = "0": must be a whole number from 1 to 100000, auto or off"#,
            r#"8: service[0].admission = "bouncy": must be "bouncer", "max-queue-length", "max-queue-wait", "accept-fraction" or "off""#,
            r#"9: service[0].objectives.get.p90 = "1ms": must not be below p50 (2ms)"#,
            r#"9: service[0].objectives.gte: unknown key; did you mean get?"#,
            r#"10: service[0].max_queue_wait = "1s": means something only beside admission = "max-queue-wait""#,
            r#"11: service[0].client_timeout = "1ms": must be from 100ms to 3600s"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = \"max-queue-wait\"\nmax_queue_wait = { get = \"0s\", default = 15, rnage = \"5ms\" }\nlisten",
        &[
            r#"9: service[0].max_queue_wait.default = 15: must be a time, e.g. "100ms" (ns, us, ms, s, min, h, d)"#,
            r#"9: service[0].max_queue_wait.get = "0s": must be from 1ms to 3600s"#,
            r#"9: service[0].max_queue_wait.rnage = "5ms": unknown key; did you mean range?"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nmax_queue_wait = { get = \"1ms\" }\nlisten",
        &[r#"8: service[0].max_queue_wait: means something only beside admission = "max-queue-wait""#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = \"max-queue-wait\"\nmax_queue_wait = [\"1ms\"]\nlisten",
        &[r#"9: service[0].max_queue_wait = ["1ms"]: must be one value, not a list"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = [\"bouncer\", \"accept-fractoin\", \"off\", \"bouncer\"]\nmax_queue_wait = \"1s\"\nlisten",
        &[
            r#"8: service[0].admission[1] = "accept-fractoin": must be "bouncer", "max-queue-length", "max-queue-wait", "accept-fraction" or "off""#,
            r#"8: service[0].admission[2] = "off": stands alone; leave it out, or the others"#,
            r#"8: service[0].admission[3] = "bouncer": is in the list already"#,
            r#"9: service[0].max_queue_wait = "1s": means something only beside admission = "max-queue-wait""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = []\nlisten",
        &[r"8: service[0].admission = []: is empty; give at least one, or leave the key out"],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = [\"off\"]\nalpha = \"1\"\nlisten",
        &[
            r#"9: service[0].alpha = "1": means something only beside admission = "bouncer""#,
            r#"9: service[0].alpha = "1": means something only beside fairness = "helping-the-underserved""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nhistogram = \"slide\"\nlisten",
        &[r#"8: service[0].histogram = "slide": must be "swap" or "sliding""#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"1\"\nadmission = \"off\"\nhistogram = \"swap\"\nlisten",
        &[r#"9: service[0].histogram = "swap": means something only beside admission = "bouncer""#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nmax_unknown_clients = \"few\"\nunknown_timeout = \"off\"\nidle_timeout = \"1ms\"\nlisten",
        &[
            r#"7: service[0].max_unknown_clients = "few": must be a whole number from 0 to 1000000"#,
            r#"8: service[0].unknown_timeout = "off": must be a time, e.g. "100ms" (ns, us, ms, s, min, h, d)"#,
            r#"9: service[0].idle_timeout = "1ms": must be from 1s to 86400s, or off"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nmax_dedicated = \"0\"\nlisten",
        &[r#"7: service[0].max_dedicated = "0": must be a whole number from 1 to 1000000"#],
    ),
    (
        "listen",
        "idle_timeout = \"off\"\nlisten",
        &[r#"6: service[0].idle_timeout = "off": means something only beside backend"#],
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
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"4\"\nfairness = \"helping-the-underserved\"\nalpha = \"0\"\nallowance = \"1.5\"\nlisten",
        &[
            r#"9: service[0].alpha = "0": must be above 0, at most 1, e.g. "1""#,
            r#"10: service[0].allowance = "1.5": means something only beside fairness = "acceptance-allowance""#,
            r#"10: service[0].allowance = "1.5": must be from 0 to 1"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"4\"\nalpha = \"half\"\nlisten",
        &[
            r#"8: service[0].alpha = "half": means something only beside fairness = "helping-the-underserved""#,
            r#"8: service[0].alpha = "half": must be a number from 0 to 1, e.g. "0.05""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nparallelism = \"4\"\nhistogram_values = \"0\"\nlisten",
        &[r#"8: service[0].histogram_values = "0": must be a whole number from 1 to 1000000"#],
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
];
