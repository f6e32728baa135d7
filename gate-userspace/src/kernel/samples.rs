//! The ring buffer of key samples.

use aya::maps::{MapData, RingBuf};
use gate_common::abi::{Sample, SampleHead};

use super::error::{Error, Result};
use super::mapped::read_words;

/// Reads what XDP sampled. Only one reader at a time.
pub struct Samples(RingBuf<MapData>);

impl Samples {
    pub(super) fn new(map: aya::maps::Map) -> Result<Self> {
        RingBuf::try_from(map).map(Self).map_err(|source| Error::aya("SAMPLES", source))
    }

    /// Hands every waiting sample to `each`, at most `most`; returns how many there were. Those of refusals have an empty key.
    pub fn drain(&mut self, most: usize, mut each: impl FnMut(&Sample)) -> usize {
        let mut drained = 0;
        while drained < most {
            let Some(item) = self.0.next() else { break };
            let refusal = |head| Sample { head, key: [0; Sample::MAX_KEY] };
            let sample = read_words::<Sample>(&item).or_else(|| read_words::<SampleHead>(&item).map(refusal));
            sample.iter().for_each(&mut each);
            drained += 1;
        }
        drained
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Samples")
    }
}
