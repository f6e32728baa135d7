//! The eBPF object in the kernel.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use gate_common::abi::{self, Pending, maps};
use ipnet::IpNet;

use super::arrays;
use super::error::{Error, Result};
use super::mapped::Mapped;
use super::maps::Maps;
use super::pins::PinDir;
use super::samples::Samples;
use super::sizes::Sizes;
use super::trace::Trace;
use super::{btf, object, requirements};
use crate::clock;

/// The object in the kernel: its programs loaded, its maps made or taken over.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    /// The maps.
    pub maps: Arc<Maps>,
    /// The ring buffer.
    pub samples: Samples,
    /// The steps of one source's packets, if the program is the variant that traces.
    pub trace: Option<Trace>,
}

impl Loaded {
    /// Loads the embedded object with maps of these sizes, pinned in `pins` if given.
    ///
    /// Maps that are pinned there already are taken over as they are; whoever calls has compared them
    /// ([`Maps::pinned`]).
    ///
    /// # Errors
    ///
    /// [`Error::NoObject`], [`Error::KernelLacks`], [`Error::NoPrivilege`], or what the kernel says.
    pub fn new(sizes: &Sizes, pins: Option<&PinDir>) -> Result<Self> {
        Self::load(EbpfLoader::new(), object::embedded(), sizes, pins)
    }

    /// As [`Loaded::new`], the variant of the program that says each step of the packets of these sources.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tracing(sizes: &Sizes, pins: Option<&PinDir>, sources: IpNet) -> Result<Self> {
        let mut this = Self::load(EbpfLoader::new(), object::tracing(), sizes, pins)?;
        this.trace = Some(Trace::new(&mut this.ebpf, sources)?);
        Ok(this)
    }

    /// As [`Loaded::new`], unpinned, with a program that tries no compare-and-swap more than `attempts` times.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_attempts(sizes: &Sizes, attempts: NonZeroU32) -> Result<Self> {
        let attempts = attempts.get();
        let mut loader = EbpfLoader::new();
        loader.override_global(abi::ATTEMPTS, &attempts, true);
        Self::load(loader, object::embedded(), sizes, None)
    }

    fn load(
        loader: EbpfLoader<'_>,
        object: Option<&[u8]>,
        sizes: &Sizes,
        pins: Option<&PinDir>,
    ) -> Result<Self> {
        // Lives longer than the loader, which borrows it.
        let keys = [0; Pending::KEYS].map(|_: u64| clock::entropy());
        let mut loader = loader;
        let object = object.ok_or(Error::NoObject)?;
        requirements::check()?;
        for name in maps::ALL {
            if let Some(entries) = sizes.entries(name) {
                loader.map_max_entries(name, entries);
            }
            if let Some(pins) = pins {
                loader.map_pin_path(name, pins.map(name));
            }
        }
        loader.override_global(abi::SNT_ISN, btf::snt_isn(), true);
        loader.override_global(abi::PENDING_KEYS, &keys[..], true);
        let mut ebpf = loader.load(object).map_err(|source| Error::aya("eBPF object", source))?;
        for name in [abi::PROGRAM, abi::CLOCK_PROGRAM] {
            xdp(&mut ebpf, name)?.load().map_err(|source| Error::load(name, source))?;
        }
        let maps = Arc::new(Maps::of(&ebpf)?);
        maps.set_cpu_rows(sizes.cpu_rows);
        let ring = ebpf.take_map(maps::SAMPLES);
        let samples =
            Samples::new(ring.ok_or_else(|| Error::ObjectLacks { what: maps::SAMPLES.to_owned() })?)?;
        Ok(Self { ebpf, maps, samples, trace: None })
    }

    /// The program that judges packets.
    pub(super) fn program(&mut self) -> Result<&mut Xdp> {
        xdp(&mut self.ebpf, abi::PROGRAM)
    }

    /// The program that marks what was charged; not loaded yet.
    pub(super) fn mark_program(&mut self) -> Result<&mut SchedClassifier> {
        self.classifier(abi::MARK_PROGRAM)
    }

    /// The program that measures answers; not loaded yet.
    pub(super) fn measure_program(&mut self) -> Result<&mut SchedClassifier> {
        self.classifier(abi::MEASURE_PROGRAM)
    }

    fn classifier(&mut self, name: &'static str) -> Result<&mut SchedClassifier> {
        let lacks = || Error::ObjectLacks { what: name.to_owned() };
        let program = self.ebpf.program_mut(name).ok_or_else(lacks)?;
        program.try_into().map_err(|source| Error::aya(name, source))
    }

    /// Runs the program `repeat` times on a packet, in the kernel, without an interface.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EINVAL` for packets under 14 bytes.
    pub fn run(&self, packet: &[u8], repeat: u32) -> Result<Run> {
        self.runner()?.run(packet, repeat)
    }

    /// The program alone, for other threads to run.
    ///
    /// # Errors
    ///
    /// [`Error::ObjectLacks`].
    pub fn runner(&self) -> Result<Runner<'_>> {
        let name = abi::PROGRAM;
        let program = self.ebpf.program(name).ok_or_else(|| Error::ObjectLacks { what: name.to_owned() })?;
        program.try_into().map(Runner).map_err(|source| Error::aya(name, source))
    }

    /// How many instructions the verifier walked to accept the program.
    ///
    /// # Errors
    ///
    /// The kernel's error; or that the kernel does not report the number (before Linux 5.16).
    pub fn verified_instructions(&mut self) -> Result<u32> {
        let info = self.program()?.info().map_err(|source| Error::aya("program info", source))?;
        info.verified_instruction_count()
            .ok_or_else(|| Error::ObjectLacks { what: "verifier's count".to_owned() })
    }

    /// Runs the program that reads the kernel's clocks: jiffies and `ktime_get_ns`.
    pub(super) fn read_clocks(&mut self, reading: &Mapped<[u64; 2]>) -> Result<(u64, u64)> {
        let options = TestRunOptions { data_in: Some(&[0; 64]), ..TestRunOptions::default() };
        let program = xdp(&mut self.ebpf, abi::CLOCK_PROGRAM)?;
        program.test_run(options).map_err(|source| Error::aya(abi::CLOCK_PROGRAM, source))?;
        let [jiffies, ktime] = reading.load(0);
        Ok((jiffies, ktime))
    }

    /// Where [`Loaded::read_clocks`] finds its reading.
    pub(super) fn clock_reading(&self) -> Result<Mapped<[u64; 2]>> {
        arrays::of_object(&self.ebpf, maps::CLOCK)
    }
}

