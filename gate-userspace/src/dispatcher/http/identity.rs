//! Where a request comes from, whose it is, and what the store is told of that.
//!
//! A trusted proxy's word counts on both: the client is at the rightmost address of `X-Forwarded-For` that is not trusted, and
//! the tenant is the one that the field `tenant_header` names. Otherwise the address is the connection's, and the tenant that
//! of the address. Fields of other clients that say such things do not reach the store ([`super::claims`]): gate writes them itself.

use std::net::IpAddr;
use std::sync::Arc;

use gate_common::abi::Reason;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};

use super::connection::Connection;
use super::service::HttpService;
use crate::clock;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::members::Member;
use crate::dispatcher::tenants::membership::{Lookup, MemberOf};
use crate::policy::Tier;
use crate::protocol::http::forwarded;
use crate::protocol::{Refusal, Rule};

/// Where a request comes from, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) source: IpAddr,
    pub(super) tenant: TenantId,
    /// The member of that tenant whose bucket is charged.
    pub(super) member: Option<Arc<Member>>,
    /// True if refusals are only counted.
    pub(super) shadow: bool,
    /// True if the tenant is that of the source by its prefix, so that requests count towards deep debt.
    pub(super) is_by_source: bool,
    /// True if a trusted proxy could have named the tenant, and has not.
    pub(super) names_none: bool,
}

impl Origin {
    /// A refusal of a request for which nobody is named, if `names_none`. That of a source that is nobody's says then that the field
    /// is missing.
    pub(super) fn refusal(names_none: bool, refusal: Refusal) -> Refusal {
        match refusal.reason == Reason::UnknownSource && names_none {
            true => Refusal { rule: Some(Rule::TenantHeader), ..refusal },
            false => refusal,
        }
    }
}

impl HttpService {
    /// Where a request with these fields comes from, and whose it is.
    ///
    /// # Errors
    ///
    /// [`Reason::Malformed`], if it names two tenants.
    pub(super) fn origin(
        &self,
        client: &Connection,
        headers: &HeaderMap,
        lookup: Lookup,
    ) -> Result<Origin, Reason> {
        self.ledger.borrow_mut().refresh();
        let ledger = self.ledger.borrow();
        let source = match client.is_trusted {
            true => {
                let values = headers.get_all(FORWARDED_FOR).into_iter().map(HeaderValue::as_bytes);
                let values: Vec<_> = values.collect();
                forwarded::client(client.source, values.into_iter(), |address| self.trusts(address))
            }
            false => client.source,
        };
        let by_source = ledger.tenant_of_source(source);
        let field = self.claims.tenant().filter(|_| client.is_trusted);
        let named = field.map(|name| self.named(headers, name)).transpose()?.flatten();
        let names_none = field.is_some() && named.is_none();
        let (tenant, id) = named.map_or_else(
            || (ledger.tenant_of(source, self.settings.service), None),
            |(id, by)| (id, Some(by)),
        );
        let now = ledger.at(clock::monotonic());
        let member = self.tenants.borrow().member(tenant, MemberOf { id, source }, lookup, (&ledger, now));
        // A proxy's connections are many clients': none of them is a tenant's to lose.
        let is_by_source = !client.is_trusted && by_source == tenant && by_source != TenantId::UNKNOWN;
        Ok(Origin { source, tenant, member, shadow: ledger.is_shadowed(source), is_by_source, names_none })
    }

    /// The tenant that a field names, [`TenantId::UNKNOWN`] for a value that is nobody's, and the value; `None` without such a
    /// field.
    fn named<'h>(
        &self,
        headers: &'h HeaderMap,
        name: &HeaderName,
    ) -> Result<Option<(TenantId, &'h [u8])>, Reason> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Reason::Malformed);
        }
        let tenants = self.tenants.borrow();
        let named = value.to_str().ok().and_then(|value| tenants.of_id(value, &self.ledger.borrow()));
        Ok(Some((named.unwrap_or(TenantId::UNKNOWN), value.as_bytes())))
    }

    /// The fields that say where a request comes from, and whose it is.
    pub(super) fn naming_fields(&self, headers: &HeaderMap) -> HeaderMap {
        let names = [Some(FORWARDED_FOR), self.claims.tenant().cloned()].into_iter().flatten();
        let mut fields = HeaderMap::new();
        for name in names {
            for value in headers.get_all(&name) {
                fields.append(&name, value.clone());
            }
        }
        fields
    }

    /// True if the word of this address counts.
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.http().trusted.iter().any(|prefix| prefix.contains(&address))
    }

    /// The tier that a request asks for; the highest if it asks for none.
    pub(super) fn wanted_tier(&self, headers: &mut HeaderMap) -> Tier {
        let value = self.claims.tier().and_then(|name| headers.remove(name));
        let tier = |value: &HeaderValue| {
            Tier::ALL.into_iter().find(|tier| value.as_bytes() == tier.name().as_bytes())
        };
        value.as_ref().and_then(tier).unwrap_or(Tier::Critical)
    }

    /// Writes what the store is told of a request's origin.
    pub(super) fn write_origin(&self, client: &Connection, origin: &Origin, headers: &mut HeaderMap) {
        let text = |address: IpAddr| HeaderValue::from_str(&address.to_string()).ok();
        self.claims.remove(headers, client.is_trusted);
        let scheme = if client.is_secure() { HTTPS } else { HTTP };
        if client.is_trusted {
            // A proxy appends its own client.
            headers.extend(text(client.source).map(|source| (FORWARDED_FOR, source)));
            for (name, value) in
                [(FORWARDED_PROTO, Some(scheme)), (FORWARDED_HOST, headers.get(HOST).cloned())]
            {
                if let (false, Some(value)) = (headers.contains_key(&name), value) {
                    headers.insert(name, value);
                }
            }
        } else {
            headers.extend(text(origin.source).map(|source| (FORWARDED_FOR, source)));
            headers.insert(FORWARDED_PROTO, scheme);
            if let Some(host) = headers.get(HOST).cloned() {
                headers.insert(FORWARDED_HOST, host);
            }
        }
        if let Some(name) = self.claims.tenant() {
            let tenants = self.tenants.borrow();
            let first = tenants.first_id(origin.tenant, &self.ledger.borrow()).map(HeaderValue::from_str);
            let is_named = client.is_trusted && headers.contains_key(name);
            match first {
                _ if is_named => {}
                Some(Ok(value)) => drop(headers.insert(name, value)),
                _ => drop(headers.remove(name)),
            }
        }
    }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HTTP: HeaderValue = HeaderValue::from_static("http");
const HTTPS: HeaderValue = HeaderValue::from_static("https");
