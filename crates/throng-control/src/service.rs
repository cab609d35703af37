//! Routes each request to its endpoint, and completes the headers of every response.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::header::{CONNECTION, HeaderValue, ORIGIN, TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Method, Request, Uri};
use http_body_util::Either;
use hyper::body::Incoming;
use throng_access::{Client, RefusedClient};
use throng_core::{Kind, Listener, clock, wake_together};
use throng_wire::ErrorCode;
use throng_wire::log::without_query;
use tower_service::Service as _;

use crate::api::erase::Target;
use crate::api::pusher::AppPath;
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError, PREFERENCE_APPLIED, Refused};
use crate::http::caller::Caller;
use crate::http::names::{LogPart, Resource};
use crate::http::request_id::X_REQUEST_ID;
use crate::http::{dialect, origin, query_names, request_headers};
use crate::metrics::{HttpCounter, RequestClass};
use crate::status::history::StatusHistory;
use crate::{api, contract, pages, status};

/// Answers requests. The API is matched by hand, because most requests publish; pages, metrics and
/// health go through a router.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pages: Router,
}

impl Service {
    pub(crate) fn new(control: Arc<Control>, history: Arc<StatusHistory>) -> Service {
        Service { pages: pages::router(control, status::json::route(history)) }
    }

    pub(crate) async fn answer(&self, control: &Control, request: Request<Incoming>) -> Answer {
        control.metrics.count(HttpCounter::Requests);
        let start_us = clock::now_us();
        let (mut head, mut body) = request.into_parts();
        let dialect = dialect::move_to_own_path(&mut head);
        let asked = cfg!(debug_assertions).then(|| head.uri.clone());
        let moved = query_names::move_to_path(&mut head);
        let id = control.request_ids.of(&head);
        let origin = check_origin(control, &head);
        let (result, origin) = match origin {
            Ok(origin) => match moved {
                Ok(()) => (self.respond(control, &head, &mut body).await, origin),
                Err(error) => (Err(error), origin),
            },
            // Pages of a refused origin may read that they are refused, and by what name.
            Err(error) => {
                let origin = origin::of_refused(&error, &head);
                (Err(error), origin)
            }
        };
        let mut answer = result.unwrap_or_else(|error| control.refusals.answer(error));
        if let Some(Refused(error)) = answer.extensions().get() {
            control.tell_refusal(error, || client_of(control, &head));
        }
        answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer.headers_mut().insert(X_REQUEST_ID, id);
        if let Some(origin) = origin {
            let allows_cookies = control.authentication.allows_cookies(
                &control.settings,
                Caller::of(&head).listener,
                &origin,
            );
            origin::expose(&mut answer, origin, allows_cookies);
        }
        // A request with chunks is the connection's last: see `socket::request_boundary`.
        let is_last = answer.headers().contains_key(CONNECTION)
            || head.headers.contains_key(TRANSFER_ENCODING)
            || control.is_draining()
            || !control.bodies.discard(&control.drain, &head.headers, &mut body).await;
        if is_last {
            answer::close(&mut answer);
        }
        if let Some(asked) = asked {
            // That of the Pusher protocol is documented by others.
            if app_path(control, asked.path()).is_none() {
                check_documented(&head.method, &asked, &answer);
                check_documented(&head.method, &head.uri, &answer);
            }
        }
        if let Some(dialect) = dialect {
            answer = dialect::translate(answer, dialect).await;
        }
        let duration_us = clock::now_us().saturating_sub(start_us);
        let route = route(&head, &answer);
        control.metrics.record_duration(route, duration_us);
        if tracing::enabled!(tracing::Level::DEBUG) {
            log(&head, &answer, duration_us);
        }
        answer
    }

