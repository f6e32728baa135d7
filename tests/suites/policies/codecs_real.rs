//! The codecs before real servers: what a server answers directly, and what it answers to what the codec
//! makes of the same bytes, is the same.

mod bounds;
mod commands;
mod memcached;
mod redis;
mod touched;
