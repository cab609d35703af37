//! Sends signed requests to the application.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use ring::rand::{SecureRandom as _, SystemRandom};
use throng_core::clock;

use super::error::CalloutError;
use super::secret::{Secret, sign};
use crate::client::{Origin, OutgoingRequest};
use crate::endpoint::Endpoint;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Sends signed requests to one endpoint.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) origin: Origin,
    pub(super) secrets: Vec<Secret>,
    pub(super) timeout: Duration,
}

impl Caller {
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.origin.endpoint()
    }

    /// Posts a body, and returns the body of the response if the status is a success. A request
    /// that is repeated keeps its `id`, so that the application can recognise it.
    pub(super) async fn post(
        &self,
        id: &str,
        body: Bytes,
        max_response_bytes: usize,
    ) -> Result<Bytes, CalloutError> {
        // Made anew for each attempt: receivers refuse old ones, because they may be replayed.
        let timestamp_s = clock::machine_ms() / 1000;
        let signature = sign(&self.secrets, id, timestamp_s, &body);
        let json = HeaderValue::from_static("application/json");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, json.clone());
        headers.insert(ACCEPT, json);
        headers.insert(WEBHOOK_TIMESTAMP, timestamp_s.into());
        for (name, value) in [(WEBHOOK_ID, id), (WEBHOOK_SIGNATURE, &signature)] {
            // Both are letters, digits and marks of base64.
            headers.extend(HeaderValue::from_str(value).map(|value| (name, value)));
        }
        let (method, timeout) = (Method::POST, self.timeout);
        let request = OutgoingRequest { method, headers, body, timeout, max_response_bytes };
        let response = self.origin.send(&request).await?;
        if !response.status.is_success() {
            return Err(CalloutError::Status(response.status));
        }
        Ok(response.body)
    }
}

/// A new id of a request.
pub(super) fn new_id() -> String {
    let mut random = [0; 16];
    // Without random bytes no TLS connection can be made either; then the clock tells ids apart.
    if SystemRandom::new().fill(&mut random).is_err() {
        random[..8].copy_from_slice(&clock::now_us().to_le_bytes());
    }
    format!("msg_{}", URL_SAFE_NO_PAD.encode(random))
}
