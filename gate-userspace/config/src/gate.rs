//! The section `[gate]`: what holds for all services.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use gate_common::abi::{Control, TcpAction};
use gate_common::units::{Fraction, Nanos};

use super::Gate;
use super::fault::Fault;
use super::parsers::{absolute_path, address_or_off, number, one_of, time};
use super::raw::Section;
use super::units::{self, Wrong};
use super::values::{
    AdminSocket, Algorithm, Fragments, InterfaceName, ListedInterface, Mode, OnStale, XdpMode,
};

/// The section `[gate]`.
pub(super) fn gate(mut section: Section<'_>) -> Gate {
    let s = &mut section;
    let gate = Gate {
        interfaces: interfaces(s),
        xdp: s.get("xdp", one_of(&XDP_MODES)).unwrap_or(XdpMode::Auto),
        mode: s.get("mode", one_of(&Mode::WRITTEN)).unwrap_or(Mode::Enforce),
        enforce: s.get("enforce", units::percentage).unwrap_or(Fraction::ONE),
        tick: s.get("tick", time(TICK_RANGE)).unwrap_or(Nanos::from_millis(100)),
        algorithm: s.get("algorithm", one_of(&ALGORITHMS)).unwrap_or(Algorithm::TokenBucket),
        on_stale: s.get("on_stale", one_of(&ON_STALE)).unwrap_or(OnStale::Bucket),
        stale_after: s.get("stale_after", time(STALE_RANGE)).unwrap_or(Nanos::from_secs(1)),
        sample: s.get("sample", one_in).unwrap_or(DEFAULT_SAMPLE),
        tcp_in_debt: s.get("tcp_in_debt", one_of(&TCP_ACTIONS)).unwrap_or(TcpAction::None),
        deep_debt: s.get("deep_debt", time(DEEP_RANGE)).unwrap_or(Nanos::from_secs(10)),
        fragments: s.get("fragments", one_of(&FRAGMENTS)).unwrap_or(Fragments::Judge),
        charged_mark: s.get("charged_mark", mark_bit).unwrap_or(DEFAULT_MARK),
        prefix_memory: s.get("prefix_memory", map_memory).unwrap_or(64 << 20),
        counter_memory: s.get("counter_memory", map_memory).unwrap_or(1 << 30),
        pin_dir: s.get("pin_dir", absolute_path).unwrap_or_else(|| PathBuf::from("/sys/fs/bpf/gate")),
        admin: s.get("admin", admin).unwrap_or(AdminSocket::Default),
        admin_read: s.get("admin_read", admin_read).unwrap_or_default(),
        admin_http: s.get("admin_http", address_or_off).unwrap_or_default(),
        admin_hosts: s.list("admin_hosts", host_name).into_iter().map(|item| item.value).collect(),
        admin_token_file: s.get("admin_token_file", token_file),
        metrics_tenants: s.get("metrics_tenants", number(0, 10_000)).unwrap_or(200) as usize,
        drain: s.get("drain", time(DRAIN_RANGE)).unwrap_or(Nanos::from_secs(30)),
        threads: s.get("threads", number(1, 256)).and_then(|n| NonZeroUsize::new(n as usize)),
    };
    if section.is_sound() && gate.stale_after.0 < 2 * gate.tick.0 {
        let key = if section.has("stale_after") { "stale_after" } else { "tick" };
        let stale_after = gate.stale_after;
        let two_ticks = Nanos(2 * gate.tick.0);
        section.fault(key, format!("stale_after ({stale_after}) must be at least two ticks ({two_ticks})"));
    }
    let same = matches!(&gate.admin, AdminSocket::At(path) if gate.admin_read.as_ref() == Some(path));
    if same {
        section.fault(
            "admin_read",
            "is the socket of `admin`, which accepts changes: name another path".to_owned(),
        );
    }
    for (key, given) in
        [("admin_hosts", !gate.admin_hosts.is_empty()), ("admin_token_file", gate.admin_token_file.is_some())]
    {
        if given && gate.admin_http.is_none() && section.is_sound() {
            section.fault(key, "is of no use without `admin_http`".to_owned());
        }
    }
    section.finish();
    gate
}

