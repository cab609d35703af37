//! Sends each request to where it is answered, and gives every answer of the API its last headers.

use std::sync::Arc;

use axum::Router;
use http::header::{CONNECTION, HeaderValue, ORIGIN, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Request};
use http_body_util::Either;
use hyper::body::Incoming;
use tower_service::Service as _;

use crate::answer::{Answer, Refused};
use crate::api;
use crate::control::Control;
use crate::names::{Part, Resource};
use crate::origin;
use crate::pages;

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
        // What follows chunks is not looked for: see `gate`.
        let is_last = request.headers().contains_key(TRANSFER_ENCODING);
        let mut answer = if Resource::of(request.uri().path()).is_some() {
            let (head, body) = request.into_parts();
            self.answer_api(control, head, body).await
        } else {
            self.page(request).await
        };
        if is_last {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    async fn answer_api(&self, control: &Control, head: Parts, body: Incoming) -> Answer {
        if !origin::is_allowed(&control.settings.allowed_origins, &head) {
            return origin::refusal().into_answer(control);
        }
        let result = route(control, &head, body).await;
        let mut answer = result.unwrap_or_else(|refused| refused.into_answer(control));
        if let Some(origin) = head.headers.get(ORIGIN) {
            origin::expose(&mut answer, origin);
        }
        answer
    }

    async fn page(&self, request: Request<Incoming>) -> Answer {
        match self.pages.clone().call(request).await {
            Ok(answer) => answer.map(Either::Right),
            Err(never) => match never {},
        }
    }
}

async fn route(control: &Control, head: &Parts, body: Incoming) -> Result<Answer, Refused> {
    let Some(resource) = Resource::of(head.uri.path()) else {
        return Err(Refused::not_found());
    };
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
        Resource::Log(_, _, Part::Itself) | Resource::Subscribe if head.method == Method::HEAD => {
            api::head::answer(control, head, resource)
        }
        _ => Err(Refused::method(resource.methods())),
    }
}
