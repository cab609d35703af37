//! Response heads and chunks.

use crate::{Check, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A header's value, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Reads a head, and returns its length, too; `None` if it is incomplete.
pub(crate) fn head(bytes: &[u8]) -> Check<Option<(Head, usize)>> {
    let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "a head that is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| format!("the status line `{status_line}`"))?;
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("header `{line}`"))?;
        let name = name.to_ascii_lowercase();
        ensure!(headers.iter().all(|(known, _)| *known != name), "two headers `{name}`");
        headers.push((name, value.to_owned()));
    }
    Ok(Some((Head { status, headers }, end + 4)))
}

/// Reads a chunk, and returns its length with its framing, too; `None` if it is incomplete. The
/// last chunk is empty.
pub(crate) fn chunk(bytes: &[u8]) -> Check<Option<(&[u8], usize)>> {
    let Some(line) = find(bytes, b"\r\n") else {
        ensure!(bytes.len() < 20, "a chunk without a length");
        return Ok(None);
    };
    let digits =
        std::str::from_utf8(&bytes[..line]).map_err(|_| "a chunk length that is not UTF-8")?;
    let length =
        usize::from_str_radix(digits, 16).map_err(|_| format!("the chunk length `{digits}`"))?;
    let Some(inside) = bytes.get(line + 2..line + 2 + length + 2) else { return Ok(None) };
    let (chunk, end) = inside.split_at(length);
    ensure!(end == b"\r\n", "no line end after a chunk");
    Ok(Some((chunk, line + 2 + length + 2)))
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
