//! The library's journals, as files.
//!
//! A sync that fails leaves a hole: the system drops what it could not write, although reads still
//! find it. The library would append behind it, and read only up to it after the end of the
//! machine. So journals are written anew after an error, and at a start that cannot know whether
//! there was one.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// End of the names of journals.
pub(super) const EXTENSION: &str = "jnl";

/// The same while one is written anew.
const NEW: &str = "new";

/// The file that the library writes last when it makes a directory.
const VERSION: &str = "version";

/// Size of one copied piece.
const PIECE_BYTES: usize = 64 << 10;

/// The files of a directory whose names end in this way.
pub(super) fn all(directory: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Journals that are missing, as a text: the library would begin without what was in them. It
/// numbers them, and removes the oldest first, so one between others is missed; the oldest or the
/// newest of several is not.
pub(super) fn missing(directory: &Path) -> io::Result<Option<String>> {
    if !directory.join(VERSION).try_exists()? {
        return Ok(None);
    }
    let journals = all(directory, EXTENSION)?;
    if journals.is_empty() {
        return Ok(Some("its journals are missing".into()));
    }
    let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
    let mut numbers: Vec<_> = journals.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let hole = numbers.windows(2).find(|two| two[1] != two[0] + 1);
    Ok(hole.map(|two| format!("its journal {}.{EXTENSION} is missing", two[0] + 1)))
}

/// Copies all journals to new files, as reads find them, and syncs those. Nobody writes to the
/// journals meanwhile. Leaves no copy if it fails.
pub(super) fn copy_all(directory: &Path) -> io::Result<()> {
    if !directory.try_exists()? {
        return Ok(());
    }
    let copied = all(directory, EXTENSION)?
        .into_iter()
        .try_for_each(|path| copy(&path, &path.with_extension(NEW)));
    if copied.is_err() {
        // They take room, which may be what is missing.
        for path in all(directory, NEW)? {
            fs::remove_file(path)?;
        }
    }
    copied
}

/// Puts the copies in the places of the journals, which nobody has open. One that the library has
/// removed meanwhile stays away.
pub(super) fn replace_all(directory: &Path) -> io::Result<()> {
    if !directory.try_exists()? {
        return Ok(());
    }
    for new in all(directory, NEW)? {
        let path = new.with_extension(EXTENSION);
        if path.try_exists()? {
            fs::rename(&new, &path)?;
        } else {
            fs::remove_file(new)?;
        }
    }
    File::open(directory)?.sync_all()
}

/// Removes what is in all journals, which nobody has open.
pub(super) fn empty_all(directory: &Path) -> io::Result<()> {
    for path in all(directory, EXTENSION)? {
        let journal = File::options().write(true).open(path)?;
        journal.set_len(0)?;
        journal.sync_all()?;
    }
    Ok(())
}

/// Copies a file byte by byte: the system's own copies may share what is on the disk.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut copy = File::create(to)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = source.read(&mut piece)?;
        if count == 0 {
            break;
        }
        // Most of a journal is a hole at first.
        if piece[..count].iter().all(|byte| *byte == 0) {
            copy.seek(SeekFrom::Current(count as i64))?;
        } else {
            copy.write_all(&piece[..count])?;
        }
    }
    let bytes = copy.stream_position()?;
    copy.set_len(bytes)?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::DiskStorage;
    use super::*;
    use crate::storage::{KeyOrder, Space, Storage as _, Write};

    #[test]
    fn a_journal_between_others_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let write = |name: &str| fs::write(directory.join(name), "").unwrap();
        assert_eq!(missing(directory).unwrap(), None, "it was never used");
        write(VERSION);
        assert_eq!(missing(directory).unwrap().as_deref(), Some("its journals are missing"));
        for name in ["9.jnl", "10.jnl", "11.jnl"] {
            write(name);
        }
        assert_eq!(missing(directory).unwrap(), None);
        fs::remove_file(directory.join("10.jnl")).unwrap();
        assert_eq!(missing(directory).unwrap().as_deref(), Some("its journal 10.jnl is missing"));
    }

    #[test]
    fn journals_are_written_anew_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.jnl");
        let mut bytes = vec![0; 3 * PIECE_BYTES + 5];
        (bytes[1], bytes[2 * PIECE_BYTES]) = (1, 2);
        fs::write(&path, &bytes).unwrap();
        fs::write(folder.path().join("lock"), "").unwrap();
        let old = File::open(&path).unwrap();
        // Of an earlier attempt.
        fs::write(folder.path().join("6.new"), "").unwrap();
        copy_all(folder.path()).unwrap();
        replace_all(folder.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        fs::write(&path, "another file").unwrap();
        assert_eq!(old.metadata().unwrap().len(), bytes.len() as u64);
        let none = folder.path().join("none");
        copy_all(&none).unwrap();
        replace_all(&none).unwrap();
        // One that cannot be read.
        fs::create_dir(folder.path().join("8.jnl")).unwrap();
        copy_all(folder.path()).unwrap_err();
        assert!(all(folder.path(), NEW).unwrap().is_empty());
    }

    #[test]
    fn journals_are_emptied_once_all_is_in_tables() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let put = |key: u32| Write::put(Space::Heads, key.to_be_bytes(), vec![7; 1_000]);
        let journaled = || -> u64 {
            let bytes = |path: PathBuf| fs::metadata(path).unwrap().len();
            all(&path, EXTENSION).unwrap().into_iter().map(bytes).sum()
        };
        let open = || DiskStorage::open(&path, 1 << 20).expect("it opens");
        let has = |storage: &DiskStorage, key: u32| {
            storage.get(Space::Heads, &key.to_be_bytes()).expect("it is read").is_some()
        };
        let storage = open();
        storage.commit(&[put(1)]).expect("it is written");
        storage.settle().expect("it is written");
        storage.commit(&[put(2)]).expect("it is written");
        storage.close().expect("nobody reads");
        assert!(journaled() > 1_000, "what came last is in the journal alone");
        storage.open_again().expect("it opens");
        assert!(has(&storage, 1) && has(&storage, 2));
        storage.settle().expect("it is written");
        storage.close().expect("nobody reads");
        assert_eq!(journaled(), 0);
        drop(storage);
        let storage = open();
        assert!(has(&storage, 1) && has(&storage, 2));
        storage.commit(&[put(3)]).expect("it is written");
        drop(storage);
        assert!(has(&open(), 3));
    }

    #[test]
    fn what_was_removed_takes_no_room_after_it_is_compacted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let put = |key: u32| Write::put(Space::Heads, key.to_be_bytes(), vec![7; 1_000]);
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        for key in 0..2_000 {
            storage.commit(&[put(key)]).expect("it is written");
            if key != 5 {
                let removed = Write::remove(Space::Heads, key.to_be_bytes());
                storage.commit(&[removed]).expect("it is written");
            }
        }
        let before = storage.bytes().expect("it is known");
        storage.compact().expect("it is written");
        let after = storage.bytes().expect("it is known");
        assert!(before > 2_000_000 && after < 300_000, "{before}, then {after}");
        let found = |storage: &DiskStorage| {
            let mut keys = Vec::new();
            let mut each = |key: &[u8], _: &[u8]| {
                keys.push(u32::from_be_bytes(key.try_into().expect("it is a number")));
                ControlFlow::Continue(())
            };
            let all: (&[u8], &[u8]) = (&[], &[u8::MAX]);
            storage.scan(Space::Heads, all, KeyOrder::Up, &mut each).expect("it is read");
            keys
        };
        assert_eq!(found(&storage), [5]);
        storage.commit(&[put(7)]).expect("it is written");
        drop(storage);
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        let removed = Write::remove(Space::Heads, 5_u32.to_be_bytes());
        storage.commit(&[put(6), removed]).expect("it is written");
        drop(storage);
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        assert_eq!(found(&storage), [6, 7]);
        storage.compact().expect("it is written");
        drop(storage);
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        assert_eq!(found(&storage), [6, 7]);
    }
}
