//! The eBPF objects inside this binary: the program, its variant that traces, and that of interception.

/// The object that was embedded when this binary was built, aligned as an ELF reader needs it.
///
/// `None` if there was none then: a plain `cargo build` needs no eBPF toolchain (`build.rs` says where it
/// looks).
#[must_use]
pub fn embedded() -> Option<&'static [u8]> {
    #[cfg(gate_ebpf_object)]
    let object: Option<&'static [u8]> = Some(aya::include_bytes_aligned!(env!("GATE_EBPF_EMBEDDED")));
    #[cfg(not(gate_ebpf_object))]
    let object = None;
    object
}

/// As [`embedded`], the variant that says each step of one source's packets.
#[must_use]
pub fn tracing() -> Option<&'static [u8]> {
    #[cfg(gate_ebpf_trace_object)]
    let object: Option<&'static [u8]> = Some(aya::include_bytes_aligned!(env!("GATE_EBPF_TRACE_EMBEDDED")));
    #[cfg(not(gate_ebpf_trace_object))]
    let object = None;
    object
}

/// As [`embedded`], the program that gives a store's new connections to gate.
#[must_use]
pub fn intercepting() -> Option<&'static [u8]> {
    #[cfg(gate_ebpf_intercept_object)]
    let object: Option<&'static [u8]> =
        Some(aya::include_bytes_aligned!(env!("GATE_EBPF_INTERCEPT_EMBEDDED")));
    #[cfg(not(gate_ebpf_intercept_object))]
    let object = None;
    object
}
