//! Handles in ascending order, as distances: most fit in one byte.

/// Handles as distances.
pub(crate) fn pack(handles: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut last = 0;
    handles.into_iter().map(|handle| handle - std::mem::replace(&mut last, handle)).collect()
}

/// Distances as handles; `None` in place of all from the first that does not ascend or is too large.
pub(crate) fn unpack(distances: &[u32]) -> impl Iterator<Item = Option<u32>> {
    let mut last = None;
    distances.iter().map(move |&distance| {
        let handle = match last {
            None => Some(distance),
            Some(Some(last)) if distance > 0 => u32::checked_add(last, distance),
            Some(_) => None,
        };
        last = Some(handle);
        handle
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles_that_do_not_ascend_are_none() {
        for (distances, handles) in [
            (vec![0, 1, 5], vec![Some(0), Some(1), Some(6)]),
            (vec![7, 0, 1], vec![Some(7), None, None]),
            (vec![1, u32::MAX, 1], vec![Some(1), None, None]),
        ] {
            assert_eq!(unpack(&distances).collect::<Vec<_>>(), handles, "{distances:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(handles in prop::collection::btree_set(any::<u32>(), 0..50)) {
            let handles: Vec<u32> = handles.into_iter().collect();
            let unpacked: Vec<_> = unpack(&pack(handles.iter().copied())).collect();
            prop_assert_eq!(unpacked, handles.into_iter().map(Some).collect::<Vec<_>>());
        }
    }
}
