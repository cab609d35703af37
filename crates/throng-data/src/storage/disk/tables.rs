//! The library's tables: how they are made, and whether one is lost. Each has a directory.
//!
//! The library takes a table without its file `current` for one that it was making when its
//! process ended: it removes all that the table has, and begins it anew. So it does with all tables
//! that the first one, which names them, does not know.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::{PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use super::super::Space;

/// The directory of all tables.
const ALL: &str = "keyspaces";

/// The table that names the others.
const NAMES: &str = "0";

/// The file of a table that is complete. The library makes it last, and replaces it at once.
const CURRENT: &str = "current";

/// The directory of what a table has on the disk.
const FILES: &str = "tables";

/// Size of most memtables before the library writes a file.
const MEMTABLE_BYTES: u64 = 8 << 20;

/// The same of the table that most of what is written goes to. Nothing can be written to a table
/// while a file is noted in the list of its files, which takes several syncs: so the fewer files
/// the better, but this is memory.
pub(super) const MEMTABLE_BYTES_MAX: u64 = 16 << 20;

/// Bytes of a file that is merged from others. The last one of each merge is synced while nothing
/// can be written to the table, and the sync of the library's journal waits for it, too: 40 ms for
/// the 64 MiB that are the library's choice.
const MERGED_BYTES: u64 = 16 << 20;

/// Files of memtables that are merged at a time. A merge also rewrites the next level, which may be
/// as large as this many merged files. Until then a read looks into each of them.
const MERGED_FILES: u8 = 6;

/// A table that is damaged, as a text: the library would begin it anew. `has_run` says that the
/// library has made all tables before.
pub(super) fn missing(directory: &Path, has_run: bool) -> io::Result<Option<String>> {
    let all = directory.join(ALL);
    let mut others = false;
    for entry in entries(&all)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            // The library passes over it.
            continue;
        }
        let table = entry.path();
        let name = table.file_name().unwrap_or_default().to_string_lossy();
        if name.parse::<u64>().is_err() {
            // The library panics.
            return Ok(Some(format!("{ALL}/{name} is none of its tables")));
        }
        if table.join(CURRENT).try_exists()? {
            others |= table.file_name() != Some(OsStr::new(NAMES));
        } else if has_run || entries(&table.join(FILES))?.next().is_some() {
            return Ok(Some(format!("{ALL}/{name}/{CURRENT} is missing")));
        }
    }
    // It is made before all others.
    let is_lost = others && !all.join(NAMES).join(CURRENT).try_exists()?;
    Ok(is_lost.then(|| format!("{ALL}/{NAMES} is missing")))
}

/// A table that the library does not know any more, as a text: it would be made anew. That is right
/// before the first run, which makes them one after the other.
pub(super) fn forgotten(database: &Database) -> fjall::Result<Option<String>> {
    let names = Space::ALL.map(name);
    let is_known = |name: &String| database.keyspace_exists(name);
    let Some(first) = names.iter().position(|name| !is_known(name)) else { return Ok(None) };
    let is_known_behind = names[first..].iter().any(is_known);
    // Each run begins with a note, once all tables of its version are there. A version with one
    // more has to allow for those without.
    let is_lost = is_known_behind || first > 0 && !open(database, Space::Meta)?.is_empty()?;
    Ok(is_lost.then(|| format!("its table {} is missing", names[first])))
}

/// Opens the tables of all spaces, in their order, and makes those that are not there.
pub(super) fn open_all(database: &Database) -> fjall::Result<Vec<Keyspace>> {
    Space::ALL.map(|space| open(database, space)).into_iter().collect()
}

/// Size of a table's memtable before the library writes a file.
pub(super) fn memtable_bytes(space: Space) -> u64 {
    if space == Space::Messages { MEMTABLE_BYTES_MAX } else { MEMTABLE_BYTES }
}

fn open(database: &Database, space: Space) -> fjall::Result<Keyspace> {
    database.keyspace(&name(space), || options(space))
}

fn name(space: Space) -> String {
    format!("{space:?}").to_ascii_lowercase()
}