    async fn respond(
        &self,
        control: &Control,
        head: &Parts,
        body: &mut Incoming,
    ) -> Result<Answer, ApiError> {
        if let Some(path) = app_path(control, head.uri.path()) {
            return Box::pin(api::pusher::answer(control, head, body, path)).await;
        }
        let resource = Resource::of(head.uri.path());
        if let Some(resource) = resource {
            request_headers::check(head, resource)?;
        }
        match resource {
            Some(resource) => match erased_by(&head.method, resource) {
                Some((log, target)) => Box::pin(erase(control, head, log, target)).await,
                None => match key_of(&head.method, resource) {
                    Some(place) => Box::pin(answer_state(control, head, body, place)).await,
                    None => answer_api(control, head, body, resource).await,
                },
            },
            None => Ok(Box::pin(self.page(head)).await),
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

/// The path of a request to the API of the Pusher protocol, if there are applications.
fn app_path<'p>(control: &Control, path: &'p str) -> Option<AppPath<'p>> {
    if control.authentication.has_apps() { AppPath::of(path) } else { None }
}

/// As [`origin::check`], but an application that has signed a request may use any host name, such
/// as the one that a proxy forwards: a page that has made a name point here has no signature.
fn check_origin(control: &Control, head: &Parts) -> Result<Option<HeaderValue>, ApiError> {
    origin::check(&control.settings, head).or_else(|refused| {
        let is_about_host = refused.error.code == ErrorCode::HostRefused;
        let is_public = Caller::of(head).listener == Listener::Public;
        let path = app_path(control, head.uri.path()).filter(|_| is_about_host && is_public);
        let is_signed = path.is_some_and(|path| path.has_signed(control, head));
        if is_signed { Ok(None) } else { Err(refused) }
    })
}

/// The address of the client that sent a request, behind trusted proxies as well.
fn client_of(control: &Control, head: &Parts) -> RefusedClient {
    let caller = Caller::of(head);
    let found = caller.address(&control.clients.source, head).ok().flatten();
    let address = found.or_else(|| caller.peer.map(|peer| peer.ip()));
    let app = AppPath::of(head.uri.path()).and_then(|path| path.known(control));
    RefusedClient { address, app }
}

/// Panics if the OpenAPI document does not have this answer. So every test of the server tests the
/// document, too.
fn check_documented(method: &Method, target: &Uri, answer: &Answer) {
    if let Err(error) = contract::check(method, target.path(), answer) {
        assert!(pages::is_file(target.path()), "{error}");
    }
}

/// The class of a request, by which its duration is counted.
fn route(head: &Parts, answer: &Answer) -> RequestClass {
    let path = head.uri.path();
    let is_write = head.method == Method::POST || head.method == Method::PUT;
    match Resource::of(path) {
        Some(Resource::Log(_, _, LogPart::Itself)) if is_write => {
            // Its publisher has waited for others.
            let has_receipt = answer.headers().contains_key(PREFERENCE_APPLIED);
            if has_receipt { RequestClass::Receipt } else { RequestClass::Publish }
        }
        Some(Resource::Publish) => RequestClass::Batch,
        Some(
            Resource::Log(_, _, LogPart::State)
            | Resource::Key(..)
            | Resource::Log(_, _, LogPart::End),
        ) if is_write => RequestClass::Publish,
        Some(Resource::Log(_, _, LogPart::History | LogPart::State) | Resource::Key(..))
            if head.method != Method::DELETE =>
        {
            RequestClass::History
        }
        Some(Resource::Log(_, _, LogPart::Presence)) => RequestClass::Presence,
        Some(Resource::List(_)) => RequestClass::List,
        Some(
            Resource::Log(_, _, LogPart::Connections | LogPart::Erasure)
            | Resource::Connections
            | Resource::Connection(_)
            | Resource::Revocations
            | Resource::Revocation(..)
            | Resource::Log(_, _, LogPart::Subscriptions | LogPart::Followers)
            | Resource::Subscriptions,
        ) => RequestClass::Administration,
        None if AppPath::of(path).is_some_and(AppPath::publishes) => RequestClass::Publish,
        None if path == "/health" || path.starts_with("/health/") => RequestClass::Health,
        None if path == "/metrics" || path.starts_with("/status") => RequestClass::Status,
        Some(_) | None => RequestClass::Other,
    }
}

/// Logs a request with its status, and with the error code if there is one.
fn log(head: &Parts, answer: &Answer, duration_us: u64) {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let path = without_query(target.as_bytes());
    let (method, status) = (&head.method, answer.status().as_u16());
    let code = answer.extensions().get::<ErrorCode>().map(|code| code.name()).unwrap_or_default();
    let peer = Caller::of(head).peer.map(|peer| peer.to_string()).unwrap_or_default();
    let id = answer.headers().get(X_REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = id.unwrap_or_default();
    tracing::debug!(%peer, us = duration_us, request = %id, "{method} {path} {status} {code}");
}

/// Answers a request to the API. Those that seldom come are boxed: the future of each request has
/// room for the largest answer, and moves a few times, which took 2% of the time of a publication.
async fn answer_api(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    resource: Resource<'_>,
) -> Result<Answer, ApiError> {
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    match resource {
        _ if head.method == Method::OPTIONS => {
            let passed = control.authentication.passed_headers();
            let origin = head.headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
            let listener = Caller::of(head).listener;
            let is_listed =
                origin.is_some_and(|origin| origin::lists(&control.settings, listener, origin));
            Ok(api::options::answer(head, resource, passed, is_listed))
        }
        Resource::Log(kind, name, LogPart::Itself)
            if head.method == Method::POST || head.method == Method::PUT =>
        {
            let client = client(control, head).await?;
            api::publish::answer(control, head, &client, body, kind, name).await
        }
        _ if changes_log(&head.method, resource) => {
            Box::pin(change_log(control, head, body, resource)).await
        }
        Resource::Publish if head.method == Method::POST => {
            let client = client(control, head).await?;
            // Readers of several of its channels get their messages in one frame.
            Box::pin(wake_together(api::batch::answer(control, head, &client, body))).await
        }
        Resource::Log(
            kind,
            name,
            part @ (LogPart::History | LogPart::Presence | LogPart::Creation),
        ) if is_read => Box::pin(answer_about_log(control, head, kind, name, part)).await,
        Resource::Log(kind, name, LogPart::Read) if is_read || head.method == Method::PUT => {
            Box::pin(answer_about_log(control, head, kind, name, LogPart::Read)).await
        }
        // A `GET` of these does not get here: it closes the request boundary.
        Resource::Log(_, _, LogPart::Itself) | Resource::Subscribe | Resource::StatusStream
            if head.method == Method::HEAD =>
        {
            Box::pin(api::head::answer(control, head)).await
        }
        Resource::Log(_, _, LogPart::Subscriptions | LogPart::Followers)
        | Resource::Subscriptions => {
            Box::pin(api::kept::answer(control, head, body, resource)).await
        }
        Resource::Login if head.method == Method::POST => {
            Ok(Box::pin(api::login::log_in(control, head, body)).await)
        }
        Resource::Logout if head.method == Method::POST => Ok(api::login::log_out()),
        Resource::List(kind) if is_read => {
            Box::pin(api::listing::answer(control, head, kind)).await
        }
        _ => Box::pin(operate(control, head, resource)).await,
    }
}

/// A place in a channel's state: the channel or user, and the key, if the path names one.
type KeyPlace<'r> = (Kind, &'r str, Option<&'r str>);

/// The place in a state that a request is about.
fn key_of<'r>(method: &Method, resource: Resource<'r>) -> Option<KeyPlace<'r>> {
    let place = match resource {
        Resource::Log(kind, name, LogPart::State) => (kind, name, None),
        Resource::Key(kind, name, key) => (kind, name, Some(key)),
        _ => return None,
    };
    let methods = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE];
    methods.contains(method).then_some(place)
}

