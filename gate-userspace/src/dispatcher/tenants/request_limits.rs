//! A tenant's limits by what is asked: buckets beside its quota, by query type or command.
//!
//! All threads and services take from the same words by compare-and-swap. A reload keeps the debt to limits that are
//! still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::token_bucket::{Limits, Take, refund, take};
use gate_common::units::{MilliRu, Nanos};

use super::bucket_word::{attempt, update};
use crate::config::{LimitOf, LimitUnit, RequestLimit};
use crate::policy::admission::QueryType;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::{Class, Refusal};

/// One tenant's limits.
#[derive(Debug)]
pub(crate) struct RequestLimits {
    buckets: Vec<Bucket>,
    /// A type of its own for each command that is limited, in the order of `by_command`.
    commands: QueryTypes,
    /// The places of their buckets.
    by_command: Vec<u8>,
}

#[derive(Debug)]
struct Bucket {
    limit: RequestLimit,
    /// The name in refusals.
    name: &'static str,
    tat: AtomicU64,
    /// Requests refused by it, since the start or since it is configured.
    refused: AtomicU64,
}

/// The limits that a request counts towards: that of its query type, and that of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitSet([u8; 2]);

impl LimitSet {
    /// No limits.
    pub(crate) const NONE: Self = Self([ABSENT; 2]);
}

/// One limit that a request counts towards, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitLevel {
    pub(crate) name: &'static str,
    pub(crate) unit: LimitUnit,
    pub(crate) limits: Limits,
    /// The time that it takes to be full again.
    pub(crate) debt: Nanos,
    /// In thousandths of its unit.
    pub(crate) cost: MilliRu,
    /// The result of taking the cost.
    pub(crate) take: Take,
}

impl RequestLimits {
    /// The limits of a configuration that comes after `before`; `None` if there are none.
    pub(crate) fn after(before: Option<&Arc<Self>>, limits: &[RequestLimit]) -> Option<Arc<Self>> {
        if limits.is_empty() {
            return None;
        }
        let mut own = Vec::new();
        let mut by_command = Vec::new();
        for (place, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.of == LimitOf::Command) {
            own.push((format!("limit-{place}"), vec![limit.name.replace('|', " ")]));
            by_command.push(place as u8);
        }
        let own: Vec<_> = own.iter().map(|(name, commands)| (name.as_str(), commands.clone())).collect();
        let kept = |limit: &RequestLimit| {
            let same = |bucket: &&Bucket| {
                (&bucket.limit.name, bucket.limit.of, bucket.limit.unit)
                    == (&limit.name, limit.of, limit.unit)
            };
            let bucket = before?.buckets.iter().find(same)?;
            Some((bucket.tat.load(Ordering::Relaxed), bucket.refused.load(Ordering::Relaxed)))
        };
        let bucket = |limit: &RequestLimit| {
            let (tat, refused) = kept(limit).unwrap_or_default();
            Bucket {
                name: static_name(&limit.name),
                tat: AtomicU64::new(tat),
                refused: AtomicU64::new(refused),
                limit: limit.clone(),
            }
        };
        let buckets = limits.iter().map(bucket).collect();
        Some(Arc::new(Self { buckets, commands: QueryTypes::new(&own), by_command }))
    }

    /// The types that commands are looked up in.
    pub(crate) const fn commands(&self) -> &QueryTypes {
        &self.commands
    }

    /// The limits of a request of a query type, given with its name; `command` is the place of its command's type.
    pub(crate) fn of(&self, query_type: Option<&str>, command: QueryType) -> LimitSet {
        let is_of_type = |bucket: &Bucket| {
            bucket.limit.of == LimitOf::QueryType && query_type == Some(bucket.limit.name.as_str())
        };
        let by_type = self.buckets.iter().position(is_of_type).map_or(ABSENT, |place| place as u8);
        let own = usize::from(command.0).checked_sub(Class::ALL.len());
        let by_command = own.and_then(|own| self.by_command.get(own).copied()).unwrap_or(ABSENT);
        LimitSet([by_type, by_command])
    }

