//! Sends each request to where it is answered, and gives every answer its last headers.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Method, Request};
use http_body_util::Either;
use hyper::body::Incoming;
use throng_core::clock;
use throng_wire::log::without_query;
use tower_service::Service as _;

use crate::control::Control;
use crate::http::answer::{self, Answer, Refused};
use crate::http::caller::Caller;
use crate::http::names::{Part, Resource};
use crate::http::{body, origin};
use crate::{api, pages};
use throng_wire::ErrorCode;

/// Answers requests. The API is matched by hand, because publishing is what the control plane does
/// all day; pages, figures and health go through a router.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pages: Router,
}

impl Service {
    pub(crate) fn new(control: Arc<Control>) -> Service {
        Service { pages: pages::router(control) }
    }

    /// The answer to one request.
    pub(crate) async fn answer(&self, control: &Control, request: Request<Incoming>) -> Answer {
        control.figures.requests.add(1);
        let asked_us = clock::now_us();
        let (head, mut body) = request.into_parts();
        let origin = origin::check(&control.settings, &head);
        let (result, origin) = match origin {
            Ok(origin) => (self.respond(control, &head, &mut body).await, origin),
            Err(refused) => (Err(refused), None),
        };
        let mut answer = result.unwrap_or_else(|refused| refused.into_answer(control));
        answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(origin) = origin {
            origin::expose(&mut answer, origin);
        }
        // What follows chunks is not looked for: see `gate`.
        let is_last = answer.headers().contains_key(CONNECTION)
            || head.headers.contains_key(TRANSFER_ENCODING)
            || control.is_draining()
            || !body::discard(control, &head.headers, &mut body).await;
        if is_last {
            answer::close(&mut answer);
        }
        let took_us = clock::now_us().saturating_sub(asked_us);
        control.figures.responses.record_shared(took_us);
        if tracing::enabled!(tracing::Level::DEBUG) {
            log(&head, &answer, took_us);
        }
        answer
    }

    async fn respond(
        &self,
        control: &Control,
        head: &Parts,
        body: &mut Incoming,
    ) -> Result<Answer, Refused> {
        match Resource::of(head.uri.path()) {
            Some(resource) => answer_api(control, head, body, resource).await,
            None => Ok(self.page(head).await),
        }
    }

    async fn page(&self, head: &Parts) -> Answer {
        let request = Request::from_parts(head.clone(), Body::empty());
        match self.pages.clone().call(request).await {
            Ok(answer) => answer.map(Either::Right),
            Err(never) => match never {},
        }
    }
}

/// Logs a request and its answer, with the code of an error.
fn log(head: &Parts, answer: &Answer, took_us: u64) {
    let path = without_query(head.uri.path_and_query().map_or("", |it| it.as_str()).as_bytes());
    let (method, status) = (&head.method, answer.status().as_u16());
    let code = answer.extensions().get::<ErrorCode>().map(|code| code.name()).unwrap_or_default();
    let peer = Caller::of(head).peer.map(|peer| peer.to_string()).unwrap_or_default();
    tracing::debug!("{method} {path} {status} {code} peer={peer} us={took_us}");
}

async fn answer_api(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    resource: Resource<'_>,
) -> Result<Answer, Refused> {
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    match resource {
        _ if head.method == Method::OPTIONS => Ok(api::options::answer(head, resource)),
        Resource::Log(kind, name, Part::Itself)
            if head.method == Method::POST || head.method == Method::PUT =>
        {
            api::publish::answer(control, head, body, kind, name).await
        }
        Resource::Publish if head.method == Method::POST => {
            api::batch::answer(control, head, body).await
        }
        Resource::Log(kind, name, Part::History) if is_read => {
            api::history::answer(control, head, kind, name)
        }
        Resource::Log(kind, name, Part::Presence) if is_read => {
            api::presence::answer(control, head, kind, name).await
        }
        // A `GET` of these never gets here: the gate takes it out.
        Resource::Log(_, _, Part::Itself) | Resource::Subscribe | Resource::StatusStream
            if head.method == Method::HEAD =>
        {
            api::head::answer(control, head)
        }
        _ => Err(Refused::method(resource.methods())),
    }
}
