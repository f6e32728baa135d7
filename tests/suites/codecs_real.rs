//! The codecs before real servers: what a server answers directly, and what it answers to what the codec
//! makes of the same bytes, is the same.

#[path = "codecs_real/commands.rs"]
mod commands;
#[path = "codecs_real/memcached.rs"]
mod memcached;
#[path = "codecs_real/redis.rs"]
mod redis;
