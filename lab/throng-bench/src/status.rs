//! Reads the event stream of the server's status page, which has one update per second.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use throng_flood::ResponseHead;

use crate::http::parts;

/// The event stream of the status page.
const PATH: &str = "/status/stream";

/// Timeout of an update.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest acceptable time without an update.
const UPDATE_PAUSE_MAX_S: f64 = 5.0;

/// A running reader.
pub(crate) struct Reader {
    thread: JoinHandle<Option<Updates>>,
    is_over: Arc<AtomicBool>,
}

/// The updates that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Updates {
    /// Number of updates.
    pub(crate) count: u64,
    /// The largest number of SSE connections in an update.
    max_sse: u64,
    /// Duration of reading.
    seconds: f64,
}

impl Updates {
    /// The most SSE connections that the page has shown; `None` if there was too little time for an
    /// update.
    pub(crate) fn shown(&self) -> Option<u64> {
        (self.count > 0 || self.seconds >= UPDATE_PAUSE_MAX_S).then_some(self.max_sse)
    }
}

impl Reader {
    /// Reads updates of the server at `url` for `time`.
    pub(crate) fn start(url: &str, time: Duration) -> Reader {
        let url = format!("{url}{PATH}");
        let is_over = Arc::new(AtomicBool::new(false));
        let is_over_there = Arc::clone(&is_over);
        Reader { thread: thread::spawn(move || read(&url, time, &is_over_there)), is_over }
    }

    /// Stops after the next line.
    pub(crate) fn cut_short(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The updates; `None` if the server has no status page.
    pub(crate) fn end(self) -> Option<Updates> {
        // A panicked thread has reported on standard error.
        self.thread.join().ok().flatten()
    }
}

fn read(url: &str, time: Duration, is_over: &AtomicBool) -> Option<Updates> {
    let (authority, path) = parts(url);
    let mut stream = TcpStream::connect(authority).ok()?;
    stream.set_read_timeout(Some(UPDATE_TIMEOUT)).ok()?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: text/event-stream\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    // The lengths of chunks, if there are any, are lines of their own.
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head = lines.by_ref().take_while(|line| !line.is_empty());
    let head: String = head.flat_map(|line| [line, "\n".to_owned()]).collect();
    let head = format!("{head}\n");
    let head = ResponseHead::parse(head.as_bytes()).ok()??;
    let kind = head.header("content-type").unwrap_or_default();
    if head.status != 200 || !kind.starts_with("text/event-stream") {
        return None;
    }
    let began = Instant::now();
    let mut updates = Updates::default();
    for line in lines {
        if let Some(sample) = line.strip_prefix("data:") {
            updates.count += 1;
            updates.max_sse = updates.max_sse.max(sse(sample));
        }
        if began.elapsed() >= time || is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    updates.seconds = began.elapsed().as_secs_f64();
    Some(updates)
}

/// Number of SSE connections in a sample.
fn sse(sample: &str) -> u64 {
    let sample: serde_json::Value = serde_json::from_str(sample).unwrap_or_default();
    sample["connections"]["sse"].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        });
        url
    }

    #[test]
    fn updates_are_counted() {
        let url = server(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n\
             data: {\"connections\":{\"sse\":7}}\n\n:\n\ndata: {}\n\n",
        );
        let updates = Reader::start(&url, Duration::from_secs(60)).end().expect("a stream");
        assert_eq!((updates.count, updates.max_sse), (2, 7));
    }

    #[test]
    fn a_server_without_the_page_has_no_updates() {
        let url = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(Reader::start(&url, Duration::from_secs(60)).end(), None);
        let url = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(Reader::start(&url, Duration::from_secs(60)).end(), None);
    }
}
