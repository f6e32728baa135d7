//! The program at several interfaces: a pinned link for each, in numbered slots.
//!
//! All of them share the maps, so a tenant has one budget. An interface keeps its slot while it is listed, whatever
//! its place in the list. The first slot's pins are those of a gate that knows one interface.

use std::fs;
use std::path::Path;

use gate_common::abi::{AttachMode, Control};

use super::attach::{Mode, attach_at, index_of, is_elsewhere};
use super::clsact;
use super::error::{Error, Result};
use super::link::{self, LinkInfo};
use super::load::Loaded;
use super::maps::Maps;
use super::pins::{PinDir, link as link_pin};

/// An interface, and the slot of its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Below [`Control::INTERFACES`].
    pub slot: usize,
}

/// Attaches the loaded program to one interface, in place of those that it is attached to.
///
/// # Errors
///
/// As [`assign`] and [`attach_all`].
pub fn attach(loaded: &mut Loaded, interface: &str, mode: Mode, pins: &PinDir) -> Result<AttachMode> {
    let interfaces = assign(&loaded.maps, &[interface.to_owned()], pins)?;
    let modes = attach_all(loaded, &interfaces, mode, pins)?;
    Ok(modes.into_iter().next().unwrap_or(AttachMode::None))
}

/// Finds a slot for each of these distinct interfaces, at most [`Control::INTERFACES`]: the one that holds its link
/// already, else one that is free. To be called before an old gate is ended for them.
///
/// # Errors
///
/// [`Error::NoInterface`]; [`Error::OtherInterface`] if links are pinned, and all for other interfaces than these.
pub fn assign(maps: &Maps, names: &[String], pins: &PinDir) -> Result<Vec<Interface>> {
    let indices = names.iter().map(|name| index_of(name)).collect::<Result<Vec<_>>>()?;
    let pinned = pinned_links(pins)?;
    let mut alive = pinned.iter().flatten().filter(|&&index| index != 0).peekable();
    if alive.peek().is_some() && (is_elsewhere(maps) || !alive.any(|index| indices.contains(index))) {
        return Err(Error::OtherInterface { directory: pins.path().to_owned(), interface: names.join(", ") });
    }
    let wanted: Vec<_> = indices.into_iter().map(|index| Wanted { index, before: None }).collect();
    Ok(with_slots(names, &wanted, &pinned))
}

/// As [`assign`], for a gate that runs at the interfaces `before`: of these, those that have vanished keep their slots.
///
/// # Errors
///
/// [`Error::NoInterface`] for one that is new.
pub fn assign_again(before: &[Interface], names: &[String], pins: &PinDir) -> Result<Vec<Interface>> {
    let wanted = names.iter().map(|name| {
        let before = before.iter().find(|before| before.name == *name).map(|before| before.slot);
        match index_of(name) {
            Err(_) if before.is_some() => Ok(Wanted { index: 0, before }),
            index => Ok(Wanted { index: index?, before }),
        }
    });
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    Ok(with_slots(names, &wanted, &pinned_links(pins)?))
}

/// Attaches the loaded program to all these interfaces, replaces the program where there is one, and then takes it from
/// those that are no longer among them. The modes are in their order.
///
/// # Errors
///
/// [`Error::NoInterface`], [`Error::Occupied`], [`Error::Attach`], [`Error::NoPrivilege`]; then it is at no interface where it
/// was not before.
pub fn attach_all(
    loaded: &mut Loaded,
    interfaces: &[Interface],
    mode: Mode,
    pins: &PinDir,
) -> Result<Vec<AttachMode>> {
    let modes = put(loaded, interfaces, mode, pins, true)?;
    Ok(modes.into_iter().map(|mode| mode.unwrap_or(AttachMode::None)).collect())
}

/// As [`attach_all`], but leaves alone where the program is already, and what has vanished: no mode is returned of these.
///
/// # Errors
///
/// As [`attach_all`].
pub fn attach_added(
    loaded: &mut Loaded,
    interfaces: &[Interface],
    mode: Mode,
    pins: &PinDir,
) -> Result<Vec<Option<AttachMode>>> {
    put(loaded, interfaces, mode, pins, false)
}

