//! The configuration of tenants that is not in the maps: their users, denied commands, own keys, and parts.
//!
//! A reload may give a tenant's number to another; so a name goes with each number.
//!
//! [`ledger`]: prices and quotas, out of the maps; `bucket_word`: one bucket there. `by_name`: tenants charged by name. [`mod@parts`]: tenants within a tenant.
//! [`members`]: a tenant's buckets, one for each of its members; [`membership`]: whose they are. [`usage`]: a tenant's open
//! connections and requests. [`mod@request_limits`]: limits by what is asked. [`retired`]: numbers that are not to be
//! used again yet.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use gate_common::abi::Name;
use gate_common::units::Nanos;
use sha2::{Digest as _, Sha256};

use self::ledger::{Account, Ledger, TenantId};
use self::members::{Member, MemberTotals};
use self::membership::{Lookup, MemberOf, Memberships};
use self::parts::{Part, Parts};
use self::request_limits::{RequestLimits, static_name};
use self::usage::Usage;
use crate::config::{self, Config, Keys};
use crate::dispatcher::identity::Login;
use crate::protocol::deny::Deny;
use crate::protocol::own::OwnKeys;

mod bucket_word;
pub(super) mod by_name;
pub(super) mod ledger;
pub(super) mod members;
pub(super) mod membership;
pub(super) mod parts;
pub(super) mod request_limits;
pub(super) mod retired;
pub(super) mod usage;

/// Tenants by user, and restrictions by tenant.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    users: HashMap<String, User>,
    /// By a value of the field that names a tenant.
    ids: HashMap<String, (TenantId, Name)>,
    memberships: Memberships,
    /// The value that the store is told.
    first_ids: HashMap<TenantId, (Name, String)>,
    restrictions: HashMap<TenantId, (Name, Arc<Restrictions>)>,
    usage: HashMap<TenantId, (Name, Arc<Usage>)>,
    /// By the whole.
    parts: HashMap<TenantId, (Name, Arc<Parts>)>,
    request_limits: HashMap<TenantId, (Name, Arc<RequestLimits>)>,
    /// The names in refusals.
    bucket_names: HashMap<TenantId, (Name, &'static str)>,
    /// Clients may be of more than one.
    are_several: bool,
}

/// The commands and keys that are refused to a tenant, whatever its quota.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// Commands.
    pub(crate) deny: Deny,
    /// The only keys that it may touch; `None` if any.
    pub(crate) own_keys: Option<OwnKeys>,
}

#[derive(Debug)]
struct User {
    tenant: TenantId,
    name: Name,
    /// SHA-256 of the passwords that may pass; if none is known, all.
    hashes: Vec<[u8; 32]>,
}

impl Tenants {
    /// Those of a configuration that comes after another; `ids` are their numbers by name. What they have open
    /// stays counted where it was.
    pub(crate) fn after(before: &Self, config: &Config, ids: &HashMap<String, u32>) -> Self {
        let mut this = Self::default();
        for tenant in &config.tenants {
            let (Some(&id), Some(name)) = (ids.get(&tenant.name), Name::new(&tenant.name)) else { continue };
            let own_keys = match &tenant.keys {
                Keys::Own { key_prefixes } => Some(OwnKeys::new(key_prefixes.iter().map(String::as_str))),
                Keys::Any => None,
            };
            let restrictions = Restrictions { deny: tenant.deny.clone(), own_keys };
            if restrictions != Restrictions::default() {
                this.restrictions.insert(TenantId(id), (name, Arc::new(restrictions)));
            }
            let limits = before.request_limits.values().find(|(before, _)| *before == name);
            let limits = limits.map(|(_, limits)| limits);
            if let Some(limits) = RequestLimits::after(limits, &tenant.limits) {
                this.request_limits.insert(TenantId(id), (name, limits));
            }
            this.bucket_names.insert(TenantId(id), (name, static_name(&tenant.name)));
            let mut named = before.usage.values().filter(|(before, _)| *before == name);
            let max_connections = tenant.max_connections;
            let max_outstanding = tenant.max_outstanding;
            let usage = match named.next() {
                Some((_, usage)) => Arc::clone(usage),
                None => Arc::new(Usage::new(max_connections, max_outstanding)),
            };
            usage.limit(max_connections, max_outstanding);
            this.usage.insert(TenantId(id), (name, usage));
            this.ids.extend(tenant.ids.iter().map(|value| (value.clone(), (TenantId(id), name))));
            if let Some(first) = tenant.ids.first() {
                this.first_ids.insert(TenantId(id), (name, first.clone()));
            }
            if let Some(members) = tenant.members {
                this.memberships.add(&before.memberships, TenantId(id), name, members);
            }
            for user in &tenant.users {
                let hashes = user.hashes.clone();
                this.users.insert(user.name.clone(), User { tenant: TenantId(id), name, hashes });
            }
        }
        this.parts = parts(config, ids);
        this.are_several = config.tenants.iter().filter(|tenant| tenant.part.is_none()).nth(1).is_some();
        this
    }