/// The program that judges packets, to be run on some.
#[derive(Clone, Copy, Debug)]
pub struct Runner<'a>(&'a Xdp);

impl Runner<'_> {
    /// As [`Loaded::run`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn run(&self, packet: &[u8], repeat: u32) -> Result<Run> {
        self.run_with(packet, None, repeat)
    }

    /// As [`Loaded::run`], once, on a packet before which `used` bytes of the headroom are taken (by what the
    /// kernel calls metadata): as from a driver that leaves less of it.
    ///
    /// # Errors
    ///
    /// As there; `EINVAL` unless `used` is a multiple of 4 below 256.
    pub fn run_with_headroom_used(&self, packet: &[u8], used: u8) -> Result<Run> {
        self.run_from(packet, used, 0)
    }

    /// As [`Loaded::run`], once, on a packet that came in by this interface of this thread's network namespace, from a
    /// driver that has no metadata.
    ///
    /// # Errors
    ///
    /// As there; `ENODEV` or `EINVAL` without such an interface.
    pub fn run_without_metadata(&self, packet: &[u8], interface: u32) -> Result<Run> {
        // Of 256 bytes the kernel needs 40 (`struct xdp_frame`): with these there is no room for another word.
        self.run_from(packet, 216, interface)
    }

    fn run_from(&self, packet: &[u8], used: u8, interface: u32) -> Result<Run> {
        let whole = [&vec![0; usize::from(used)], packet].concat();
        // `struct xdp_md`: where the packet starts, where it ends, and after a field the interface; the rest is not
        // for the caller to say.
        let context = [u32::from(used), whole.len() as u32, 0, interface, 0, 0].map(u32::to_ne_bytes);
        let mut run = self.run_with(&whole, Some(context.as_flattened()), 1)?;
        run.packet.drain(..usize::from(used));
        Ok(run)
    }

    /// As [`Loaded::run`], once, on a packet of which the first `linear` bytes lie in the linear part and the rest in
    /// other buffers: as from a driver that splits headers off.
    ///
    /// # Errors
    ///
    /// As there; `EINVAL` if the linear part is under 14 bytes.
    pub fn run_in_buffers(&self, packet: &[u8], linear: usize) -> Result<Run> {
        let context = [0, linear as u32, 0, 0, 0, 0].map(u32::to_ne_bytes);
        self.run_with(packet, Some(context.as_flattened()), 1)
    }

    fn run_with(&self, packet: &[u8], context: Option<&[u8]>, repeat: u32) -> Result<Run> {
        let mut out = vec![0; packet.len() + ROOM_TO_GROW];
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ctx_in: context,
            repeat,
            ..TestRunOptions::default()
        };
        let result = self.0.test_run(options).map_err(|source| Error::aya("test run", source))?;
        out.truncate(result.data_size_out as usize);
        Ok(Run { action: result.return_value, packet: out, mean: result.duration })
    }
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// An XDP action: 1 is drop, 2 pass, 3 transmit.
    pub action: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// The kernel's mean time for one run.
    pub mean: Duration,
}

pub(super) fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = ebpf.program_mut(name).ok_or_else(|| Error::ObjectLacks { what: name.to_owned() })?;
    program.try_into().map_err(|source| Error::aya(name, source))
}

/// A reply may be longer than its request.
const ROOM_TO_GROW: usize = 256;
