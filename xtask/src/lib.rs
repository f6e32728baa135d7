//! gate's automation: set-up, the eBPF build, the lab, tests and benchmarks.
//!
//! A library beside the `cargo xtask` command, so that the tests use the same namespaces as the lab.
//! Few dependencies: it is the first thing that anyone compiles.

pub mod bench;
mod calls;
mod compat;
pub mod ebpf;
pub mod isolation;
pub mod kernels;
pub mod lab;
pub mod package;
pub mod paths;
pub mod run;
pub mod setup;
pub mod sh;
pub mod study;
pub mod test;
