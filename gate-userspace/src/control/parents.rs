//! The places of the tenants that are charged with another.
//!
//! Refusals are counted by place, so a name must not move: a tenant that was charged before keeps its place, however the
//! configuration orders them, and one that is new takes a place that was nobody's, while there is one. What was counted at a place
//! before is not its present tenant's: [`gate_common::abi::Tenant::refused_before`].

/// The ids in [`gate_common::abi::TenantState::parents`] for those that are `charged`, where they were `before`.
pub(super) fn places(charged: &[u32], before: [u32; 2]) -> [u32; 2] {
    let mut places = before.map(|id| if charged.contains(&id) { id } else { 0 });
    for &id in charged.iter().filter(|id| !before.contains(id)) {
        let free = |&place: &usize| places[place] == 0;
        let unused = |place: &usize| free(place) && before[*place] == 0;
        if let Some(place) = (0..2).find(unused).or_else(|| (0..2).find(free)) {
            places[place] = id;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charged_tenant_keeps_its_place() {
        for (charged, before, expected) in [
            (&[][..], [0, 0], [0, 0]),
            (&[1], [0, 0], [1, 0]),
            (&[1, 2], [0, 0], [1, 2]),
            (&[2, 1], [1, 2], [1, 2]),
            (&[2], [1, 2], [0, 2]),
            (&[2, 1], [1, 0], [1, 2]),
            (&[], [1, 2], [0, 0]),
            // A new one takes the place that was nobody's ...
            (&[2], [1, 0], [0, 2]),
            (&[2, 3], [0, 3], [2, 3]),
            // ... and where both were somebody's, that of one that has left.
            (&[3, 2], [1, 2], [3, 2]),
            (&[3, 4], [1, 2], [3, 4]),
        ] {
            assert_eq!(places(charged, before), expected, "{charged:?} after {before:?}");
        }
    }
}
