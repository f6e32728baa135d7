//! The layers that count, and counters by layer.

use gate_common::abi::TenantCounters;

/// Where a request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// At the interface, or by a gate that drains or had other maps before.
    Xdp,
    /// By the dispatcher.
    Proxy,
}

impl Layer {
    /// Both, in the order of [`ByLayer`].
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Proxy];

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Proxy => "proxy",
        }
    }
}

/// A tenant's counters by [`Layer`].
pub type ByLayer = [TenantCounters; Layer::ALL.len()];
