//! An endpoint, and the connections to it that are kept for further requests.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connect::connect;
use super::error::RequestError;
use super::race::SlowAddresses;
use super::trust::Trust;
use crate::endpoint::Endpoint;

/// The most bytes of a response's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long a connection is kept without a request. Servers close idle connections after 5 s (Node)
/// to 75 s (nginx); a request on a connection that is about to be closed has to be repeated.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// The name of the server in its requests.
const AGENT: &str = concat!("throng/", env!("CARGO_PKG_VERSION"));

/// A request, apart from its URL.
#[derive(Debug, Clone)]
pub(crate) struct OutgoingRequest {
    pub(crate) method: Method,
    /// All headers but `Host`, `User-Agent` and those about the body.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The deadline of the complete response.
    pub(crate) timeout: Duration,
    /// The most bytes of the response's body.
    pub(crate) max_response_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An endpoint that requests are sent to.
pub(crate) struct Origin {
    endpoint: Endpoint,
    trust: Trust,
    slow: SlowAddresses,
    idle: Mutex<Vec<Idle>>,
    /// The most connections that are kept.
    max_idle: usize,
}

struct Idle {
    connection: OriginConnection,
    since: Instant,
}

/// A connection, which ends when this is dropped.
struct OriginConnection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for OriginConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Origin {
    /// Keeps at most `max_idle` connections while they have no request.
    pub(crate) fn new(endpoint: Endpoint, trust: Trust, max_idle: usize) -> Origin {
        Origin { endpoint, trust, slow: SlowAddresses::default(), idle: Mutex::default(), max_idle }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request, and returns the complete response, whatever its status. A request may
    /// arrive twice: it is repeated if a kept connection ends before the response is complete.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub(crate) async fn send(&self, request: &OutgoingRequest) -> Result<Response, RequestError> {
        match timeout(request.timeout, self.exchange(request)).await {
            Ok(response) => response,
            Err(_) => Err(RequestError::Timeout),
        }
    }

    async fn exchange(&self, request: &OutgoingRequest) -> Result<Response, RequestError> {
        if let Some(connection) = self.take_idle() {
            match self.exchange_on(connection, request).await {
                Err(RequestError::Http(error)) if has_ended_early(&error) => {}
                done => return done,
            }
        }
        let stream = connect(&self.endpoint, &self.trust, &self.slow).await?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(RequestError::Http)?;
        // The request reports its errors, too.
        let task = tokio::spawn(async { drop(connection.await) });
        self.exchange_on(OriginConnection { sender, task }, request).await
    }

    async fn exchange_on(
        &self,
        mut connection: OriginConnection,
        request: &OutgoingRequest,
    ) -> Result<Response, RequestError> {
        connection.sender.ready().await.map_err(RequestError::Http)?;
        let sent = connection.sender.send_request(self.request(request));
        let (head, body) = sent.await.map_err(RequestError::Http)?.into_parts();
        let max_bytes = request.max_response_bytes;
        if content_length(&head.headers).is_some_and(|length| length > max_bytes as u64) {
            return Err(RequestError::TooLarge(max_bytes));
        }
        let collected = Limited::new(body, max_bytes).collect().await;
        let body = collected.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => RequestError::Http(*error),
            Err(error) => {
                debug_assert!(error.is::<LengthLimitError>(), "{error}");
                RequestError::TooLarge(max_bytes)
            }
        })?;
        self.keep(connection);
        Ok(Response { status: head.status, headers: head.headers, body: body.to_bytes() })
    }

    fn request(&self, request: &OutgoingRequest) -> Request<Full<Bytes>> {
        let mut sent = Request::new(Full::new(request.body.clone()));
        *sent.method_mut() = request.method.clone();
        *sent.uri_mut() = self.endpoint.target.clone().into();
        *sent.headers_mut() = request.headers.clone();
        let headers = sent.headers_mut();
        // An authority of a URL is a valid header.
        if let Ok(host) = HeaderValue::from_str(&self.endpoint.authority) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if self.max_idle == 0 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        sent
    }

    /// The connection that was used last, because the others are more likely to be closed.
    fn take_idle(&self) -> Option<OriginConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|kept| {
            now.duration_since(kept.since) < IDLE_MAX && !kept.connection.sender.is_closed()
        });
        idle.pop().map(|kept| kept.connection)
    }

    fn keep(&self, connection: OriginConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.max_idle && !connection.sender.is_closed() {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// True if the connection ended before the response was complete.
fn has_ended_early(error: &hyper::Error) -> bool {
    error.is_canceled() || error.is_closed() || error.is_incomplete_message()
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
