//! `gate run` as a process: its start and its end, its takeovers, its admin socket, its tick under load, the
//! documented example, measurements that mislead, and the lab.

mod admin;
mod admin_explain;
mod admin_hostile;
mod admin_http;
mod admin_port;
mod browser;
mod closed_loop;
mod cpus;
mod example;
mod fleet_lab;
mod hot_restart;
mod intercept;
mod intercept_lifecycle;
mod intercept_outages;
mod intercept_seen;
mod interfaces;
mod lab;
mod lifecycle;
mod listing;
mod metrics;
mod misleading;
mod net;
mod package;
mod page;
mod recipes;
mod service_manager;
mod sources;
mod story;
mod survival;
mod tenants;
mod terminal;
mod top;
mod trace;
mod unprivileged_lab;
mod upgrade;
