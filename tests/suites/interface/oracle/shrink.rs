//! Makes a unit as simple as it can be while it still shows what it showed.

use super::spec::{Checksum, GATE_MAC, Length, Spec, Transport};

/// The simplest unit found for which `shows` still holds.
pub(crate) fn shrink(spec: Spec, mut shows: impl FnMut(&Spec) -> bool) -> Spec {
    let mut simplest = spec;
    while let Some(simpler) = candidates(&simplest).into_iter().find(&mut shows) {
        simplest = simpler;
    }
    simplest
}

/// The specs that are a step simpler, the larger steps first.
fn candidates(spec: &Spec) -> Vec<Spec> {
    let mut all: Vec<Spec> = Vec::new();
    let mut change = |change: &dyn Fn(&mut Spec)| {
        let mut simpler = spec.clone().with(|spec| change(spec));
        // What is fragmented has become shorter.
        if simpler.fragmented_len() != spec.fragmented_len() && !simpler.fragments.is_empty() {
            simpler.cut_in_two();
        }
        all.push(simpler);
    };
    change(&|spec| spec.flips.clear());
    change(&|spec| spec.fragments.clear());
    change(&|spec| spec.cut_in_two());
    change(&|spec| spec.vlans.clear());
    change(&|spec| spec.options.clear());
    change(&|spec| spec.extensions.clear());
    change(&|spec| spec.inner.clear());
    change(&|spec| spec.length = Length::Right);
    change(&|spec| spec.checksum = Checksum::Right);
    change(&|spec| spec.padding = 0);
    change(&|spec| spec.mac = GATE_MAC);
    change(&|spec| {
        if let Transport::Udp(length) = &mut spec.transport {
            *length = None;
        }
    });
    for place in 0..spec.flips.len() {
        change(&|spec| _ = spec.flips.remove(place));
    }
    for place in 0..spec.extensions.len() {
        change(&|spec| _ = spec.extensions.remove(place));
    }
    for place in 0..spec.inner.len() {
        change(&|spec| _ = spec.inner.remove(place));
    }
    for place in 0..spec.vlans.len() {
        change(&|spec| _ = spec.vlans.remove(place));
    }
    for place in 0..spec.fragments.len() {
        change(&|spec| _ = spec.fragments.remove(place));
    }
    change(&|spec| spec.payload.truncate(spec.payload.len() / 2));
    change(&|spec| {
        if let Transport::Tcp { options, .. } = &mut spec.transport {
            options.clear();
        }
    });
    all.retain(|simpler| simpler != spec);
    all
}
