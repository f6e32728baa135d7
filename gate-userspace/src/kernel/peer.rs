//! The program at a veth's other end.
//!
//! A veth takes what XDP sends (`XDP_TX`) only if its own end has an XDP program in native mode; without
//! one the packets are lost without a word. One that passes everything is enough.

use aya::EbpfLoader;
use aya::programs::xdp::XdpLink;
use gate_common::abi::{PASS_PROGRAM, maps};

use super::attach::{Mode, attach_new, index_of};
use super::error::{Error, Result};
use super::load::xdp;
use super::sizes::Sizes;
use super::{object, requirements};

/// The pass program at an interface; detached when dropped, or when the process ends.
#[derive(Debug)]
pub struct Peer {
    _link: XdpLink,
}

impl Peer {
    /// Loads the program and attaches it in native mode.
    ///
    /// # Errors
    ///
    /// [`Error::NoObject`], [`Error::KernelLacks`], [`Error::NoPrivilege`], [`Error::NoInterface`], [`Error::Occupied`],
    /// [`Error::Attach`].
    pub fn attach(interface: &str) -> Result<Self> {
        let index = index_of(interface)?;
        let mut loader = EbpfLoader::new();
        // The object's maps come with it, as small as they may be, and go again: the program uses none.
        for name in maps::ALL {
            if let Some(entries) = SMALLEST.entries(name) {
                loader.map_max_entries(name, entries);
            }
        }
        let object = object::embedded().ok_or(Error::NoObject)?;
        requirements::check()?;
        let mut ebpf = loader.load(object).map_err(|source| Error::aya("eBPF object", source))?;
        let program = xdp(&mut ebpf, PASS_PROGRAM)?;
        program.load().map_err(|source| Error::aya(PASS_PROGRAM, source))?;
        let (link, _) = attach_new(program, index, interface, Mode::Native)?;
        Ok(Self { _link: link })
    }
}

const SMALLEST: Sizes =
    Sizes { cpus: 1, cpu_rows: 1, thread_rows: 0, tenants: 1, services: 1, blocks: 1, samples: 4_096 };