impl Gate {
    /// A fault of an interface on this machine, with its place in the document.
    #[must_use]
    pub fn interface_fault(&self, place: usize, message: String) -> Fault {
        let listed = self.interfaces.get(place);
        let path = if self.interfaces.len() > 1 {
            format!("gate.interface[{place}]")
        } else {
            "gate.interface".to_owned()
        };
        let value = listed.map(|listed| format!("{:?}", listed.name.as_str()));
        Fault { line: listed.map_or(1, |listed| listed.line), path, value, message }
    }
}

/// The interfaces, no two of them the same.
fn interfaces(section: &mut Section<'_>) -> Vec<ListedInterface> {
    let mut interfaces: Vec<ListedInterface> = Vec::new();
    for item in section.list("interface", str::parse::<InterfaceName>) {
        let line = item.line();
        if let Some(first) = interfaces.iter().find(|first| first.name == item.value) {
            item.fault(format!("is listed already, on line {}: name each interface once", first.line));
        } else if interfaces.len() == Control::INTERFACES {
            item.fault(format!("is one too many: there may be {}", Control::INTERFACES));
        } else {
            interfaces.push(ListedInterface { name: item.value, line });
        }
    }
    interfaces
}

fn map_memory(text: &str) -> Result<u64, Wrong> {
    units::size(text, 1 << 20, 16 << 30)
}

/// One bit of 32, in hexadecimal, or none.
fn mark_bit(text: &str) -> Result<u32, Wrong> {
    let bit = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if text == "off" {
        return Ok(0);
    }
    bit.filter(|bit| bit.is_power_of_two()).ok_or_else(|| {
        "must be \"off\" or one bit from \"0x1\" to \"0x80000000\", e.g. \"0x1000\"".to_owned()
    })
}

fn one_in(text: &str) -> Result<NonZeroU32, Wrong> {
    let part = text.strip_prefix("1/").and_then(|n| n.parse::<NonZeroU32>().ok());
    part.filter(|n| n.get() <= 65_536)
        .ok_or_else(|| "must be from \"1/1\" to \"1/65536\", e.g. \"1/64\"".to_owned())
}

fn admin(text: &str) -> Result<AdminSocket, Wrong> {
    match text {
        "off" => Ok(AdminSocket::Off),
        _ => absolute_path(text).map(AdminSocket::At).map_err(|_| {
            "must be \"off\" or an absolute path without \"..\", e.g. \"/run/gate/gate.sock\"".to_owned()
        }),
    }
}

fn admin_read(text: &str) -> Result<Option<PathBuf>, Wrong> {
    match text {
        "off" => Ok(None),
        _ => absolute_path(text).map(Some).map_err(|_| {
            "must be \"off\" or an absolute path without \"..\", e.g. \"/run/gate-read/gate.sock\"".to_owned()
        }),
    }
}

fn host_name(text: &str) -> Result<String, Wrong> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if (1..=253).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err("must be the name of a host without a port, e.g. \"gate.example\"".to_owned())
}

fn token_file(text: &str) -> Result<PathBuf, Wrong> {
    absolute_path(text)
        .map_err(|_| "must be an absolute path without \"..\", e.g. \"/etc/gate/admin-token\"".to_owned())
}

const FRAGMENTS: [(&str, Fragments); 3] =
    [("judge", Fragments::Judge), ("pass", Fragments::Pass), ("drop", Fragments::Drop)];
const TCP_ACTIONS: [(&str, TcpAction); 4] = [
    ("off", TcpAction::None),
    ("reset-syn", TcpAction::ResetSyn),
    ("drop-syn", TcpAction::DropSyn),
    ("drop-data", TcpAction::DropData),
];
const ALGORITHMS: [(&str, Algorithm); 2] =
    [("token-bucket", Algorithm::TokenBucket), ("rejection-rate", Algorithm::RejectionRate)];
const ON_STALE: [(&str, OnStale); 2] = [("bucket", OnStale::Bucket), ("pass", OnStale::Pass)];
const XDP_MODES: [(&str, XdpMode); 4] = [
    ("auto", XdpMode::Auto),
    ("native", XdpMode::Native),
    ("generic", XdpMode::Generic),
    ("off", XdpMode::Off),
];
const TICK_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(10));
const DRAIN_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(24 * 3_600));
const DEEP_RANGE: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(3_600));
const STALE_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(60));
/// A bit that neither Kubernetes, Cilium, Calico nor Tailscale use.
const DEFAULT_MARK: u32 = 0x1000;
/// Enough for hot keys to stand out, few enough to cost nothing.
const DEFAULT_SAMPLE: NonZeroU32 = NonZeroU32::new(64).expect("not zero");
