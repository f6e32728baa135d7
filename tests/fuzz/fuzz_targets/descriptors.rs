#![no_main]

#[path = "../limit_checks.rs"]
#[allow(dead_code, reason = "each target takes one of its checks")]
mod limit_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| limit_checks::descriptors(data));
