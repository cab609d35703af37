//! Reports as JSON files with a format version, and atomic writing of files.
//!
//! A file is written beside its destination and then renamed, so that it is complete or absent.
//! Destinations that are not regular files (`/dev/stdout`, a pipe) are written directly.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A JSON format: an object whose `format` is the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The command that writes it, for error messages.
    pub command: &'static str,
    /// Changes when a field changes its meaning.
    pub version: u32,
}

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {}: {}", path.display(), describe(error))]
    File { path: PathBuf, error: io::Error },
    /// The text is not JSON, lacks a version, or has a field of a wrong type.
    #[error("{} is not a report of `{}`: {error}", path.display(), format.command)]
    NotAReport { path: PathBuf, format: Format, error: serde_json::Error },
    #[error(
        "{} has version {found} of the report format, and this throng reads version {}: {}",
        path.display(),
        format.version,
        if *found > format.version { "use a newer throng" } else { "run it again" }
    )]
    Version { path: PathBuf, format: Format, found: u32 },
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {}", path.display(), describe(error))]
pub struct WriteError {
    path: PathBuf,
    error: io::Error,
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object with a format")]
struct Versioned {
    format: u32,
}

impl Format {
    /// Reads a report that was written by [`to_json`].
    pub fn read<T: DeserializeOwned>(self, path: &Path) -> Result<T, ReadError> {
        let text = fs::read_to_string(path)
            .map_err(|error| ReadError::File { path: path.to_owned(), error })?;
        self.parse(&text, path)
    }

    /// Parses a report; errors name `path`.
    pub fn parse<T: DeserializeOwned>(self, text: &str, path: &Path) -> Result<T, ReadError> {
        let not_a_report =
            |error| ReadError::NotAReport { path: path.to_owned(), format: self, error };
        // The version first: another version may have fields of other types.
        let Versioned { format: version } = serde_json::from_str(text).map_err(not_a_report)?;
        if version != self.version {
            return Err(ReadError::Version { path: path.to_owned(), format: self, found: version });
        }
        serde_json::from_str(text).map_err(not_a_report)
    }
}

/// A report as indented JSON.
pub fn to_json(report: &impl Serialize) -> String {
    // Serializing fails only for maps whose keys are not strings; reports have none.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

/// Writes a file so that it is complete or absent.
pub fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    write_atomically(path, text.as_bytes())
        .map_err(|error| WriteError { path: path.to_owned(), error })
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A symbolic link stays a link: its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|found| !found.is_file()) {
        return File::options().write(true).open(&target)?.write_all(bytes);
    }
    let mut name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = target.with_file_name(name);
    let written = write_part(&part, bytes).and_then(|()| fs::rename(&part, &target));
    if written.is_err() {
        // An incomplete file is useless and takes space, which may be what is missing.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_part(part: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(part)?;
    file.write_all(bytes)?;
    // Some file systems report a full disk only at this point.
    file.sync_all()
}

/// The system's error message without its number.
fn describe(error: &io::Error) -> String {
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

    const FORMAT: Format = Format { command: "throng flood", version: 1 };

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Sample {
        #[serde(rename = "format")]
        version: u32,
        series: Vec<f64>,
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = Sample { version: 1, series: vec![0.5] };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.json");
        write(&path, &to_json(&report)).expect("written");
        assert_eq!(FORMAT.read::<Sample>(&path).expect("read"), report);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn other_versions_are_refused_in_one_sentence() {
        let read = |text| FORMAT.parse::<Sample>(text, Path::new("a.json"));
        let error = read(r#"{"format": 7, "series": "of another shape"}"#).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "a.json has version 7 of the report format, and this throng reads version 1: use a \
             newer throng"
        );
        for text in ["{}", "", "[]", "5", r#"{"format": 1, "series": 3}"#] {
            let error = read(text).expect_err("refused").to_string();
            assert!(error.starts_with("a.json is not a report of `throng flood`: "), "{error}");
            assert!(!error.contains("struct"), "{error}");
        }
    }

    #[test]
    fn fields_of_later_versions_may_be_missing() {
        let report: Sample = FORMAT.parse(r#"{"format": 1}"#, Path::new("a.json")).expect("read");
        assert_eq!(report, Sample { version: 1, ..Sample::default() });
    }

    #[test]
    fn errors_of_the_file_system_are_one_sentence() {
        let error = write(Path::new("/dev/full"), "text").expect_err("full");
        assert_eq!(error.to_string(), "cannot write /dev/full: the disk is full");
        assert!(fs::metadata("/dev/full").is_ok_and(|found| !found.is_file()));
        let error = write(Path::new("/nowhere/at/all.json"), "text").expect_err("no folder");
        assert_eq!(
            error.to_string(),
            "cannot write /nowhere/at/all.json: there is no such file or folder"
        );
        let error = FORMAT.read::<Sample>(Path::new("/nowhere/at/all.json")).expect_err("no file");
        assert!(error.to_string().ends_with("there is no such file or folder"), "{error}");
        assert!(write(Path::new("/"), "text").is_err());
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        write(&link, "new").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "new");
        assert!(link.is_symlink());
    }
}
