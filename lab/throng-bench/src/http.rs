//! A plain HTTP/1.1 client, which keeps one connection for the next request.

use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use throng_flood::ResponseHead;

/// The most bytes of a response.
const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// Characters of a refusal that are shown.
const REFUSAL_SHOWN_MAX: usize = 300;

/// A client.
#[derive(Debug)]
pub(crate) struct Http {
    timeout: Duration,
    /// The connection of the last request, if it can take another.
    kept: RefCell<Option<Connection>>,
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    authority: String,
    stream: TcpStream,
    /// Bytes of responses that were not returned yet.
    received: Vec<u8>,
}

/// A complete response.
#[derive(Debug)]
struct Response {
    status: u16,
    body: Vec<u8>,
}

impl Http {
    /// A client that waits for a server for `timeout` at most.
    pub(crate) fn new(timeout: Duration) -> Http {
        Http { timeout, kept: RefCell::default() }
    }

    /// The body of a response, whatever its status.
    pub(crate) fn get_any(&self, url: &str) -> Result<String, String> {
        Ok(text(self.ask(url, "GET", None, b"")?.body))
    }

    /// The body of a response; a status of an error is an error.
    pub(crate) fn get(&self, url: &str) -> Result<String, String> {
        self.ask(url, "GET", None, b"")?.success()
    }

    /// [`get`](Self::get) with another method and a body; `key` is a server key.
    pub(crate) fn post(&self, url: &str, body: &[u8], key: Option<&str>) -> Result<String, String> {
        self.ask(url, "POST", key, body)?.success()
    }

    fn ask(
        &self,
        url: &str,
        method: &str,
        key: Option<&str>,
        body: &[u8],
    ) -> Result<Response, String> {
        let (authority, path) = parts(url);
        let kept = self.kept.take().filter(|kept| kept.authority == authority && kept.is_open());
        let mut connection = match kept {
            Some(kept) => kept,
            None => Connection::open(authority, self.timeout)?,
        };
        connection.send(&request(method, authority, path, key, body))?;
        let response = connection.response()?;
        self.kept.replace(Some(connection));
        Ok(response)
    }
}

impl Connection {
    /// Connects to a host and port.
    pub(crate) fn open(authority: &str, timeout: Duration) -> Result<Connection, String> {
        let open = || {
            let stream = TcpStream::connect(authority)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(stream)
        };
        let stream = open().map_err(|error: io::Error| format!("{authority}: {error}"))?;
        Ok(Connection { authority: authority.to_owned(), stream, received: Vec::new() })
    }

    /// Sends one request, or several without waiting for responses in between.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<(), String> {
        let sent = self.stream.write_all(requests);
        sent.map_err(|error| format!("a request cannot be sent: {error}"))
    }

    /// Waits for the next response, which must be a success.
    pub(crate) fn expect_success(&mut self) -> Result<String, String> {
        self.response()?.success()
    }

    /// True if the server has neither closed it nor said anything since the last response.
    fn is_open(&self) -> bool {
        let is_silent = || {
            self.stream.set_nonblocking(true)?;
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        };
        is_silent().is_err_and(|error: io::Error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn response(&mut self) -> Result<Response, String> {
        let mut part = [0; 16 * 1024];
        loop {
            if let Some((response, bytes)) = parse(&self.received)? {
                self.received.drain(..bytes);
                return Ok(response);
            }
            if self.received.len() > RESPONSE_BYTES_MAX {
                return Err("the response is too long".to_owned());
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(bytes) => self.received.extend_from_slice(&part[..bytes]),
                Err(error) => return Err(format!("no response: {error}")),
            }
        }
    }
}

impl Response {
    fn success(self) -> Result<String, String> {
        let text = text(self.body);
        if (200..300).contains(&self.status) {
            return Ok(text);
        }
        Err(format!(
            "{}: {}",
            self.status,
            text.chars().take(REFUSAL_SHOWN_MAX).collect::<String>()
        ))
    }
}

/// Host and port of a URL, and its path.
pub(crate) fn parts(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    rest.split_at(rest.find('/').unwrap_or(rest.len()))
}

/// The bytes of a request.
pub(crate) fn request(
    method: &str,
    authority: &str,
    path: &str,
    key: Option<&str>,
    body: &[u8],
) -> Vec<u8> {
    let path = if path.is_empty() { "/" } else { path };
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{key}\
         Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// The response at the start of `received`, and its length; `None` if it is incomplete.
fn parse(received: &[u8]) -> Result<Option<(Response, usize)>, String> {
    let Some(head) = ResponseHead::parse(received)? else { return Ok(None) };
    let body = head.body(&received[head.bytes..])?;
    let (status, bytes) = (head.status, head.bytes + body.bytes);
    Ok(body.is_whole.then(|| (Response { status, body: body.content.into_owned() }, bytes)))
}

fn text(body: Vec<u8>) -> String {
    String::from_utf8_lossy(&body).into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn parsed(text: &str) -> Option<(u16, String, usize)> {
        let (response, bytes) = parse(text.as_bytes()).expect("a response")?;
        Some((response.status, String::from_utf8(response.body).expect("text"), bytes))
    }

    #[test]
    fn a_response_is_complete_with_its_body() {
        let length = "HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\nabc";
        let chunks =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        for (text, status) in [(length, 201), (chunks, 200)] {
            assert_eq!(parsed(text), Some((status, "abc".to_owned(), text.len())));
            assert_eq!(parsed(&format!("{text}HTTP/1.1 ")).map(|it| it.2), Some(text.len()));
            for end in 0..text.len() {
                assert_eq!(parsed(&text[..end]), None, "{end}");
            }
        }
        // Its end would be that of the connection.
        assert_eq!(parsed("HTTP/1.1 200 OK\r\n\r\nabc"), None);
        assert!(parse(b"SSH-2.0\r\n\r\n").is_err());
    }

    #[test]
    fn a_connection_is_kept_until_the_server_closes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}/x", listener.local_addr().expect("an address"));
        let server = thread::spawn(move || {
            // Two requests on the first connection, one on the second.
            for requests in [2, 1] {
                let (mut stream, _) = listener.accept().expect("a client");
                for _ in 0..requests {
                    let read = stream.read(&mut [0; 4096]).expect("a request");
                    assert!(read > 0);
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.write_all(answer).expect("sent");
                }
            }
        });
        let http = Http::new(Duration::from_secs(10));
        assert_eq!(http.get(&url).as_deref(), Ok("ok"));
        assert_eq!(http.post(&url, b"body", None).as_deref(), Ok("ok"));
        // The end of the first connection may take a moment to arrive.
        while http.kept.borrow().as_ref().is_some_and(Connection::is_open) {
            thread::yield_now();
        }
        assert_eq!(http.get_any(&url).as_deref(), Ok("ok"));
        server.join().expect("served");
        assert!(http.get(&url).is_err());
    }
}
