//! `gate maps list|dump`: the pinned maps as they are.

use std::fmt::Debug;
use std::process::ExitCode;

use gate_common::abi::maps as names;
use serde::Serialize;

use super::pins::Pins;
use super::print;
use super::table::{Table, number, text};
use crate::kernel::{Mapped, Maps, Words, pinned_shapes};

/// Look into the pinned maps.
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the maps: type, number and size of elements, memory.
    List {
        #[command(flatten)]
        pins: Pins,
    },
    /// Print the elements of a map that are not all zero.
    #[command(after_help = "\
Example:
  gate maps dump TENANTS --from 1 --count 3")]
    Dump {
        /// The map, as `gate maps list` names it.
        map: String,
        /// The first element.
        #[arg(long, default_value_t = 0)]
        from: usize,
        /// How many elements at most.
        #[arg(long, default_value_t = 100)]
        count: usize,
        #[command(flatten)]
        pins: Pins,
    },
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List { pins } => list(&pins)?,
        Command::Dump { map, from, count, pins } => dump(&pins, &map, from, count)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Listed {
    map: &'static str,
    shape: String,
    entries: u32,
    value_bytes: u32,
}

fn list(pins: &Pins) -> anyhow::Result<()> {
    let maps: Vec<Listed> = pinned_shapes(&pins.pin_dir)?
        .into_iter()
        .map(|(map, shape)| Listed {
            map,
            shape: shape.to_string(),
            entries: shape.entries(),
            value_bytes: shape.value_size(),
        })
        .collect();
    if pins.json {
        return print::json(&maps);
    }
    let mut table = Table::new(&[text("map"), text("shape"), number("memory")]);
    for Listed { map, shape, entries, value_bytes } in maps {
        let bytes = u64::from(entries) * u64::from(value_bytes.max(1));
        table.add_row([map.to_owned(), shape, format!("{} KiB", print::count(bytes.div_ceil(1024)))]);
    }
    println!("{table}");
    Ok(())
}

#[derive(Debug, Serialize)]
struct Dumped {
    index: usize,
    element: String,
}

fn dump(pins: &Pins, map: &str, from: usize, count: usize) -> anyhow::Result<()> {
    let maps: Maps = pins.maps()?;
    let elements = match map.to_ascii_uppercase().as_str() {
        names::CONTROL => elements(&maps.control, from, count),
        names::PORTS => elements(&maps.ports, from, count),
        names::TABLES => elements(&maps.tables, from, count),
        names::SERVICES => elements(&maps.services, from, count),
        names::TENANT_LINES => elements(&maps.tenant_lines, from, count),
        names::TENANTS => elements(&maps.tenants, from, count),
        names::COUNTERS => elements(&maps.counters, from, count),
        names::RARE_COUNTERS => elements(&maps.rare_counters, from, count),
        names::TOUCHED => elements(&maps.touched, from, count),
        names::CPUS => elements(&maps.cpus, from, count),
        names::TOP_KEYS => elements(&maps.top_keys, from, count),
        names::PENDING => {
            anyhow::bail!("PENDING holds requests that are under way, which only programs read")
        }
        names::SAMPLES => anyhow::bail!("SAMPLES is a ring buffer, which only the daemon reads"),
        _ => anyhow::bail!("there is no map {map:?}; `gate maps list` lists all"),
    };
    if pins.json {
        return print::json(&elements);
    }
    for Dumped { index, element } in elements {
        println!("{map}[{index}] = {element}");
    }
    Ok(())
}

/// The elements from `from` on that are not all zero, `count` at most.
fn elements<T: Words + Debug>(map: &Mapped<T>, from: usize, count: usize) -> Vec<Dumped> {
    let zero = |index: usize| {
        (0..size_of::<T>())
            .step_by(8)
            .all(|offset| map.word(index, offset).load(std::sync::atomic::Ordering::Relaxed) == 0)
    };
    let used = (from..map.len()).filter(|&index| !zero(index)).take(count);
    used.map(|index| Dumped { index, element: format!("{:#?}", map.load(index)) }).collect()
}
