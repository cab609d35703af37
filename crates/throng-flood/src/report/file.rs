//! Reports as files: JSON in and out, versions, disks that are full.
//!
//! A file is whole or not there: it is written beside its place and then moved. Places that are no
//! files (`/dev/stdout`, a pipe) are written to directly.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Report, VERSION};

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}: {}", path.display(), plainly(error))]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is not JSON, or has no version, or a field is not what it should be.
    #[error("{} is not a report of `throng flood`: {error}", path.display())]
    NotAReport {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// Another version of the format.
    #[error(
        "{} has version {found} of the report format, and this throng reads version {VERSION}: \
         {}",
        path.display(),
        if *found > VERSION { "use a newer throng" } else { "run it again" }
    )]
    Version {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {}", path.display(), plainly(error))]
pub struct WriteError {
    /// Which.
    pub path: PathBuf,
    /// What the system says.
    pub error: io::Error,
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object with a version")]
struct Versioned {
    version: u32,
}

impl Report {
    /// Reads a report that [`Report::to_json`] has made.
    pub fn read(path: &Path) -> Result<Report, ReadError> {
        let text = fs::read_to_string(path)
            .map_err(|error| ReadError::File { path: path.to_owned(), error })?;
        Report::from_json(&text, path)
    }

    /// Reads a report from a text; `path` is named if something is wrong with it.
    pub fn from_json(text: &str, path: &Path) -> Result<Report, ReadError> {
        let wrong = |error| ReadError::NotAReport { path: path.to_owned(), error };
        let Versioned { version } = serde_json::from_str(text).map_err(wrong)?;
        if version != VERSION {
            return Err(ReadError::Version { path: path.to_owned(), found: version });
        }
        serde_json::from_str(text).map_err(wrong)
    }

    /// The report as JSON, for people as well as programs.
    pub fn to_json(&self) -> String {
        // Maps have strings for keys and nothing else in it can fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Writes a text to a file that is whole or not there.
pub fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    write_whole(path, text.as_bytes()).map_err(|error| WriteError { path: path.to_owned(), error })
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays a link: what it points to is replaced.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&place).is_ok_and(|found| !found.is_file()) {
        return File::options().write(true).open(&place)?.write_all(bytes);
    }
    let mut name = place.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = place.with_file_name(name);
    let written = write_part(&part, bytes).and_then(|()| fs::rename(&part, &place));
    if written.is_err() {
        // What is left of it is of no use and takes room where there is none.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_part(part: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(part)?;
    file.write_all(bytes)?;
    // Some file systems tell only now that they have no room.
    file.sync_all()
}

/// What the system says, without its number.
fn plainly(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        io::ErrorKind::QuotaExceeded => "the disk quota is used up".to_owned(),
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("flood-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn a_report_comes_back_as_it_was() {
        let report = fixture::sample();
        let folder = scratch("round-trip");
        let path = folder.join("run.json");
        write(&path, &report.to_json()).expect("written");
        assert_eq!(Report::read(&path).expect("read"), report);
        assert_eq!(fs::read_dir(&folder).expect("listed").count(), 1);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn other_versions_are_refused_in_one_sentence() {
        let read = |text| Report::from_json(text, Path::new("a.json"));
        let error = read(r#"{"version": 7, "series": "of another shape"}"#).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "a.json has version 7 of the report format, and this throng reads version 1: use a \
             newer throng"
        );
        for text in ["{}", "", "[]", "5", r#"{"version": 1, "series": 3}"#] {
            let error = read(text).expect_err("refused").to_string();
            assert!(error.starts_with("a.json is not a report of `throng flood`: "), "{error}");
            assert!(!error.contains("struct"), "{error}");
        }
    }

    #[test]
    fn fields_that_came_later_may_be_missing() {
        let report = Report::from_json(r#"{"version": 1}"#, Path::new("a.json")).expect("read");
        assert_eq!(report, Report { version: 1, ..Report::default() });
    }

    #[test]
    fn a_full_disk_is_one_sentence() {
        let error = write(Path::new("/dev/full"), "text").expect_err("full");
        assert_eq!(error.to_string(), "cannot write /dev/full: the disk is full");
        assert!(fs::metadata("/dev/full").is_ok_and(|found| !found.is_file()));
        let error = write(Path::new("/nowhere/at/all.json"), "text").expect_err("no folder");
        assert_eq!(
            error.to_string(),
            "cannot write /nowhere/at/all.json: there is no such file or folder"
        );
        let error = Report::read(Path::new("/nowhere/at/all.json")).expect_err("no file");
        assert!(error.to_string().ends_with("there is no such file or folder"), "{error}");
        assert!(write(Path::new("/"), "text").is_err());
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = scratch("link");
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "old").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        write(&link, "new").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "new");
        assert!(link.is_symlink());
        fs::remove_dir_all(folder).expect("removed");
    }
}
