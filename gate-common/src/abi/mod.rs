//! The layout of the eBPF maps.
