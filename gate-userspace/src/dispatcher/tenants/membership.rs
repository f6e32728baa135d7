//! The members of all tenants that have any, and the one that a request is of.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use gate_common::abi::Name;
use gate_common::units::Nanos;

use super::ledger::{Ledger, TenantId};
use super::members::{Member, MemberTotals, Members};
use crate::config::{self, NamedBy};

/// The tenants that have members.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    by_tenant: HashMap<TenantId, (Name, Membership)>,
    /// The one that has a member for every value or user.
    any_id: Option<(TenantId, Name)>,
}

/// A tenant's members, and what names them.
#[derive(Clone, Debug)]
struct Membership {
    named_by: NamedBy,
    members: Arc<Members>,
}

/// The properties of a client by which it may be a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberOf<'a> {
    /// The value or the user by which it is known, if it has said one that counts.
    pub(crate) id: Option<&'a [u8]>,
    /// Its address.
    pub(crate) source: IpAddr,
}

/// True if members that have no bucket get one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A request is to be charged.
    Charge,
    /// A question asks what would be charged: nothing is made.
    Ask,
}

impl Membership {
    /// That of a tenant which was configured so before, or not at all.
    fn after(before: Option<&Self>, configured: config::Members) -> Self {
        let config::Members { named_by, memory } = configured;
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        // The members of another kind are others.
        match before.filter(|before| before.named_by == named_by) {
            Some(before) => {
                before.members.set_memory(memory);
                before.clone()
            }
            None => Self { named_by, members: Arc::new(Members::new(memory)) },
        }
    }

    fn find(&self, key: &[u8], lookup: Lookup, now: Nanos) -> Option<Arc<Member>> {
        match lookup {
            Lookup::Charge => self.members.take(key, now),
            Lookup::Ask => Some(self.members.peek(key).unwrap_or_else(|| Arc::new(Member::new(key)))),
        }
    }
}

impl Memberships {
    /// Adds a tenant that has members, which it keeps from `before`.
    pub(super) fn add(&mut self, before: &Self, tenant: TenantId, name: Name, configured: config::Members) {
        let mut known = before.by_tenant.values();
        let known = known.find(|(before, _)| *before == name).map(|(_, membership)| membership);
        self.by_tenant.insert(tenant, (name, Membership::after(known, configured)));
        if configured.named_by == NamedBy::Id {
            self.any_id = Some((tenant, name));
        }
    }

    /// True if a tenant has members.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.by_tenant.contains_key(&tenant)
    }

    /// The tenant that has a member for every value, if this may be one.
    pub(super) fn of_any_id(&self, value: &[u8], ledger: &Ledger) -> Option<TenantId> {
        let (tenant, name) = self.any_id.as_ref().filter(|_| config::is_id(value))?;
        ledger.has_name(*tenant, name).then_some(*tenant)
    }

    /// The member of this tenant that a client is; `None` for a tenant without members, and where there is no room for one more.
    /// `now` is on gate's clock.
    #[inline]
    pub(super) fn member(
        &self,
        tenant: TenantId,
        client: MemberOf<'_>,
        lookup: Lookup,
        (ledger, now): (&Ledger, Nanos),
    ) -> Option<Arc<Member>> {
        if self.by_tenant.is_empty() {
            return None;
        }
        let (name, membership) = self.by_tenant.get(&tenant)?;
        if !ledger.has_name(tenant, name) {
            return None;
        }
        match membership.named_by {
            NamedBy::Id => membership.find(client.id?, lookup, now),
            NamedBy::Source { v4, v6 } => match client.source.to_canonical() {
                IpAddr::V4(source) => {
                    let bits = source.to_bits() & u32::MAX.checked_shl(32 - u32::from(v4?)).unwrap_or(0);
                    membership.find(&bits.to_be_bytes(), lookup, now)
                }
                IpAddr::V6(source) => {
                    let bits = source.to_bits() & u128::MAX.checked_shl(128 - u32::from(v6?)).unwrap_or(0);
                    membership.find(&bits.to_be_bytes(), lookup, now)
                }
            },
        }
    }

    /// The member of this name, such as `api/alice` of `api/*`, as it stands, and its tenant.
    pub(super) fn named(&self, name: &str, ledger: &Ledger) -> Option<(TenantId, Arc<Member>)> {
        self.by_tenant.iter().find_map(|(&tenant, (held, membership))| {
            let key = name.strip_prefix(held.as_str().strip_suffix('*')?)?;
            let (id, source) = match membership.named_by {
                NamedBy::Id => {
                    (Some(key.as_bytes()).filter(|id| config::is_id(id))?, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
                }
                NamedBy::Source { .. } => (&[][..], key.split('/').next()?.parse().ok()?),
            };
            let client = MemberOf { id: Some(id), source };
            let member = self.member(tenant, client, Lookup::Ask, (ledger, Nanos::ZERO))?;
            Some((tenant, member))
        })
    }

    /// The name of a member of this tenant.
    pub(super) fn name(&self, tenant: TenantId, member: &Member) -> String {
        let Some((name, membership)) = self.by_tenant.get(&tenant) else { return String::new() };
        let stem = name.as_str().trim_end_matches('*');
        let network = |address: IpAddr, length: Option<u8>, whole: u8| match length {
            Some(length) if length < whole => format!("{stem}{address}/{length}"),
            _ => format!("{stem}{address}"),
        };
        match (membership.named_by, member.key()) {
            (NamedBy::Source { v4, .. }, &[a, b, c, d]) => network([a, b, c, d].into(), v4, 32),
            (NamedBy::Source { v6, .. }, key) => {
                <[u8; 16]>::try_from(key).map_or_else(|_| String::new(), |key| network(key.into(), v6, 128))
            }
            (NamedBy::Id, key) => format!("{stem}{}", key.escape_ascii()),
        }
    }

    /// The members of a tenant whose buckets will be full last, by name, the last first; `None` if it has no members.
    pub(super) fn emptiest(&self, tenant: &str, most: usize) -> Option<(TenantId, Vec<(Nanos, String)>)> {
        let (&id, (_, membership)) = self.by_tenant.iter().find(|(_, (name, _))| name.as_str() == tenant)?;
        let found = membership.members.emptiest(most).into_iter();
        Some((id, found.map(|(full_at, member)| (full_at, self.name(id, &member))).collect()))
    }

    /// Each tenant that has members, and their counts; in the order of their names.
    pub(super) fn totals(&self) -> Vec<(String, MemberTotals)> {
        let totals =
            |(name, membership): &(Name, Membership)| (name.as_str().to_owned(), membership.members.totals());
        let mut all: Vec<_> = self.by_tenant.values().map(totals).collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}
