//! The nodes of a Redis Cluster behind one service, and the node of each slot, for all of its threads.
//!
//! **Problem.** The node of a slot changes while requests are under way, and each thread must route by one map. **Rule.** Each change
//! is another [`SlotMap`], with the next epoch. A client whose outstanding requests went by a map of another epoch waits for their
//! answers before it sends more, so that no request overtakes an earlier one of its client that is still on its way to the
//! former node.
//!
//! **Nodes.** Replicas are nodes without slots, to which there are connections already when they get some. Where there are more nodes
//! than places, replicas have none. The seeds have the first places, for good. A node that the cluster names gets a place of its own, which is given up
//! once the cluster names it no more, and given to another only when there is no other.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::node_id::NodeId;
use super::resolver::{Resolver, reaches};
use super::slot_map::SlotMap;
use crate::config::{self, NetworkAddress, StoreAddress};
use crate::policy::placement::MOST_NODES;
use crate::protocol::resp::cluster::Shard;

/// A cluster's nodes, and the node of each slot, as far as they are known.
#[derive(Debug)]
pub(crate) struct Cluster {
    service: String,
    /// The addresses that the service listens at.
    own: Vec<SocketAddr>,
    /// How often a request follows a redirection.
    pub(crate) max_redirects: u8,
    /// True if writes of keys in several slots are split.
    pub(crate) split_writes: bool,
    slots: Mutex<Arc<SlotMap>>,
    /// The epoch of `slots`, to be read without its lock.
    epoch: AtomicU64,
    members: Mutex<Vec<Option<Member>>>,
    /// The number of places that have ever had a node.
    used: watch::Sender<usize>,
    /// Raised when a place has another node than before.
    changed: watch::Sender<u64>,
    wanted: Notify,
}

/// A node.
#[derive(Debug)]
struct Member {
    address: StoreAddress,
    resolver: Resolver,
    is_seed: bool,
}

/// A reason why slots cannot be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// A node would be gate itself.
    #[error("it says that {0} is a node, which is gate itself")]
    Own(String),
    /// There are more nodes than places.
    #[error("it says more nodes than gate has room for: {MOST_NODES}, seeds included")]
    Full,
}

impl Cluster {
    /// The cluster of a service that listens at `own`. Nothing is known of it yet but its seeds.
    pub(crate) fn new(service: &str, cluster: &config::Cluster, own: &[SocketAddr]) -> Self {
        let member = |address: &StoreAddress| match address {
            StoreAddress::Network(network) => Some(Member {
                address: address.clone(),
                resolver: Resolver::start(service, network, own),
                is_seed: true,
            }),
            // The configuration refuses it.
            StoreAddress::Unix(_) => None,
        };
        let mut members: Vec<_> = cluster.seeds.iter().map(member).collect();
        let seeds = members.len();
        members.resize_with(MOST_NODES, || None);
        Self {
            service: service.to_owned(),
            own: own.to_vec(),
            max_redirects: cluster.max_redirects,
            split_writes: cluster.split_writes,
            slots: Mutex::new(Arc::new(SlotMap::unknown())),
            epoch: AtomicU64::new(0),
            members: Mutex::new(members),
            used: watch::Sender::new(seeds),
            changed: watch::Sender::new(0),
            wanted: Notify::new(),
        }
    }

