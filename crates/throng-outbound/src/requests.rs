//! Single requests to any URL, for protocols that are implemented elsewhere, such as ACME.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};

use crate::client::{Origin, OutgoingRequest, RequestError, Trust};
use crate::endpoint::{Endpoint, EndpointError};

/// The deadline of a complete response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes of a response's body. A chain of certificates has some 10 KB.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct NoResponse {
    url: String,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Sends a request to its URL, which must be one of `https`, or of `http` on loopback. Waits for
/// the complete response, 30 seconds at most, and returns it whatever its status. Keeps no
/// connection.
///
/// # Errors
///
/// There is no such response, or it has more than 1 MiB.
pub async fn send(trust: &Trust, request: Request<Bytes>) -> Result<Response<Bytes>, NoResponse> {
    let (head, body) = request.into_parts();
    let no_response = |reason: Reason| {
        // Without the query, which may contain a secret.
        let url = head.uri.to_string();
        NoResponse { url: url.split('?').next().unwrap_or_default().to_owned(), reason }
    };
    let endpoint: Endpoint =
        head.uri.to_string().parse().map_err(|error: EndpointError| no_response(error.into()))?;
    let outgoing = OutgoingRequest {
        method: head.method,
        headers: head.headers,
        body,
        timeout: TIMEOUT,
        max_response_bytes: RESPONSE_BYTES_MAX,
    };
    let sent = Origin::new(endpoint, trust.clone(), 0).send(&outgoing).await;
    let received = sent.map_err(|error| no_response(error.into()))?;
    let mut response = Response::new(received.body);
    *response.status_mut() = received.status;
    *response.headers_mut() = received.headers;
    Ok(response)
}
