//! The lab's tenants: what they may have, and what they ask for.

/// A tenant of the lab.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its source address.
    pub source: &'static str,
    /// Its quota. Every request costs one RU in the lab.
    pub quota_ru_per_sec: u32,
    /// How much of its quota it may have saved up.
    pub burst_ms: u32,
    /// How often it asks, while it does.
    pub offered_per_sec: u32,
    /// When it asks: `poisson` or `constant`, and whether in bursts, in the words of `gate load`.
    pub arrivals: &'static str,
    /// How many keys of its own it asks for.
    pub keys: u32,
}

/// The tenants of the lab with XDP. What they have in common: a tenth of their requests is for [`HOT_KEY`].
pub const TENANTS: [Tenant; 3] = [
    // Well under its quota.
    Tenant {
        name: "polite",
        source: "198.18.1.1",
        quota_ru_per_sec: 5_000,
        burst_ms: 100,
        offered_per_sec: 2_000,
        arrivals: "arrivals=poisson",
        keys: 1_000,
    },
    // Under its quota on average, but for a fifth of each second at over three times it: 600 RU saved up and
    // 600 earned meanwhile let 1,200 of 2,000 pass.
    Tenant {
        name: "bursty",
        source: "198.18.1.2",
        quota_ru_per_sec: 3_000,
        burst_ms: 200,
        offered_per_sec: 10_000,
        arrivals: "arrivals=constant,bursts=200ms/1s",
        keys: 1_000,
    },
    // More than 50 times its quota, without a pause.
    Tenant {
        name: "hostile",
        source: "198.18.1.3",
        quota_ru_per_sec: 2_000,
        burst_ms: 100,
        offered_per_sec: 110_000,
        arrivals: "arrivals=constant",
        keys: 100_000,
    },
];

/// The tenant of the proxied service, over TCP: as polite as the first of [`TENANTS`].
pub const PROXIED: Tenant = Tenant {
    name: "proxied",
    source: "198.18.1.4",
    quota_ru_per_sec: 5_000,
    burst_ms: 100,
    offered_per_sec: 500,
    arrivals: "arrivals=poisson",
    keys: 1_000,
};

/// The tenants of the lab without XDP, each with a loopback address of its own. A connection costs both ends more than a
/// datagram, so the hostile one asks for ten times its quota instead of fifty.
pub const LOOPBACK_TENANTS: [Tenant; 3] = [
    Tenant { source: "127.0.0.2", offered_per_sec: 1_000, ..TENANTS[0] },
    Tenant { source: "127.0.0.3", ..TENANTS[1] },
    Tenant { source: "127.0.0.4", offered_per_sec: 20_000, ..TENANTS[2] },
];

/// The key that is planted among the others.
pub const HOT_KEY: &str = "planted";
impl Tenant {
    /// Its load, in the words of `gate load`.
    #[must_use]
    pub fn load(&self) -> String {
        let Self { name, source, offered_per_sec, arrivals, keys, .. } = self;
        format!(
            "name={name},source={source},rate={offered_per_sec}/s,{arrivals},reads=90%,keys=uniform:{keys},hot={HOT_KEY}:10%"
        )
    }

    /// Its section of the gate's configuration.
    #[must_use]
    pub fn section(&self) -> String {
        let Self { name, source, quota_ru_per_sec, burst_ms, .. } = self;
        format!(
            "\n[[tenant]]\nname = \"{name}\"\nsources = [\"{source}\"]\nquota = \"{quota_ru_per_sec} RU/s\"\n\
             burst = \"{burst_ms}ms\"\n"
        )
    }
}
