//! The stores that share the keys of one service, each by itself: a pool's, or the nodes that a cluster has now.

use std::fmt;
use std::sync::Arc;

use super::store_state::{Reached, StoreState};

/// One of the stores of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReading {
    /// Its place among them: a place that is free is taken by the next.
    pub number: usize,
    /// Its address, and how many slots of a cluster it has.
    pub place: NodePlace,
    /// Reachability; `None` if that has not been tried.
    pub reached: Option<Reached>,
    /// Shared connections to it.
    pub connections: u64,
}

/// The place of one of several stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its address, as the configuration or the cluster says it.
    pub address: String,
    /// The slots that it has; `None` of a store that is no node of a cluster.
    pub slots: Option<u32>,
}

/// Tells where the store with a number is; `None` if there is none, or no other.
type Find = dyn Fn(usize) -> Option<NodePlace> + Send + Sync;

/// The places of a service's stores, where there are several.
#[derive(Clone)]
pub(crate) struct NodePlaces(Arc<Find>);

impl Default for NodePlaces {
    /// One store, which needs no name.
    fn default() -> Self {
        Self::new(|_| None)
    }
}

impl NodePlaces {
    /// The places that `find` says, by number.
    pub(crate) fn new(find: impl Fn(usize) -> Option<NodePlace> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// Each store that has a place.
    pub(super) fn read(&self, stores: &[Arc<StoreState>]) -> Vec<NodeReading> {
        let reading = |(number, state): (usize, &Arc<StoreState>)| {
            let place = self.0(number)?;
            Some(NodeReading { number, place, reached: state.reached(), connections: state.connections() })
        };
        stores.iter().enumerate().filter_map(reading).collect()
    }
}

impl fmt::Debug for NodePlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodePlaces(..)")
    }
}
