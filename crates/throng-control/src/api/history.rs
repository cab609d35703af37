//! `GET /channels/{channel}/history`: a page of the messages that the log keeps.

use std::cell::RefCell;

use http::request::Parts;
use throng_access::{Action, Client};
use throng_core::{HistoryQuery, Kind, RefusedForMemory};
use throng_wire::page_range::PageRange;
use throng_wire::subscribe::read_time;
use throng_wire::v1;

use super::limit::Limited;
use super::log;
use super::newest_page::{PageContents, PageKey};
use super::parameters::{page_limit, set_id};
use super::permit::Permit;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::large_answer::{self, EncodedBody};
use crate::http::{gzip, names, query};

/// Maximum size of the envelopes of a page; the rest is on the next page.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Approximate size of a response without its envelopes.
const FRAME_BYTES: usize = 512;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    kind: Kind,
    segment: &str,
) -> Result<Answer, ApiError> {
    let channel = names::from_segment(kind, segment)?;
    control.check_memory(RefusedForMemory::History)?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::ReadHistory(&channel)).await?;
    let query = query::of(head, &["limit", "before", "after", "since_time", "order"])?;
    let find = |name| query::find(query, name).map(|text| text.map(String::from));
    let since_time = find("since_time")?.map(|time| read_time(&time)).transpose()?;
    let order = find("order")?;
    let range = PageRange::of(find("before")?, find("after")?, since_time, order.as_deref());
    let range = range.map_err(ApiError::parameter)?;
    let requested = HistoryQuery::of_page(&range.start)?;
    let limited = Limited::of(control, head, client)?;
    limited.begin_reading().map_err(ApiError::limited)?;
    let (engine, limit) = (&control.engine, page_limit(query)?);
    log::check_exists(engine, &channel).await?;
    let mut history =
        log::read(engine, &channel, requested, limit, &mut { log::FETCH_TIMEOUT }).await?;
    // It may have taken seconds to fetch them.
    permit.recheck(Action::ReadHistory(&channel))?;
    let (contents, is_newest) = (PageContents::of(&history), range == PageRange::NEWEST);
    let may_compress = gzip::is_accepted(&head.headers);
    let key = PageKey { channel, limit, may_compress };
    if is_newest && let Some(page) = control.newest_pages.find(&key, contents) {
        let reservation = large_answer::reserve(&control.read_answers, page.bytes.len())?;
        limited.charge_read(page.bytes.len());
        let mut answer = large_answer::encoded(answer::JSON, page, reservation);
        set_id(&mut answer, history.head);
        return Ok(answer);
    }
    let envelopes = history.encode(requested, PAGE_BYTES_MAX, range.is_newest_first);
    let bytes = envelopes.iter().map(|envelope| envelope.len() + 1).sum::<usize>() + FRAME_BYTES;
    let reservation = large_answer::reserve(&control.read_answers, bytes)?;
    let mut body = Vec::with_capacity(bytes);
    let page = v1::HistoryPage {
        target: &names::target(&key.channel),
        id: &history.head.to_string(),
        has_more: history.has_more,
        is_recovered: history.is_recovered,
        is_ended: history.is_ended,
        is_local: engine.is_local(&key.channel),
    };
    let envelopes = envelopes.iter();
    let cuts = RefCell::new(Vec::with_capacity(envelopes.len()));
    let writers = envelopes.map(|envelope| {
        |out: &mut Vec<u8>| {
            cuts.borrow_mut().push(out.len());
            out.extend_from_slice(envelope);
        }
    });
    v1::history_body(&mut body, page, writers);
    limited.charge_read(body.len());
    let cuts = cuts.into_inner();
    let body = EncodedBody::of(body, &cuts, &control.settings, &head.headers).await;
    if is_newest {
        control.newest_pages.add(key, contents, body.clone());
    }
    let mut answer = large_answer::encoded(answer::JSON, body, reservation);
    set_id(&mut answer, history.head);
    Ok(answer)
}