/// Attaches to an interface that had vanished.
///
/// # Errors
///
/// As [`attach_all`].
pub fn attach_again(
    loaded: &mut Loaded,
    interface: &Interface,
    mode: Mode,
    pins: &PinDir,
) -> Result<AttachMode> {
    attach_at(loaded, &interface.name, mode, pins, interface.slot)
}

/// True if the kernel says that the loaded program is at an interface, by the link that is pinned for it. What the maps say of it
/// is what was once done: a link may be detached, or its interface removed and another one made with its index.
///
/// # Errors
///
/// The kernel's error.
pub fn is_attached(loaded: &mut Loaded, interface: &Interface, pins: &PinDir) -> Result<bool> {
    let pin = pins.link(interface.slot);
    let Some((index, _)) = loaded.maps.attached_at(interface.slot).filter(|_| pin.exists()) else {
        return Ok(false);
    };
    let program = loaded.program()?.info().map_err(|source| Error::aya("program", source))?.id();
    Ok(link::info(&pin)? == LinkInfo { interface: index, program })
}

/// The interfaces, by their indices, that maps pinned in this directory name and that the kernel says no link there is for.
#[must_use]
pub fn detached(maps: &Maps, directory: &Path) -> Vec<u32> {
    let is_detached = |&(slot, index): &(usize, u32)| {
        let pin = link_pin(directory, slot);
        // Nothing is known of a link that this process may not open.
        !pin.exists() || link::info(&pin).is_ok_and(|info| info.interface != index)
    };
    let attached = (0..Control::INTERFACES).filter_map(|slot| Some((slot, maps.attached_at(slot)?.0)));
    attached.filter(is_detached).map(|(_, index)| index).collect()
}

/// An interface that a slot is looked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// Zero if it is not there.
    index: u32,
    /// The slot that it had, by its name.
    before: Option<usize>,
}

/// The links that are pinned, by slot: an interface's index, zero if that has vanished.
type PinnedLinks = [Option<u32>; Control::INTERFACES];

fn with_slots(names: &[String], wanted: &[Wanted], pinned: &PinnedLinks) -> Vec<Interface> {
    let slots = slots(wanted, pinned);
    names.iter().zip(slots).map(|(name, slot)| Interface { name: name.clone(), slot }).collect()
}

/// The slots of interfaces: of each the one that holds its link; else, if that has vanished, the one that it had; else one
/// that is free, last those whose interfaces are given up.
fn slots(wanted: &[Wanted], pinned: &PinnedLinks) -> Vec<usize> {
    let own = |wanted: &Wanted| {
        let holds_it = |pinned: &Option<u32>| wanted.index != 0 && *pinned == Some(wanted.index);
        let before = || wanted.before.filter(|&slot| pinned[slot].is_none_or(|index| index == 0));
        pinned.iter().position(holds_it).or_else(before)
    };
    let own: Vec<_> = wanted.iter().map(own).collect();
    let mut free: Vec<usize> = (0..Control::INTERFACES).filter(|slot| !own.contains(&Some(*slot))).collect();
    free.sort_by_key(|&slot| pinned[slot].is_some_and(|index| index != 0));
    let mut free = free.into_iter();
    own.into_iter().map_while(|own| own.or_else(|| free.next())).collect()
}

/// How the slot of an interface is found, in the order in which they are dealt with: what may fail comes first, and
/// where another interface has to give way comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Free,
    Own,
    OfAnother,
    Vanished,
}

fn put(
    loaded: &mut Loaded,
    interfaces: &[Interface],
    mode: Mode,
    pins: &PinDir,
    replace: bool,
) -> Result<Vec<Option<AttachMode>>> {
    let pinned = pinned_links(pins)?;
    let found = |interface: &Interface| match (index_of(&interface.name), pinned[interface.slot]) {
        (Err(_), _) => Found::Vanished,
        (Ok(_), None | Some(0)) => Found::Free,
        (Ok(index), Some(pinned)) if index == pinned => Found::Own,
        _ => Found::OfAnother,
    };
    let mut order: Vec<_> =
        interfaces.iter().enumerate().map(|(place, interface)| (found(interface), place)).collect();
    order.sort_unstable();
    let mut modes = vec![None; interfaces.len()];
    let mut new = Vec::new();
    for (found, place) in order {
        let Interface { name, slot } = &interfaces[place];
        if !replace && matches!(found, Found::Own | Found::Vanished) {
            continue;
        }
        if found == Found::OfAnother {
            release(&loaded.maps, pins, *slot)?;
        }
        match attach_at(loaded, name, mode, pins, *slot) {
            Ok(mode) => modes[place] = Some(mode),
            Err(error) => {
                new.into_iter().for_each(|slot| take_back(&loaded.maps, pins, slot));
                return Err(error);
            }
        }
        if found != Found::Own {
            new.push(*slot);
        }
    }
    for slot in 0..Control::INTERFACES {
        if interfaces.iter().all(|interface| interface.slot != slot) {
            release(&loaded.maps, pins, slot)?;
        }
    }
    Ok(modes)
}

