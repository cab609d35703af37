//! Erases what a user has published, wherever messages show their users.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use throng_core::{
    ChannelName, HistoryQuery, KeyQuery, Kind, Later, ListPart, ListQuery, Message, MessageId,
    Sender, clock,
};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::task::spawn_blocking;

use super::super::erase::ErasedLog;
use super::super::log;
use crate::control::Control;
use crate::late_answer::within;
use crate::user_erasures::Names;

/// Messages of a page.
const PAGE: usize = 500;

/// How long a page of a log, or of the list of all channels, may take.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl Names {
    /// The next names, and where those after them are; `None` behind the last.
    pub(super) async fn read(
        self,
        control: &Control,
    ) -> Result<(Vec<ChannelName>, Option<Names>), ErrorResponse> {
        match self {
            Names::Here(kind, place) => {
                let _acting = control.hold.acting().await;
                let engine = control.engine.clone();
                // It may wait for a disk, and panics only with the process.
                let step = spawn_blocking(move || engine.list(clock::now_ms(), kind, place)).await;
                let step = step.unwrap_or_default();
                let next = match step.next {
                    Some(place) => Names::Here(kind, Some(place)),
                    None => Names::Shared(kind, None),
                };
                Ok((step.channels.into_iter().map(|listed| listed.name).collect(), Some(next)))
            }
            Names::Shared(kind, _) if !control.engine.is_shared() => Ok((Vec::new(), after(kind))),
            Names::Shared(kind, position) => {
                let query = ListQuery { kind, after: position, pattern: None, limit: PAGE };
                let ask = |later: Later<'_, _>| {
                    Ok::<_, Infallible>(control.engine.list_stored(&query, later))
                };
                let Ok(part) = within(READ_TIMEOUT, ask).await;
                let ListPart { channels, reached } = part.ok_or_else(ErrorResponse::unanswered)?;
                let next = match reached {
                    Some(reached) => Some(Names::Shared(kind, Some(reached))),
                    None => after(kind),
                };
                Ok((channels.into_iter().map(|listed| listed.name).collect(), next))
            }
        }
    }
}

/// Inboxes come after channels.
fn after(kind: Kind) -> Option<Names> {
    (kind == Kind::Channel).then_some(Names::Here(Kind::User, None))
}

/// True if messages of a channel may show their users. Where they show names, these are not those
/// of users.
pub(super) fn shows_users(control: &Control, channel: &ChannelName) -> bool {
    let rules = control.engine.memory().rules();
    // The rule may have shown users when the messages were published, even if it does not today.
    rules.sender(channel) != Sender::Name && !control.engine.rule(channel).retention.is_none()
}

fn is_of(message: &Message, user: &str) -> bool {
    message.facts().from == Some(user)
}

/// Erases the messages of a user in a channel. Counts them also if it fails midway.
pub(super) async fn erase_published(
    control: &Control,
    channel: &ChannelName,
    user: &str,
    erased: &mut u64,
) -> Result<(), ErrorResponse> {
    let log = ErasedLog { control, channel };
    for id in find(control, channel, user).await? {
        let _acting = control.hold.acting().await;
        // Until it is dropped, the drain of the workers does not begin.
        let _in_progress = control.drain.begin_publication()?;
        match log.erase_message(id).await {
            Ok(_) => *erased += 1,
            // It has expired or was dropped meanwhile.
            Err(error) if error.code == ErrorCode::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The messages of a user in a channel: its history, and values of keys that are older.
async fn find(
    control: &Control,
    channel: &ChannelName,
    user: &str,
) -> Result<Vec<MessageId>, ErrorResponse> {
    let mut found = Vec::new();
    let mut query = HistoryQuery::Newest;
    loop {
        let _acting = control.hold.acting().await;
        let page = log::read(&control.engine, channel, query, PAGE, &mut { READ_TIMEOUT }).await?;
        let own = page.messages.iter().filter(|message| is_of(message, user));
        found.extend(own.map(|message| message.id));
        let Some(first) = page.messages.first().filter(|_| page.has_more) else { break };
        query = HistoryQuery::Before(first.id);
        tokio::task::yield_now().await;
    }
    if control.engine.rule(channel).state.max_keys == 0 {
        return Ok(found);
    }
    let mut known: HashSet<_> = found.iter().copied().collect();
    let mut query = KeyQuery { limit: PAGE, ..KeyQuery::default() };
    loop {
        let _acting = control.hold.acting().await;
        let asked = query.clone();
        let ask = |later: Later<'_, _>| {
            Ok::<_, Infallible>(control.engine.keys(clock::now_ms(), channel, asked, later))
        };
        let Ok(page) = within(READ_TIMEOUT, ask).await;
        // A journal without states has none.
        let Ok(page) = page.ok_or_else(ErrorResponse::unanswered)? else { return Ok(found) };
        let own = page.messages.iter().filter(|message| is_of(message, user));
        found.extend(own.map(|message| message.id).filter(|id| known.insert(*id)));
        query.after = page.next;
        if query.after.is_none() {
            return Ok(found);
        }
    }
}
