//! The hashes of keys that nutcracker offers, and its hash tags.
//!
//! Several are not the functions whose names they have: `crc16` keeps 32 bits, `crc32` hands out 15, `fnv1a_64` computes in 32. Bytes
//! above 127 count as negative numbers where nutcracker's `char` has a sign, as on x86-64.

use md5::{Digest as _, Md5};

/// The hash of a key, by nutcracker's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyHash {
    /// `one_at_a_time`
    OneAtATime,
    /// `md5`, libmemcached's too
    Md5,
    /// `crc16`
    Crc16,
    /// `crc32`, of which 15 bits are used
    Crc32,
    /// `crc32a`, CRC-32 as others have it
    Crc32a,
    /// `fnv1_64`
    Fnv1Of64,
    /// `fnv1a_64`, nutcracker's default
    #[default]
    Fnv1aOf64,
    /// `fnv1_32`
    Fnv1Of32,
    /// `fnv1a_32`
    Fnv1aOf32,
    /// `murmur`
    Murmur,
}

/// The two bytes that enclose the part of a key that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashTag {
    /// The byte before it.
    pub open: u8,
    /// The byte behind it; may be the same.
    pub close: u8,
}

impl KeyHash {
    /// Every hash, with its name.
    pub const ALL: [(&'static str, Self); 10] = [
        ("one_at_a_time", Self::OneAtATime),
        ("md5", Self::Md5),
        ("crc16", Self::Crc16),
        ("crc32", Self::Crc32),
        ("crc32a", Self::Crc32a),
        ("fnv1_64", Self::Fnv1Of64),
        ("fnv1a_64", Self::Fnv1aOf64),
        ("fnv1_32", Self::Fnv1Of32),
        ("fnv1a_32", Self::Fnv1aOf32),
        ("murmur", Self::Murmur),
    ];

    /// The hash of a key. An empty key has 0.
    #[must_use]
    #[inline]
    pub fn of(self, key: &[u8]) -> u32 {
        if key.is_empty() {
            return 0;
        }
        match self {
            Self::OneAtATime => one_at_a_time(key),
            Self::Md5 => word(&Md5::digest(key), 0),
            Self::Crc16 => key
                .iter()
                .fold(0, |crc, &byte| (crc << 8) ^ u32::from(CRC16[usize::from((crc >> 8) as u8 ^ byte)])),
            Self::Crc32 => (!crc32(key) >> 16) & 0x7fff,
            Self::Crc32a => !crc32(key),
            Self::Fnv1Of64 => key.iter().fold(FNV_64_INIT, |hash, &byte| {
                hash.wrapping_mul(FNV_64_PRIME) ^ i64::from(byte.cast_signed()).cast_unsigned()
            }) as u32,
            Self::Fnv1aOf64 => fnv1a(FNV_64_INIT as u32, FNV_64_PRIME as u32, key),
            Self::Fnv1Of32 => {
                key.iter().fold(FNV_32_INIT, |hash, &byte| hash.wrapping_mul(FNV_32_PRIME) ^ signed(byte))
            }
            Self::Fnv1aOf32 => fnv1a(FNV_32_INIT, FNV_32_PRIME, key),
            Self::Murmur => murmur(key),
        }
    }
}

impl HashTag {
    /// The part of a key between the first opening byte and the next closing one; the whole key if there is none, or nothing in it.
    #[must_use]
    #[inline]
    pub fn part(self, key: &[u8]) -> &[u8] {
        let Some(open) = key.iter().position(|&byte| byte == self.open) else { return key };
        let behind = &key[open + 1..];
        match behind.iter().position(|&byte| byte == self.close) {
            None | Some(0) => key,
            Some(close) => &behind[..close],
        }
    }
}

/// One of the four words of a digest, in the order of libmemcached.
#[inline]
pub(super) fn word(digest: &[u8], index: usize) -> u32 {
    let bytes = &digest[index * 4..index * 4 + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// A byte as a `char` that has a sign.
const fn signed(byte: u8) -> u32 {
    (byte.cast_signed() as i32).cast_unsigned()
}

fn fnv1a(init: u32, prime: u32, key: &[u8]) -> u32 {
    key.iter().fold(init, |hash, &byte| (hash ^ signed(byte)).wrapping_mul(prime))
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut value = key.iter().fold(0_u32, |value, &byte| {
        let value = value.wrapping_add(signed(byte));
        let value = value.wrapping_add(value << 10);
        value ^ (value >> 6)
    });
    value = value.wrapping_add(value << 3);
    value ^= value >> 11;
    value.wrapping_add(value << 15)
}

/// MurmurHash2, with nutcracker's seed.
fn murmur(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let len = key.len() as u32;
    let mut hash = 0xdead_beef_u32.wrapping_mul(len) ^ len;
    let mut chunks = key.chunks_exact(4);
    for chunk in &mut chunks {
        let mut word = word(chunk, 0).wrapping_mul(M);
        word ^= word >> 24;
        hash = hash.wrapping_mul(M) ^ word.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |last, &byte| (last << 8) | u32::from(byte));
        hash = (hash ^ last).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// CRC-32 before its last step.
fn crc32(key: &[u8]) -> u32 {
    key.iter().fold(u32::MAX, |crc, &byte| (crc >> 8) ^ CRC32[usize::from(crc as u8 ^ byte)])
}

/// The table of CRC-16 as Redis Cluster has it (XMODEM: polynomial 0x1021, not reflected).
pub(super) const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
/// The table of CRC-32 (polynomial 0x04c11db7, reflected).
const CRC32: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0xedb8_8320 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
const FNV_64_INIT: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_64_PRIME: u64 = 0x0100_0000_01b3;
const FNV_32_INIT: u32 = 0x811c_9dc5;
const FNV_32_PRIME: u32 = 0x0100_0193;
