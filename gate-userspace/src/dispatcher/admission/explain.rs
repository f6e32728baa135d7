//! Explanations of the steps that requests of every protocol pass, without effect.
//!
//! Each step asks what [`super::Admission`] would ask, by the same functions or by the parts of them that only look. Nothing is
//! taken, counted or sampled. Whoever asks puts the generator of draws back.

use gate_common::abi::{Reason, tenant_flags};
use gate_common::token_bucket::Take;
use gate_common::units::{Fraction, MilliRu, Multiplier, Nanos};

use super::demand::Demand;
use super::{Admission, ONE_TICK, Quote};
use crate::dispatcher::request::RequestClass;
use crate::dispatcher::tenants::ledger::{Account, Ledger, TenantId};
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::explanation::{Bucket, Expected, Explanation, PriceTerms, Verdict, millis};
use crate::policy::fair_share::{Share, Sharer};
use crate::protocol::{Refusal, Rule};

/// A refusal, and the bucket that it is for.
pub(crate) struct Refused {
    refusal: Refusal,
    bucket: Option<String>,
}

impl Refused {
    /// The same, with another refusal.
    pub(crate) fn map(self, to: impl FnOnce(Refusal) -> Refusal) -> Self {
        Self { refusal: to(self.refusal), ..self }
    }
}

/// The end of a request's way, as far as it is known.
pub(crate) type Outcome = Result<Verdict, Refused>;

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, bucket: refusal.limit.or(refusal.bucket).map(str::to_owned) }
    }
}

/// Writes the end of a request's way.
pub(crate) fn conclude(outcome: Outcome, explained: &mut Explanation) {
    match outcome {
        Ok(verdict) => explained.verdict = verdict,
        Err(Refused { refusal, bucket }) => {
            explained.verdict = Verdict::Refused;
            explained.reason = Some(refusal.reason.name().to_owned());
            explained.bucket = bucket;
            explained.denied_by = refusal.rule.map(|rule| rule.word().to_owned());
            explained.retry_after_ms = Some(millis(refusal.retry_after));
        }
    }
}

impl<T> Admission<T> {
    /// Class, tier and price of a request, whose query type and price class have these names.
    pub(crate) fn describe(
        &self,
        ledger: &mut Ledger,
        tenant: TenantId,
        (demand, quote): (&Demand, &Quote),
        (query_type, price_class): (Option<&str>, &str),
        explained: &mut Explanation,
    ) {
        let prices = ledger.prices(self.service);
        let state = ledger.state_of(tenant);
        let (rows, more) = quote.expected.map_or((demand.rows, 0), |read| (read.rows, read.more_bytes));
        let bytes = (demand.bytes as u64).saturating_add(more.into());
        let ru = |mru: u64| mru as f64 / 1e3;
        explained.query_type = query_type.map(str::to_owned);
        explained.tier = quote.class.tier.name().to_owned();
        explained.rung = quote.rung;
        explained.price = PriceTerms {
            class: price_class.to_owned(),
            rows,
            bytes,
            base_ru: ru(u64::from(demand.commands) * u64::from(prices.base_mru)),
            rows_ru: ru(u64::from(rows) * u64::from(prices.row_mru)),
            bytes_ru: ru(bytes.saturating_mul(u64::from(prices.kib_mru)).div_ceil(1_024)),
            latency_ru: ru(u64::from(prices.latency_mru[demand.price_class.index()])),
            learned: quote.expected.is_some(),
            multiplier: f64::from(state.multiplier) / f64::from(Multiplier::ONE.0),
            ru: ru(u64::from(quote.price.0)),
        };
    }

