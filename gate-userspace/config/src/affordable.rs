//! Prices that tenants can never pay, and bursts that hold few requests: consequences of a valid configuration that show only under
//! load.

use gate_common::token_bucket::Limits;
use gate_common::units::{MilliRu, Nanos};

use super::buckets::{FEW, requests};
use super::names::listed;
use super::values::Protocol;
use super::{Config, Service, Tenant};
use gate_protocol::resp;

impl Config {
    /// Warnings of `gate check` about what its tenants can pay, a sentence each.
    #[must_use]
    pub fn unaffordable(&self) -> Vec<String> {
        let dear = self.services.iter().flat_map(|service| self.dear_requests(service));
        dear.chain(self.short_bursts()).collect()
    }

    /// Requests to a proxied service that are always refused to some tenants, by what is known of their prices beforehand.
    fn dear_requests(&self, service: &Service) -> Vec<String> {
        let Some(backend) = &service.backend else { return Vec::new() };
        let price = |rows: u32| service.price.base.saturating_add(service.price.row.saturating_mul(rows));
        let name = &service.name;
        let mut warnings = Vec::new();
        if service.protocol == Protocol::Resp {
            let price = price(resp::OPEN_ROWS);
            warnings.extend(self.never_hold(price).map(|tenants| {
                format!(
                    "service {name}: a command of Redis that does not say how much it reads (HGETALL, SMEMBERS, LRANGE 0 -1, KEYS) costs \
                     {} at first, as {} rows, and {tenants} can never pay that: raise burst or max_debt, or lower \
                     price.row",
                    ru(price),
                    resp::OPEN_ROWS
                )
            }));
        }
        let Some(http) = &backend.http else { return warnings };
        let types = backend.query_types.names().zip(&http.rows).filter(|(_, rows)| **rows > 1);
        warnings.extend(types.filter_map(|(route, &rows)| {
            let price = price(rows);
            let tenants = self.never_hold(price)?;
            Some(format!(
                "service {name}: a request of the type {route} costs {}, as {rows} rows, and {tenants} can never pay that: it is \
                 always refused (429, too-large); raise burst or max_debt, or lower rows.{route}",
                ru(price)
            ))
        }));
        warnings
    }

    /// The tenants with requests of their own one of whose buckets never holds such a price, in a sentence, with the most that the
    /// first of them can pay.
    fn never_hold(&self, price: MilliRu) -> Option<String> {
        let cannot: Vec<_> = self.payers().filter_map(|tenant| self.too_small(tenant, price)).collect();
        let names: Vec<&str> = cannot.iter().map(|(name, _)| *name).collect();
        let (first, most) = cannot.first()?;
        Some(format!("{} ({first}: {} at most)", listed(&names)?, ru(*most)))
    }

    /// The name of a tenant one of whose buckets never holds such a price, and the most that it holds.
    fn too_small<'c>(&'c self, tenant: &'c Tenant, price: MilliRu) -> Option<(&'c str, MilliRu)> {
        let whole = tenant.part.as_ref().map(|part| part.part_of);
        let others = tenant.charge.iter().copied().chain(whole).map(|index| &self.tenants[index.0]);
        let buckets = [tenant].into_iter().chain(others).map(|charged| &charged.quota);
        let least = buckets.map(Limits::dearest).min()?;
        (price.scaled(tenant.multiplier).0 > least).then_some((&*tenant.name, MilliRu(least)))
    }

    /// Tenants whose bursts hold only a few of the cheapest requests.
    fn short_bursts(&self) -> Option<String> {
        let cheapest = self.services.iter().map(|service| service.price.of_row()).min()?;
        let short = |tenant: &&Tenant| requests(&tenant.quota, cheapest).is_some_and(|count| count < FEW);
        let short: Vec<_> = self.payers().filter(short).collect();
        let first = *short.first()?;
        let enough = Nanos(first.quota.rate.time_for(cheapest.saturating_mul(FEW as u32).0));
        let names: Vec<&str> = short.iter().map(|tenant| &*tenant.name).collect();
        Some(format!(
            "the bursts of {} hold fewer than {FEW} requests ({}: {} of {}): what comes together beyond that is refused though \
             the quota would do; write burst = \"{}ms\" for {}, or more",
            listed(&names)?,
            first.name,
            requests(&first.quota, cheapest).unwrap_or_default(),
            ru(cheapest),
            enough.0.div_ceil(1_000_000),
            first.name,
        ))
    }

    /// Tenants that make requests.
    fn payers(&self) -> impl Iterator<Item = &Tenant> {
        let is_default =
            |place| self.services.iter().filter_map(|service| service.default).any(|it| it.get() == place);
        let all = self.tenants.iter().enumerate().filter(move |(place, tenant)| {
            let is_named = !tenant.sources.is_empty() || !tenant.users.is_empty() || !tenant.ids.is_empty();
            is_named || tenant.part.is_some() || is_default(*place)
        });
        let all = all.map(|(_, tenant)| tenant);
        all.filter(|tenant| !tenant.refuse && tenant.quota != Limits::UNLIMITED)
    }
}

