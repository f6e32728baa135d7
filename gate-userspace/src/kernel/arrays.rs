//! Single maps, mapped into memory after their shape was compared.

use std::os::fd::AsFd as _;
use std::path::Path;

use aya::maps::{Map, MapData, MapInfo, MapType};
use gate_common::abi::maps;

use super::error::{Error, Result};
use super::mapped::{Mapped, Words};
use super::shape::{BPF_F_MMAPABLE, Shape};

/// The maps pinned in `directory` and their shapes, whatever these are.
///
/// # Errors
///
/// [`Error::NoPins`], or what the kernel says.
pub fn pinned_shapes(directory: &Path) -> Result<Vec<(&'static str, Shape)>> {
    if !directory.join(maps::CONTROL).exists() {
        return Err(Error::NoPins { directory: directory.to_owned() });
    }
    let pinned = maps::ALL.into_iter().filter(|name| directory.join(name).exists());
    pinned
        .map(|name| {
            let info = MapInfo::from_pin(directory.join(name)).map_err(|source| Error::aya(name, source))?;
            Ok((name, shape_of(name, &info)?))
        })
        .collect()
}

/// Maps one array of a loaded object.
pub(super) fn of_object<T: Words>(object: &aya::Ebpf, name: &str) -> Result<Mapped<T>> {
    array(name, true, |name| data_of(object, name))
}

/// # Errors
///
/// [`Error::NotWhole`] if one of `names` is not pinned in `directory`.
pub(super) fn require_pins(directory: &Path, names: &[&'static str]) -> Result<()> {
    match names.iter().find(|name| !directory.join(name).exists()) {
        Some(map) => Err(Error::NotWhole { directory: directory.to_owned(), map }),
        None => Ok(()),
    }
}

pub(super) fn data_of_pin(directory: &Path, name: &str) -> Result<MapData> {
    MapData::from_pin(directory.join(name)).map_err(|source| Error::aya(name, source))
}

pub(super) fn data_of(object: &aya::Ebpf, name: &str) -> Result<MapData> {
    let Some(Map::Array(data) | Map::HashMap(data) | Map::SockMap(data)) = object.map(name) else {
        return Err(Error::ObjectLacks { what: name.to_owned() });
    };
    let fd = data.fd().as_fd().try_clone_to_owned().map_err(|source| Error::map(name, source))?;
    MapData::from_fd(fd).map_err(|source| Error::aya(name, source))
}

/// Maps one array after comparing its shape.
pub(super) fn array<T: Words>(
    name: &str,
    writable: bool,
    map: impl Fn(&str) -> Result<MapData>,
) -> Result<Mapped<T>> {
    let data = map(name)?;
    let info = data.info().map_err(|source| Error::aya(name, source))?;
    let shape = shape_of(name, &info)?;
    let expected = Shape {
        map_type: MapType::Array,
        key_size: 4,
        value_size: size_of::<T>() as u32,
        flags: BPF_F_MMAPABLE,
        ..shape
    };
    if shape != expected {
        return Err(Error::Shape { map: name.to_owned(), found: shape, expected });
    }
    Mapped::new(data.fd().as_fd(), shape.entries as usize, writable)
        .map_err(|source| Error::map(name, source))
}

/// The shape of a map, from what the kernel says of it.
pub(super) fn shape_of(name: &str, info: &MapInfo) -> Result<Shape> {
    Ok(Shape {
        map_type: info.map_type().map_err(|source| Error::aya(name, source))?,
        key_size: info.key_size(),
        value_size: info.value_size(),
        entries: info.max_entries(),
        flags: info.map_flags(),
    })
}
