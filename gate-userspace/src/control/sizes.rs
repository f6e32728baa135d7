//! How large the maps are made for a configuration, and what memory they take. Pure.

use gate_common::abi::{Block, CounterLine, Cpu, RareCounters, touched_words};

use super::capacity::{capacities, needs};
use super::layout;
use crate::config::Config;
use crate::kernel::{Cpus, Sizes};

/// A configuration needs more memory than it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// The prefix tables.
    #[error(
        "the source prefixes need {needed_kib} KiB of tables, prefix_memory allows {allowed_kib} KiB: raise it, or merge prefixes"
    )]
    PrefixMemory {
        /// The memory that they need.
        needed_kib: u64,
        /// The memory that is allowed.
        allowed_kib: u64,
    },
    /// The counters.
    #[error(
        "the counters of {tenants} tenants in {rows} rows (one for each online CPU, some for those that may come, one for each thread) need {needed_kib} KiB, counter_memory allows {allowed_kib} KiB: raise it, lower threads, or merge tenants"
    )]
    CounterMemory {
        /// Tenants that there is room for.
        tenants: u32,
        /// Rows of counters.
        rows: u32,
        /// The memory that they need.
        needed_kib: u64,
        /// The memory that is allowed.
        allowed_kib: u64,
    },
}

/// How large maps are made, on a machine with these `cpus`, of which `cores` serve proxied services.
///
/// # Errors
///
/// [`Exceeded`].
pub fn sizes(config: &Config, cpus: &Cpus, cores: u32) -> Result<Sizes, Exceeded> {
    let needs = needs(config);
    let allowed_kib = config.gate.prefix_memory / 1_024;
    let needed_kib = u64::from(needs.blocks + layout::ROOT_BLOCKS);
    if needed_kib > allowed_kib {
        return Err(Exceeded::PrefixMemory { needed_kib, allowed_kib });
    }
    let most_blocks = u32::try_from(allowed_kib).unwrap_or(u32::MAX) - layout::ROOT_BLOCKS;
    let capacities = capacities(&needs, most_blocks);
    let threads = config.gate.threads.map_or(cores, |threads| threads.get() as u32).min(cpus.numbers());
    let proxied = config.services.iter().any(|service| service.backend.is_some());
    let sizes = Sizes {
        cpus: cpus.numbers(),
        cpu_rows: cpus.rows(),
        thread_rows: if proxied { threads } else { 0 },
        tenants: capacities.tenant_capacity,
        services: capacities.service_capacity,
        blocks: capacities.block_capacity,
        samples: SAMPLE_BYTES,
    };
    let needed_kib = counter_bytes(&sizes).div_ceil(1_024);
    let allowed_kib = config.gate.counter_memory / 1_024;
    if needed_kib > allowed_kib {
        let tenants = sizes.tenants;
        let rows = sizes.rows();
        return Err(Exceeded::CounterMemory { tenants, rows, needed_kib, allowed_kib });
    }
    Ok(sizes)
}

/// The memory that counters take, in bytes: their maps, and what the daemon keeps to tell what has changed.
#[must_use]
pub fn counter_bytes(sizes: &Sizes) -> u64 {
    let map = |elements: u64, bytes: usize| (elements * bytes as u64).next_multiple_of(PAGE) + PAGE;
    let tenants = u64::from(sizes.tenants);
    let rows = u64::from(sizes.rows());
    let words = rows * u64::from(touched_words(sizes.tenants));
    let maps = map(rows * tenants, size_of::<CounterLine>())
        + map(u64::from(sizes.rare_rows()) * tenants, size_of::<RareCounters>())
        + map(words, size_of::<u64>())
        + map(u64::from(sizes.cpus) + 1, size_of::<Cpu>());
    // See `control::demand`: by line of any row, by line of the shared row and the threads', by word, by tenant.
    let kept = rows * tenants + (1 + u64::from(sizes.thread_rows)) * tenants + words + 2 * tenants;
    maps + kept * size_of::<u64>() as u64
}

/// A map's memory is rounded up to this; the kernel takes as much again for the map itself.
const PAGE: u64 = 4_096;

/// The memory that the prefix tables take, in bytes.
#[must_use]
pub fn table_bytes(sizes: &Sizes) -> u64 {
    u64::from(sizes.blocks) * size_of::<Block>() as u64
}

/// The ring holds about 3,400 samples: at one in 64 of a million requests a second, a fifth of a second. Of refusals, which are
/// shorter, it holds about 10,000 in half of it.
const SAMPLE_BYTES: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(gate: &str, tenants: usize, backend: &str) -> Config {
        let tenants: String = (0..tenants)
            .map(|n| {
                format!(
                    "[[tenant]]\nname = \"t{n}\"\nsources = [\"10.0.{}.{}/32\"]\nquota = \"100 RU/s\"\n",
                    n >> 8,
                    n & 255
                )
            })
            .collect();
        let service = "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:11211\"\n";
        Config::parse("gate.toml", &format!("[gate]\n{gate}\n{service}{backend}\n{tenants}"))
            .expect("a valid configuration")
    }

    fn cpus(online: &str) -> Cpus {
        Cpus::parse("0-63", online).expect("a list of CPUs")
    }

    #[test]
    fn counters_have_rows_for_cpus_and_serving_threads() {
        for (gate, backend, rows) in [
            ("", "", 65),
            ("threads = \"4\"", "", 65),
            ("", "backend = \"127.0.0.1:11212\"", 64 + 16 + 1),
            ("threads = \"4\"", "backend = \"127.0.0.1:11212\"", 64 + 4 + 1),
            ("threads = \"256\"", "backend = \"127.0.0.1:11212\"", 64 + 64 + 1),
        ] {
            let sizes = sizes(&config(gate, 1, backend), &cpus("0-63"), 16).expect("little memory");
            assert_eq!(sizes.rows(), rows, "{gate} {backend}");
        }
        // CPUs that may come hardly count, nor do holes in their numbers.
        for (online, rows) in [("0-1", 1 + 2 + 2), ("0,63", 1 + 2 + 2), ("0-15,32-47", 1 + 32 + 8)] {
            let sizes = sizes(&config("", 1, ""), &cpus(online), 16).expect("little memory");
            assert_eq!((sizes.rows(), sizes.cpus), (rows, 64), "{online}");
        }
    }

    #[test]
    fn counters_beyond_the_allowed_memory_are_refused() {
        let allowed = |gate: &str| sizes(&config(gate, 10_000, ""), &cpus("0-63"), 64);
        let sizes = allowed("counter_memory = \"128MiB\"").expect("room for them");
        let lines = 65 * 20_002 * 64;
        let rare = 4 * 20_002 * 336;
        let kept = 65 * 20_002 * 8;
        let bytes = counter_bytes(&sizes);
        assert!((lines + rare + kept..=120 << 20).contains(&bytes), "{bytes} bytes");
        let needed_kib = bytes.div_ceil(1_024);
        let refused = allowed("counter_memory = \"64MiB\"").expect_err("no room");
        let expected =
            Exceeded::CounterMemory { tenants: 20_002, rows: 65, needed_kib, allowed_kib: 64 << 10 };
        assert_eq!(refused, expected);
    }
}
