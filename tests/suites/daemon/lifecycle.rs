//! `gate run` and the commands beside it, in the real kernel: starting, refusing to start, reading the
//! configuration again, being killed, handing over, leaving nothing behind.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::Ordering;

use aya::maps::Array;
use gate_common::abi::maps;
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE, Site};
use gate_tests::net::{CLIENT_INTERFACE, SERVER_INTERFACE};
use gate_tests::privilege;
use gate_tests::wait::within;
use gate_userspace::kernel::Maps;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::lab::process::ChildProcess;

/// A site, or a return from the test where there is no root.
macro_rules! site {
    ($test:literal) => {
        match privilege::root(concat!("daemon::", $test)) {
            true => Site::new(CONFIG).unwrap(),
            false => return,
        }
    };
}

/// Waits until `found` is something; what it was last is in the message if it never is.
fn eventually<T, E: std::fmt::Debug>(what: &str, mut found: impl FnMut() -> Result<T, E>) -> T {
    let mut last = None;
    let waited = within(what, PATIENCE, || {
        last = Some(found());
        Ok(matches!(last, Some(Ok(_))))
    });
    match last {
        Some(Ok(found)) => found,
        Some(Err(last)) => panic!("{waited:?}: {last:?}"),
        None => unreachable!("it is looked at once at least"),
    }
}

fn daemon(site: &Site) -> Value {
    site.json(&["status"]).unwrap()["daemon"].clone()
}