/// How the library makes a table.
///
/// A file of a table that needs no merging goes from level to level as it is, with what the library
/// pinned of it when it was new: by the library's defaults its whole filter and index, which for
/// millions of new channels is more than the cache. So nothing is pinned but the indices of
/// filters and indices. These are read in parts, through the cache.
fn options(space: Space) -> KeyspaceCreateOptions {
    let merges =
        Leveled::default().with_table_target_size(MERGED_BYTES).with_l0_threshold(MERGED_FILES);
    KeyspaceCreateOptions::default()
        .max_memtable_size(memtable_bytes(space))
        .compaction_strategy(Arc::new(merges))
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(false))
}

/// The files that have the entries of all tables of [`open_all`] now.
pub(super) fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for table in entries(&directory.join(ALL))? {
        let table = table?;
        if table.file_name() != NAMES {
            for file in entries(&table.path().join(FILES))? {
                files.push(file?.path());
            }
        }
    }
    Ok(files)
}

/// The entries of a directory; none if it is missing.
fn entries(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>> + use<>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        entries => entries.map(Some),
    }
    .map(|entries| entries.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::super::super::{Storage as _, Write};
    use super::super::DiskStorage;
    use super::*;

    /// Whether nothing on the way to the messages is missing.
    fn open_and_look(path: &Path) -> Result<bool, String> {
        let storage = DiskStorage::open(path, 1 << 20).map_err(|error| error.to_string())?;
        let has = |space| storage.get(space, b"key").expect("it can be read").is_some();
        Ok(Space::ALL.into_iter().all(has))
    }

    /// The directories of all tables, and the files that complete them.
    fn all_parts(path: &Path) -> Vec<std::path::PathBuf> {
        let tables: Vec<_> =
            entries(&path.join(ALL)).unwrap().map(|one| one.unwrap().path()).collect();
        let files = tables.iter().map(|table| table.join(CURRENT));
        files.chain(tables.iter().cloned()).collect()
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }

    #[test]
    fn no_table_that_is_damaged_begins_anew() {
        for is_clean in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let whole = folder.path().join("whole");
            let storage = DiskStorage::open(&whole, 1 << 20).unwrap();
            let writes = Space::ALL.map(|space| Write::put(space, "key", "value"));
            storage.commit(&writes).unwrap();
            storage.sync().unwrap();
            if is_clean {
                storage.settle().unwrap();
            }
            drop(storage);
            let parts = all_parts(&whole);
            assert_eq!(parts.len(), 2 * (Space::ALL.len() + 1));
            for (number, part) in parts.into_iter().enumerate() {
                let damaged = folder.path().join(format!("{number}"));
                copy(&whole, &damaged);
                if !is_clean {
                    fs::write(damaged.with_extension("running"), "").unwrap();
                }
                let part = damaged.join(part.strip_prefix(&whole).unwrap());
                if part.is_dir() {
                    fs::remove_dir_all(&part).unwrap();
                } else {
                    fs::remove_file(&part).unwrap();
                }
                // A refused one is not made anew for the next time.
                for _ in 0..2 {
                    let error = open_and_look(&damaged).expect_err(&format!("{part:?} is missing"));
                    assert!(error.contains("missing"), "{part:?}: {error}");
                }
            }
            assert!(open_and_look(&whole).unwrap());
            let foreign = whole.join(ALL).join("lost+found");
            fs::create_dir(&foreign).unwrap();
            let error = open_and_look(&whole).expect_err("it is no table");
            assert!(error.contains("lost+found"), "{error}");
        }
    }

    #[test]
    fn a_table_that_was_not_complete_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        drop(DiskStorage::open(&path, 1 << 20).unwrap());
        fs::remove_file(path.with_extension("running")).unwrap_or_default();
        let last = path.join(ALL).join(Space::ALL.len().to_string());
        assert!(last.join(CURRENT).try_exists().unwrap());
        fs::remove_file(last.join(CURRENT)).unwrap();
        assert!(!open_and_look(&path).unwrap(), "nothing was written");
    }
}
