//! HTTP services: HTTP/1.1 and HTTP/2 from clients and to the store, and the admission of every other protocol between.
//!
//! hyper reads and writes the messages. What a request means to the store is written anew from what hyper has understood,
//! so that no bytes of a client's framing reach the store. gate decides what hyper leaves open.
//!
//! ```text
//! connection ──► head: may it pass, whose is it ──► charge, admit, permit or queue ──► store ──► answer
//!  front.rs       head.rs, identity.rs                admitted.rs, forward.rs           store.rs   forward.rs
//! ```
//!
//! - [`front`]: a client's connection, from its slot to its end. [`connection`]: its state. [`meter`]: what passes its socket. [`unread`]: what its client has not taken.
//! - [`exchange`]: every step of a request. Start here. [`admitted`]: the steps before the queue.
//! - [`cached`]: the cache, where there is one. [`forward`]: from there to the head of the store's answer.
//! - [`processed`]: originals that are downloaded and processed, each once. [`blobs`]: where the processor fetches them.
//!   [`upstreams`]: connections to origins and to the processor.
//! - [`websocket`]: requests to go on as a WebSocket, and what passes then. [`websocket_state`]: what ends one.
//! - [`explain`]: what the next request would get. [`head`]: what heads may say, and what is passed on of them. [`identity`]: the address and the tenant of a request.
//!   [`claims`]: fields that would say otherwise.
//! - [`pace`]: how fast requests are taken that are refused. [`call`]: a request that has been charged. [`under_way`]: what it holds until it is done.
//! - [`client_body`]: the body of a request, and what becomes of a part that nobody reads. [`request_body`], [`reply_body`]: bodies as they pass, charged and timed; they are never gathered.
//! - [`store`]: connections to the store. [`sender`]: either version that they speak. [`answer`]: gate's own answers.
//! - [`access_line`]: the line of a request in the access log.
//! - [`service`]: one service in one thread. [`upkeep`]: its periodic work.
//!
//! **Invariants.** Only what has a permit is sent to the store. A connection of the store carries one request at a time, and is
//! used again only after a complete answer; by HTTP/2 it carries one tenant's. Whatever a request holds is given back when its last part is dropped, however
//! it ends.

mod access_line;
mod admitted;
mod answer;
pub(super) mod blobs;
mod cached;
mod call;
mod claims;
mod client_body;
mod connection;
mod exchange;
mod explain;
mod forward;
mod front;
mod head;
mod identity;
mod meter;
mod pace;
mod processed;
mod reply_body;
mod request_body;
mod sender;
pub(super) mod service;
mod store;
mod under_way;
mod unread;
pub(super) mod upkeep;
mod upstreams;
mod websocket;
mod websocket_state;
