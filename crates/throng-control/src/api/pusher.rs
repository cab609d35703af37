//! The HTTP API of the Pusher protocol: `/apps/{id}/…`. Each request is signed by its application,
//! and says nothing of channels and users but the application's own.
//!
//! Success is always `200`: some libraries take any other status for a failure. Errors are the same
//! as in our own API, since libraries show the text as it is.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `signed` | whose a request is, and what its names are on this server |
//! | `publish` | events, one or a batch |
//! | `read` | channels, one or all, and the users of one |

mod publish;
mod read;
mod signed;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use throng_core::{ChannelName, ScanAction, ScanClose, ScanTarget, clock};
use throng_wire::check_target_name;
use throng_wire::percent::decode_segment;
use throng_wire::websocket::close_code;

use self::signed::Signed;
use super::connections::scan;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError, THRONG_PARTIAL};
use crate::http::body::BodyKind;

/// A request by its path. Names are percent-encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call<'p> {
    Events,
    Batch,
    Channels,
    Channel(&'p str),
    Users(&'p str),
    Terminate(&'p str),
}

impl Call<'_> {
    fn methods(self) -> &'static str {
        match self {
            Call::Events | Call::Batch | Call::Terminate(_) => "POST",
            Call::Channels | Call::Channel(_) | Call::Users(_) => "GET",
        }
    }

    /// True if the body of the request says what to do. Bodies of other calls mean nothing.
    fn has_body(self) -> bool {
        matches!(self, Call::Events | Call::Batch)
    }
}

/// A path of this API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppPath<'p> {
    /// The id of the application; `None` where the path has none, as the library for Python leaves
    /// it out.
    app: Option<&'p str>,
    call: Call<'p>,
}

impl<'p> AppPath<'p> {
    /// The path of a request, if it is one of this API.
    pub(crate) fn of(path: &'p str) -> Option<AppPath<'p>> {
        if let Some(rest) = path.strip_prefix("/users/") {
            let user = rest.strip_suffix("/terminate_connections")?;
            let call = (!user.contains('/')).then_some(Call::Terminate(user))?;
            return Some(AppPath { app: None, call });
        }
        let (app, rest) = path.strip_prefix("/apps/")?.split_once('/')?;
        let call = match rest {
            "events" => Call::Events,
            "batch_events" => Call::Batch,
            "channels" => Call::Channels,
            _ => {
                let (kind, rest) = rest.split_once('/')?;
                match (kind, rest.split_once('/')) {
                    ("channels", None) => Call::Channel(rest),
                    ("channels", Some((name, "users"))) => Call::Users(name),
                    ("users", Some((user, "terminate_connections"))) => Call::Terminate(user),
                    _ => return None,
                }
            }
        };
        Some(AppPath { app: Some(app), call })
    }

    /// The id of the application that it names, if there is one.
    pub(crate) fn known(&self, control: &Control) -> Option<Box<str>> {
        let apps = control.authentication.apps();
        Some(apps.with_id(self.app?)?.app().id().into())
    }

    /// True if its application has signed a request, whose body is still to come.
    pub(crate) fn has_signed(self, control: &Control, head: &Parts) -> bool {
        Signed::of(control, head, self.app).is_ok()
    }

    /// True if it publishes.
    pub(crate) fn publishes(self) -> bool {
        matches!(self.call, Call::Events | Call::Batch)
    }
}

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    path: AppPath<'_>,
) -> Result<Answer, ApiError> {
    if head.method == Method::OPTIONS || head.method != path.call.methods() {
        return Err(ApiError::method(path.call.methods()));
    }
    let signed = Signed::of(control, head, path.app)?;
    if !path.call.has_body() {
        signed.body(body, BodyKind::Message).await?;
    }
    let object = match path.call {
        Call::Events => publish::events(&signed, body, false).await?,
        Call::Batch => publish::events(&signed, body, true).await?,
        Call::Channels => read::channels(&signed).await?,
        Call::Channel(name) => read::channel(&signed, name).await?,
        Call::Users(name) => read::users(&signed, name).await?,
        Call::Terminate(user) => terminate(&signed, user).await?,
    };
    let mut answer = answer::json(StatusCode::OK, object.to_string().into_bytes());
    if signed.is_partial.into_inner() {
        answer.headers_mut().insert(THRONG_PARTIAL, HeaderValue::from_static("true"));
    }
    Ok(answer)
}

/// `POST …/users/{user}/terminate_connections`: closes the connections that are signed in as this
/// user. They do not come back by themselves, and the user goes on from none that has died before.
async fn terminate(signed: &Signed<'_>, segment: &str) -> Result<Value, ApiError> {
    let user = decode_segment(segment).unwrap_or_default();
    let name = signed.app.app().own(&user);
    check_target_name(&name, "user")?;
    let tags = signed.control.authentication.tags_of(&name);
    let target = ScanTarget::User { inbox: ChannelName::user(&name), tags };
    let close = ScanClose {
        code: close_code::DISCONNECTED_FOR_GOOD,
        reason: "the application has closed the connections of this user".into(),
        may_return: false,
    };
    scan(signed.control, target, ScanAction::Close(close)).await?;
    signed.control.engine.part_with_user(clock::now_ms(), &name, 0);
    Ok(Value::Object(serde_json::Map::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_an_application_and_what_to_do() {
        let call = |path| AppPath::of(path).map(|path| (path.app, path.call));
        for (path, expected) in [
            ("/apps/3/events", Call::Events),
            ("/apps/3/batch_events", Call::Batch),
            ("/apps/3/channels", Call::Channels),
            ("/apps/3/channels/a", Call::Channel("a")),
            ("/apps/3/channels/presence-a/users", Call::Users("presence-a")),
            ("/apps/3/users/ann/terminate_connections", Call::Terminate("ann")),
        ] {
            assert_eq!(call(path), Some((Some("3"), expected)), "{path}");
        }
        let bare = "/users/ann/terminate_connections";
        assert_eq!(call(bare), Some((None, Call::Terminate("ann"))));
        for path in [
            "/apps",
            "/apps/",
            "/apps/3",
            "/apps/3/",
            "/apps/3/other",
            "/apps/3/channels/a/b",
            "/apps/3/users/ann",
            "/users/ann",
            "/users/a/b/terminate_connections",
            "/channels/a",
        ] {
            assert_eq!(call(path), None, "{path}");
        }
    }
}