fn pinned_links(pins: &PinDir) -> Result<PinnedLinks> {
    let mut pinned = [None; Control::INTERFACES];
    for (slot, pinned) in pinned.iter_mut().enumerate() {
        let pin = pins.link(slot);
        if pin.exists() {
            *pinned = Some(link::info(&pin)?.interface);
        }
    }
    Ok(pinned)
}

/// Takes all programs from the interface of a slot.
fn release(maps: &Maps, pins: &PinDir, slot: usize) -> Result<()> {
    let interface = maps.attached_at(slot).map(|(index, _)| index);
    if let Err(error) = clsact::remove(&pins.measure_link(slot), &pins.measure_filter(slot), interface) {
        tracing::warn!(error = &error as &dyn std::error::Error, "the program that measures was left behind");
    }
    for pin in [pins.link(slot), pins.mark_link(slot)] {
        if !pin.exists() {
            continue;
        }
        // Where the interface is gone, so is what there was to detach.
        if let Err(error) = link::detach(&pin) {
            tracing::debug!(error = &error as &dyn std::error::Error, "the link goes with its pin");
        }
        fs::remove_file(&pin)
            .map_err(|source| Error::PinDir { directory: pins.path().to_owned(), source })?;
    }
    maps.clear_attached(slot);
    Ok(())
}

/// As [`release`], after an error that says more.
fn take_back(maps: &Maps, pins: &PinDir, slot: usize) {
    if let Err(error) = release(maps, pins, slot) {
        tracing::warn!(error = &error as &dyn std::error::Error, "a program was left at an interface");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_keeps_its_slot_while_it_is_listed() {
        const NEW: Option<usize> = None;
        let pinned = |links: &[Option<u32>]| {
            let mut pinned = [None; Control::INTERFACES];
            pinned[..links.len()].copy_from_slice(links);
            pinned
        };
        for (links, wanted, expected) in [
            (&[][..], &[(5, NEW), (6, NEW)][..], &[0, 1][..]),
            // An older gate's link is in the first slot, wherever its interface is listed.
            (&[Some(6)], &[(5, NEW), (6, NEW)], &[1, 0]),
            (&[Some(5), Some(6)], &[(6, NEW), (5, NEW)], &[1, 0]),
            (&[Some(5), Some(6)], &[(6, NEW)], &[1]),
            (&[None, Some(6)], &[(6, NEW), (7, NEW)], &[1, 0]),
            // One that is given up is taken from last.
            (&[Some(5), Some(6)], &[(6, NEW), (7, NEW)], &[1, 2]),
            // What has vanished keeps its slot by its name, and so it does when it is back under another index.
            (&[Some(5), Some(0)], &[(5, Some(0)), (0, Some(1)), (7, NEW)], &[0, 1, 2]),
            (&[Some(5), Some(0)], &[(5, Some(0)), (9, Some(1))], &[0, 1]),
            // Nobody's vanished link is as good as none.
            (&[Some(0), Some(6)], &[(6, NEW), (7, NEW)], &[1, 0]),
            // A name that went over to another interface.
            (&[Some(5), Some(6)], &[(6, Some(0))], &[1]),
        ] {
            let wanted: Vec<_> = wanted.iter().map(|&(index, before)| Wanted { index, before }).collect();
            assert_eq!(slots(&wanted, &pinned(links)), expected, "{links:?} {wanted:?}");
        }
    }

    #[test]
    fn where_every_slot_is_taken_those_that_are_given_up_are_used() {
        let pinned = [1, 2, 3, 4, 5, 6, 7, 8].map(Some);
        let wanted = [1, 2, 3, 4, 5, 6, 9, 10].map(|index| Wanted { index, before: None });
        assert_eq!(slots(&wanted, &pinned), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
