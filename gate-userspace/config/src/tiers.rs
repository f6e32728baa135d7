//! The tiers that requests may have.

use gate_policy::Tier;

use super::{Config, Service};

impl Config {
    /// By tier: true if requests to a service may have it. A tenant has one; `tiers` and a request's own field lower it.
    #[must_use]
    pub fn tiers_at(&self, service: &Service) -> [bool; 4] {
        let backend = service.backend.as_ref();
        let is_lowered_to = |tier| {
            let by_request = backend
                .and_then(|backend| backend.http.as_ref())
                .is_some_and(|http| http.tier_header.is_some());
            by_request || backend.is_some_and(|backend| backend.tiers.contains(&tier))
        };
        Tier::ALL.map(|tier| {
            let mut tenants = self.tenants.iter().map(|tenant| tenant.tier);
            tenants.any(|own| own == tier || own < tier && is_lowered_to(tier))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(service: &str, tenants: &[&str]) -> [bool; 4] {
        let tenant = |(number, tier): (usize, &&str)| {
            format!(
                "[[tenant]]\nname = \"{number}\"\nsources = [\"198.18.{number}.0/24\"]\nquota = \"10 RU/s\"\ntier = \"{tier}\"\n"
            )
        };
        let tenants: String = tenants.iter().enumerate().map(tenant).collect();
        let text = format!("[[service]]\nname = \"s\"\nlisten = \"127.0.0.1:80\"\n{service}\n{tenants}");
        let config = Config::parse("test.toml", &text).unwrap();
        config.tiers_at(&config.services[0])
    }

    #[test]
    fn a_tier_is_had_by_tenants_or_lowered_to() {
        let guarded = "protocol = \"memcached\"";
        assert_eq!(tiers(guarded, &["standard"]), [false, true, false, false]);
        assert_eq!(tiers(guarded, &["critical", "best-effort"]), [true, false, false, true]);
        let proxied = "protocol = \"memcached\"\nbackend = \"127.0.0.1:81\"\ntiers = { set = \"batch\" }";
        assert_eq!(tiers(proxied, &["standard"]), [false, true, true, false]);
        assert_eq!(tiers(proxied, &["best-effort"]), [false, false, false, true]);
        let by_field = "protocol = \"http\"\nbackend = \"127.0.0.1:81\"\ntier_header = \"x-tier\"";
        assert_eq!(tiers(by_field, &["standard"]), [false, true, true, true]);
    }
}