async fn answer_state(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    place: KeyPlace<'_>,
) -> Result<Answer, ApiError> {
    let client = client(control, head).await?;
    api::state::answer(control, head, &client, body, place).await
}

/// The messages that a request erases, and their channel or user.
fn erased_by<'r>(method: &Method, resource: Resource<'r>) -> Option<((Kind, &'r str), Target<'r>)> {
    if method != Method::DELETE {
        return None;
    }
    Some(match resource {
        Resource::Message(kind, name, id) => ((kind, name), Target::Message(id)),
        Resource::Log(kind, name, LogPart::History) => ((kind, name), Target::History),
        Resource::Log(Kind::Channel, name, LogPart::Itself) => {
            ((Kind::Channel, name), Target::Channel)
        }
        _ => return None,
    })
}

/// True if a request replaces a message, or creates or ends a channel, or opens it again.
fn changes_log(method: &Method, resource: Resource<'_>) -> bool {
    match resource {
        Resource::Message(..) => method == Method::PUT,
        Resource::Log(_, _, LogPart::End) => method == Method::POST || method == Method::DELETE,
        Resource::Log(_, _, LogPart::Creation) => method == Method::PUT,
        _ => false,
    }
}

async fn change_log(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    resource: Resource<'_>,
) -> Result<Answer, ApiError> {
    let client = client(control, head).await?;
    match resource {
        Resource::Message(kind, name, id) => {
            api::edit::answer(control, head, &client, body, (kind, name, id)).await
        }
        Resource::Log(_, name, LogPart::Creation) => {
            api::creation::answer(control, head, &client, body, name).await
        }
        Resource::Log(_, name, _) => api::end::answer(control, head, &client, body, name).await,
        _ => Err(ApiError::method(resource.methods())),
    }
}

async fn erase(
    control: &Control,
    head: &Parts,
    log: (Kind, &str),
    target: Target<'_>,
) -> Result<Answer, ApiError> {
    let client = client(control, head).await?;
    api::erase::answer(control, head, &client, log, target).await
}

/// Answers clients who ask about a channel or an inbox.
async fn answer_about_log(
    control: &Control,
    head: &Parts,
    kind: Kind,
    name: &str,
    part: LogPart,
) -> Result<Answer, ApiError> {
    let client = client(control, head).await?;
    match part {
        LogPart::History => api::history::answer(control, head, &client, kind, name).await,
        LogPart::Presence => api::presence::answer(control, head, &client, kind, name).await,
        LogPart::Creation => api::creation::show(control, head, &client, name).await,
        _ => api::read::answer(control, head, &client, (kind, name)).await,
    }
}

async fn operate(
    control: &Control,
    head: &Parts,
    resource: Resource<'_>,
) -> Result<Answer, ApiError> {
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    let is_delete = head.method == Method::DELETE;
    let is_post = head.method == Method::POST;
    let is_known = match resource {
        Resource::Log(_, _, LogPart::Connections) => is_read || is_delete,
        Resource::Log(_, _, LogPart::Erasure) => is_read || is_post,
        Resource::Connection(_) => is_delete,
        Resource::Connections | Resource::Revocations => is_read,
        Resource::Revocation(..) => is_read || is_delete || is_post,
        _ => false,
    };
    if !is_known {
        return Err(ApiError::method(resource.methods()));
    }
    let (authentication, settings) = (&control.authentication, &control.settings);
    // The status page shows who is behind, so a login counts for that.
    let operation = match resource {
        Resource::Connections => Operation::Status,
        _ => Operation::Administration,
    };
    authentication.check_operator(settings, head, operation)?;
    match resource {
        Resource::Log(_, name, LogPart::Erasure) => {
            api::erase_user::answer(control, head, name).await
        }
        Resource::Log(kind, name, _) if is_read => {
            api::connections::list(control, head, kind, name).await
        }
        Resource::Log(kind, name, _) => {
            api::connections::disconnect_all(control, head, kind, name).await
        }
        Resource::Connections => api::connections::list_behind(control, head).await,
        Resource::Connection(name) => api::connections::disconnect(control, head, name).await,
        Resource::Revocation(kind, name) => {
            api::revocations::answer(control, head, kind, name).await
        }
        _ => api::revocations::list(control, head).await,
    }
}

async fn client(control: &Control, head: &Parts) -> Result<Client, ApiError> {
    control.authentication.client(&control.settings, head).await
}
