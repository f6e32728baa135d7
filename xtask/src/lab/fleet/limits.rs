//! The limits that the gates share. Every request costs one RU.

/// A limit, and who asks for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Its name.
    pub(super) name: &'static str,
    /// The client's name in results.
    pub(super) client: &'static str,
    /// RU a second. Each gate has it for its own quota as well: without owners they would give out three times as much.
    pub(super) per_sec: u32,
    /// How much of it may be saved up. The less a limit is used, the more may come at once from a client that was held up.
    pub(super) burst_ms: u32,
    /// RU a second that its client asks for.
    pub(super) demand_per_sec: u32,
    /// The client's address.
    pub(super) source: &'static str,
}

/// The limit of a tenant that asks for three times as much.
pub(super) const GREEDY: Limit = Limit {
    name: "greedy",
    client: "greedy",
    per_sec: 2_000,
    burst_ms: 100,
    demand_per_sec: 6_000,
    source: "127.0.1.1",
};
/// The limit of a tenant that asks for half of it.
pub(super) const POLITE: Limit = Limit {
    name: "polite",
    client: "polite",
    per_sec: 600,
    burst_ms: 1_000,
    demand_per_sec: 300,
    source: "127.0.2.1",
};
/// The limit of each address from which Envoy is asked; there is one, which asks for three times as much.
pub(super) const ENVOYS: Limit = Limit {
    name: "shop/remote_address=*",
    client: "Envoy",
    per_sec: 200,
    burst_ms: 100,
    demand_per_sec: 600,
    source: "127.0.3.1",
};

/// The limits of tenants.
pub(super) const TENANTS: [Limit; 2] = [GREEDY, POLITE];
/// All of them.
pub(super) const LIMITS: [Limit; 3] = [GREEDY, POLITE, ENVOYS];

impl Limit {
    /// True if more is asked for than there is.
    pub(super) const fn is_scarce(&self) -> bool {
        self.demand_per_sec > self.per_sec
    }

    /// A section of a configuration, `limit` or `tenant`, with it.
    pub(super) fn section(&self, kind: &str) -> String {
        let Self { name, per_sec, burst_ms, .. } = self;
        format!("[[{kind}]]\nname = \"{name}\"\nquota = \"{per_sec} RU/s\"\nburst = \"{burst_ms}ms\"\n")
    }
}
