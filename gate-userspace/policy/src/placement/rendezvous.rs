//! Rendezvous hashing: each node has a score for a key, and the highest has the key.

use super::Node;

/// The nodes, each by the hash of its name.
#[derive(Clone, Debug)]
pub(super) struct Rendezvous(Box<[Candidate]>);

#[derive(Clone, Copy, Debug)]
struct Candidate {
    hash: u64,
    weight: f64,
}

impl Rendezvous {
    pub(super) fn new(nodes: &[Node]) -> Self {
        let candidate = |node: &Node| Candidate {
            hash: mixed(fnv1a(node.name.as_bytes())),
            weight: f64::from(node.weight),
        };
        Self(nodes.iter().map(candidate).collect())
    }

    /// The first of the nodes with the highest score.
    #[inline]
    pub(super) fn node(&self, key: &[u8]) -> usize {
        let key = fnv1a(key);
        let mut best = (f64::NEG_INFINITY, 0);
        for (place, candidate) in self.0.iter().enumerate() {
            let score = candidate.score(key);
            if score > best.0 {
                best = (score, place);
            }
        }
        best.1
    }
}

impl Candidate {
    /// `-weight / ln(u)`, where u is uniform in (0, 1): the highest of all is a node's with a probability in proportion to its weight.
    #[inline]
    fn score(self, key: u64) -> f64 {
        let uniform = ((mixed(key ^ self.hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -self.weight / ln(uniform)
    }
}

/// The natural logarithm of a normal number, by operations that IEEE 754 rounds alike everywhere: a library's differs by machine,
/// and two gates have to agree.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & MANTISSA | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln(m) = 2 atanh((m - 1) / (m + 1)), whose series ends below the last bit.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..TERMS).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The last steps of `MurmurHash3`: every bit of the input changes half of the output's.
const fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// s is at most 0.172, so that the next term is below 2^-53.
const TERMS: i32 = 11;

#[cfg(test)]
mod tests {
    use super::ln;

    #[test]
    fn the_logarithm_is_the_systems_to_a_few_last_bits() {
        let mut x = f64::EPSILON / 4.0;
        while x < 1.0 {
            let own = ln(x);
            let system = x.ln();
            assert!((own - system).abs() <= 8.0 * f64::EPSILON * system.abs(), "{x}: {own} {system}");
            x *= 1.003;
        }
    }
}
