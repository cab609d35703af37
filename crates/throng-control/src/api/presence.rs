//! `GET /channels/{channel}/presence`: who follows it.

use std::time::Duration;

use http::request::Parts;
use http::{Method, StatusCode};
use throng_core::{Action, Engine as _, Kind};
use throng_wire::v1;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::answer::{self, Answer, Code, Refused};
use crate::api::{limit, newest, permit, set_id};
use crate::control::Control;
use crate::names;

/// Workers that have not answered by then are too busy to.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    kind: Kind,
    segment: &str,
) -> Result<Answer, Refused> {
    let channel = names::from_segment(kind, segment)?;
    permit(control, Action::ReadPresence(&channel))?;
    let users_max = limit(head.uri.query().unwrap_or_default())?;
    let mut body = Vec::new();
    if head.method != Method::HEAD {
        let (done, asked) = oneshot::channel();
        control.engine.presence(
            &channel,
            users_max,
            Box::new(|presence| {
                // Whoever asked may have gone.
                let _ = done.send(presence);
            }),
        );
        let Ok(Ok(presence)) = timeout(ANSWER_TIMEOUT, asked).await else {
            let sentence = "the workers are too busy to say who is there; try again in a second";
            return Err(Refused::new(Code::Busy, sentence));
        };
        let target = names::target(&channel);
        let throng_core::Presence { connections, users, is_cut } = presence;
        v1::presence_body(&mut body, &target, connections, &users, is_cut);
    }
    let mut answer = answer::json(StatusCode::OK, body);
    set_id(&mut answer, newest(control, &channel));
    Ok(answer)
}
