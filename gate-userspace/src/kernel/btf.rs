//! Where a member lies in one of the kernel's own structures, from its description of its types (BTF).

use std::fs;
use std::sync::OnceLock;

/// Where a request for a connection has the number that it was answered with, in bytes; zero if the kernel does not say.
pub(super) fn snt_isn() -> &'static u32 {
    static OFFSET: OnceLock<u32> = OnceLock::new();
    OFFSET.get_or_init(|| {
        let btf = fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
        find(&btf, "tcp_request_sock", "snt_isn").unwrap_or(0)
    })
}

/// The offset of `member` in `structure`, in bytes, by a description as `linux/btf.h` lays it out; `None` if it is not in there.
fn find(btf: &[u8], structure: &str, member: &str) -> Option<u32> {
    if word(btf, 0)? & 0xffff != MAGIC {
        return None;
    }
    let header_len = word(btf, 4)? as usize;
    let types = header_len + word(btf, 8)? as usize;
    let end = types + word(btf, 12)? as usize;
    let strings = header_len + word(btf, 16)? as usize;
    let is_named = |name: u32, expected: &str| {
        let text = btf.get(strings + name as usize..).unwrap_or_default();
        text.strip_prefix(expected.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let mut at = types;
    while at < end {
        let name = word(btf, at)?;
        let info = word(btf, at + 4)?;
        let kind = info >> 24 & 0x1f;
        let len = (info & 0xffff) as usize;
        at += 12;
        if kind == STRUCT && is_named(name, structure) {
            let mut members = (0..len).map(|place| at + 12 * place);
            let found = members.find(|&at| word(btf, at).is_some_and(|name| is_named(name, member)))?;
            let offset = word(btf, found + 8)?;
            // Where members have a size in bits, it is in the upper byte.
            let bits = if info >> 31 == 0 { offset } else { offset & 0x00ff_ffff };
            return Some(bits / 8).filter(|_| bits.is_multiple_of(8));
        }
        at += match kind {
            INT | VAR | DECL_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | DATASEC | ENUM64 => 12 * len,
            ENUM | FUNC_PROTO => 8 * len,
            _ => 0,
        };
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const MAGIC: u32 = 0xeb9f;
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const ENUM64: u32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_behind_types_of_every_size() {
        let strings = b"\0pair\0first\0second\0";
        let types: &[u32] = &[
            // An integer, an array, a structure of another name, the structure.
            0,
            INT << 24,
            4,
            32, //
            0,
            ARRAY << 24,
            0,
            1,
            1,
            2, //
            6,
            STRUCT << 24 | 1,
            4,
            12,
            1,
            0, //
            1,
            STRUCT << 24 | 2,
            8,
            6,
            1,
            0,
            12,
            1,
            32,
        ];
        let header =
            [MAGIC | 1 << 16, 24, 0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
        let words = header.iter().chain(types).flat_map(|word| word.to_ne_bytes());
        let btf: Vec<u8> = words.chain(*strings).collect();
        assert_eq!(find(&btf, "pair", "second"), Some(4));
        assert_eq!(find(&btf, "pair", "first"), Some(0));
        assert_eq!(find(&btf, "pair", "third"), None);
        assert_eq!(find(&btf, "pai", "second"), None);
        assert!((0..btf.len()).all(|len| find(&btf[..len], "pair", "third").is_none()));
        assert_eq!(find(b"", "pair", "second"), None);
    }
}
