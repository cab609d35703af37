//! The newest pages of channels, encoded and perhaps compressed, while they are the newest: clients
//! that come to a channel ask for the same page, and compressing one takes as long as hundreds of
//! other requests.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{ChannelName, History, MessageId};

use crate::http::large_answer::EncodedBody;

/// The most bytes of all pages, unless the memory of responses is less than four times that.
const BYTES_MAX: usize = 16 << 20;

/// The share of the memory of responses that pages may take.
const ANSWERS_SHARE: u64 = 4;

/// A smaller page is made as fast as it is found.
const PAGE_BYTES_MIN: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PageKey {
    pub(super) channel: ChannelName,
    /// The most messages that it may have.
    pub(super) limit: usize,
    pub(super) may_compress: bool,
}

/// The content of a page. Messages between the first and the last one do not come back: of two
/// pages with as many messages, and the same first and last one, each has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageContents {
    head: MessageId,
    ends: Option<(MessageId, MessageId)>,
    messages: usize,
    has_more: bool,
}

impl PageContents {
    pub(super) fn of(history: &History) -> PageContents {
        let messages = &history.messages;
        let ends = messages.first().zip(messages.last()).map(|(first, last)| (first.id, last.id));
        let (head, has_more) = (history.head, history.has_more);
        PageContents { head, ends, messages: messages.len(), has_more }
    }
}

#[derive(Debug)]
struct StoredPage {
    contents: PageContents,
    body: EncodedBody,
}

#[derive(Debug, Default)]
struct PagesState {
    pages: HashMap<PageKey, StoredPage>,
    /// In the order in which they came.
    order: VecDeque<PageKey>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct NewestPages {
    state: Mutex<PagesState>,
    max_bytes: usize,
    found: AtomicU64,
}

impl NewestPages {
    /// Pages for a server whose responses may take `max_answer_bytes`.
    pub(crate) fn new(max_answer_bytes: u64) -> NewestPages {
        let share = max_answer_bytes / ANSWERS_SHARE;
        let max_bytes = usize::try_from(share).map_or(BYTES_MAX, |share| share.min(BYTES_MAX));
        NewestPages { state: Mutex::default(), max_bytes, found: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, PagesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page, if it is remembered with these contents.
    pub(super) fn find(&self, key: &PageKey, contents: PageContents) -> Option<EncodedBody> {
        let state = self.lock();
        let page = state.pages.get(key).filter(|page| page.contents == contents)?;
        self.found.fetch_add(1, Ordering::Relaxed);
        Some(page.body.clone())
    }

    /// Remembers a page. The oldest ones give way.
    pub(super) fn add(&self, key: PageKey, contents: PageContents, body: EncodedBody) {
        let is_worth_it = body.bytes.len() >= PAGE_BYTES_MIN || body.is_compressed;
        if !is_worth_it || body.bytes.len() > self.max_bytes {
            return;
        }
        let mut state = self.lock();
        state.bytes += body.bytes.len();
        let page = StoredPage { contents, body };
        match state.pages.insert(key.clone(), page) {
            Some(before) => state.bytes -= before.body.bytes.len(),
            None => state.order.push_back(key),
        }
        while state.bytes > self.max_bytes
            && let Some(oldest) = state.order.pop_front()
        {
            let oldest = state.pages.remove(&oldest);
            state.bytes -= oldest.map_or(0, |page| page.body.bytes.len());
        }
    }

    /// Bytes of the pages that are remembered.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// How often a page was found.
    pub(crate) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use throng_core::Epoch;

    use super::*;

    fn key(channel: &str) -> PageKey {
        PageKey { channel: ChannelName::channel(channel), limit: 100, may_compress: true }
    }

    fn contents(offset: u64) -> PageContents {
        let head = MessageId { epoch: Epoch::numbered(1), offset };
        PageContents { head, ends: None, messages: 0, has_more: false }
    }

    fn body(bytes: usize) -> EncodedBody {
        EncodedBody { bytes: vec![b'x'; bytes].into(), is_compressed: false }
    }

    #[test]
    fn a_page_is_found_until_there_is_a_newer_one() {
        let pages = NewestPages::new(u64::MAX);
        pages.add(key("a"), contents(1), body(PAGE_BYTES_MIN));
        assert!(pages.find(&key("a"), contents(1)).is_some());
        assert!(pages.find(&key("a"), contents(2)).is_none());
        assert!(pages.find(&key("b"), contents(1)).is_none());
        pages.add(key("a"), contents(2), body(PAGE_BYTES_MIN + 1));
        assert!(pages.find(&key("a"), contents(2)).is_some());
        assert_eq!((pages.bytes(), pages.found()), (PAGE_BYTES_MIN + 1, 2));
    }

    #[test]
    fn the_oldest_pages_give_way() {
        let pages = NewestPages::new(ANSWERS_SHARE * 3 * PAGE_BYTES_MIN as u64);
        for name in ["a", "b", "c", "d"] {
            pages.add(key(name), contents(1), body(PAGE_BYTES_MIN));
        }
        assert_eq!(pages.bytes(), 3 * PAGE_BYTES_MIN);
        assert!(pages.find(&key("a"), contents(1)).is_none());
        assert!(pages.find(&key("d"), contents(1)).is_some());
        pages.add(key("small"), contents(1), body(10));
        pages.add(key("large"), contents(1), body(4 * PAGE_BYTES_MIN));
        assert_eq!((pages.bytes(), pages.lock().order.len()), (3 * PAGE_BYTES_MIN, 3));
    }
}
