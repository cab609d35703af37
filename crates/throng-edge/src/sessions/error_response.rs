//! Error responses, with the date and the next client's `Retry-After`.

use std::time::Duration;

use throng_core::spread;
use throng_dialect::{Dialect, paths};
use throng_wire::error::ResponseOptions;
use throng_wire::head::Head;
use throng_wire::{ErrorCode, RetryAfter};

use super::Sessions;
use crate::connection::LongPoll;
use crate::net::Net;

/// The reader of an error; unknown if its request has not come whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reader {
    /// The origin of the request, if its pages may read the error.
    pub(crate) origin: Option<String>,
    /// True if it asks for the head of an answer only.
    pub(crate) is_head: bool,
    /// The id that the request has brought.
    pub(crate) request_id: Option<String>,
    /// The dialect of its path, if that subscribes.
    pub(crate) dialect: Option<&'static dyn Dialect>,
}

impl Reader {
    /// The one of a long-poll that waits.
    pub(crate) fn of_poll(poll: &LongPoll) -> Reader {
        let (origin, request_id) = (poll.origin.clone(), poll.request_id.clone());
        Reader { origin, request_id, is_head: false, dialect: None }
    }
}

impl<N: Net> Sessions<N> {
    /// The headers of an error of this code. The connection closes after it, and pages of
    /// `allow_origin` may read it. Each call gives the next client's `Retry-After`.
    pub(crate) fn response_options<'a>(
        &self,
        code: ErrorCode,
        allow_origin: Option<&'a str>,
    ) -> ResponseOptions<'a> {
        ResponseOptions {
            is_head: false,
            keep_alive: false,
            allow_origin,
            allow_credentials: self.allows_cookies(allow_origin),
            no_referrer: false,
            request_id: None,
            retry_after: self.retry_after(code),
            date: Some(self.clock().date()),
        }
    }

    /// True if pages of this origin may send cookies.
    pub(crate) fn allows_cookies(&self, origin: Option<&str>) -> bool {
        let pages = self.settings.pages.load();
        let lists = |origin| self.settings.origin_policy(&pages).lists_origin(origin);
        self.access.uses_cookies() && origin.is_some_and(lists)
    }

    /// The reader of an error that answers this request.
    pub(crate) fn reader_of(&self, head: &Head<'_>) -> Reader {
        let request_id = head.request_id().map(str::to_owned);
        let is_head = head.method == "HEAD";
        let dialect = paths::find(head.target).map(|path| path.dialect);
        Reader { origin: self.origin_of_reader(head), request_id, is_head, dialect }
    }

    fn origin_of_reader(&self, head: &Head<'_>) -> Option<String> {
        let origin = str::from_utf8(head.header("origin")?).ok()?;
        let pages = self.settings.pages.load();
        let policy = self.settings.origin_policy(&pages);
        policy.allows_page(origin, head.host()).then(|| origin.to_owned())
    }

    /// The time over which clients come back that are closed or refused because of a shutdown.
    pub(crate) fn spread_window(&self) -> Duration {
        let by_number =
            || spread::window(self.metrics().all_connections(), self.settings.drain_window);
        self.shutdown.return_window().unwrap_or_else(by_number)
    }

    /// The next client's `Retry-After`; `None` for a code without one.
    pub(crate) fn retry_after(&self, code: ErrorCode) -> Option<RetryAfter> {
        self.clock().retry_after(code, || self.spread_window())
    }
}
