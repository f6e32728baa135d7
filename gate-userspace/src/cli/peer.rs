//! `gate peer`: what the other end of a veth needs before a gate's replies can reach it.

use std::process::ExitCode;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};

use crate::kernel::Peer;

/// Let the other end of a veth receive a gate's replies, until ended.
///
/// A veth takes packets that XDP sends only if it has an XDP program of its own. Run this where the clients
/// are (in the container, say): it attaches one that passes everything. A real network card needs none.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The interface at the clients' end.
    #[arg(long)]
    interface: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGTERM);
    ends.thread_block().context("cannot wait for signals")?;
    let _peer = Peer::attach(&args.interface)?;
    println!("everything passes {}; Ctrl-C ends this", args.interface);
    ends.wait().context("cannot wait for signals")?;
    Ok(ExitCode::SUCCESS)
}
