//! A Debian system to install packages in, of which nothing is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use xtask::{paths, sh};

use crate::net::Namespace;

/// The root directory of a system, as processes of [`System::within`] see it.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
    written: PathBuf,
}

impl System {
    /// Runs `work` with a system that consists of the files below `lower`. What is written in it is in memory, and gone
    /// afterwards. It has `/run` and a BPF file system of its own.
    ///
    /// Its mounts are those of the thread that `work` runs on, and of the processes and threads that are started there.
    ///
    /// # Errors
    ///
    /// Without root, or if the kernel refuses a mount.
    ///
    /// # Panics
    ///
    /// When `work` does.
    pub fn within<T: Send>(lower: &Path, work: impl FnOnce(&Self) -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| work(&Self::mount(lower)?));
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Mounts it for this thread.
    fn mount(lower: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace")?;
        // `/` may be shared with the machine, and in a chroot it is no mount that could be made private. `/dev` is one.
        change("/dev", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
        let memory = Path::new("/dev/shm");
        attach("tmpfs", memory, None)?;
        let this = Self { root: memory.join("root"), written: memory.join("written") };
        let work = memory.join("work");
        for directory in [&this.root, &this.written, &work] {
            fs::create_dir(directory)?;
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            this.written.display(),
            work.display()
        );
        attach("overlay", &this.root, Some(&layers))?;
        for directory in ["dev", "proc", "sys"] {
            let from = Path::new("/").join(directory);
            let to = this.root.join(directory);
            // A part of `/dev` is what is made here.
            let deep = if directory == "dev" { MsFlags::empty() } else { MsFlags::MS_REC };
            mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND | deep, None::<&str>)
                .with_context(|| format!("cannot mount {} at {}", from.display(), to.display()))?;
        }
        change(&this.root, MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
        attach("tmpfs", &this.root.join("run"), None)?;
        attach("bpf", &this.root.join("sys/fs/bpf"), Some("mode=0700"))?;
        Ok(this)
    }

    /// Where a file of the system is, which is named by its path in it.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file.trim_start_matches('/'))
    }

    /// A program of the system, to be run in it and in this network namespace.
    #[must_use]
    pub fn command(&self, namespace: &Namespace, program: &str) -> Command {
        let mut command = namespace.command("chroot");
        command.arg(&self.root).arg(program).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command
    }

    /// The files that were written since it was mounted and are still there, but for those below `/tmp`, `/run` and
    /// `/sys`, by their paths in it.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub fn written(&self) -> Result<Vec<String>> {
        let listed =
            sh::output(Command::new("find").arg(&self.written).args(["-mindepth", "1", "-printf", "/%P\n"]))?;
        Ok(listed.lines().filter(|file| !file.starts_with("/tmp/")).map(str::to_owned).collect())
    }
}

/// The machine's own system.
#[must_use]
pub fn installed() -> &'static Path {
    Path::new("/")
}

/// A minimal Debian 12. It is fetched once, by `debootstrap`, and kept below the target directory.
///
/// # Errors
///
/// If it cannot be fetched.
pub fn minimal() -> Result<PathBuf> {
    let root = paths::target().join("debootstrap/bookworm");
    if !root.exists() {
        let new = root.with_extension("new");
        ensure!(!new.exists() || fs::remove_dir_all(&new).is_ok(), "cannot remove {}", new.display());
        fs::create_dir_all(&new)?;
        sh::run(Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&new))?;
        fs::rename(new, &root)?;
    }
    Ok(root)
}

fn attach(kind: &str, at: &Path, options: Option<&str>) -> Result<()> {
    mount(Some(kind), at, Some(kind), MsFlags::empty(), options)
        .with_context(|| format!("cannot mount {kind} at {}", at.display()))
}

fn change(at: impl AsRef<Path>, flags: MsFlags) -> Result<()> {
    let at = at.as_ref();
    mount(None::<&str>, at, None::<&str>, flags, None::<&str>)
        .with_context(|| format!("cannot change the mount at {}", at.display()))
}
