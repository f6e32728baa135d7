//! How many connections there are, in all and of each source address, and which give way to others.
//!
//! A connection is *idle* until a gate has begun to report on it. Where there is no room for another one, the oldest idle one is
//! closed, of the same source if that is what has too many. So peers that say nothing, or are not believed, keep no gate out.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The most connections at once. Each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of all.
    pub all: usize,
    /// Of one source: an IPv4 address, or a network of 64 bits of IPv6.
    pub per_source: usize,
}

/// The connections.
#[derive(Debug)]
pub(super) struct Places {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Those that stand, with what closes them when it is dropped.
    open: HashMap<u64, (IpAddr, oneshot::Sender<()>)>,
    /// Those of them that are idle, the oldest first.
    idle: BTreeSet<u64>,
    sources: HashMap<IpAddr, Source>,
}

#[derive(Debug, Default)]
struct Source {
    open: usize,
    idle: BTreeSet<u64>,
}

/// The place of one connection, which anyone may close.
#[derive(Clone, Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

/// A new connection's place.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) place: Place,
    /// Ready when the connection has to end.
    pub(super) closed: oneshot::Receiver<()>,
    /// True if another one was closed in its favour.
    pub(super) made_room: bool,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, state: Mutex::default() })
    }

    /// Takes a place; `None` if there is no room, and nobody idle to make it.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Entered> {
        let state = &mut *self.lock();
        let source = source_of(address);
        let known = state.sources.get(&source);
        let is_full = state.open.len() >= self.bounds.all;
        let oldest = match known {
            Some(known) if known.open >= self.bounds.per_source => Some(known.idle.first()),
            _ => is_full.then(|| state.idle.first()),
        };
        let made_room = oldest.is_some();
        if let Some(oldest) = oldest {
            let oldest = *oldest?;
            state.close(oldest);
        }
        let number = state.next;
        state.next += 1;
        let (closer, closed) = oneshot::channel();
        state.open.insert(number, (source, closer));
        state.idle.insert(number);
        let source = state.sources.entry(source).or_default();
        source.open += 1;
        source.idle.insert(number);
        Some(Entered { place: Place { places: Arc::clone(self), number }, closed, made_room })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self, number: u64) {
        let Some((source, _)) = self.open.remove(&number) else { return };
        self.idle.remove(&number);
        if let Some(known) = self.sources.get_mut(&source) {
            known.open -= 1;
            known.idle.remove(&number);
            if known.open == 0 {
                self.sources.remove(&source);
            }
        }
    }
}

impl Place {
    /// A gate has begun to report on this connection. It gives way to nobody from now on.
    pub(super) fn keep(&self) {
        let state = &mut *self.places.lock();
        state.idle.remove(&self.number);
        if let Some((source, _)) = state.open.get(&self.number)
            && let Some(source) = state.sources.get_mut(source)
        {
            source.idle.remove(&self.number);
        }
    }

    /// True while no gate has begun to report on it.
    pub(super) fn is_idle(&self) -> bool {
        self.places.lock().idle.contains(&self.number)
    }

    /// Ends the connection, if it stands.
    pub(super) fn close(&self) {
        self.places.lock().close(self.number);
    }
}

fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(all: usize, per_source: usize) -> Arc<Places> {
        Places::new(Bounds { all, per_source })
    }

    fn is_closed(entered: &mut Entered) -> bool {
        !matches!(entered.closed.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn the_oldest_idle_connection_gives_way_to_a_new_one() {
        let places = places(3, 3);
        let mut entered: Vec<_> =
            (1..=3).map(|number| places.enter([198, 18, 0, number].into()).unwrap()).collect();
        assert!(entered.iter().all(|entered| !entered.made_room));
        entered[0].place.keep();
        let fourth = places.enter([198, 18, 0, 4].into()).unwrap();
        assert!(fourth.made_room);
        let closed: Vec<_> = entered.iter_mut().map(is_closed).collect();
        assert_eq!(closed, [false, true, false], "the first reports");
        entered[2].place.keep();
        fourth.place.keep();
        assert!(places.enter([198, 18, 0, 5].into()).is_none(), "all report");
        entered[0].place.close();
        assert!(is_closed(&mut entered[0]));
        assert!(places.enter([198, 18, 0, 5].into()).is_some_and(|entered| !entered.made_room));
    }

    #[test]
    fn a_source_with_too_many_takes_no_place_of_another() {
        let places = places(10, 2);
        let mut polite = places.enter([198, 18, 0, 1].into()).unwrap();
        let mut hostile: Vec<_> = (0..5).map(|_| places.enter([198, 18, 0, 2].into()).unwrap()).collect();
        assert!(!is_closed(&mut polite));
        let closed: Vec<_> = hostile.iter_mut().map(is_closed).collect();
        assert_eq!(closed, [true, true, true, false, false]);
        // Networks of 64 bits are one source.
        let mut ofv6: Vec<_> = ["fd00::1", "fd00::2", "fd00::ffff:0:0:1", "fd00:0:0:1::1"]
            .map(|text| places.enter(text.parse().unwrap()).unwrap())
            .into();
        let closed: Vec<_> = ofv6.iter_mut().map(is_closed).collect();
        assert_eq!(closed, [true, false, false, false]);
    }

    #[test]
    fn nothing_is_left_of_connections_that_have_ended() {
        let places = places(4, 2);
        for number in 0..100 {
            let entered = places.enter([198, 18, 0, number % 7].into()).unwrap();
            if number % 3 == 0 {
                entered.place.keep();
            }
            entered.place.close();
            entered.place.close();
        }
        let state = places.lock();
        assert!(state.open.is_empty() && state.idle.is_empty() && state.sources.is_empty());
    }
}
