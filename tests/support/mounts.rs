//! Programs that see other files in the place of the machine's.

use std::path::Path;
use std::process::Command;

/// A program in a mount namespace of its own, in which each of `files` stands where the path beside it says. `unshare` is a
/// command of that name, without arguments. For root.
///
/// The usual way, to make all mounts private and then mount over the path, fails in a chroot, whose root is no mount. So the
/// program gets a copy of the whole tree as its root, below a mount that is private.
#[must_use]
pub fn with_files(mut unshare: Command, files: &[(&Path, &str)], program: &Path) -> Command {
    unshare.args(["--mount", "--propagation", "unchanged", "sh", "-c", SCRIPT, "sh"]);
    for (file, path) in files {
        unshare.arg(file).arg(path);
    }
    unshare.arg("--").arg(program);
    unshare
}

/// A program in a mount namespace of its own, where `/dev/shm` is a file system of so many bytes, in memory and empty. `unshare` as
/// for [`with_files`]. For root.
#[must_use]
pub fn with_small_disk(mut unshare: Command, bytes: u64, program: &Path) -> Command {
    let script =
        "mount --make-rprivate /dev && mount -t tmpfs -o size=$1 none /dev/shm && shift && exec \"$@\"";
    unshare.args(["--mount", "--propagation", "unchanged", "sh", "-c", script, "sh"]);
    unshare.arg(bytes.to_string()).arg(program);
    unshare
}

/// Where a file does not exist that is to be replaced, its folder is replaced by a copy that has one.
const SCRIPT: &str = r#"root=/dev/shm/root
    mount --make-rprivate /dev && mount -t tmpfs none /dev/shm && mkdir $root && mount --rbind / $root &&
        mount --make-rprivate $root || exit 1
    while [ "$1" != -- ]; do
        if ! [ -e "$root$2" ]; then
            folder=$(dirname "$2")
            cp -a "$folder" /dev/shm/copy && mount --bind /dev/shm/copy "$root$folder" && : > "$root$2" || exit 1
        fi
        mount --bind "$1" "$root$2" || exit 1
        shift 2
    done
    shift
    exec chroot $root "$@""#;