    /// Takes a request of this price from its limits, all or none, and counts a refusal unless refusals are only
    /// counted for `shadow`.
    ///
    /// # Errors
    ///
    /// The refusal, with the limit's name.
    pub(crate) fn take(
        &self,
        set: LimitSet,
        price: MilliRu,
        now: Nanos,
        shadow: bool,
    ) -> Result<(), Refusal> {
        let [by_type, by_command] = set.0.map(|place| self.buckets.get(usize::from(place)));
        for (seq, bucket) in [by_type, by_command].into_iter().enumerate() {
            let Some(bucket) = bucket else { continue };
            if let Err(refusal) = attempt(&bucket.tat, now, bucket.cost(price), &bucket.limit.bucket) {
                by_type.into_iter().filter(|_| seq > 0).for_each(|bucket| bucket.give_back(price));
                bucket.refused.fetch_add(u64::from(!shadow), Ordering::Relaxed);
                return Err(Refusal { limit: Some(bucket.name), ..refusal });
            }
        }
        Ok(())
    }

    /// The names of the limits, and the requests that each has refused.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        let each = self.buckets.iter().map(|bucket| (bucket.name, bucket.refused.load(Ordering::Relaxed)));
        each.collect()
    }

    /// The limits of a set in the order in which they are asked, each with its answer to a request of this price.
    pub(crate) fn levels(&self, set: LimitSet, price: MilliRu, now: Nanos) -> Vec<LimitLevel> {
        let buckets = set.0.into_iter().filter_map(|place| self.buckets.get(usize::from(place)));
        let level = |bucket: &Bucket| {
            let tat = bucket.tat.load(Ordering::Relaxed);
            let limits = bucket.limit.bucket;
            let cost = bucket.cost(price);
            let take = take(tat, now.0, cost.0, &limits);
            let debt = Nanos(tat.saturating_sub(now.0));
            LimitLevel { name: bucket.name, unit: bucket.limit.unit, limits, debt, cost, take }
        };
        buckets.map(level).collect()
    }

    /// Gives back what a request took that was refused after all.
    pub(crate) fn give_back(&self, set: LimitSet, price: MilliRu) {
        let buckets = set.0.into_iter().filter_map(|place| self.buckets.get(usize::from(place)));
        buckets.for_each(|bucket| bucket.give_back(price));
    }

    /// Gives back what a request of this price took, but for what one of the price that was `spent` takes: a part of it has run.
    pub(crate) fn give_back_rest(&self, set: LimitSet, price: MilliRu, spent: MilliRu) {
        let buckets = set.0.into_iter().filter_map(|place| self.buckets.get(usize::from(place)));
        let rest = |bucket: &Bucket| MilliRu(bucket.cost(price).0.saturating_sub(bucket.cost(spent).0));
        buckets.for_each(|bucket| bucket.give_back_cost(rest(bucket)));
    }
}

impl Bucket {
    /// The cost of a request of this price: never more than a full bucket admits.
    fn cost(&self, price: MilliRu) -> MilliRu {
        match self.limit.unit {
            LimitUnit::Requests => ONE_REQUEST,
            LimitUnit::Ru => price.min(MilliRu(self.limit.bucket.dearest())),
        }
    }

    fn give_back(&self, price: MilliRu) {
        self.give_back_cost(self.cost(price));
    }

    fn give_back_cost(&self, cost: MilliRu) {
        let Limits { rate, .. } = self.limit.bucket;
        let time = rate.time_for(cost.0);
        update(&self.tat, |tat| refund(tat, time));
    }
}

/// A name that lasts as long as the process: a refusal carries it. There are as many as were ever configured.
pub(super) fn static_name(name: &str) -> &'static str {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(bucket) => bucket,
        None => {
            let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(name);
            name
        }
    }
}

/// No limit has this place.
const ABSENT: u8 = u8::MAX;
/// In thousandths.
const ONE_REQUEST: MilliRu = MilliRu(1_000);

#[cfg(test)]
mod tests {
    use gate_common::abi::Reason;
    use gate_common::token_bucket::Rate;

    use super::*;

    fn limit(name: &str, of: LimitOf, unit: LimitUnit, per_sec: u64) -> RequestLimit {
        let bucket = Limits {
            rate: Rate::per_sec(per_sec * 1_000),
            burst_ns: 1_000_000_000,
            max_debt_ns: 2_000_000_000,
        };
        RequestLimit { name: name.to_owned(), of, unit, bucket }
    }

