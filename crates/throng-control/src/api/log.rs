//! Reads channels' logs, from an engine that may have to fetch them.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::late_answer::within;
use throng_core::{ChannelName, Channels, History, HistoryQuery, Later, Reading, clock};
use throng_wire::{ErrorCode, ErrorResponse};

/// How long a request waits for the engine to fetch what it reads before it is refused with `busy`.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A page of a channel's log. Fetching it may take `wait_left`, from which the time that it takes
/// is subtracted.
pub(super) async fn read(
    engine: &Channels,
    channel: &ChannelName,
    query: HistoryQuery,
    limit: usize,
    wait_left: &mut Duration,
) -> Result<History, ErrorResponse> {
    let reading = Reading::Page(query, limit);
    let fetch = |later: Later<'_, _>| {
        Ok::<_, Infallible>(engine.fetch(clock::now_ms(), channel, reading, later))
    };
    let started = Instant::now();
    let Ok(fetched) = within(*wait_left, fetch).await;
    *wait_left = wait_left.saturating_sub(started.elapsed());
    let Some(_held) = fetched else { return Err(ErrorResponse::unanswered()) };
    Ok(engine.history(clock::now_ms(), channel, query, limit))
}

/// Fails if a channel must exist by its rule, and was not created.
pub(super) async fn check_exists(
    engine: &Channels,
    channel: &ChannelName,
) -> Result<(), ErrorResponse> {
    let ask =
        |later: Later<'_, _>| Ok::<_, Infallible>(engine.exists(clock::now_ms(), channel, later));
    let Ok(exists) = within(FETCH_TIMEOUT, ask).await;
    match exists {
        Some(true) => Ok(()),
        Some(false) => Err(ErrorCode::NotCreated.into()),
        None => Err(ErrorResponse::unanswered()),
    }
}

#[cfg(test)]
mod tests;
