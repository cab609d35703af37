//! `GET /channels/{channel}/presence`: who follows it.

use http::request::Parts;
use throng_core::{Action, Kind, Presence};
use throng_wire::v1;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::api::{ANSWER_TIMEOUT, limit, newest, permit, set_id};
use crate::control::Control;
use crate::http::answer::{self, Answer, Refused};
use crate::http::{names, query};
use throng_wire::ErrorCode;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, Refused> {
    let channel = names::from_segment(kind, segment)?;
    permit(control, head, Action::ReadPresence(&channel))?;
    let query = head.uri.query().unwrap_or_default();
    query::check(query, &["limit"])?;
    let users_max = limit(query)?;
    let (done, asked) = oneshot::channel();
    let answer = |presence| {
        // Whoever asked may have gone.
        let _ = done.send(presence);
    };
    control.engine.presence(control.now_ms(), &channel, users_max, Box::new(answer))?;
    let Ok(Ok(presence)) = timeout(ANSWER_TIMEOUT, asked).await else {
        let sentence = "the workers are too busy to say who is there; try again later";
        return Err(Refused::new(ErrorCode::Busy, sentence));
    };
    let Presence { connections, users, is_cut } = presence;
    let mut body = Vec::new();
    v1::presence_body(&mut body, &names::target(&channel), connections, &users, is_cut);
    let room = answer::room(control, &control.figures.pages, body.len())?;
    let mut answer = answer::large(answer::JSON, body, room);
    set_id(&mut answer, newest(control, &channel));
    Ok(answer)
}
