#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code, reason = "each target takes one of its checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::proxy_header(data));