    /// The quotas that a price is taken from, and the candidate.
    fn describe_buckets(
        &self,
        ledger: &mut Ledger,
        (account, price): (Account<'_>, MilliRu),
        explained: &mut Explanation,
        now: Nanos,
    ) {
        let tenants = self.tenants.borrow();
        let (tenant, _) = account;
        for level in ledger.quota_levels(account, price, now) {
            let kind = if level.tenant == tenant { "quota" } else { "charge" };
            let shown = if level.tenant == tenant { account } else { (level.tenant, None) };
            let name = tenants.shown(shown).unwrap_or_default();
            explained.buckets.push(Bucket::new(
                kind,
                &name,
                "RU",
                &level.limits,
                level.debt,
                price,
                level.take,
            ));
        }
        if ledger.state_of(tenant).flags & tenant_flags::CANDIDATE != 0 {
            explained.notes.push("a candidate quota counts it as well, and refuses nothing".to_owned());
        }
    }

    /// The charge of a request: limits, refusals decided ahead, quotas.
    ///
    /// # Errors
    ///
    /// The first of them that refuses it; `shadow` says that refusals are only counted.
    pub(crate) fn peek_charge(
        &self,
        ledger: &mut Ledger,
        (account, shadow): (Account<'_>, bool),
        (demand, quote): (&Demand, &Quote),
        explained: &mut Explanation,
        now: Nanos,
    ) -> Result<(), Refused> {
        let (tenant, _) = account;
        let mut result = Ok(());
        if demand.limits != LimitSet::NONE
            && let Some(limits) = self.tenants.borrow().request_limits(tenant, ledger)
        {
            for level in limits.levels(demand.limits, quote.price, now) {
                let unit = if level.unit == crate::config::LimitUnit::Ru { "RU" } else { "requests" };
                let bucket =
                    Bucket::new("limit", level.name, unit, &level.limits, level.debt, level.cost, level.take);
                explained.buckets.push(bucket);
                result =
                    result.and(of_take(level.take, Refusal::by(Reason::TooLarge, Rule::Burst), level.name));
            }
        }
        let after_limits = result.or_else(|refused| refuse(shadow, explained, refused));
        self.describe_buckets(ledger, (account, quote.price), explained, now);
        after_limits?;
        if tenant == TenantId::UNKNOWN {
            return refuse(shadow, explained, Refusal::of(Reason::UnknownSource).into());
        }
        let rate = Fraction::from_steps(ledger.state_of(tenant).rejection_rate);
        if rate != Fraction::ZERO {
            explained.refused_by_chance = Some(f64::from(rate.steps()) / f64::from(Fraction::ONE.steps()));
        }
        if let Some(refusal) = ledger.peek_pushed(tenant, quote.rung, now) {
            return refuse(shadow, explained, refusal.into());
        }
        let tenants = self.tenants.borrow();
        let too_dear = ledger.too_dear(tenant, quote.asked);
        for level in ledger.quota_levels(account, quote.price, now) {
            let name = tenants.name(level.tenant).unwrap_or_default();
            if let Err(refused) = of_take(level.take, too_dear, name) {
                return refuse(shadow, explained, refused);
            }
        }
        Ok(())
    }

    /// The tenant's share of the store, and the admission policy.
    ///
    /// # Errors
    ///
    /// The refusal of either.
    pub(crate) fn peek_policy(
        &self,
        shadow: bool,
        (tenant, class): (TenantId, RequestClass),
        ledger: &mut Ledger,
        explained: &mut Explanation,
        now: Nanos,
    ) -> Result<(), Refused> {
        let (share, cut) = {
            let shares = self.shares.borrow();
            (shares.share(Sharer { tier: class.tier, tenant: tenant.0 }), shares.cut())
        };
        if let Some(Share { mru_per_sec, demand_mru_per_sec, accepted, .. }) = share {
            let ru = |mru: f64| mru / 1e3;
            let why = if cut {
                "the store cannot do all that it is asked for"
            } else {
                "requests wait for the store"
            };
            let part = match mru_per_sec {
                Some(mru) => format!("{:.1} RU/s", ru(mru)),
                None => "all that it wants".to_owned(),
            };
            explained.notes.push(format!(
                "{why}: of it this tenant may have {part}, and asks for {:.1} RU/s",
                ru(demand_mru_per_sec)
            ));
            if accepted < 1.0 {
                explained.refused_by_chance = Some(1.0 - accepted);
                if ledger.draw() >= accepted {
                    refuse(shadow, explained, Refusal::after(Reason::Penalty, ONE_TICK).into())?;
                }
            }
        }
        let policy = &self.policy;
        let in_ms = |estimate: crate::policy::admission::Estimate| Expected {
            percentile: estimate.percentile,
            expected_ms: millis(estimate.expected),
            objective_ms: millis(estimate.limit),
        };
        explained.estimates = policy.estimates(class).into_iter().map(in_ms).collect();
        let chance = policy.chance(class, now);
        if chance > 0.0 && chance < 1.0 {
            let passes = 1.0 - explained.refused_by_chance.unwrap_or(0.0);
            explained.refused_by_chance = Some(1.0 - passes * (1.0 - chance));
        }
        match policy.peek(class, now, || ledger.draw()) {
            None => Ok(()),
            Some(retry_after) => refuse(shadow, explained, Refusal::after(Reason::Slo, retry_after).into()),
        }
    }
}

/// A refusal, or a note of it where refusals are only counted.
///
/// # Errors
///
/// The refusal.
pub(crate) fn refuse(shadow: bool, explained: &mut Explanation, refused: Refused) -> Result<(), Refused> {
    if !shadow {
        return Err(refused);
    }
    explained.shadowed.push(refused.refusal.reason.name().to_owned());
    Ok(())
}

/// The refusal of a bucket, as a charge has it; `too_dear` is that of a price that it never admits.
fn of_take(take: Take, too_dear: Refusal, bucket: &str) -> Result<(), Refused> {
    let refusal = match take {
        Take::Admit { .. } => return Ok(()),
        Take::Refuse { wait_ns } => Refusal::after(Reason::Quota, Nanos(wait_ns)),
        Take::TooLarge => too_dear,
    };
    Err(Refused { refusal, bucket: Some(bucket.to_owned()) })
}
