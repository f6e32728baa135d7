//! `gate run` as a process: its start and its end, its takeovers, its admin socket, its tick under load, and the lab.

mod admin;
mod closed_loop;
mod cpus;
mod hot_restart;
mod interfaces;
mod lab;
mod lifecycle;
mod net;
mod survival;
mod unprivileged_lab;
mod upgrade;
