//! The site of the documentation: files of a directory, which are read once.
//!
//! They are kept in memory, so that requests neither open files nor wait for a disk, and so that
//! what is served does not change while the server runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;

use crate::http::file::{FileContent, REVALIDATE};

/// The file that is served for the directory itself.
const INDEX: &str = "index.html";

/// Maximum number of files. A directory with more is not the one that was meant.
const FILES_MAX: usize = 2000;

/// Maximum size of all files together, in bytes.
const BYTES_MAX: u64 = 32 << 20;

/// The site, by the paths of its files below its directory.
pub struct Site {
    files: HashMap<String, (&'static str, FileContent)>,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} has no {INDEX}: name the directory that has the site", .0.display())]
    NoSite(PathBuf),
    /// The name of a file would be another one in a URL.
    #[error("{} has a name that is not served: rename it", .0.display())]
    Name(PathBuf),
    #[error("{} has more than {FILES_MAX} files or {} MiB", .0.display(), BYTES_MAX >> 20)]
    TooLarge(PathBuf),
}

impl Site {
    /// Reads a directory. Files whose names begin with a dot, and symbolic links, are left out.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, is none of a site, or has a file that cannot be served.
    pub fn read(directory: &Path) -> Result<Site, SiteError> {
        let mut reader = Reader { root: directory, files: HashMap::new(), bytes: 0 };
        reader.read(directory, "")?;
        if !reader.files.contains_key(INDEX) {
            return Err(SiteError::NoSite(directory.to_owned()));
        }
        Ok(Site { files: reader.files })
    }

    /// The response with the file at a path below the site; `None` if there is none.
    pub(crate) fn response(&self, path: &str, request: &HeaderMap) -> Option<Response> {
        let path = if path.is_empty() { INDEX } else { path };
        let (content_type, content) = self.files.get(path)?;
        Some(content.response(content_type, REVALIDATE, request))
    }
}

/// A directory while it is read.
struct Reader<'a> {
    root: &'a Path,
    files: HashMap<String, (&'static str, FileContent)>,
    bytes: u64,
}

impl Reader<'_> {
    /// Reads what is in a directory, whose path below the site is `prefix`.
    fn read(&mut self, directory: &Path, prefix: &str) -> Result<(), SiteError> {
        let unreadable = |source| SiteError::Unreadable { path: directory.to_owned(), source };
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().map_err(unreadable)?;
            let Some(name) = name.to_str().filter(|name| is_plain(name)) else {
                return Err(SiteError::Name(path));
            };
            if name.starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                self.read(&path, &format!("{prefix}{name}/"))?;
            } else if kind.is_file() {
                self.add(&path, format!("{prefix}{name}"))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, name: String) -> Result<(), SiteError> {
        let unreadable = |source| SiteError::Unreadable { path: path.to_owned(), source };
        self.bytes += fs::metadata(path).map_err(unreadable)?.len();
        if self.bytes > BYTES_MAX || self.files.len() == FILES_MAX {
            return Err(SiteError::TooLarge(self.root.to_owned()));
        }
        let bytes = Bytes::from(fs::read(path).map_err(unreadable)?);
        let content_type = content_type(path.extension().and_then(|text| text.to_str()));
        self.files.insert(name, (content_type, FileContent::new(bytes)));
        Ok(())
    }
}

/// True if a URL has the name unchanged.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn content_type(extension: Option<&str>) -> &'static str {
    match extension.unwrap_or_default() {
        "css" => "text/css; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    fn error(files: &[(&str, &str)]) -> String {
        let directory = directory(files);
        let error = Site::read(directory.path()).err().expect("an error").to_string();
        error.replace(directory.path().to_str().unwrap(), "DIR")
    }

    #[test]
    fn files_are_found_by_their_paths() {
        let files =
            [("index.html", "<p>"), ("a/b.css", "p {}"), (".hidden", "x"), ("LICENSE", "text")];
        let directory = directory(&files);
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("passwd.txt")).unwrap();
        let site = Site::read(directory.path()).unwrap();
        for (path, expected) in [
            ("", Some("text/html; charset=utf-8")),
            ("index.html", Some("text/html; charset=utf-8")),
            ("a/b.css", Some("text/css; charset=utf-8")),
            ("LICENSE", Some("application/octet-stream")),
            (".hidden", None),
            ("passwd.txt", None),
            ("a", None),
            ("a/", None),
            ("a/../index.html", None),
            ("../index.html", None),
            ("/etc/passwd", None),
        ] {
            let response = site.response(path, &HeaderMap::new());
            let found = response.map(|response| response.headers()[CONTENT_TYPE].clone());
            assert_eq!(found.as_ref().map(|text| text.to_str().unwrap()), expected, "{path}");
        }
    }

    #[test]
    fn a_directory_that_is_none_of_a_site_is_refused() {
        assert!(error(&[("a.html", "")]).starts_with("DIR has no index.html"));
        assert!(error(&[("a b.html", "")]).starts_with("DIR/a b.html has a name"));
        let missing = Site::read(Path::new("/nowhere/html")).err().expect("an error").to_string();
        assert!(missing.starts_with("cannot read /nowhere/html: "), "{missing}");
        let directory = directory(&[("index.html", "")]);
        let large = fs::File::create(directory.path().join("large.txt")).unwrap();
        large.set_len(BYTES_MAX + 1).unwrap();
        assert!(matches!(Site::read(directory.path()), Err(SiteError::TooLarge(_))));
    }
}
