//! The ring buffer of samples and measurements.

use aya::maps::{MapData, RingBuf};
use gate_common::abi::{Measured, Sample, SampleHead};

use super::error::{Error, Result};
use super::mapped::read_words;

/// An entry of the ring buffer.
#[derive(Clone, Copy, Debug)]
pub enum Received<'s> {
    /// A request; that of a refusal has an empty key.
    Request(&'s Sample),
    /// An answer that was measured.
    Answer(Measured),
}

/// Reads what the programs have sampled and measured. Only one reader at a time.
pub struct Samples(RingBuf<MapData>);

impl Samples {
    pub(super) fn new(map: aya::maps::Map) -> Result<Self> {
        RingBuf::try_from(map).map(Self).map_err(|source| Error::aya("SAMPLES", source))
    }

    /// As [`Samples::drain`], of requests alone; answers are dropped.
    pub fn drain_requests(&mut self, most: usize, mut each: impl FnMut(&Sample)) -> usize {
        self.drain(most, |received| match received {
            Received::Request(sample) => each(sample),
            Received::Answer(_) => {}
        })
    }

    /// Hands every waiting entry to `each`, at most `most`; returns how many there were.
    pub fn drain(&mut self, most: usize, mut each: impl FnMut(Received<'_>)) -> usize {
        let mut drained = 0;
        while drained < most {
            let Some(item) = self.0.next() else { break };
            let refusal = |head| Sample { head, key: [0; Sample::MAX_KEY] };
            let sample = read_words::<Sample>(&item).or_else(|| read_words::<SampleHead>(&item).map(refusal));
            match &sample {
                Some(sample) => each(Received::Request(sample)),
                None => read_words(&item).into_iter().for_each(|answer| each(Received::Answer(answer))),
            }
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
