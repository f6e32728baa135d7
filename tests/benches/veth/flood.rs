//! The generator: the kernel sends one frame over and over.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use aya::maps::{Array, MapData};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use gate_tests::net::{CLIENT_INTERFACE, Net};
use nix::net::if_::if_nametoindex;
use nix::unistd::gettid;

use crate::receiver::{SENDING_CPU, pin_thread};

/// The program that sends, and what it is told.
pub(crate) struct Flood {
    ebpf: Ebpf,
    flood_map: Array<MapData, [u32; 3]>,
}

impl Flood {
    pub(crate) fn load() -> Result<Self> {
        let mut ebpf = bench_object()?;
        let program: &mut Xdp = ebpf.program_mut(PROGRAM).context("no program")?.try_into()?;
        program.load()?;
        let flood_map = ebpf.take_map("FLOOD").context("no FLOOD")?.try_into()?;
        Ok(Self { ebpf, flood_map })
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
        let interface = net.client.enter(|| if_nametoindex(CLIENT_INTERFACE))??;
        self.flood_map.set(0, [interface, sources, 0], 0)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                net.client.enter(|| {
                    pin_thread(gettid(), SENDING_CPU)?;
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

/// The programs that are there for benchmarks alone.
pub(crate) fn bench_object() -> Result<Ebpf> {
    let object = xtask::paths::bench_object();
    let bytes = std::fs::read(&object)
        .with_context(|| format!("{}: run `cargo xtask bench veth`", object.display()))?;
    Ok(EbpfLoader::new().load(&bytes)?)
}

const PROGRAM: &str = "flood";
/// Frames in one go: as many as the kernel takes at once.
const BATCH: u32 = 64;
/// Frames in one system call: some tens of milliseconds.
const REPEAT: u32 = 1 << 16;
