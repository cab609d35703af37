//! Reads of a channel's log: the start of a subscription, or a page of history.

use std::fmt;

use throng_wire::page_range::PageStart;
use throng_wire::subscribe::{Replay, Request};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::clock;
use crate::id::{MessageId, Position};
use crate::stamp::Watermark;

/// Where a subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartAt {
    /// With the next message.
    Live,
    /// With this many of the last messages.
    Last(usize),
    /// With the messages after this one.
    After(MessageId),
    /// With the messages that a client with this position lacks.
    Since(Watermark),
    /// With the messages that were published at this time or later, as [`HistoryQuery::From`].
    From(u64),
    /// With the newest message of each key that has a value, and the messages without keys that are
    /// kept.
    State,
}

impl StartAt {
    /// Where a subscription starts that resumes after the id of a message, or a position.
    pub fn of_position(since: &str) -> Result<StartAt, ErrorResponse> {
        Ok(if Watermark::is_meant(since) {
            StartAt::Since(since.parse()?)
        } else {
            StartAt::After(since.parse()?)
        })
    }

    /// Where a subscription starts that has these messages replayed, or none.
    pub fn of_replay(replay: Option<Replay>) -> StartAt {
        match replay {
            None => StartAt::Live,
            Some(Replay::Last(count)) => StartAt::Last(count as usize),
            Some(Replay::Newest) => StartAt::Last(1),
            Some(Replay::SinceTime(wall_ms)) => StartAt::From(clock::from_wall_ms(wall_ms)),
            Some(Replay::State) => StartAt::State,
        }
    }

    /// Where each subscription of a request starts, in the order of its targets.
    pub fn of_request(request: &Request) -> Result<Vec<StartAt>, ErrorResponse> {
        let channels = request.targets.len();
        let Some(since) = &request.since else {
            return Ok(vec![StartAt::of_replay(request.replay); channels]);
        };
        if Watermark::is_meant(since) {
            return Ok(vec![StartAt::of_position(since)?; channels]);
        }
        let Position(ids) = since.parse()?;
        if ids.len() != channels {
            let message = format!(
                "{} ids were given for {channels} channels; give one each, joined by commas",
                ids.len()
            );
            return Err(ErrorResponse::new(ErrorCode::BadId, message));
        }
        Ok(ids.into_iter().map(StartAt::After).collect())
    }
}

/// The part of a channel's history that a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryQuery {
    Newest,
    /// The newest messages before this id.
    Before(MessageId),
    /// The oldest messages after this id.
    After(MessageId),
    /// The oldest messages that a client with this position lacks.
    Since(Watermark),
    /// The oldest messages that were published at this time or later, by
    /// [`clock::now_ms`](crate::clock::now_ms). The next message of an empty page will come after
    /// its head.
    ///
    /// In a log that outlives a process, times fall where the machine's clock was set back. There
    /// may be several messages of this time whose predecessors are earlier: the page begins at any
    /// of them.
    From(u64),
    /// Only the first one of this many of the last messages, or of as many as a subscription may
    /// lag behind: where a subscription would start.
    FirstOfLast(usize),
}

impl HistoryQuery {
    /// The query of a page that a client asks for.
    ///
    /// # Errors
    ///
    /// Its id is none.
    pub fn of_page(start: &PageStart) -> Result<HistoryQuery, ErrorResponse> {
        Ok(match start {
            PageStart::Newest => HistoryQuery::Newest,
            PageStart::Before(id) => HistoryQuery::Before(id.parse()?),
            PageStart::After(id) => HistoryQuery::After(id.parse()?),
            PageStart::SinceTime(wall_ms) => HistoryQuery::From(clock::from_wall_ms(*wall_ms)),
        })
    }
}

/// A part of a channel's log that a call of the engine reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reading {
    /// The start of a subscription here.
    Start(StartAt),
    /// A page of history, of at most this many messages.
    Page(HistoryQuery, usize),
}

/// Keeps a part of a log readable at once, until it is dropped.
#[must_use]
pub struct Fetched(Option<Box<dyn Send>>);

impl fmt::Debug for Fetched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Fetched")
    }
}

impl Fetched {
    /// For a part of a log that is in memory anyway. Costs nothing.
    pub(crate) fn in_memory() -> Fetched {
        Fetched(None)
    }

    /// For a part that is in memory as long as `hold` is not dropped.
    pub fn held_by(hold: impl Send + 'static) -> Fetched {
        Fetched(Some(Box::new(hold)))
    }

    /// True if something has to be kept for the part to stay readable.
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}
