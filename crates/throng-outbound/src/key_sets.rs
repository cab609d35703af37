//! Fetches the key sets at URLs: at the start, when their lifetime is over, and when a token names
//! a key that they lack.
//!
//! [`Authenticator`] decides when, and this task does it. While a URL is down, or has something
//! else, the last good set stays.

mod lifetime;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use throng_access::Authenticator;
use throng_access::authenticator::{Fetched, Now};
use throng_access::keys::{
    JWKS_BYTES_MAX, Jwks, JwksError, JwksSource, Key, RefreshSettings, SetError, SourceId,
};
use throng_core::clock;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{Origin, OutgoingRequest, RequestError, Trust};
use crate::endpoint::Endpoint;
pub use metrics::KeySetMetrics;

const FETCH_TIMEOUT: Duration = Duration::from_secs(4);

/// Fetches key sets for an [`Authenticator`].
#[derive(Debug)]
pub struct KeySetTask {
    trust: Trust,
    wake: Arc<Notify>,
    sets: Vec<FetchedSet>,
    /// The deadline of a fetch.
    timeout: Duration,
    metrics: Arc<KeySetMetrics>,
}

/// A URL with a key set.
#[derive(Debug)]
struct FetchedSet {
    source: SourceId,
    origin: Arc<Origin>,
}

/// Why a fetch brought no keys.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the status is {}, not 200", .0.as_u16())]
    Status(StatusCode),
    #[error(transparent)]
    Jwks(#[from] JwksError),
    #[error("it does not fit to the other keys: {0}")]
    Set(#[from] SetError),
}

impl FetchError {
    /// The word for it in metrics.
    fn label(&self) -> &'static str {
        match self {
            FetchError::Request(error) => error.label(),
            FetchError::Status(_) => "status",
            FetchError::Jwks(_) | FetchError::Set(_) => "bad_set",
        }
    }
}

/// Why a key set could not be fetched: one sentence.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct KeySetError(FetchError);

/// Fetches the key set at a URL once, as a running server does. Returns its keys, and how many
/// others it has.
///
/// # Errors
///
/// [`KeySetError`] if there is no usable key set in time.
pub async fn fetch_key_set(
    endpoint: Endpoint,
    trust: Trust,
) -> Result<(Vec<Arc<Key>>, usize), KeySetError> {
    let origin = Origin::new(endpoint, trust, 0);
    let (fetched, left_out) = fetch(&origin, FETCH_TIMEOUT).await.map_err(KeySetError)?;
    Ok((fetched.keys, left_out))
}

impl KeySetTask {
    /// A task without URLs.
    pub fn new(trust: Trust) -> KeySetTask {
        let (wake, metrics) = (Arc::default(), Arc::default());
        KeySetTask { trust, wake, sets: Vec::new(), timeout: FETCH_TIMEOUT, metrics }
    }

    /// Wakes the task: for [`Authenticator::new`].
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let wake = Arc::clone(&self.wake);
        move || wake.notify_one()
    }

    /// Adds a URL.
    pub fn add(
        &mut self,
        authenticator: &Authenticator,
        endpoint: Endpoint,
        settings: RefreshSettings,
    ) {
        let source = authenticator.add_url(settings, now());
        let origin = Arc::new(Origin::new(endpoint, self.trust.clone(), 0));
        self.metrics.add_set();
        self.sets.push(FetchedSet { source, origin });
    }

    /// The metrics of all sets; they go on while the task runs.
    pub fn metrics(&self) -> Arc<KeySetMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Fetches the sets whenever they are due, and never ends. `authenticator` is the one that all
    /// URLs were added to.
    pub async fn run(self, authenticator: Arc<Authenticator>) {
        let mut fetches = JoinSet::new();
        loop {
            for source in authenticator.begin(now()) {
                let at = self.sets.iter().position(|set| set.source == source);
                let at = at.expect("every URL of the authenticator was added here");
                let origin = Arc::clone(&self.sets[at].origin);
                let timeout = self.timeout;
                fetches.spawn(async move { (at, fetch(&origin, timeout).await) });
            }
            tokio::select! {
                Some(done) = fetches.join_next() => {
                    // A fetch does not panic, and is not aborted.
                    let Ok((at, result)) = done else { continue };
                    self.report(&authenticator, at, result);
                }
                () = until_due(authenticator.due_ms()) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Hands over what a fetch has brought.
    fn report(
        &self,
        authenticator: &Authenticator,
        at: usize,
        result: Result<(Fetched, usize), FetchError>,
    ) {
        let FetchedSet { source, origin } = &self.sets[at];
        let endpoint = origin.endpoint();
        let result = match result {
            Ok((fetched, left_out)) => authenticator
                .fetched(*source, Some(fetched), now())
                .map(|is_new| (is_new, left_out))
                .map_err(FetchError::Set),
            Err(error) => {
                // Tokens that wait for these keys have to be answered all the same.
                let without_keys = authenticator.fetched(*source, None, now());
                debug_assert!(without_keys.is_ok(), "the keys stay as they are");
                Err(error)
            }
        };
        match result {
            Ok((is_new, left_out)) => {
                self.metrics.fetched(at, clock::now_ms());
                if is_new {
                    tracing::info!("the key set {endpoint} is new; {left_out} keys left out");
                }
            }
            Err(error) => {
                self.metrics.failed(at, &error);
                tracing::warn!("cannot use the key set {endpoint}: {error}");
            }
        }
    }
}

/// The keys of a set, and how many others it has.
async fn fetch(origin: &Origin, timeout: Duration) -> Result<(Fetched, usize), FetchError> {
    let mut headers = HeaderMap::new();
    let accept = HeaderValue::from_static("application/jwk-set+json, application/json");
    headers.insert(ACCEPT, accept);
    let request = OutgoingRequest {
        method: Method::GET,
        headers,
        body: Bytes::new(),
        timeout,
        max_response_bytes: JWKS_BYTES_MAX,
    };
    let response = origin.send(&request).await?;
    if response.status != StatusCode::OK {
        return Err(FetchError::Status(response.status));
    }
    let Jwks { keys, left_out } = Jwks::parse(&response.body, JwksSource::Url)?;
    let lifetime_ms = lifetime::of(&response.headers);
    Ok((Fetched { keys, lifetime_ms }, left_out))
}

async fn until_due(due_ms: Option<u64>) {
    match due_ms {
        Some(due_ms) => {
            sleep(Duration::from_millis(due_ms.saturating_sub(clock::now_ms()))).await;
        }
        None => std::future::pending().await,
    }
}

fn now() -> Now {
    Now { steady_ms: clock::now_ms(), unix_s: clock::machine_ms() / 1000 }
}

#[cfg(test)]
mod tests;
