//! The code of messages is what the protos say.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// The protos, with the package that each names; true for those whose services gate serves.
const PROTOS: [(&str, &str, bool); 4] = [
    ("gate-userspace/src/envoy/wire/rlqs/rlqs.proto", "envoy.service.rate_limit_quota.v3", true),
    ("gate-userspace/src/envoy/wire/rls/rls.proto", "envoy.service.ratelimit.v3", true),
    ("gate-userspace/fleet/src/etcd/api/etcd.proto", "etcdserverpb", false),
    ("gate-userspace/fleet/src/wire/quota.proto", "gate.quota.v1", true),
];

#[test]
fn the_messages_are_those_of_the_protos() -> Result<()> {
    for (proto, package, serves) in PROTOS {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(proto);
        let text = generate(&proto, package, serves)?;
        let committed = proto.with_file_name("generated.rs");
        if text != std::fs::read_to_string(&committed).unwrap_or_default() {
            let new = proto.with_file_name("generated.rs.new");
            std::fs::write(&new, text)?;
            ensure!(
                false,
                "{} is not what {} says; put {} in its place",
                committed.display(),
                proto.display(),
                new.display()
            );
        }
    }
    Ok(())
}

/// The code of a proto's messages, services' clients, and servers.
fn generate(proto: &Path, package: &str, serves: bool) -> Result<String> {
    let made = std::env::temp_dir().join(format!("gate-wire-{}-{package}", std::process::id()));
    std::fs::create_dir(&made)?;
    let folder = proto.parent().context("no file")?;
    let compiled = tonic_prost_build::configure()
        .build_server(serves)
        .out_dir(&made)
        .compile_protos(&[proto], &[folder])
        .and_then(|()| std::fs::read_to_string(made.join(format!("{package}.rs"))));
    std::fs::remove_dir_all(&made)?;
    compiled.context("protoc is in Debian's package protobuf-compiler; `cargo xtask setup` installs it")
}
