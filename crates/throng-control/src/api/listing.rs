//! `GET /channels` and `GET /users`: the channels and users that exist, in pages.
//!
//! The engine is read in short steps, between which others get its locks and this thread. A page
//! ends early when its request has worked for long enough: on a server with millions of channels, a
//! pattern may match few of them.
//!
//! With several nodes, each selects its part of a page, in an order that all nodes have, and the
//! parts are merged with the part of the log that they share. So pages may be asked of different
//! nodes.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use serde_json::{Value, json};
use throng_access::ServerKey;
use throng_core::glob::glob;
use throng_core::{
    Channels, Kind, Later, ListPart, ListPlace, ListPosition, ListQuery, ListStep, ListedChannel,
    NoPosition, OtherNodes, clock,
};
use throng_wire::ErrorCode;
use tokio::task::spawn_blocking;

use super::parameters::{LIMIT_MAX, WORKERS_TIMEOUT, limit};
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError};
use crate::http::{cursor, large_answer, query};
use crate::late_answer::ask;
use crate::metrics::HttpCounter;

/// How long one request may work, without the time in which others do. Then its page ends, and the
/// client goes on with the next one.
const WORK_MAX: Duration = Duration::from_millis(10);

/// How long a list without pages may take.
const FOLLOWED_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest pattern, as in settings and tokens.
const PATTERN_BYTES_MAX: usize = 255;

struct ListFilter<'a> {
    kind: Kind,
    pattern: Option<Cow<'a, str>>,
    key: Option<Arc<ServerKey>>,
}

impl ListFilter<'_> {
    fn has(&self, listed: &ListedChannel) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| glob(pattern, listed.name.name()))
            && self.key.as_ref().is_none_or(|key| key.covers(&listed.name))
    }
}

#[derive(Debug, Default)]
struct ListPage {
    channels: Vec<ListedChannel>,
    /// Where the next page begins; `None` if there is none.
    next: Option<ListPlace>,
}

/// A page as it is answered.
struct NodesPage {
    channels: Vec<ListedChannel>,
    /// The cursor of the next page, if there is one.
    after: Option<String>,
    /// True if the part of a node or of the log is missing.
    is_partial: bool,
}

/// `GET /channels` or `GET /users`.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    kind: Kind,
) -> Result<Answer, ApiError> {
    let (authentication, settings) = (&control.authentication, &control.settings);
    let key = authentication.check_operator(settings, head, Operation::Listing)?;
    let query = query::of(head, &["limit", "pattern", "after"])?;
    let limit = limit(query)?;
    let pattern = query::find(query, "pattern")?;
    if pattern.as_ref().is_some_and(|text| !(1..=PATTERN_BYTES_MAX).contains(&text.len())) {
        let message = "`pattern` has 1 to 255 bytes, in which `*` stands for any text";
        return Err(ApiError::parameter(message));
    }
    let after = query::find(query, "after")?;
    let wanted = ListFilter { kind, pattern, key };
    let page = if control.engine.is_shared() {
        let after = after.map(|text| text.parse()).transpose();
        let after = after.map_err(|NoPosition| cursor::not_of_a_page())?;
        read_everywhere(control, &wanted, after, limit).await
    } else {
        let after = after.map(|text| control.cursors.place(&text)).transpose()?;
        let page = read(control, &wanted, after, limit).await;
        let after = page.next.map(|next| control.cursors.text(next));
        NodesPage { channels: page.channels, after, is_partial: false }
    };
    let entries = page.channels.iter().map(|listed| entry(&control.engine, kind, listed));
    let entries: Vec<_> = entries.collect();
    let plural = format!("{}s", kind.noun());
    let mut body = json!({ plural: entries, "more": page.after.is_some() });
    if let Some(after) = page.after {
        body["after"] = after.into();
    }
    if page.is_partial {
        body["partial"] = true.into();
    }
    large_answer::json(&control.read_answers, body.to_string())
}

/// The channels with followers that match a pattern, and whether a node's channels are missing.
///
/// # Errors
///
/// There are more than `most`, or reading them takes too long.
pub(super) async fn followed(
    control: &Control,
    pattern: &str,
    most: usize,
) -> Result<(Vec<ListedChannel>, bool), ApiError> {
    let wanted = ListFilter { kind: Kind::Channel, pattern: Some(pattern.into()), key: None };
    let (mut found, mut is_partial, begun) = (Vec::new(), false, Instant::now());
    let (mut position, mut place) = (None, None);
    loop {
        let (channels, is_last) = if control.engine.is_shared() {
            let page = read_everywhere(control, &wanted, position.take(), LIMIT_MAX).await;
            position = page.after.and_then(|text| text.parse().ok());
            is_partial |= page.is_partial;
            (page.channels, position.is_none())
        } else {
            let page = read(control, &wanted, place, LIMIT_MAX).await;
            place = page.next;
            (page.channels, place.is_none())
        };
        found.extend(channels.into_iter().filter(|listed| listed.subscribers > 0));
        if found.len() > most || begun.elapsed() > FOLLOWED_TIMEOUT {
            let message = format!(
                "there are more than {most} channels, or too many to look through: ask for fewer"
            );
            return Err(ApiError::new(ErrorCode::TooLarge, message));
        }
        if is_last {
            return Ok((found, is_partial));
        }
        tokio::task::yield_now().await;
    }
}

