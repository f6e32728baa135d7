//! The document of tenants' members: how many there are, and which of them have spent most.

use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sources::Sources;
use super::tenants::{self, Level};
use crate::dispatcher::MemberCounts;

/// The document of the members of tenants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemberList {
    /// The tenants that have members, in the order of their names.
    pub tenants: Vec<TenantMembers>,
    /// The members whose buckets have least left, the emptiest first; those that are full are not among them.
    pub members: Vec<Member>,
}

/// The counts of a tenant's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantMembers {
    /// The tenant.
    pub tenant: String,
    /// Members with a bucket.
    pub members: usize,
    /// The memory that their buckets take.
    pub memory_bytes: usize,
    /// Full buckets that made room for others.
    pub evicted: u64,
    /// Look-ups of members for which there was no room: they share one bucket.
    pub without_room: u64,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// Its name, as `gate explain --tenant` takes it.
    pub member: String,
    /// Its tenant.
    pub tenant: String,
    /// How much of its burst is left now, from 0 to 1. Near 0 requests are refused for `quota`.
    pub burst_left: f64,
    /// How long before its bucket admits anything, if it is in debt.
    pub debt_ms: f64,
}

/// The members of all tenants, or of that which a query names: `tenant=api%2F*`.
///
/// # Errors
///
/// The fault in the query.
pub(super) fn read(context: &Sources, query: &str) -> Result<MemberList, String> {
    let wanted = match query.strip_prefix("tenant=") {
        Some(name) => Some(percent_decode_str(name).decode_utf8_lossy().into_owned()),
        None if query.is_empty() => None,
        None => return Err(USAGE.to_owned()),
    };
    let all = context.members.as_ref().map(MemberCounts::all).unwrap_or_default();
    let tenants = all.into_iter().filter(|(tenant, _)| wanted.as_ref().is_none_or(|wanted| wanted == tenant));
    let tenants: Vec<_> = tenants
        .map(|(tenant, totals)| TenantMembers {
            tenant,
            members: totals.members,
            memory_bytes: totals.bytes,
            evicted: totals.evictions,
            without_room: totals.without_room,
        })
        .collect();
    if let Some(wanted) = wanted.filter(|_| tenants.is_empty()) {
        return Err(format!("no tenant with members is called {wanted:?}; `gate members` lists all"));
    }
    let mut members: Vec<_> = tenants.iter().flat_map(|tenant| emptiest(context, &tenant.tenant)).collect();
    members.sort_by(|one, other| {
        other.debt_ms.total_cmp(&one.debt_ms).then(one.burst_left.total_cmp(&other.burst_left))
    });
    members.truncate(MOST);
    Ok(MemberList { tenants, members })
}

fn emptiest(context: &Sources, tenant: &str) -> Vec<Member> {
    let found = context.members.as_ref().and_then(|members| members.emptiest(tenant, MOST));
    let Some((id, found)) = found else { return Vec::new() };
    // The number is another tenant's by now.
    if tenants::name(&context.maps, id).as_str() != tenant {
        return Vec::new();
    }
    let member = |(full_at, member)| {
        let Level { debt, burst_left, .. } = Level::of_member(&context.maps, id as usize, full_at);
        Member { member, tenant: tenant.to_owned(), burst_left, debt_ms: debt.0 as f64 / 1e6 }
    };
    found.into_iter().map(member).filter(|member| member.burst_left < 1.0).collect()
}

const USAGE: &str = "tenant is the name of a tenant with members, e.g. /v1/members?tenant=api%2F*";
/// Members that are shown.
const MOST: usize = 256;
