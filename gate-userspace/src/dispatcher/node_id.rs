//! Numbers of the stores behind one service.

/// A store among those that share a service's keys, by its place in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u8);

impl NodeId {
    /// The only store, or the first.
    pub(crate) const FIRST: Self = Self(0);

    /// So many stores.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(Self::at)
    }

    /// The one at this place, of at most [`MOST_NODES`](crate::policy::placement::MOST_NODES).
    #[inline]
    pub(crate) const fn at(place: usize) -> Self {
        Self(place as u8)
    }

    /// Its place.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}
