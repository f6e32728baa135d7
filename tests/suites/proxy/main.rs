//! Proxied services before real stores: what clients get, and what one client's behaviour costs another.

mod buckets;
mod clients;
mod faults;
mod host_names;
mod hot;
mod identity;
mod isolation;
mod large;
mod libraries;
mod memcached;
mod modes;
mod overload;
mod own_keys;
mod parts;
mod prices;
mod proxy_protocol;
mod query_types;
mod queue;
mod read_prices;
mod removed_users;
mod request_limits;
mod resp;
mod store_login;
mod store_state;
mod study;
mod udp;