    /// A tenant's parts; `None` if it has none.
    pub(crate) fn parts(&self, tenant: TenantId, ledger: &Ledger) -> Option<Arc<Parts>> {
        let (name, parts) = self.parts.get(&tenant)?;
        ledger.has_name(tenant, name).then(|| Arc::clone(parts))
    }

    /// True if some tenant has users, so that clients may log in.
    pub(crate) fn have_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// The tenant whose user this is, if it is still there.
    pub(crate) fn of_user(&self, login: &Login, ledger: &Ledger) -> Option<TenantId> {
        match self.user(login) {
            Some(user) => ledger.has_name(user.tenant, &user.name).then_some(user.tenant),
            None => self.memberships.of_any_id(login.user(), ledger),
        }
    }

    /// The tenant that a field names by this value, if it is still there.
    pub(crate) fn of_id(&self, value: &str, ledger: &Ledger) -> Option<TenantId> {
        match self.ids.get(value) {
            Some((tenant, name)) => ledger.has_name(*tenant, name).then_some(*tenant),
            None => self.memberships.of_any_id(value.as_bytes(), ledger),
        }
    }

    /// The value by which the store knows a tenant; `None` if the tenant has none.
    pub(crate) fn first_id(&self, tenant: TenantId, ledger: &Ledger) -> Option<&str> {
        let (name, value) = self.first_ids.get(&tenant)?;
        ledger.has_name(tenant, name).then_some(value)
    }

    /// The tenant that has a user of this name, if it is still there.
    pub(crate) fn of_user_name(&self, name: &str, ledger: &Ledger) -> Option<TenantId> {
        match self.users.get(name) {
            Some(user) => ledger.has_name(user.tenant, &user.name).then_some(user.tenant),
            None => self.memberships.of_any_id(name.as_bytes(), ledger),
        }
    }

    /// The tenant of this name, if it is still there.
    pub(crate) fn named(&self, name: &str, ledger: &Ledger) -> Option<TenantId> {
        let (id, (held, _)) = self.usage.iter().find(|(_, (held, _))| held.as_str() == name)?;
        ledger.has_name(*id, held).then_some(*id)
    }

    /// The name of a tenant.
    pub(crate) fn name(&self, tenant: TenantId) -> Option<&str> {
        self.usage.get(&tenant).map(|(name, _)| name.as_str())
    }

    /// The member of this tenant that a client is; `None` for a tenant without members, and where there is no room for one more:
    /// then the bucket that they share is charged. `now` is on gate's clock.
    #[inline]
    pub(crate) fn member(
        &self,
        tenant: TenantId,
        client: MemberOf<'_>,
        lookup: Lookup,
        now: (&Ledger, Nanos),
    ) -> Option<Arc<Member>> {
        self.memberships.member(tenant, client, lookup, now)
    }

    /// True if a tenant has members.
    pub(crate) fn has_members(&self, tenant: TenantId) -> bool {
        self.memberships.has(tenant)
    }

    /// Each tenant that has members, and their counts.
    pub(crate) fn member_totals(&self) -> Vec<(String, MemberTotals)> {
        self.memberships.totals()
    }

    /// The members of a tenant whose buckets will be full last, by name, the last first; `None` if it has no members.
    pub(crate) fn emptiest_members(
        &self,
        tenant: &str,
        most: usize,
    ) -> Option<(TenantId, Vec<(Nanos, String)>)> {
        self.memberships.emptiest(tenant, most)
    }

    /// The tenant, or the member of one, that a question names.
    ///
    /// # Errors
    ///
    /// The fault, if there is none.
    pub(crate) fn asked(
        &self,
        name: &str,
        ledger: &Ledger,
    ) -> Result<(TenantId, Option<Arc<Member>>), String> {
        let member = || self.memberships.named(name, ledger).map(|(tenant, member)| (tenant, Some(member)));
        let found = self.named(name, ledger).map(|tenant| (tenant, None)).or_else(member);
        found.ok_or_else(|| format!("there is no tenant {name:?}"))
    }

    /// The name that is shown of whoever is charged.
    pub(crate) fn shown(&self, (tenant, member): Account<'_>) -> Option<String> {
        match member {
            Some(member) => Some(self.memberships.name(tenant, member)),
            None => self.name(tenant).map(str::to_owned),
        }
    }