    /// The node of each slot, as far as that is known now.
    pub(crate) fn slots(&self) -> Arc<SlotMap> {
        Arc::clone(&self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over the node of each slot, if it has changed since `known`.
    #[inline]
    pub(crate) fn renew(&self, known: &mut Arc<SlotMap>) {
        if known.epoch() != self.epoch.load(Ordering::SeqCst) {
            *known = self.slots();
        }
    }

    /// The number of places that have ever had a node.
    pub(crate) fn used(&self) -> watch::Receiver<usize> {
        self.used.subscribe()
    }

    /// The address of a node; `None` if its place has none.
    pub(crate) fn address(&self, node: NodeId) -> Option<StoreAddress> {
        self.members()[node.index()].as_ref().map(|member| member.address.clone())
    }

    /// The resolver of a node's address; `None` if its place has none.
    pub(crate) fn resolver(&self, node: NodeId) -> Option<Resolver> {
        self.members()[node.index()].as_ref().map(|member| member.resolver.clone())
    }

    /// True if a node has this address, as far as is known.
    pub(crate) fn is_current(&self, node: NodeId, address: SocketAddr) -> bool {
        self.resolver(node).is_some_and(|resolver| stands_for(&resolver, address))
    }

    /// Waits until a node no longer has this address.
    pub(crate) async fn has_moved(&self, node: NodeId, address: SocketAddr) {
        let mut changed = self.changed.subscribe();
        loop {
            let resolver = self.resolver(node).filter(|resolver| stands_for(resolver, address));
            let Some(resolver) = resolver else { return };
            tokio::select! {
                () = resolver.has_moved(address) => return,
                // The sender lives as long as this.
                _ = changed.changed() => {}
            }
        }
    }

    /// Waits until a place has a node.
    pub(crate) async fn has_node(&self, node: NodeId) {
        let mut changed = self.changed.subscribe();
        while self.resolver(node).is_none() {
            // The sender lives as long as this.
            let _ = changed.changed().await;
        }
    }

    /// Asks for the slots to be read again.
    pub(crate) fn ask_refresh(&self) {
        self.wanted.notify_one();
    }

    /// Waits until somebody asks for that.
    pub(crate) async fn refresh_wanted(&self) {
        self.wanted.notified().await;
    }

    /// The node at an address that an error of a node at `from` names; an empty host is that one's own. `None` if it is no node that
    /// is known: a client's script can write such an error, and leads nobody to an address or a slot of its choice.
    pub(crate) fn known_node_at(&self, host: &str, port: u16, from: Option<IpAddr>) -> Option<NodeId> {
        let address = StoreAddress::Network(network_address(host, port, from));
        let members = self.members();
        let place = members
            .iter()
            .position(|place| place.as_ref().is_some_and(|member| member.address == address))?;
        Some(NodeId::at(place))
    }

    /// Takes over what a node at `from` says of all slots. `change` is called around the change, if it is one; true if it is.
    ///
    /// # Errors
    ///
    /// If it cannot be: nothing has changed then.
    pub(crate) fn adopt(
        &self,
        shards: &[Shard],
        from: Option<IpAddr>,
        change: impl FnOnce(&dyn Fn()),
    ) -> Result<bool, Unusable> {
        let mut members = self.members();
        let at = |shard: &Shard| network_address(&shard.host, shard.port, from);
        let mut nodes: Vec<_> = shards.iter().map(|shard| (shard, at(shard))).collect();
        if let Some((_, own)) = nodes.iter().find(|(_, address)| self.is_own(address)) {
            return Err(Unusable::Own(own.to_string()));
        }
        let seeds: Vec<_> = members.iter().flatten().filter(|member| member.is_seed).collect();
        let is_seed = |address: &NetworkAddress| {
            seeds.iter().any(|seed| seed.address == StoreAddress::Network(address.clone()))
        };
        let others = |nodes: &[(&Shard, NetworkAddress)]| nodes.iter().filter(|(_, at)| !is_seed(at)).count();
        if seeds.len() + others(&nodes) > MOST_NODES {
            nodes.retain(|(shard, _)| !shard.is_replica);
        }
        if seeds.len() + others(&nodes) > MOST_NODES {
            return Err(Unusable::Full);
        }
        let is_named = |member: &Member| {
            member.is_seed
                || nodes.iter().any(|(_, address)| member.address == StoreAddress::Network(address.clone()))
        };
        let mut ranges = Vec::new();
        for (shard, address) in &nodes {
            let node = self.place_of(&mut members, address, |member| !is_named(member))?;
            ranges.extend(shard.slots.iter().map(|&slots| (node, slots)));
        }
        let before = self.slots();
        let address_of = |node: NodeId| {
            let member = members[node.index()].as_ref();
            member.map(|member| member.address.to_string()).unwrap_or_default()
        };
        let new = Arc::new(SlotMap::new(before.epoch() + 1, &ranges, address_of));
        let differs = !new.is_same(&before);
        if differs {
            change(&|| self.put(Arc::clone(&new)));
        }
        // Nothing leads to them any more.
        let mut has_left = false;
        for place in members.iter_mut() {
            if place.as_ref().is_some_and(|member| !is_named(member)) {
                *place = None;
                has_left = true;
            }
        }
        if has_left {
            self.changed.send_modify(|count| *count += 1);
        }
        Ok(differs)
    }

    /// The place of the node at an address: that which it has, a free one, or that of a node that `may_go`.
    fn place_of(
        &self,
        members: &mut [Option<Member>],
        address: &NetworkAddress,
        may_go: impl Fn(&Member) -> bool,
    ) -> Result<NodeId, Unusable> {
        if self.is_own(address) {
            return Err(Unusable::Own(address.to_string()));
        }
        let store = StoreAddress::Network(address.clone());
        let is_it = |member: &Option<Member>| member.as_ref().is_some_and(|member| member.address == store);
        if let Some(place) = members.iter().position(is_it) {
            return Ok(NodeId::at(place));
        }
        let used = *self.used.borrow();
        let free = if used < MOST_NODES {
            Some(used)
        } else {
            let is_free = |member: &Option<Member>| member.as_ref().is_none_or(&may_go);
            members.iter().position(is_free)
        };
        let place = free.ok_or(Unusable::Full)?;
        let resolver = Resolver::start(&self.service, address, &self.own);
        members[place] = Some(Member { address: store, resolver, is_seed: false });
        self.used.send_modify(|used| *used = (*used).max(place + 1));
        self.changed.send_modify(|count| *count += 1);
        Ok(NodeId::at(place))
    }

    fn is_own(&self, address: &NetworkAddress) -> bool {
        let is_own = |address: SocketAddr| self.own.iter().any(|&own| reaches(own, address));
        address.fixed().is_some_and(is_own)
    }

    fn put(&self, new: Arc<SlotMap>) {
        let epoch = new.epoch();
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = new;
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    fn members(&self) -> MutexGuard<'_, Vec<Option<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn network_address(host: &str, port: u16, from: Option<IpAddr>) -> NetworkAddress {
    let address = host.parse().ok().or(from.filter(|_| host.is_empty()));
    match address {
        Some(address) => NetworkAddress::Fixed(SocketAddr::new(address, port)),
        None => NetworkAddress::Named { host: host.to_owned(), port },
    }
}

fn stands_for(resolver: &Resolver, address: SocketAddr) -> bool {
    match resolver {
        Resolver::Fixed(fixed) => *fixed == address,
        Resolver::Named(_) => resolver.is_current(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let seeds = ["127.0.0.1:1", "127.0.0.1:2"]
            .map(|seed| StoreAddress::Network(NetworkAddress::Fixed(seed.parse().unwrap())));
        let config = config::Cluster { seeds: seeds.to_vec(), max_redirects: 3, split_writes: false };
        Cluster::new("s", &config, &["127.0.0.1:9".parse().unwrap()])
    }

    fn shard(port: u16, first: u16, last: u16) -> Shard {
        Shard { host: "127.0.0.1".to_owned(), port, slots: vec![(first, last)], is_replica: false }
    }

    fn adopt(cluster: &Cluster, shards: &[Shard]) -> Result<bool, Unusable> {
        let mut known = cluster.slots();
        let before = known.epoch();
        let adopted = cluster.adopt(shards, None, |change| change());
        assert_eq!(known.epoch(), before, "what is known changes between requests alone");
        cluster.renew(&mut known);
        let raised = u64::from(adopted == Ok(true));
        assert_eq!(known.epoch(), before + raised, "an epoch for each change, and for no other");
        assert!(Arc::ptr_eq(&known, &cluster.slots()));
        adopted
    }

    #[test]
    fn slots_lead_to_their_nodes_and_seeds_keep_their_places() {
        let cluster = cluster();
        assert_eq!(cluster.slots().node_of(0), None);
        assert_eq!(adopt(&cluster, &[shard(2, 0, 99), shard(3, 100, 16_383)]), Ok(true));
        assert_eq!(adopt(&cluster, &[shard(2, 0, 99), shard(3, 100, 16_383)]), Ok(false));
        assert_eq!(
            (cluster.slots().node_of(99), cluster.slots().node_of(100)),
            (Some(NodeId::at(1)), Some(NodeId::at(2)))
        );
        assert_eq!(cluster.slots().size(), (16_384, 2));
        // One leaves, and another comes: a slot that nobody has is nobody's.
        assert_eq!(adopt(&cluster, &[shard(4, 100, 200)]), Ok(true));
        assert_eq!((cluster.slots().node_of(99), cluster.slots().node_of(100)), (None, Some(NodeId::at(3))));
        assert!(cluster.address(NodeId::at(2)).is_none() && cluster.address(NodeId::at(1)).is_some());
    }

    #[test]
    fn gate_itself_and_one_node_too_many_change_nothing() {
        let cluster = cluster();
        assert_eq!(adopt(&cluster, &[shard(1, 0, 16_383)]), Ok(true));
        assert_eq!(adopt(&cluster, &[shard(9, 0, 16_383)]), Err(Unusable::Own("127.0.0.1:9".to_owned())));
        let nodes: Vec<_> = (0..63).map(|number| shard(100 + number, number, number)).collect();
        assert_eq!(adopt(&cluster, &nodes), Err(Unusable::Full));
        assert_eq!(cluster.slots().size(), (16_384, 1));
        assert_eq!(adopt(&cluster, &nodes[..62]), Ok(true));
        // Replicas have places as far as there are some.
        let replica = Shard { slots: Vec::new(), is_replica: true, ..shard(300, 0, 0) };
        assert_eq!(adopt(&cluster, &[&nodes[..62], std::slice::from_ref(&replica)].concat()), Ok(false));
        assert_eq!(cluster.known_node_at("127.0.0.1", 300, None), None);
        assert_eq!(adopt(&cluster, &[&nodes[..61], &[replica]].concat()), Ok(true));
        let replica = cluster.known_node_at("127.0.0.1", 300, None).unwrap();
        assert!(
            !cluster.slots().serves(replica) && cluster.slots().serves(cluster.slots().node_of(0).unwrap())
        );
        // Places of nodes that have gone are given to others.
        assert_eq!(adopt(&cluster, &[shard(99, 0, 5), shard(98, 6, 9)]), Ok(true));
        assert_eq!(cluster.slots().size(), (10, 2));
    }

    #[test]
    fn redirections_lead_to_nodes_that_are_known_and_to_no_other() {
        let cluster = cluster();
        // A node that is to get its first slots is named by the others.
        let new = Shard { slots: Vec::new(), ..shard(3, 0, 0) };
        assert_eq!(adopt(&cluster, &[shard(1, 0, 9), new]), Ok(true));
        let from = Some("127.0.0.1".parse().unwrap());
        for (host, port, node) in [
            ("127.0.0.1", 3, Some(NodeId::at(2))),
            ("", 3, Some(NodeId::at(2))),
            ("127.0.0.1", 2, Some(NodeId::at(1))),
            ("127.0.0.1", 4, None),
            ("127.0.0.1", 9, None),
            ("evil.example", 3, None),
        ] {
            assert_eq!(cluster.known_node_at(host, port, from), node, "{host}:{port}");
        }
        assert_eq!(*cluster.used().borrow(), 3, "nothing was added");
    }

    #[tokio::test]
    async fn a_connection_learns_that_its_node_has_another_address() {
        let cluster = cluster();
        adopt(&cluster, &[shard(3, 0, 16_383)]).unwrap();
        let node = cluster.slots().node_of(0).unwrap();
        let address = "127.0.0.1:3".parse().unwrap();
        assert!(cluster.is_current(node, address));
        let moved = cluster.has_moved(node, address);
        tokio::pin!(moved);
        assert!(futures_poll(&mut moved).await.is_none());
        adopt(&cluster, &[shard(1, 0, 16_383)]).unwrap();
        assert!(futures_poll(&mut moved).await.is_some() && !cluster.is_current(node, address));
    }

    /// The result of a future that is ready now.
    async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! { biased; done = future => Some(done), () = std::future::ready(()) => None }
    }
}