fn quotas(site: &Site) -> Vec<(String, f64)> {
    let tenants = site.json(&["tenants"]).unwrap()["tenants"].take();
    let of = |tenant: &Value| {
        (tenant["name"].as_str().unwrap().to_owned(), tenant["quota_ru_per_sec"].as_f64().unwrap())
    };
    tenants.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn it_attaches_reports_and_leaves_nothing_behind() {
    let site = site!("it_attaches_reports_and_leaves_nothing_behind");
    let mut gate = site.start(&[]).unwrap();
    gate.wait_for("unless `gate peer --interface IF` runs there", PATIENCE).unwrap();
    let status = site.json(&["status"]).unwrap();
    assert_eq!(status["daemon"], gate.id());
    assert_eq!((&status["interface"], &status["mode"]), (&SERVER_INTERFACE.into(), &"native".into()));
    assert_eq!((&status["stale"], &status["tenants"]), (&false.into(), &2.into()));
    assert_eq!(status["services"].as_array().unwrap().len(), 4, "two addresses, two transports: {status}");
    assert_eq!(quotas(&site), [("polite".to_owned(), 5_000.0), ("other".to_owned(), 1_000.0)]);
    assert!(site.json(&["hotkeys"]).unwrap()["keys"].as_array().unwrap().is_empty());
    assert_eq!(site.json(&["maps", "list"]).unwrap().as_array().unwrap().len(), maps::ALL.len());
    let control = site.json(&["maps", "dump", "CONTROL"]).unwrap();
    assert!(control[0]["element"].as_str().unwrap().contains("abi_version"));
    let mode = std::fs::metadata(site.pins()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for table in [&["status"][..], &["tenants"], &["hotkeys"], &["maps", "list"]] {
        assert!(site.gate(table).unwrap().status.success(), "{table:?}");
    }

    let mut unread = site.net.server.command(xtask::paths::gate());
    unread.args(["status", "--json", "--pin-dir"]).arg(site.pins());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(unread.stdout(writer).status().unwrap().signal(), Some(Signal::SIGPIPE as i32));

    gate.signal(Signal::SIGINT).unwrap();
    gate.finish(PATIENCE).unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
    let status = site.gate(&["status"]).unwrap();
    assert_eq!(status.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&status.stderr).contains("gate run"));
}

#[test]
fn what_cannot_start_says_why_and_leaves_nothing() {
    let site = site!("what_cannot_start_says_why_and_leaves_nothing");
    // Root in name only: no capability survives the exec.
    let mut unprivileged = site.net.server.command("setpriv");
    unprivileged.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(xtask::paths::gate());
    unprivileged.args(["run", "--interface", SERVER_INTERFACE]).arg("--config").arg(site.config());
    unprivileged.arg("--pin-dir").arg(site.pins());
    let file = std::env::temp_dir().join(format!("{}-faulty.toml", site.net.server.name()));
    std::fs::write(&file, CONFIG.replace("5000 RU/s", "-5")).unwrap();
    let mut faulty = site.net.server.command(xtask::paths::gate());
    faulty.args(["run", "--interface", SERVER_INTERFACE]).arg("--config").arg(&file);
    let mut elsewhere = site.net.server.command(xtask::paths::gate());
    elsewhere.args(["run", "--interface", SERVER_INTERFACE, "--pin-dir", "/dev/shm/gate"]);
    elsewhere.arg("--config").arg(site.config());
    for (command, says) in [
        (site.command("nowhere0"), vec!["no interface \"nowhere0\"", "ip link"]),
        (unprivileged, vec!["left unprotected", "CAP_BPF"]),
        (elsewhere, vec!["/dev/shm/gate", "/sys/fs/bpf"]),
        (faulty, vec!["-faulty.toml:10: tenant[0].quota = \"-5\"", "5000 RU/s"]),
    ] {
        let refusal = site.refusal(command).unwrap();
        assert!(says.iter().all(|part| refusal.contains(part)), "{refusal}");
        assert_eq!(site.anything_left().unwrap(), None, "{refusal}");
    }
    std::fs::remove_file(&file).unwrap();

    let peer = {
        let mut command = site.net.server.command(xtask::paths::gate());
        command.args(["peer", "--interface", SERVER_INTERFACE]);
        let mut peer = ChildProcess::start("the other program", command).unwrap();
        peer.wait_for("passes", PATIENCE).unwrap();
        peer
    };
    let refusal = site.refusal(site.command(SERVER_INTERFACE)).unwrap();
    assert!(refusal.contains("another XDP program"), "{refusal}");
    assert!(!site.pins().exists(), "{refusal}");
    drop(peer);
}

#[test]
fn an_interface_that_is_down_is_attached_to() {
    let site = site!("an_interface_that_is_down_is_attached_to");
    let mut ip = site.net.server.command("ip");
    assert!(ip.args(["link", "set", SERVER_INTERFACE, "down"]).status().unwrap().success());
    let gate = site.start(&[]).unwrap();
    assert_eq!(site.json(&["status"]).unwrap()["mode"], "native");
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn a_driver_without_xdp_gets_generic_mode_and_a_notice() {
    let site = site!("a_driver_without_xdp_gets_generic_mode_and_a_notice");
    ip(&site, "link add plain0 type bridge");
    let mut gate = ChildProcess::start("gate", site.command("plain0")).unwrap();
    gate.wait_for("attached in generic mode, which is slower", PATIENCE).unwrap();
    gate.wait_for(ATTACHED, PATIENCE).unwrap();
    assert_eq!(site.json(&["status"]).unwrap()["mode"], "generic");
    gate.end().unwrap();

    site.configure(&format!("[gate]\nxdp = \"native\"\n{CONFIG}")).unwrap();
    let refusal = site.refusal(site.command("plain0")).unwrap();
    assert!(refusal.contains("cannot attach to plain0 in native mode"), "{refusal}");
    assert_eq!(site.anything_left().unwrap(), None);

    site.configure(&format!("[gate]\nxdp = \"generic\"\n{CONFIG}")).unwrap();
    let gate = site.start(&[]).unwrap();
    assert_eq!(site.json(&["status"]).unwrap()["mode"], "generic");
    gate.end().unwrap();
}

#[test]
fn a_second_gate_is_refused_unless_it_takes_over() {
    let site = site!("a_second_gate_is_refused_unless_it_takes_over");
    let first = site.start(&[]).unwrap();
    let refusal = site.refusal(site.command(SERVER_INTERFACE)).unwrap();
    assert!(
        refusal.contains(&format!("as process {}", first.id())) && refusal.contains("--takeover"),
        "{refusal}"
    );
    assert_eq!(daemon(&site), first.id());

    let epoch = |site: &Site| site.json(&["status"]).unwrap()["epoch"].as_u64().unwrap();
    let before = epoch(&site);
    let second = site.start(&["--takeover"]).unwrap();
    first.finish(PATIENCE).unwrap();
    assert_eq!((daemon(&site), epoch(&site)), (second.id().into(), before + 1));
    second.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn a_stopped_gate_is_ended_before_another_takes_over() {
    let site = site!("a_stopped_gate_is_ended_before_another_takes_over");
    let first = site.start(&[]).unwrap();
    first.signal(Signal::SIGSTOP).unwrap();
    let second = site.start(&["--takeover"]).unwrap();
    assert!(first.finish(PATIENCE).unwrap_err().to_string().contains("signal: 9"));
    assert_eq!(daemon(&site), second.id());
    second.end().unwrap();
}

#[test]
fn pins_of_a_killed_gate_can_be_read_taken_over_and_detached() {
    let site = site!("pins_of_a_killed_gate_can_be_read_taken_over_and_detached");
    let kill = |gate: ChildProcess| {
        gate.signal(Signal::SIGKILL).unwrap();
        assert!(gate.finish(PATIENCE).unwrap_err().to_string().contains("signal: 9"));
    };
    kill(site.start(&[]).unwrap());
    let status = site.json(&["status"]).unwrap();
    assert_eq!((&status["daemon"], &status["interface"]), (&Value::Null, &SERVER_INTERFACE.into()));
    assert_eq!(quotas(&site).len(), 2);
    eventually("the heartbeat is stale", || match site.json(&["status"]).unwrap()["stale"].as_bool() {
        Some(true) => Ok(()),
        other => Err(other),
    });

    let second = site.start(&[]).unwrap();
    assert_eq!(daemon(&site), second.id());
    kill(second);

    let detached = site.json(&["detach"]).unwrap();
    assert_eq!((&detached["detached"], &detached["maps_removed"]), (&true.into(), &maps::ALL.len().into()));
    assert_eq!(site.anything_left().unwrap(), None);
    assert_eq!(site.json(&["detach"]).unwrap()["detached"], false);
}

#[test]
fn a_running_gate_is_detached_by_force_only() {
    let site = site!("a_running_gate_is_detached_by_force_only");
    let gate = site.start(&[]).unwrap();
    let refusal = site.gate(&["detach"]).unwrap();
    assert!(!refusal.status.success() && String::from_utf8_lossy(&refusal.stderr).contains("--force"));
    assert!(site.gate(&["detach", "--force"]).unwrap().status.success());
    let end = gate.finish(PATIENCE).unwrap_err().to_string();
    assert!(end.contains("taken over"), "{end}");
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn a_new_configuration_is_all_or_nothing() {
    let site = site!("a_new_configuration_is_all_or_nothing");
    let mut gate = site.start(&[]).unwrap();
    let reload = |gate: &mut ChildProcess, says: &str| {
        gate.signal(Signal::SIGHUP).unwrap();
        gate.wait_for(says, PATIENCE).unwrap();
    };
    let before = quotas(&site);
    site.configure(&CONFIG.replace("5000 RU/s", "a lot").replace("1000 RU/s", "70 RU/s")).unwrap();
    reload(&mut gate, "stays as it was");
    assert_eq!(quotas(&site), before);

    let third = "[[tenant]]\nname = \"third\"\nsources = [\"198.18.3.0/24\"]\nquota = \"30 RU/s\"\n";
    let without = CONFIG.split("[[tenant]]\nname = \"other\"").next().unwrap().replace("5000", "50");
    site.configure(&format!("{without}{third}")).unwrap();
    reload(&mut gate, "read again");
    let expected = [("polite".to_owned(), 50.0), ("third".to_owned(), 30.0)];
    eventually("the new tenants alone", || match quotas(&site) {
        found if found == expected => Ok(()),
        found => Err(found),
    });
    gate.end().unwrap();
}

#[test]
fn a_configuration_that_does_not_fit_the_maps_changes_nothing() {
    let site = site!("a_configuration_that_does_not_fit_the_maps_changes_nothing");
    let mut gate = site.start(&[]).unwrap();
    let state = || {
        let view = Maps::pinned(site.pins(), false).unwrap().view();
        let mut services = site.json(&["status"]).unwrap()["services"].take();
        for service in services.as_array_mut().unwrap() {
            // It follows the load from the first tick on, which comes when it may.
            service["measured_every"] = Value::Null;
        }
        // Each tick has a stamp of its own.
        (quotas(&site), services, gate_common::abi::View { stamp: 0, ..view })
    };
    let sources = |tenant: u32, bytes: &mut dyn Iterator<Item = (u32, u32)>| {
        let list: Vec<String> = bytes.map(|(a, b)| format!("\"20.{a}.{b}.{tenant}/32\"")).collect();
        format!("[[tenant]]\nname = \"t{tenant}\"\nquota = \"100 RU/s\"\nsources = [{}]\n", list.join(", "))
    };
    let tenants: String = (0..70).map(|tenant| sources(tenant, &mut [(0, 0)].into_iter())).collect();
    let addresses: Vec<String> = (0..40).map(|last| format!("\"198.18.0.1:{}\"", 12_000 + last)).collect();
    let services =
        format!("[[service]]\nname = \"s\"\nprotocol = \"opaque\"\nlisten = [{}]\n", addresses.join(", "));
    // A block each for a /16, and one for each /24 in it.
    let prefixes = sources(1, &mut (0..30).flat_map(|a| (0..100).map(move |b| (a, b))));
    for (more, says) in [
        (tenants, "72 tenants, but the running gate has room for 63"),
        (services, "84 services (one for each address and transport), but the running gate has room for 32"),
        (prefixes, "the source and port tables need more than the"),
    ] {
        let before = state();
        site.configure(&format!("{CONFIG}{more}")).unwrap();
        gate.signal(Signal::SIGHUP).unwrap();
        let said = gate.wait_for("stays as it was", PATIENCE).unwrap();
        assert!(said.contains(says), "{said}");
        assert_eq!(state(), before);
    }
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

fn ip(site: &Site, arguments: &str) {
    let mut ip = site.net.server.command("ip");
    assert!(ip.args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

#[test]
fn an_interface_may_go_down_be_renamed_or_vanish() {
    let site = site!("an_interface_may_go_down_be_renamed_or_vanish");
    let mut gate = site.start(&[]).unwrap();
    let interface = || site.json(&["status"]).unwrap()["interface"].clone();
    ip(&site, "link set gate0 down");
    ip(&site, "link set gate0 name renamed0");
    assert_eq!(interface(), "renamed0", "the program stays with the interface, whatever that is called");
    ip(&site, "link set renamed0 up");

    ip(&site, "link del renamed0");
    gate.wait_for("has vanished", PATIENCE).unwrap();
    assert_eq!(interface(), Value::Null);
    ip(&site, "link add gate0 type veth peer name other0");
    gate.wait_for("attached again", PATIENCE).unwrap();
    assert_eq!(interface(), SERVER_INTERFACE);
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn pins_that_another_sys_hides_are_named_with_their_remedy() {
    let site = site!("pins_that_another_sys_hides_are_named_with_their_remedy");
    let gate = site.start(&[]).unwrap();
    // A running one would answer over its socket.
    gate.signal(Signal::SIGKILL).unwrap();
    assert!(gate.finish(PATIENCE).is_err());
    // As `ip netns exec` does it.
    let mut hidden = std::process::Command::new("unshare");
    hidden.args([
        "--mount",
        "--net",
        "sh",
        "-c",
        "umount -l /sys && mount -t sysfs gate /sys && exec \"$0\" status --pin-dir \"$1\"",
    ]);
    let said = hidden.arg(xtask::paths::gate()).arg(site.pins()).output().unwrap();
    let said = (said.status.code(), String::from_utf8(said.stderr).unwrap());
    assert!(said.0 == Some(1) && said.1.lines().count() == 1, "{said:?}");
    assert!(said.1.contains("`ip netns exec` hides") && said.1.contains("nsenter --net="), "{said:?}");
}

#[test]
fn interfaces_of_other_namespaces_are_distinguished() {
    let site = site!("interfaces_of_other_namespaces_are_distinguished");
    let gate = site.start(&[]).unwrap();
    // The clients' end of the pair: the one interface there, with the same index or another.
    let elsewhere = |arguments: &[&str]| {
        let mut command = site.net.client.command(xtask::paths::gate());
        command.args(arguments).arg("--pin-dir").arg(site.pins()).output().unwrap()
    };
    let status: Value = serde_json::from_slice(&elsewhere(&["status", "--json"]).stdout).unwrap();
    let said = status["interface"].as_str().unwrap();
    assert!(said.starts_with("interface ") && said.ends_with(" of another network namespace"), "{status}");
    assert_eq!(site.json(&["status"]).unwrap()["interface"], SERVER_INTERFACE);

    let config = site.config().to_str().unwrap();
    let run = elsewhere(&["run", "--takeover", "--interface", CLIENT_INTERFACE, "--config", config]);
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains("one of another network namespace"), "{said}");
    assert_eq!(daemon(&site), gate.id(), "it ended for one that cannot take its place");

    // A container that is started again with its pins, in another namespace: the old interface is gone.
    gate.signal(Signal::SIGKILL).unwrap();
    gate.finish(PATIENCE).unwrap_err();
    ip(&site, "link del gate0");
    let mut ip = site.net.client.command("ip");
    assert!(ip.args("link add new0 type veth peer name new1".split(' ')).status().unwrap().success());
    let mut command = site.net.client.command(xtask::paths::gate());
    command.args(["run", "--interface", "new0", "--config", config, "--pin-dir"]).arg(site.pins());
    let mut gate = ChildProcess::start("gate", command).unwrap();
    gate.wait_for(ATTACHED, PATIENCE).unwrap();
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

/// The pins of a gate that was killed, after `change`; and the next gate's output about them.
fn refused_pins(site: &Site, change: impl FnOnce(&Site)) -> String {
    let gate = site.start(&[]).unwrap();
    gate.signal(Signal::SIGKILL).unwrap();
    gate.finish(PATIENCE).unwrap_err();
    change(site);
    let refusal = site.refusal(site.command(SERVER_INTERFACE)).unwrap();
    assert!(refusal.contains("gate detach"), "{refusal}");
    assert!(site.gate(&["detach"]).unwrap().status.success());
    assert_eq!(site.anything_left().unwrap(), None, "{refusal}");
    refusal
}

#[test]
fn pins_that_were_never_ready_or_whole_make_room_for_new_ones() {
    let site = site!("pins_that_were_never_ready_or_whole_make_room_for_new_ones");
    let stale: [fn(&Site); 3] = [
        |site| {
            let maps = Maps::pinned(site.pins(), true).unwrap();
            maps.control.word(0, 0).store(0, Ordering::SeqCst);
        },
        |site| std::fs::remove_file(site.pins().join("CONTROL")).unwrap(),
        |site| {
            std::fs::remove_file(site.pins().join("CONTROL")).unwrap();
            // One that a gate would otherwise take for its own.
            let pin = site.pins().join("TENANTS");
            std::fs::remove_file(&pin).unwrap();
            Array::<_, u64>::create(64, 0).unwrap().pin(&pin).unwrap();
        },
    ];
    for make_stale in stale {
        let gate = site.start(&[]).unwrap();
        gate.signal(Signal::SIGKILL).unwrap();
        gate.finish(PATIENCE).unwrap_err();
        // As if it had died before it was attached.
        std::fs::remove_file(site.pins().join("link")).unwrap();
        make_stale(&site);
        let next = eventually("the program is gone", || site.start(&[]).map_err(|error| error.to_string()));
        assert_eq!(site.json(&["status"]).unwrap()["epoch"], 1, "the maps are new");
        next.end().unwrap();
        assert_eq!(site.anything_left().unwrap(), None);
    }
}

#[test]
fn pins_of_another_version_are_refused_and_can_be_detached() {
    let site = site!("pins_of_another_version_are_refused_and_can_be_detached");
    let refusal = refused_pins(&site, |site| {
        let maps = Maps::pinned(site.pins(), true).unwrap();
        let first = maps.control.word(0, 0);
        first.store(first.load(Ordering::SeqCst) & !0xffff_ffff | 99, Ordering::SeqCst);
    });
    assert!(refusal.contains("ABI version 99"), "{refusal}");

    let refusal = refused_pins(&site, |site| {
        let pin = site.pins().join("TENANTS");
        std::fs::remove_file(&pin).unwrap();
        Array::<_, u64>::create(64, 0).unwrap().pin(&pin).unwrap();
    });
    assert!(refusal.contains("TENANTS is Array of 64 entries, 4 to 8 bytes"), "{refusal}");

    for missing in ["TENANTS", "CONTROL"] {
        let refusal = refused_pins(&site, |site| std::fs::remove_file(site.pins().join(missing)).unwrap());
        assert!(refusal.contains(&format!("{missing} is not there")), "{refusal}");
    }
}