    fn both() -> Vec<RequestLimit> {
        vec![
            limit("range", LimitOf::QueryType, LimitUnit::Ru, 100),
            limit("lrange", LimitOf::Command, LimitUnit::Requests, 2),
        ]
    }

    const NOW: Nanos = Nanos::from_secs(100);
    const TEN: MilliRu = MilliRu(10_000);

    #[test]
    fn a_request_is_taken_from_both_limits_or_from_none() {
        let limits = RequestLimits::after(None, &both()).unwrap();
        let command = QueryType(Class::ALL.len() as u16);
        let set = limits.of(Some("range"), command);
        let only_type = limits.of(Some("range"), QueryType(0));
        assert_eq!(limits.of(Some("get"), QueryType(0)), LimitSet::NONE);
        assert_eq!([limits.take(set, TEN, NOW, false), limits.take(set, TEN, NOW, false)], [Ok(()), Ok(())]);
        let refused = limits.take(set, TEN, NOW, false).unwrap_err();
        assert_eq!((refused.reason, refused.limit), (Reason::Quota, Some("lrange")));
        assert!(refused.retry_after > Nanos::from_millis(400), "{refused:?}");
        // The type has 80 of its 100 request units left: what was refused took none.
        assert_eq!(limits.take(only_type, MilliRu(80_000), NOW, false), Ok(()));
        let refused = limits.take(only_type, MilliRu(1_000), NOW, false).unwrap_err();
        assert_eq!(refused.limit, Some("range"));
        limits.give_back(only_type, MilliRu(80_000));
        assert_eq!(limits.take(only_type, MilliRu(80_000), NOW, false), Ok(()));
    }

    #[test]
    fn what_has_run_in_part_stays_a_request() {
        let limits = RequestLimits::after(None, &both()).unwrap();
        let set = limits.of(Some("range"), QueryType(Class::ALL.len() as u16));
        let only_type = limits.of(Some("range"), QueryType(0));
        for _ in 0..2 {
            assert_eq!(limits.take(set, MilliRu(50_000), NOW, false), Ok(()));
            limits.give_back_rest(set, MilliRu(50_000), TEN);
        }
        assert_eq!(limits.take(set, TEN, NOW, false).unwrap_err().limit, Some("lrange"));
        // Twice 40 of twice 50 request units came back.
        assert_eq!(limits.take(only_type, MilliRu(80_000), NOW, false), Ok(()));
        assert!(limits.take(only_type, MilliRu(1_000), NOW, false).is_err());
        // A request that is dearer than the limit ever admits has taken the limit itself.
        let limits = RequestLimits::after(None, &both()).unwrap();
        assert_eq!(limits.take(only_type, MilliRu(900_000), NOW, false), Ok(()));
        limits.give_back_rest(only_type, MilliRu(900_000), MilliRu(400_000));
        assert!(limits.take(only_type, MilliRu(1_000), NOW, false).is_err());
    }

    #[test]
    fn no_price_is_too_large_for_a_limit() {
        let limits = RequestLimits::after(None, &both()).unwrap();
        let set = limits.of(Some("range"), QueryType(0));
        assert_eq!(limits.take(set, MilliRu::MAX, NOW, false), Ok(()));
        let refused = limits.take(set, TEN, NOW, false).unwrap_err();
        assert_eq!(refused.reason, Reason::Quota);
    }

    #[test]
    fn a_reload_keeps_the_debt_and_the_refusals() {
        let before = RequestLimits::after(None, &both()).unwrap();
        let set = before.of(Some("range"), QueryType(0));
        assert_eq!(before.take(set, MilliRu(100_000), NOW, false), Ok(()));
        assert!(before.take(set, TEN, NOW, false).is_err());
        assert!(before.take(set, TEN, NOW, true).is_err());
        let after = RequestLimits::after(Some(&before), &both()).unwrap();
        assert_eq!(after.refused(), [("range", 1), ("lrange", 0)]);
        assert!(after.take(set, TEN, NOW, false).is_err());
        assert!(RequestLimits::after(Some(&after), &[]).is_none());
    }
}
