//! The directory of a server: its settings, the keys of its tokens, and its data. It is made for
//! one run, among the temporary files, and removed with it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::file::Run;
use crate::keys::Keys;

/// Directories that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Is removed when it is dropped.
pub(crate) struct Directory {
    path: PathBuf,
    /// The keys of its tokens, if its server checks any.
    pub(crate) keys: Option<Keys>,
}

impl Directory {
    /// Makes the directory for the server of a run, which is started from `program`.
    pub(crate) fn make(run: &Run, program: &Path) -> Result<Directory, String> {
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("throng-bench-{}-{nth}", std::process::id()));
        let fault = |error: io::Error| format!("{} cannot be made: {error}", path.display());
        // For this user only: keys are secret while the run lasts.
        DirBuilder::new().mode(0o700).create(&path).map_err(fault)?;
        let mut directory = Directory { path: path.clone(), keys: None };
        let mut settings = run.settings.clone();
        if let Some(algorithm) = run.tokens {
            let keys = Keys::make(&path, program)?;
            settings.push_str(&keys.settings(algorithm));
            directory.keys = Some(keys);
        }
        fs::write(directory.settings(), settings).map_err(fault)?;
        Ok(directory)
    }

    /// The file of settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.path.join("throng.toml")
    }

    /// Bytes of its files on the disk.
    pub(crate) fn bytes(&self) -> f64 {
        blocks(&self.path) as f64
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If it stays, it is in a directory of temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Bytes of the files below a directory. Files come and go while a server runs.
fn blocks(path: &Path) -> u64 {
    /// Bytes of a block of the system's.
    const BLOCK_BYTES: u64 = 512;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => blocks(&entry.path()),
        Ok(metadata) => metadata.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Algorithm;

    /// A program that prints its arguments in place of a key.
    #[test]
    fn files_are_made_and_removed() {
        let run = Run {
            tokens: Some(Algorithm::Es256),
            settings: "max-cached-tokens = 1".to_owned(),
            ..Run::default()
        };
        let directory = Directory::make(&run, Path::new("/bin/echo")).expect("keys");
        let keys = directory.keys.as_ref().expect("keys");
        assert!(keys.server_key.contains("--scopes publish,administration"));
        assert_ne!(keys.token("ann"), keys.forged_token("ann"));
        let path = directory.settings();
        let settings = fs::read_to_string(&path).expect("written");
        assert!(settings.contains("public.pem") && settings.contains("max-cached-tokens"));
        let public = fs::read_to_string(path.with_file_name("public.pem")).expect("written");
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYI"), "{public}");
        assert!(directory.bytes() > 0.0);
        drop(directory);
        assert!(!path.exists());
        assert!(Directory::make(&run, Path::new("/bin/false")).is_err());
    }
}
