//! The resources of the API, and the paths that name them.

use throng_core::{ChannelName, Kind};
use throng_wire::percent::decode_segment;
use throng_wire::{ErrorCode, NameError, Target, check_name};

use super::answer::ApiError;

/// The part of a channel or user that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPart {
    /// The channel itself, to publish or subscribe to.
    Itself,
    /// The messages that its log keeps.
    History,
    /// The newest messages of its keys.
    State,
    /// The connections and users that follow it.
    Presence,
    /// Its connections, for operators.
    Connections,
    /// The channels that a user follows.
    Subscriptions,
    /// The users that follow a channel.
    Followers,
    /// How far a user has read it.
    Read,
    /// Its end: of channels only.
    End,
    /// Its creation: of channels only.
    Creation,
    /// The erasure of the user: of users only.
    Erasure,
}

/// The subject of a path below `/revocations/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Revocable {
    Tokens,
    /// Everything that one user was issued.
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    /// `/channels/{name}`, `/users/{name}` and the paths below. The name is percent-encoded.
    Log(Kind, &'a str, LogPart),
    /// `/channels/{name}/messages/{id}`, and the same of a user: one message. Both are
    /// percent-encoded.
    Message(Kind, &'a str, &'a str),
    /// `/messages`: one message, which its query names.
    Messages,
    /// `/channels/{name}/state/{key}`, and the same of a user. Both are percent-encoded.
    Key(Kind, &'a str, &'a str),
    /// `/subscribe`: a subscription to several channels.
    Subscribe,
    /// `/status/stream`: the samples of the status page.
    StatusStream,
    /// `/publish`: a batch of messages.
    Publish,
    /// `/subscriptions`: what many users follow.
    Subscriptions,
    /// `/channels` and `/users`: a list of all that exist.
    List(Kind),
    /// `/connections`: the connections that are behind.
    Connections,
    /// A path that says nothing without a name in its query, such as `/history`.
    Nameless(LogPart),
    /// `/connections/{name}`: one connection.
    Connection(&'a str),
    /// `/revocations`: all revocations.
    Revocations,
    /// `/revocations/tokens/{id}` and `/revocations/users/{user}`. The name is percent-encoded.
    Revocation(Revocable, &'a str),
    /// `/status/login`: the login of the status page.
    Login,
    /// `/status/logout`: its end.
    Logout,
}

impl<'a> Resource<'a> {
    /// The resource at `path`; `None` if the path is not one of the API.
    pub(crate) fn of(path: &'a str) -> Option<Resource<'a>> {
        let (kind, rest) = if let Some(rest) = path.strip_prefix("/channels/") {
            (Kind::Channel, rest)
        } else if let Some(rest) = path.strip_prefix("/users/") {
            (Kind::User, rest)
        } else {
            return Resource::of_other(path);
        };
        match rest.split_once('/') {
            None => Some(Resource::Log(kind, rest, LogPart::Itself)),
            Some((name, "history")) => Some(Resource::Log(kind, name, LogPart::History)),
            Some((name, "state")) => Some(Resource::Log(kind, name, LogPart::State)),
            Some((name, "presence")) => Some(Resource::Log(kind, name, LogPart::Presence)),
            Some((name, "read")) => Some(Resource::Log(kind, name, LogPart::Read)),
            Some((name, "erasure")) if kind == Kind::User => {
                Some(Resource::Log(kind, name, LogPart::Erasure))
            }
            Some((name, "end")) if kind == Kind::Channel => {
                Some(Resource::Log(kind, name, LogPart::End))
            }
            Some((name, "creation")) if kind == Kind::Channel => {
                Some(Resource::Log(kind, name, LogPart::Creation))
            }
            Some((name, "connections")) => Some(Resource::Log(kind, name, LogPart::Connections)),
            Some((name, "subscriptions")) if kind == Kind::User => {
                Some(Resource::Log(kind, name, LogPart::Subscriptions))
            }
            Some((name, "followers")) if kind == Kind::Channel => {
                Some(Resource::Log(kind, name, LogPart::Followers))
            }
            Some((name, part)) => {
                if let Some(key) = part.strip_prefix("state/").filter(|key| !key.contains('/')) {
                    return Some(Resource::Key(kind, name, key));
                }
                let id = part.strip_prefix("messages/").filter(|id| !id.contains('/'))?;
                Some(Resource::Message(kind, name, id))
            }
        }
    }

    /// A resource that is neither a channel nor a user.
    fn of_other(path: &'a str) -> Option<Resource<'a>> {
        let below = |prefix| path.strip_prefix(prefix).filter(|rest: &&str| !rest.contains('/'));
        if let Some(name) = below("/connections/") {
            return Some(Resource::Connection(name));
        }
        if let Some(id) = below("/revocations/tokens/") {
            return Some(Resource::Revocation(Revocable::Tokens, id));
        }
        if let Some(user) = below("/revocations/users/") {
            return Some(Resource::Revocation(Revocable::User, user));
        }
        match path {
            "/subscribe" => Some(Resource::Subscribe),
            "/status/stream" => Some(Resource::StatusStream),
            "/publish" => Some(Resource::Publish),
            "/messages" => Some(Resource::Messages),
            "/subscriptions" => Some(Resource::Subscriptions),
            "/channels" => Some(Resource::List(Kind::Channel)),
            "/users" => Some(Resource::List(Kind::User)),
            "/connections" => Some(Resource::Connections),
            "/history" => Some(Resource::Nameless(LogPart::History)),
            "/state" => Some(Resource::Nameless(LogPart::State)),
            "/presence" => Some(Resource::Nameless(LogPart::Presence)),
            "/read" => Some(Resource::Nameless(LogPart::Read)),
            "/erasure" => Some(Resource::Nameless(LogPart::Erasure)),
            "/end" => Some(Resource::Nameless(LogPart::End)),
            "/creation" => Some(Resource::Nameless(LogPart::Creation)),
            "/followers" => Some(Resource::Nameless(LogPart::Followers)),
            "/revocations" => Some(Resource::Revocations),
            "/status/login" => Some(Resource::Login),
            "/status/logout" => Some(Resource::Logout),
            _ => None,
        }
    }

    /// The methods that it takes, in the form of the header `Allow`.
    pub(crate) fn methods(self) -> &'static str {
        match self {
            Resource::Log(Kind::Channel, _, LogPart::Itself) => {
                "DELETE, GET, HEAD, OPTIONS, POST, PUT"
            }
            Resource::Log(_, _, LogPart::Itself) => "GET, HEAD, OPTIONS, POST, PUT",
            Resource::Log(_, _, LogPart::Erasure) | Resource::Nameless(LogPart::Erasure) => {
                "GET, HEAD, OPTIONS, POST"
            }
            Resource::Log(_, _, LogPart::Connections | LogPart::History)
            | Resource::Nameless(LogPart::History)
            | Resource::Connections => "DELETE, GET, HEAD, OPTIONS",
            Resource::Log(_, _, LogPart::Subscriptions) | Resource::Subscriptions => {
                "DELETE, GET, HEAD, OPTIONS, POST, PUT"
            }
            Resource::Log(_, _, LogPart::State)
            | Resource::Nameless(LogPart::State)
            | Resource::Key(..) => "DELETE, GET, HEAD, OPTIONS, PUT",
            Resource::Log(_, _, LogPart::Read | LogPart::Creation)
            | Resource::Nameless(LogPart::Read | LogPart::Creation) => "GET, HEAD, OPTIONS, PUT",
            Resource::Log(_, _, LogPart::End) | Resource::Nameless(LogPart::End) => {
                "DELETE, OPTIONS, POST"
            }
            Resource::Publish => "DELETE, OPTIONS, POST, PUT",
            Resource::Message(..) | Resource::Messages => "DELETE, OPTIONS, PUT",
            Resource::Connection(_) => "DELETE, OPTIONS",
            Resource::Revocation(..) => "DELETE, GET, HEAD, OPTIONS, POST",
            Resource::Login | Resource::Logout => "OPTIONS, POST",
            Resource::Log(_, _, LogPart::Presence | LogPart::Followers)
            | Resource::List(_)
            | Resource::Subscribe
            | Resource::StatusStream
            | Resource::Nameless(_)
            | Resource::Revocations => "GET, HEAD, OPTIONS",
        }
    }
}

/// The error of a path at which there is nothing.
pub(crate) fn nothing_at(path: &str) -> ApiError {
    if !["/channels/", "/users/"].iter().any(|below| path.starts_with(below)) {
        return ErrorCode::NotFound.into();
    }
    let message = "there is nothing at this path: in a name, `/` is written as `%2F`; or the name \
                   stands in the query, as in `/subscribe?channel=a/b` and `/publish?channel=a/b`";
    ApiError::new(ErrorCode::NotFound, message)
}

/// The channel in the form that the wire formats use.
pub(crate) fn target(channel: &ChannelName) -> Target {
    Target { kind: channel.kind(), name: channel.name().to_owned() }
}

/// The channel or user that a percent-encoded path segment names.
pub(crate) fn from_segment(kind: Kind, segment: &str) -> Result<ChannelName, ApiError> {
    let noun = kind.noun();
    let name = decode_segment(segment).ok_or(NameError::NotUtf8(noun))?;
    check_name(&name, noun)?;
    Ok(ChannelName::new(kind, &name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_one_resource_or_none() {
        let log = |name, part| Some(Resource::Log(Kind::Channel, name, part));
        assert_eq!(Resource::of("/channels/a%2Fb"), log("a%2Fb", LogPart::Itself));
        assert_eq!(Resource::of("/channels/"), log("", LogPart::Itself));
        assert_eq!(Resource::of("/channels/history"), log("history", LogPart::Itself));
        for (path, part) in [
            ("history", LogPart::History),
            ("presence", LogPart::Presence),
            ("end", LogPart::End),
            ("creation", LogPart::Creation),
        ] {
            assert_eq!(Resource::of(&format!("/channels/a/{path}")), log("a", part));
        }
        let user = Resource::Log(Kind::User, "u", LogPart::Itself);
        assert_eq!(Resource::of("/users/u"), Some(user));
        assert_eq!(Resource::of("/publish"), Some(Resource::Publish));
        assert_eq!(Resource::of("/history"), Some(Resource::Nameless(LogPart::History)));
        assert_eq!(Resource::of("/subscribe"), Some(Resource::Subscribe));
        assert_eq!(Resource::of("/channels/a/connections"), log("a", LogPart::Connections));
        assert_eq!(Resource::of("/connections/a1"), Some(Resource::Connection("a1")));
        assert_eq!(Resource::of("/connections"), Some(Resource::Connections));
        assert_eq!(Resource::of("/revocations"), Some(Resource::Revocations));
        assert_eq!(Resource::of("/channels"), Some(Resource::List(Kind::Channel)));
        assert_eq!(Resource::of("/users"), Some(Resource::List(Kind::User)));
        assert_eq!(Resource::of("/channels/a/followers"), log("a", LogPart::Followers));
        let subscriptions = Resource::Log(Kind::User, "u", LogPart::Subscriptions);
        assert_eq!(Resource::of("/users/u/subscriptions"), Some(subscriptions));
        assert_eq!(Resource::of("/subscriptions"), Some(Resource::Subscriptions));
        let revocation = |kind, name| Some(Resource::Revocation(kind, name));
        assert_eq!(Resource::of("/revocations/tokens/t"), revocation(Revocable::Tokens, "t"));
        assert_eq!(Resource::of("/revocations/users/a%2Fb"), revocation(Revocable::User, "a%2Fb"));
        let of_user = Some(Resource::Log(Kind::User, "u", LogPart::Read));
        let both = ["/users/u/read", "/channels/a/read"].map(Resource::of);
        assert_eq!(both, [of_user, log("a", LogPart::Read)]);
        for path in [
            "/",
            "/users/a/end",
            "/users/a/creation",
            "/channels/a/erasure",
            "*",
            "/channels/a/",
            "/channels/a/b",
            "/channels/a/connections/",
            "/subscribe/",
            "/channels/a/subscriptions",
            "/users/a/followers",
            "/connections/a/b",
            "/revocations/",
            "/revocations/tokens",
            "/revocations/users/a/b",
            "/revocations/others/a",
        ] {
            assert_eq!(Resource::of(path), None, "{path}");
        }
    }

    #[test]
    fn a_path_may_name_one_message() {
        let message = Resource::Message(Kind::User, "a%2Fb", "k-1");
        assert_eq!(Resource::of("/users/a%2Fb/messages/k-1"), Some(message));
        assert_eq!(Resource::of("/messages"), Some(Resource::Messages));
        for path in ["/channels/a/messages", "/channels/a/messages/k-1/b", "/messages/k-1"] {
            assert_eq!(Resource::of(path), None, "{path}");
        }
    }

    /// Any path of the words that this file has is documented if it is one of the API.
    #[test]
    fn the_document_has_every_path() {
        let literals = include_str!("names.rs").split('"').skip(1).step_by(2);
        let is_word =
            |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        let words: std::collections::BTreeSet<_> =
            literals.flat_map(|literal| literal.split('/')).filter(is_word).collect();
        let (mut paths, mut longest) = (0, vec![String::new()]);
        for _ in 0..3 {
            let longer = longest
                .iter()
                .flat_map(|path| words.iter().map(move |word| format!("{path}/{word}")));
            longest = longer.collect();
            for path in longest.iter().filter(|path| Resource::of(path).is_some()) {
                let documented = crate::contract::operations(path);
                assert!(documented.is_some(), "{path} is not in the OpenAPI document");
                paths += 1;
            }
        }
        assert!(paths > 200, "{paths} paths of {words:?}");
    }

    #[test]
    fn names_are_decoded_and_checked() {
        let name = from_segment(Kind::Channel, "a%2Fb%20c+d").unwrap();
        assert_eq!(name.name(), "a/b c+d");
        for segment in ["", "%ff", "%f", "..", "a%2F%2Fb", "%00"] {
            let refused = from_segment(Kind::User, segment).unwrap_err();
            assert_eq!(refused.error.code, ErrorCode::BadName, "{segment}");
        }
    }
}
