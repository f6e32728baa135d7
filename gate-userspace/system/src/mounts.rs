//! The file systems that this process sees.

/// The network namespace for which `ip netns exec` has mounted another `/sys` for this process, in which no file system of pins is.
#[must_use]
pub fn hiding_namespace() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    named_in(&mounts).map(str::to_owned)
}

/// That namespace by the mounts of a process: the mount of `/sys` has its name in place of a device.
fn named_in(mounts: &str) -> Option<&str> {
    let mut sys = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/sys"));
    let (_, mounted) = sys.next_back()?.split_once(" - ")?;
    let mut words = mounted.split(' ');
    let kind = words.next()?;
    let device = words.next()?;
    (kind == "sysfs" && !["sysfs", "none", "sys"].contains(&device)).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sys_is_told_by_its_device() {
        let first =
            "23 27 0:22 / /sys rw,relatime - sysfs sysfs rw\n45 23 0:39 / /sys/fs/bpf rw - bpf bpf rw\n";
        assert_eq!(named_in(first), None);
        let inner = format!("{first}48 44 0:40 / /sys rw,relatime shared:1 - sysfs blue rw\n");
        assert_eq!(named_in(&inner), Some("blue"));
        assert_eq!(named_in("nonsense\n1 2 3 4 /sys\n"), None);
    }
}
