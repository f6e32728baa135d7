//! The generator: the kernel sends one frame over and over.
//!
//! The sending and the receiving thread run in turn on one CPU, in bursts that fit the veth's queue. So neither waits for
//! the other's locks or cache lines, and the receiver is measured at its own speed however slow the generator is.
//!
//! Live frames of a test run lie in pages of the generator's pool, to which the receiver would have to return them. So the
//! frame goes to two interfaces: the receiver gets a copy in a page of no pool, and the frame itself ends at a pair beside.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use aya::maps::xdp::DevMap;
use aya::maps::{Array, MapData};
use aya::programs::xdp::XdpMode;
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use gate_tests::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE};
use nix::net::if_::if_nametoindex;
use nix::unistd::gettid;

use crate::contender::{BLOCKS, SOURCES};
use crate::receiver::{CPU, pin_thread};

/// The program that sends, and what it is told.
pub(crate) struct Flood {
    ebpf: Ebpf,
    flood_map: Array<MapData, [u32; 2]>,
    flooded: DevMap<MapData>,
    /// Where the frames end of which the receiver gets copies.
    _other_net: Net,
}

impl Flood {
    pub(crate) fn load() -> Result<Self> {
        let mut ebpf = bench_object()?;
        let other_net = Net::open()?;
        for name in [PROGRAM, END] {
            let program: &mut Xdp = ebpf.program_mut(name).context("no program")?.try_into()?;
            program.load()?;
        }
        let end: &mut Xdp = ebpf.program_mut(END).context("no program")?.try_into()?;
        other_net.server.enter(|| end.attach(SERVER_INTERFACE, XdpMode::Driver))??;
        let flood_map = ebpf.take_map("FLOOD").context("no FLOOD")?.try_into()?;
        let mut flooded: DevMap<_> = ebpf.take_map("FLOODED").context("no FLOODED")?.try_into()?;
        set_interface(&mut flooded, LAST, &other_net)?;
        Ok(Self { ebpf, flood_map, flooded, _other_net: other_net })
    }

    /// Sends `frame` from so many sources, from the client's end, while `work` is done.
    pub(crate) fn during<T>(
        &mut self,
        net: &Net,
        frame: &[u8],
        sources: u32,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let program: &Xdp = self.ebpf.program(PROGRAM).context("no program")?.try_into()?;
        self.flood_map.set(0, [sources, 0], 0)?;
        set_interface(&mut self.flooded, FIRST, net)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                net.client.enter(|| {
                    pin_thread(gettid(), CPU)?;
                    while !stop.load(Ordering::Relaxed) {
                        let attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
                        let options = TestRunOptions {
                            data_in: Some(frame),
                            repeat: REPEAT,
                            attrs,
                            ..TestRunOptions::default()
                        };
                        program.test_run(options)?;
                    }
                    Ok(())
                })
            });
            let done = work();
            stop.store(true, Ordering::Relaxed);
            let sent: Result<()> =
                sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).flatten();
            sent.context("sending the flood")?;
            done
        })
    }
}

/// Sends what goes to this `place` by the client's end of a pair.
fn set_interface(flooded: &mut DevMap<MapData>, place: u32, net: &Net) -> Result<()> {
    net.client.enter(|| Ok(flooded.set(place, if_nametoindex(CLIENT_INTERFACE)?, None, 0)?))?
}

/// The programs that are there for benchmarks alone, with room for the contenders' sources.
pub(crate) fn bench_object() -> Result<Ebpf> {
    let object = xtask::paths::bench_object();
    let bytes = std::fs::read(&object)
        .with_context(|| format!("{}: run `cargo xtask bench veth`", object.display()))?;
    let mut loader = EbpfLoader::new();
    for map in ["LEAN_BUCKETS", "LEAN_COUNTS"] {
        loader.map_max_entries(map, SOURCES + 1);
    }
    Ok(loader.map_max_entries("TABLE", BLOCKS).load(&bytes)?)
}

const PROGRAM: &str = "flood";
/// The program at the end of the pair beside.
const END: &str = "bare_drop";
/// Places of interfaces. Copies go to the first.
const FIRST: u32 = 0;
const LAST: u32 = 1;
/// Frames in one go: fewer than the queue of a veth holds.
const BATCH: u32 = 192;
/// Frames in one system call: some milliseconds.
const REPEAT: u32 = 64 * BATCH;
