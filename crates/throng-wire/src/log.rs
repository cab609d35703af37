//! Request lines in the format of the log.

/// The limit on logged bytes of a path.
const PATH_BYTES_MAX: usize = 256;

/// Method and path of the request at the start of `bytes`. The query is left out, with its names:
/// it may contain secrets, and a value without a name would pass for a name.
pub fn request_line(bytes: &[u8]) -> String {
    let line = bytes.trim_ascii_start().split(|byte| *byte == b'\r' || *byte == b'\n').next();
    let mut words = line.unwrap_or_default().split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    format!("{} {}", method[..method.len().min(16)].escape_ascii(), without_query(target))
}

/// The path of a request target. The authority of a URL, which may contain a password, and the
/// fragment are left out like the query.
pub fn without_query(target: &[u8]) -> String {
    let mut parts = target.splitn(2, |byte| matches!(byte, b'?' | b'#'));
    let target = parts.next().unwrap_or_default();
    let (before, path) = target.split_at(path_at(target));
    let before = if before.is_empty() { "" } else { "…" };
    let cut = if path.len() > PATH_BYTES_MAX { "…" } else { "" };
    let query = if parts.next().is_some() { "?…" } else { "" };
    format!("{before}{}{cut}{query}", path[..path.len().min(PATH_BYTES_MAX)].escape_ascii())
}

/// The index of the path in `target`; the length of `target` if there is none.
fn path_at(target: &[u8]) -> usize {
    let authority_at = target.windows(3).position(|bytes| bytes == b"://").map_or(0, |at| at + 3);
    match target {
        [b'/', ..] | b"*" => 0,
        _ => {
            let path = target[authority_at..].iter().position(|byte| *byte == b'/');
            path.map_or(target.len(), |at| authority_at + at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_left_out() {
        let head = b"GET /channels/a?token=s3cret&b HTTP/1.1\r\nAuthorization: s3cret\r\n\r\n";
        assert_eq!(request_line(head), "GET /channels/a?…");
        assert_eq!(request_line(b"GET /\x1b[2J HTTP/1.1\r\n"), "GET /\\x1b[2J");
        assert_eq!(request_line(b""), " ");
        for target in
            ["http://ann:s3cret@a/x?b", "HTTP://ann:s3cret@a", "ann:s3cret@a/x", "/x#s3cret"]
        {
            let line = request_line(format!("GET {target} HTTP/1.1\r\n").as_bytes());
            assert!(!line.contains("s3cret"), "{line}");
        }
        assert_eq!(without_query(b"http://ann@a/b/c?d"), "…/b/c?…");
        assert_eq!(without_query(b"/a/http://b@c#d"), "/a/http://b@c?…");
        assert_eq!(without_query("/".repeat(300).as_bytes()).len(), 256 + "…".len());
    }
}
