//! Clients of one service are isolated from each other, and gate's reply to each is true.
//!
//! Each module is about one kind of behaviour, with real stores wherever they can show it. `cargo xtask
//! test isolation <module>` runs one of them.

mod backpressure;
mod behaviours;
mod client_memory;
mod connections;
mod dedicated;
mod delayed_flush;
mod draining;
mod hung_store;
mod lines;
mod own_stats;
mod passwords;
mod permits;
mod refusal_pace;
mod refusals;
mod reload;
mod replicas;
mod scripts;
mod shared_limits;
mod slow_requests;
mod slow_writers;
mod stopped_store;
mod transactions;
mod turns;
mod udp_answers;
