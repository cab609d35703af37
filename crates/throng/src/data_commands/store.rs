//! The data directory, while no server has it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use throng_data::directory::{Directory, DirectoryError};
use throng_data::logs::Logs;
use throng_data::storage::disk::DiskStorage;

use crate::settings::SettingsError;

/// Memory for blocks that were read.
const CACHE_BYTES: u64 = 64 << 20;

pub(super) struct StoppedStore {
    pub(super) logs: Logs,
    pub(super) storage: Arc<DiskStorage>,
    // Behind what has files in it.
    _directory: Directory,
}

impl StoppedStore {
    /// Takes the directory, unless a server has it.
    pub(super) fn open(path: &Path) -> Result<StoppedStore> {
        let shown = path.display();
        let refused = |why: String| SettingsError(format!("the data directory {shown} {why}"));
        // Files that root makes here could not be written by a server that is not root.
        let owner = fs::metadata(path).map(|metadata| metadata.uid());
        let own = geteuid().as_raw();
        if let Ok(owner) = owner
            && owner != own
        {
            let why = format!(
                "belongs to the user with the id {owner}, and this process to that with {own}; run \
                 the command as the user of the server"
            );
            return Err(refused(why).into());
        }
        umask(Mode::RWXG | Mode::RWXO);
        let directory = Directory::open_existing(path).map_err(|error| {
            refused(match error {
                DirectoryError::InUse => "is in use by a server; stop it first".into(),
                other => other.to_string(),
            })
        })?;
        let broken = || format!("cannot open the data directory {shown}");
        let storage =
            Arc::new(DiskStorage::open(&directory.store(), CACHE_BYTES).with_context(broken)?);
        let logs = Logs::at_rest(Arc::clone(&storage) as _).with_context(broken)?;
        Ok(StoppedStore { logs, storage, _directory: directory })
    }
}
