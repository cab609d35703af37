//! Kept lines of what nodes store and say, one file for each kind. Version N of the format wrote
//! those in `kept/N`; `THRONG_KEEP=1 cargo test -p throng-nats --lib kept` writes the lines of a
//! new version. Kept files are never written anew.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::FORMAT;

/// The lines that are kept of this version.
pub(crate) fn lines(kind: &str, current: &[String]) -> Vec<String> {
    let kept = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/kept")).join(FORMAT);
    let path = kept.join(kind);
    if !path.exists() && std::env::var_os("THRONG_KEEP").is_some() {
        fs::create_dir_all(kept).unwrap();
        fs::write(&path, current.join("\n") + "\n").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    text.lines().map(str::to_owned).collect()
}

/// Reads kept lines of JSON as values of a type, which have to be these.
pub(crate) fn reads<T>(kind: &str, values: &[T])
where
    T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
{
    let current: Vec<String> =
        values.iter().map(|value| serde_json::to_string(value).unwrap()).collect();
    let kept = lines(kind, &current);
    let read: Vec<T> = kept.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, values);
}
