//! The directory of a server: its settings, the keys of its tokens, and its data. It is made for
//! one run, among the temporary files, and removed with it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::file::Run;
use crate::keys::Keys;

pub(crate) struct Directory {
    /// Removed on drop.
    directory: TempDir,
    /// The keys of its tokens, if its server checks any.
    pub(crate) keys: Option<Keys>,
}

impl Directory {
    /// Makes the directory for the server of a run, which is started from `program`.
    pub(crate) fn make(run: &Run, program: &Path) -> Result<Directory, String> {
        let mut directory = Directory { directory: temporary()?, keys: None };
        let mut settings = run.settings.clone();
        if let Some(algorithm) = run.tokens {
            let keys = Keys::make(directory.directory.path(), program)?;
            settings.push_str(&keys.settings(algorithm));
            directory.keys = Some(keys);
        }
        let path = directory.settings();
        fs::write(&path, settings)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        Ok(directory)
    }

    /// The file of settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.directory.path().join("throng.toml")
    }

    /// Bytes of its files on the disk.
    pub(crate) fn bytes(&self) -> f64 {
        blocks(self.directory.path()) as f64
    }
}

/// Makes a directory for this user only, since it may hold keys. Its name is random: a killed run
/// leaves its own behind, and process IDs return.
pub(crate) fn temporary() -> Result<TempDir, String> {
    tempfile::Builder::new()
        .prefix("throng-bench-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir()
        .map_err(|error| format!("a temporary directory cannot be made: {error}"))
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
        let mode = fs::metadata(directory.directory.path()).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
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
