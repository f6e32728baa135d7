//! The order in which requests go to the store.

use crate::Tier;

/// The place of requests in the order of those that wait; smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The tier of the requests.
    pub tier: Tier,
    /// True if they wait behind those of their tier whose tenants ask for less than their share.
    pub waits_behind: bool,
}

impl Rank {
    /// All, the first first.
    pub const ALL: [Self; 2 * Tier::ALL.len()] = {
        let mut all = [Self { tier: Tier::Critical, waits_behind: false }; 2 * Tier::ALL.len()];
        let mut place = 0;
        while place < all.len() {
            all[place] = Self { tier: Tier::ALL[place / 2], waits_behind: place % 2 == 1 };
            place += 1;
        }
        all
    };

    /// The last of all.
    pub const LAST: Self = Self::ALL[Self::ALL.len() - 1];

    /// Its place in [`Rank::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.tier.index() * 2 + self.waits_behind as usize
    }

    /// The ranks that go before this one, and this one.
    pub fn not_after(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take_while(move |&of| of <= self)
    }
}

impl From<Tier> for Rank {
    fn from(tier: Tier) -> Self {
        Self { tier, waits_behind: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_the_order_of_their_numbers() {
        assert!(Rank::ALL.is_sorted());
        for (place, rank) in Rank::ALL.into_iter().enumerate() {
            assert_eq!(rank.index(), place);
            assert_eq!(rank.not_after().collect::<Vec<_>>(), Rank::ALL[..=place]);
        }
        assert_eq!(Rank::LAST, Rank { tier: Tier::BestEffort, waits_behind: true });
    }
}
