//! The paths of requests that subscribe, and the dialects that they belong to.

use throng_wire::ErrorResponse;
use throng_wire::error::ResponseOptions;
use throng_wire::head::Head;
use throng_wire::subscribe::{self, Request, Route};

use crate::dialect::Dialect;
use crate::encoding::Encoding;
use crate::plain::Plain;
use crate::pusher::Pusher;

/// A path, or the beginning of some.
pub struct Path {
    path: &'static str,
    /// How errors of these requests are told that say not yet what they subscribe to.
    pub dialect: &'static dyn Dialect,
    /// Reads such a request. It decides what becomes of parameters that it does not know.
    read: fn(&Head<'_>) -> Result<Route, ErrorResponse>,
    /// The path and query of our HTTP API that others of these requests mean, by the rest of their
    /// path; `None` if they are ours.
    native: fn(&str) -> Option<String>,
}

impl Path {
    const fn native(path: &'static str) -> Path {
        let dialect = &Plain { is_envelope: false };
        Path { path, dialect, read: subscribe::route, native: |_| None }
    }

    /// The path and query of our HTTP API that a request to `target` means, which is one of these.
    pub fn native_of(&self, target: &str) -> Option<String> {
        let path = target.split('?').next().unwrap_or_default();
        (self.native)(path.strip_prefix(self.path)?)
    }
}

/// All paths. One that ends with a slash is the beginning of others.
static PATHS: &[Path] = &[
    Path::native("/channels/"),
    Path::native("/users/"),
    Path::native("/subscribe"),
    Path::native("/status/stream"),
    Path {
        path: "/app/",
        dialect: &Pusher,
        read: crate::pusher::read,
        // Its HTTP API is no other form of ours.
        native: |_| None,
    },
    #[cfg(feature = "testing")]
    Path {
        path: "/testing/",
        dialect: &crate::testing::Testing,
        read: crate::testing::read,
        native: crate::testing::native,
    },
];

/// The row of a path with its query; `None` if no request to it subscribes.
pub fn find(target: &str) -> Option<&'static Path> {
    let path = target.split('?').next().unwrap_or_default();
    PATHS.iter().find(|known| match known.path.strip_suffix('/') {
        Some(_) => path.starts_with(known.path),
        None => path == known.path,
    })
}

/// Decides whether the request subscribes, and reads the subscription.
pub fn route(head: &Head<'_>) -> Result<Route, ErrorResponse> {
    find(head.target).map_or(Ok(Route::Other), |path| (path.read)(head))
}

/// Appends the response to a request that is refused: in the dialect of its subscription, if that
/// is known, otherwise as HTTP.
pub fn refuse(
    error: &ErrorResponse,
    request: Option<&Request>,
    options: &ResponseOptions<'_>,
    out: &mut Vec<u8>,
) {
    match request {
        Some(request) => {
            let dialect = Encoding::of_request(request).dialect();
            dialect.refuse(error, Some(request), options, out);
        }
        None => error.write_response(out, options),
    }
}