/// Asks all nodes for their parts of a page of at most `limit` channels.
async fn read_everywhere(
    control: &Control,
    wanted: &ListFilter<'_>,
    after: Option<ListPosition>,
    limit: usize,
) -> NodesPage {
    // Nodes apply the pattern. Channels that a key may not see are left out here, so ask for more.
    let most = if wanted.key.is_some() { LIMIT_MAX } else { limit };
    let pattern = wanted.pattern.as_deref().map(Box::from);
    let query = ListQuery { kind: wanted.kind, after, pattern, limit: most };
    let others =
        |later: Later<'_, _>| Ok::<_, Infallible>(control.engine.list_elsewhere(&query, later));
    let stored =
        |later: Later<'_, _>| Ok::<_, Infallible>(control.engine.list_stored(&query, later));
    let (Ok(others), Ok(stored)) = (ask(others), ask(stored));
    let (engine, own) = (Arc::clone(&control.engine), query.clone());
    // It panics only with the process.
    let own = spawn_blocking(move || engine.list_part(clock::now_ms(), &own)).await;
    let (others, stored) =
        tokio::join!(others.within(WORKERS_TIMEOUT), stored.within(WORKERS_TIMEOUT));
    let none = OtherNodes { found: Vec::new(), is_complete: false };
    let OtherNodes { found: mut parts, is_complete } = others.unwrap_or(none);
    parts.push(own.unwrap_or_default());
    let is_partial = !is_complete || stored.is_none();
    parts.extend(stored);
    let page = ListPart::merge(parts, limit, |listed| wanted.has(listed));
    let after = page.reached.map(|reached| reached.to_string());
    NodesPage { channels: page.channels, after, is_partial }
}

/// Reads a page of at most `limit` channels, and at least one step of the engine.
async fn read(
    control: &Control,
    wanted: &ListFilter<'_>,
    mut after: Option<ListPlace>,
    limit: usize,
) -> ListPage {
    let mut page = ListPage::default();
    let mut worked = Duration::ZERO;
    loop {
        // Only the work is timed: after a yield the thread may be busy with other requests.
        let begun = Instant::now();
        let step = step(&control.engine, wanted.kind, after).await;
        let is_late = || worked + begun.elapsed() >= WORK_MAX;
        page.next = take(step, wanted, limit, is_late, &mut page.channels);
        worked += begun.elapsed();
        if page.next.is_none() || page.channels.len() == limit {
            return page;
        }
        if worked >= WORK_MAX {
            control.metrics.count(HttpCounter::ListsCut);
            return page;
        }
        after = page.next;
        tokio::task::yield_now().await;
    }
}

/// A step of a list. An engine that reads logs elsewhere takes a thread that may wait.
async fn step(engine: &Arc<Channels>, kind: Kind, after: Option<ListPlace>) -> ListStep {
    if !engine.fetches() {
        return engine.list(clock::now_ms(), kind, after);
    }
    let engine = Arc::clone(engine);
    let list = move || engine.list(clock::now_ms(), kind, after);
    // It panics only with the process.
    spawn_blocking(list).await.unwrap_or_default()
}

/// Adds the wanted channels of a step to `page`, until it has `limit` of them or `is_late`. Returns
/// the place after which to go on; `None` at the end of the list.
fn take(
    step: ListStep,
    wanted: &ListFilter<'_>,
    limit: usize,
    is_late: impl Fn() -> bool,
    page: &mut Vec<ListedChannel>,
) -> Option<ListPlace> {
    let mut rest = step.channels.into_iter().peekable();
    while let Some(listed) = rest.next() {
        let place = listed.place;
        if wanted.has(&listed) {
            page.push(listed);
        }
        let is_end = rest.peek().is_none() && step.next.is_none();
        if !is_end && (page.len() == limit || is_late()) {
            return Some(place);
        }
    }
    step.next
}

fn entry(engine: &Channels, kind: Kind, listed: &ListedChannel) -> Value {
    let mut entry = json!({
        kind.noun(): listed.name.name(),
        "subscribers": listed.subscribers,
        "id": listed.head.to_string(),
        "messages": listed.messages,
    });
    if engine.is_local(&listed.name) {
        entry["local"] = true.into();
    }
    entry
}
