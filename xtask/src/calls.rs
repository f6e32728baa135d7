//! The functions that the eBPF object calls.
//!
//! The compiler may turn a copy or zeroing into a call of `memcpy` or `memset`, which work byte by byte: a packet costs more
//! than it should, and no test fails. So the build does.

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionKind};

/// Functions that no program may call. The object holds them, uncalled, from the compiler's own library.
const BANNED: [&str; 5] = ["memset", "memcpy", "memmove", "memcmp", "bcmp"];
/// The instruction `call`; with [`FUNCTION`] as its source register, it calls a function of the object.
const CALL: u8 = 0x85;
const FUNCTION: u8 = 1;
/// Bytes of an instruction.
const INSTRUCTION: u64 = 8;

/// Checks that nothing in an object calls one of [`BANNED`].
///
/// # Errors
///
/// If something does, with the callers; or if this is no object.
pub(crate) fn check(object: &[u8]) -> Result<()> {
    let callers = callers(object)?;
    if !callers.is_empty() {
        bail!("the eBPF object calls the compiler's byte loops:\n  {}", callers.join("\n  "));
    }
    Ok(())
}

/// `CALLER calls CALLED`, for each of [`BANNED`].
fn callers(object: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(object).context("no ELF object")?;
    let mut callers = Vec::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data()?;
        let symbol_at = |index, address: u64| {
            let is_there = |symbol: &object::Symbol<'_, '_>| {
                symbol.section_index() == Some(index)
                    && (symbol.address()..symbol.address() + symbol.size()).contains(&address)
            };
            file.symbols().find(is_there).and_then(|symbol| symbol.name().ok()).unwrap_or("?").to_owned()
        };
        let mut relocated = std::collections::HashMap::new();
        for (at, relocation) in section.relocations() {
            if let RelocationTarget::Symbol(index) = relocation.target() {
                relocated.insert(at, file.symbol_by_index(index)?);
            }
        }
        for at in (0..code.len() as u64).step_by(INSTRUCTION as usize) {
            let Some(&[code, registers, _, _, a, b, c, d]) =
                code.get(at as usize..(at + INSTRUCTION) as usize)
            else {
                bail!("an instruction is cut off");
            };
            if code != CALL || registers >> 4 != FUNCTION {
                continue;
            }
            let offset = i64::from(i32::from_le_bytes([a, b, c, d]));
            let target = |base: u64| base.wrapping_add_signed((offset + 1) * INSTRUCTION as i64);
            let called = match relocated.get(&at) {
                // Of a section's symbol, the instruction holds the offset.
                Some(symbol) if symbol.kind() == object::SymbolKind::Section => {
                    let index = symbol.section_index().context("a section's symbol without one")?;
                    symbol_at(index, target(0))
                }
                Some(symbol) => symbol.name()?.to_owned(),
                None => symbol_at(section.index(), target(at)),
            };
            let caller = symbol_at(section.index(), at);
            if BANNED.contains(&called.as_str()) && !BANNED.contains(&caller.as_str()) {
                callers.push(format!("{caller} calls {called}"));
            }
        }
    }
    Ok(callers)
}
