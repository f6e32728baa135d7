//! Tests in virtual time or without gate: the policies in the simulator, the codecs, the embedded store.

mod bouncer;
mod codecs_fuzz;
mod codecs_real;
mod embedded_store;
mod load_generator;
mod placement;
mod simulations;
