//! A data directory for one server after the other, and its settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::context::{Abort, Context};

/// Directories that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Makes all inboxes durable.
const DURABLE: &str = "[[channels]]\nusers = \"*\"\ndurable = true\nage = \"30d\"\n";

/// Is removed when it is dropped.
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes one among the temporary files.
    pub(super) fn make() -> Result<Directory, Abort> {
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-bench-durable-{}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let fault = |error| Abort::Failed(format!("{} cannot be made: {error}", path.display()));
        fs::create_dir(&path).map_err(fault)?;
        let directory = Directory { path: path.clone() };
        fs::write(directory.settings(), DURABLE).map_err(fault)?;
        Ok(directory)
    }

    /// Starts a server on it, whose inboxes are durable. It syncs nothing but its end.
    pub(super) fn serve(&self, context: &mut Context<'_>, more: &[&str]) -> Result<(), Abort> {
        let data = self.data().to_string_lossy().into_owned();
        let flags = ["--heartbeat", "0", "--sync", "never", "--data", &data];
        context.serve_with(&self.settings(), &[&flags[..], more].concat())
    }

    fn settings(&self) -> PathBuf {
        self.path.join("throng.toml")
    }

    /// The data directory, which the first server makes.
    fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// What the data takes on the disk.
    pub(super) fn bytes(&self) -> f64 {
        blocks(&self.data()) as f64
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If it stays, it is in a directory of temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What the files below a directory take. Files come and go while a server runs.
fn blocks(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    /// Bytes of a block, as the system counts those of a file.
    const BLOCK_BYTES: u64 = 512;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => blocks(&entry.path()),
        Ok(metadata) => metadata.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}