    /// The name of whoever is charged. `None` for members that share a bucket, each of which is somebody else.
    pub(crate) fn name_of(&self, (tenant, member): Account<'_>) -> Option<Cow<'_, str>> {
        match member {
            Some(member) => Some(self.memberships.name(tenant, member).into()),
            None if self.has_members(tenant) => None,
            None => Some(self.name(tenant).unwrap_or_default().into()),
        }
    }

    /// The name of a tenant's bucket in refusals; `None` if it has none.
    pub(crate) fn bucket_name(&self, tenant: TenantId, ledger: &Ledger) -> Option<&'static str> {
        let (name, text) = self.bucket_names.get(&tenant)?;
        ledger.has_name(tenant, name).then_some(*text)
    }

    /// The refusals by the limits of the tenant with this number and name, by their names; none if it has no limits.
    pub(crate) fn refused_by_limits(&self, tenant: TenantId, name: &str) -> Vec<(&'static str, u64)> {
        let limits = self.request_limits.get(&tenant).filter(|(held, _)| held.as_str() == name);
        limits.map_or_else(Vec::new, |(_, limits)| limits.refused())
    }

    /// True if gate knows this password to be right; `None` if only the store can tell.
    pub(crate) fn verifies(&self, login: &Login) -> Option<bool> {
        let hashes = &self.user(login)?.hashes;
        let hash: [u8; 32] = Sha256::digest(login.password()).into();
        (!hashes.is_empty()).then(|| hashes.contains(&hash))
    }

    /// The restrictions of a tenant; `None` if it has none.
    pub(crate) fn restrictions(&self, tenant: TenantId, ledger: &Ledger) -> Option<Arc<Restrictions>> {
        let (name, restrictions) = self.restrictions.get(&tenant)?;
        ledger.has_name(tenant, name).then(|| Arc::clone(restrictions))
    }

    /// The count of a tenant's open connections and requests; `None` if the tenant is new.
    pub(crate) fn usage(&self, tenant: TenantId, ledger: &Ledger) -> Option<Arc<Usage>> {
        let (name, usage) = self.usage.get(&tenant)?;
        ledger.has_name(tenant, name).then(|| Arc::clone(usage))
    }

    /// The limits by what is asked of the tenant that had this number in the last tick.
    #[inline]
    pub(crate) fn limits_of(&self, tenant: TenantId) -> Option<&RequestLimits> {
        if self.request_limits.is_empty() {
            return None;
        }
        self.request_limits.get(&tenant).map(|(_, limits)| &**limits)
    }

    /// A tenant's limits by what is asked; `None` if it has none.
    #[inline]
    pub(crate) fn request_limits(&self, tenant: TenantId, ledger: &Ledger) -> Option<&RequestLimits> {
        if self.request_limits.is_empty() {
            return None;
        }
        let (name, limits) = self.request_limits.get(&tenant)?;
        ledger.has_name(tenant, name).then_some(&**limits)
    }

    /// True if clients may be of several tenants.
    pub(crate) fn are_several(&self) -> bool {
        self.are_several
    }

    /// Those of `before` that are no more, each with what refers to it.
    pub(crate) fn gone_since<'b>(
        &self,
        before: &'b Self,
    ) -> impl Iterator<Item = (TenantId, &'b Arc<Usage>)> {
        let is_here = |id: &TenantId, name: &Name| self.usage.get(id).is_some_and(|(now, _)| now == name);
        before
            .usage
            .iter()
            .filter(move |(id, (name, _))| !is_here(id, name))
            .map(|(&id, (_, usage))| (id, usage))
    }

    fn user(&self, login: &Login) -> Option<&User> {
        self.users.get(std::str::from_utf8(login.user()).ok()?)
    }
}

/// The parts of each tenant that has any.
fn parts(config: &Config, ids: &HashMap<String, u32>) -> HashMap<TenantId, (Name, Arc<Parts>)> {
    let mut wholes: HashMap<TenantId, (Name, Parts)> = HashMap::new();
    for tenant in &config.tenants {
        let Some(config::Part { part_of, key_prefixes }) = &tenant.part else { continue };
        let whole = &config.tenants[part_of.get()].name;
        let (Some(&id), Some(&whole_id), Some(name)) =
            (ids.get(&tenant.name), ids.get(whole), Name::new(whole))
        else {
            continue;
        };
        let deny = (tenant.deny != Deny::default()).then(|| tenant.deny.clone());
        let (_, parts) = wholes.entry(TenantId(whole_id)).or_insert_with(|| (name, Parts::default()));
        parts.add(Part { tenant: TenantId(id), deny }, key_prefixes.iter().map(|prefix| prefix.as_bytes()));
    }
    let sorted = |(id, (name, mut parts)): (TenantId, (Name, Parts))| {
        parts.sort();
        (id, (name, Arc::new(parts)))
    };
    wholes.into_iter().map(sorted).collect()
}