fn ru(price: MilliRu) -> String {
    format!("{} RU", f64::from(price.0) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(protocol: &str, service: &str, tenant: &str) -> Vec<String> {
        let text = format!(
            "[[service]]\nname = \"s\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n{service}\n\
             [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\n{tenant}\n"
        );
        Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}")).unaffordable()
    }

    #[test]
    fn a_route_that_a_tenant_can_never_pay_is_warned_of() {
        let routes =
            "query_types = { report = \"GET /report\", cheap = \"GET /c\" }\nrows = { report = \"50\" }";
        let warned = warnings("http", routes, "quota = \"50 RU/s\"\nburst = \"100ms\"");
        assert_eq!(
            warned,
            [
                "service s: a request of the type report costs 25.5 RU, as 50 rows, and tenant t (t: 15 RU at most) can never pay that: it \
                 is always refused (429, too-large); raise burst or max_debt, or lower rows.report",
                "the bursts of tenant t hold fewer than 20 requests (t: 5 of 1 RU): what comes together beyond that is refused though the \
                 quota would do; write burst = \"400ms\" for t, or more"
            ]
        );
        assert!(warnings("http", routes, "quota = \"50 RU/s\"\nburst = \"1s\"").is_empty());
        assert!(warnings("http", routes, "quota = \"unlimited\"").is_empty());
        let dearer = warnings("http", routes, "quota = \"50 RU/s\"\nburst = \"400ms\"\nmultiplier = \"3\"");
        assert!(dearer.len() == 1 && dearer[0].contains("type report"), "{dearer:?}");
    }

    #[test]
    fn open_commands_that_a_tenant_can_never_pay_are_warned_of() {
        let warned = warnings("resp", "", "quota = \"200 RU/s\"\nburst = \"100ms\"\nmax_debt = \"100ms\"");
        assert!(warned.len() == 1 && warned[0].contains("HGETALL"), "{warned:?}");
        assert!(warned[0].contains("costs 50.5 RU at first, as 100 rows, and tenant t (t: 40 RU at most)"));
        assert!(warnings("resp", "", "quota = \"300 RU/s\"").is_empty());
        assert!(warnings("memcached", "", "quota = \"200 RU/s\"").is_empty());
    }

    #[test]
    fn a_bucket_that_another_is_charged_with_counts() {
        let text = "[[service]]\nname = \"s\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
                    [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"5000 RU/s\"\ncharge = [\"all\"]\n\
                    [[tenant]]\nname = \"all\"\nquota = \"100 RU/s\"\nburst = \"250ms\"\nmax_debt = \"0s\"\n";
        let config = Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"));
        let warned = config.unaffordable();
        assert!(warned.len() == 1 && warned[0].contains("and tenant t (t: 25 RU at most)"), "{warned:?}");
    }
}
