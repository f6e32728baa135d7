//! Eight bytes at a time. The first byte in memory is the lowest of the word (little endian).
//!
//! A mask has the highest bit of each selected byte set, and no other bit.

/// Every byte's highest bit.
pub(crate) const HIGH: u64 = 0x8080_8080_8080_8080;
/// Every byte's lowest bit.
pub(crate) const LOW: u64 = 0x0101_0101_0101_0101;

/// A mask of the bytes equal to `byte`.
#[inline(always)]
pub(crate) fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ (LOW * byte as u64);
    !(((differs & !HIGH) + !HIGH) | differs | !HIGH)
}

/// True if any byte is below `bound`, which is at most 128.
#[inline(always)]
pub(crate) fn any_below(word: u64, bound: u8) -> bool {
    below(word, bound) != 0
}

/// Not zero if any byte is below `bound`, which is at most 128. Of several, only the first is certain.
#[inline(always)]
pub(crate) fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(LOW * bound as u64) & !word & HIGH
}

/// The number of bytes in a mask.
#[inline(always)]
pub(crate) fn count(mask: u64) -> u32 {
    ((mask >> 7).wrapping_mul(LOW) >> 56) as u32
}

/// The number of bytes before the first one of a mask, which is not empty.
#[inline(always)]
pub(crate) fn before_first(mask: u64) -> u32 {
    // The bits below the lowest one: seven of that byte, and all of the bytes before.
    count((below_first(mask) & LOW) << 7) - 1
}

/// Every bit below the first one of a mask, which is not empty. Its high bits are a mask of the bytes before.
#[inline(always)]
pub(crate) fn below_first(mask: u64) -> u64 {
    (mask & mask.wrapping_neg()) - 1
}

/// The first `count` bytes of a word, at most 8, as a number in decimal digits; `None` if they are not
/// all digits. No bytes are zero.
#[inline(always)]
pub(crate) fn decimal(word: u64, count: u32) -> Option<u32> {
    if count == 0 {
        return Some(0);
    }
    // The digits move to the end of the word, with zeros before them.
    let unused = 64 - 8 * count;
    let digits = (word << (unused & 63)) ^ ZEROS;
    let digits = if unused == 0 { digits } else { digits & (u64::MAX << (unused & 63)) };
    if (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & HIGH != 0 {
        return None;
    }
    // Pairs, then fours, then all eight.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) as u32)
}

/// Ten to the power of `exponent`, at most 8.
#[inline(always)]
pub(crate) fn power_of_ten(exponent: u32) -> u64 {
    let mut power = 1;
    for (bit, factor) in [(1, 10), (2, 100), (4, 10_000), (8, 100_000_000)] {
        if exponent & bit != 0 {
            power *= factor;
        }
    }
    power
}

/// The digit zero in every byte.
const ZEROS: u64 = LOW * b'0' as u64;
