//! Reads pages of states: the newest messages of keys, in the order of these.

use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::{ChannelName, KEYS_LOOKED_AT_MAX, KeyPage, KeyQuery, Message, clock};

use super::read::PAGE_BYTES_MAX;
use crate::logs::{KeyRow, Logs};
use crate::storage::StorageError;

/// Times that a message is looked for which has a newer one by then.
const LOOKS_MAX: usize = 3;

/// A page that was read, and is not acknowledged yet.
pub(super) struct ReadPage {
    page: KeyPage,
    /// The newest of its messages.
    newest: u64,
    /// The number of commits that were made again when it was read.
    retries: u64,
}

/// Has a turn at reading a page. `None` if it takes another one, later.
pub(super) fn page(
    logs: &Logs,
    now_ms: u64,
    (name, query): (&ChannelName, &KeyQuery),
    read: &mut Option<ReadPage>,
) -> Result<Option<KeyPage>, StorageError> {
    let own = match read.take() {
        Some(own) => own,
        None => match read_page(logs, now_ms, name, query)? {
            Some(own) => own,
            None => return Ok(None),
        },
    };
    let is_safe = logs.is_acknowledged(name, own.newest);
    if is_safe && own.retries == logs.retries() {
        return Ok(Some(own.page));
    }
    if !is_safe {
        *read = Some(own);
    }
    Ok(None)
}

/// Reads a page; `None` if it changes too fast.
fn read_page(
    logs: &Logs,
    now_ms: u64,
    name: &ChannelName,
    query: &KeyQuery,
) -> Result<Option<ReadPage>, StorageError> {
    let retries = logs.retries();
    // First: what the page has may be newer than its head, and nothing older lacks.
    let bounds = logs.bounds(name)?;
    let mut page = KeyPage { head: bounds.head, messages: Vec::new(), next: None };
    let mut newest = 0;
    if !bounds.has_keys {
        return Ok(Some(ReadPage { page, newest, retries }));
    }
    let wall_ms = clock::wall_ms(now_ms);
    let (mut found, mut looked_at, mut last, mut next) = (Vec::new(), 0, None, None);
    let mut each = |key: Box<str>, row: KeyRow| {
        if found.len() >= query.limit || looked_at >= query.limit + KEYS_LOOKED_AT_MAX {
            next = last.take();
            return ControlFlow::Break(());
        }
        looked_at += 1;
        last = Some(key.clone());
        if row.is_value_at(wall_ms) {
            found.push((key, row));
        }
        ControlFlow::Continue(())
    };
    logs.visit_keys(name, query, &mut each)?;
    page.next = next;
    // Those of an erased history may be there still.
    let base = |logs: &Logs| Ok(logs.state_row(name)?.map_or(u64::MAX, |row| row.base));
    let mut bytes = 0;
    for (key, mut row) in found {
        let (mut looks, mut message) = (0, None);
        while row.is_value_at(wall_ms) && row.offset > base(logs)? {
            let content = logs.message(name, row.offset)?;
            message = content.filter(|content| content.key() == Some(&*key));
            if message.is_some() {
                break;
            }
            looks += 1;
            if looks > LOOKS_MAX {
                return Ok(None);
            }
            // It was superseded meanwhile, or removed.
            let mut now = None;
            let mut only = |of: Box<str>, row| {
                now = (of == key).then_some(row);
                ControlFlow::Break(())
            };
            logs.visit_keys(name, &KeyQuery::one(&key), &mut only)?;
            let Some(now) = now else { break };
            row = now;
        }
        let Some(content) = message.filter(|content| !content.is_expired(now_ms)) else { continue };
        bytes += content.weight_bytes();
        if bytes > PAGE_BYTES_MAX && !page.messages.is_empty() {
            page.next = page.messages.last().and_then(|last| last.key().map(Box::from));
            break;
        }
        newest = newest.max(content.id.offset);
        page.messages.push(Arc::new(Message::from(Arc::new(content))));
    }
    Ok(Some(ReadPage { page, newest, retries }))
}
