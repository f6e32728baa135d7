//! The code of the messages is what `quota.proto` says.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

#[test]
fn the_messages_are_those_of_the_proto() -> Result<()> {
    let wire = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate-userspace/src/fleet/wire");
    let made = std::env::temp_dir().join(format!("gate-wire-{}", std::process::id()));
    std::fs::create_dir(&made)?;
    let compiled = tonic_prost_build::configure()
        .out_dir(&made)
        .compile_protos(&[wire.join("quota.proto")], std::slice::from_ref(&wire));
    let text = compiled.and_then(|()| std::fs::read_to_string(made.join("gate.quota.v1.rs")));
    std::fs::remove_dir_all(&made)?;
    let text =
        text.context("protoc is in Debian's package protobuf-compiler; `cargo xtask setup` installs it")?;
    let committed = std::fs::read_to_string(wire.join("generated.rs"))?;
    if text != committed {
        let new = wire.join("generated.rs.new");
        std::fs::write(&new, text)?;
        ensure!(false, "generated.rs is not what quota.proto says; put {} in its place", new.display());
    }
    Ok(())
}
