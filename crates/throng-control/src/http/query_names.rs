//! Names in the query: `/history?channel=NAME` is `/channels/NAME/history`.
//!
//! Many proxies refuse or decode `%2F` in a path, and none does in a query. Such a request becomes
//! the one that has the name in its path before anything else looks at it, so that access, limits,
//! metrics and the log are the same.

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri};
use throng_core::Kind;
use throng_wire::percent::{decode_query, encode_segment};
use throng_wire::{ErrorCode, NameError};

use super::answer::ApiError;
use super::names::Resource;

/// A path that takes its name from the query.
struct Path {
    path: &'static str,
    /// The part of the equivalent path behind the name.
    part: &'static str,
    kinds: &'static [Kind],
    /// The methods that mean something without a name, too.
    own_methods: &'static [Method],
    /// True if the equivalent path ends with an id, which the query has in `id`.
    has_id: bool,
}

const BOTH: &[Kind] = &[Kind::Channel, Kind::User];

const PATHS: [Path; 12] = [
    Path { path: "/publish", part: "", kinds: BOTH, own_methods: &[Method::POST], has_id: false },
    Path { path: "/messages", part: "/messages", kinds: BOTH, own_methods: &[], has_id: true },
    Path { path: "/history", part: "/history", kinds: BOTH, own_methods: &[], has_id: false },
    Path { path: "/state", part: "/state", kinds: BOTH, own_methods: &[], has_id: false },
    Path { path: "/presence", part: "/presence", kinds: BOTH, own_methods: &[], has_id: false },
    Path {
        path: "/connections",
        part: "/connections",
        kinds: BOTH,
        own_methods: &[Method::GET, Method::HEAD],
        has_id: false,
    },
    Path { path: "/read", part: "/read", kinds: BOTH, own_methods: &[], has_id: false },
    Path {
        path: "/subscriptions",
        part: "/subscriptions",
        kinds: &[Kind::User],
        own_methods: &[Method::POST],
        has_id: false,
    },
    Path {
        path: "/erasure",
        part: "/erasure",
        kinds: &[Kind::User],
        own_methods: &[],
        has_id: false,
    },
    Path { path: "/end", part: "/end", kinds: &[Kind::Channel], own_methods: &[], has_id: false },
    Path {
        path: "/creation",
        part: "/creation",
        kinds: &[Kind::Channel],
        own_methods: &[],
        has_id: false,
    },
    Path {
        path: "/followers",
        part: "/followers",
        kinds: &[Kind::Channel],
        own_methods: &[],
        has_id: false,
    },
];

/// Moves the name of a request from its query to its path, where the path has none.
pub(crate) fn move_to_path(head: &mut Parts) -> Result<(), ApiError> {
    let Some(known) = PATHS.iter().find(|known| known.path == head.uri.path()) else {
        return Ok(());
    };
    // Says which methods the path takes, with a name or without one.
    let Some(resource) = Resource::of(known.path) else { return Ok(()) };
    if !resource.methods().split(", ").any(|method| *method == head.method) {
        return Ok(());
    }
    if let Some(target) = known.target(&head.method, &head.uri)? {
        head.uri = target;
    }
    Ok(())
}

impl Path {
    /// The target that a request for `uri` stands for; `None` if it names nothing.
    fn target(&self, method: &Method, uri: &Uri) -> Result<Option<Uri>, ApiError> {
        let mut named: Option<(Kind, &str)> = None;
        let (mut id, mut others) = (None, String::new());
        for pair in uri.query().unwrap_or_default().split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match self.kinds.iter().find(|kind| kind.noun() == key) {
                Some(&kind) if named.is_none() => named = Some((kind, value)),
                Some(_) => return Err(self.names_one()),
                None if self.has_id && key == "id" => {
                    let named = decode_query(value).map(|id| encode_segment(&id).to_string());
                    if named.is_none() || id.replace(named).is_some() {
                        return Err(self.has_one_id());
                    }
                }
                None => {
                    others.push(if others.is_empty() { '?' } else { '&' });
                    others.push_str(pair);
                }
            }
        }
        let Some((kind, name)) = named else {
            let is_own = *method == Method::OPTIONS || self.own_methods.contains(method);
            return if is_own { Ok(None) } else { Err(self.names_one()) };
        };
        let name = decode_query(name).ok_or(NameError::NotUtf8(kind.noun()))?;
        let mut target = format!("/{}s/{}{}", kind.noun(), encode_segment(&name), self.part);
        if self.has_id {
            target.push('/');
            target.push_str(&id.flatten().ok_or_else(|| self.has_one_id())?);
        }
        target.push_str(&others);
        let too_long = |_| ApiError::new(ErrorCode::UriTooLong, "the request target is too long");
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(target).map_err(too_long)?);
        let refused = |_| ApiError::from(ErrorCode::BadRequest);
        Uri::from_parts(parts).map(Some).map_err(refused)
    }

    fn has_one_id(&self) -> ApiError {
        let path = self.path;
        ApiError::parameter(format!("{path} needs one message in its query: the parameter `id`"))
    }

    fn names_one(&self) -> ApiError {
        let names: Vec<_> = self.kinds.iter().map(|kind| format!("`{}`", kind.noun())).collect();
        let path = self.path;
        let names = names.join(" or ");
        ApiError::parameter(format!("{path} needs one name in its query: the parameter {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(method: &str, target: &str) -> Result<String, ErrorCode> {
        let (mut head, ()) =
            http::Request::builder().method(method).uri(target).body(()).unwrap().into_parts();
        let moved = move_to_path(&mut head);
        moved.map(|()| head.uri.to_string()).map_err(|error| error.error.code)
    }

    #[test]
    fn a_name_in_the_query_is_the_name_in_the_path() {
        for (method, target, path) in [
            ("GET", "/history?channel=rooms/garden", "/channels/rooms%2Fgarden/history"),
            ("GET", "/history?limit=2&channel=a%2Fb+c&x", "/channels/a%2Fb%20c/history?limit=2&x"),
            ("HEAD", "/presence?user=ann", "/users/ann/presence"),
            ("OPTIONS", "/history?channel=a", "/channels/a/history"),
            ("PUT", "/read?user=%C3%A4&id=k-1", "/users/%C3%A4/read?id=k-1"),
            ("GET", "/read?channel=a&reader=u", "/channels/a/read?reader=u"),
            ("POST", "/publish?channel=a.b_c~d-1&count=all", "/channels/a.b_c~d-1?count=all"),
            ("PUT", "/publish?user=u", "/users/u"),
            ("DELETE", "/connections?channel=a&code=4100", "/channels/a/connections?code=4100"),
            ("DELETE", "/subscriptions?user=u&channel=c", "/users/u/subscriptions?channel=c"),
            ("GET", "/followers?channel=%3F%23%25", "/channels/%3F%23%25/followers"),
            ("GET", "http://a:1/history?channel=a%2Fb", "http://a:1/channels/a%2Fb/history"),
            // These mean something by themselves, or nothing.
            ("POST", "/publish", "/publish"),
            ("GET", "/publish?channel=a", "/publish?channel=a"),
            ("PATCH", "/history?channel=a", "/history?channel=a"),
            ("OPTIONS", "/history", "/history"),
            ("GET", "/connections?sort=behind", "/connections?sort=behind"),
            ("POST", "/subscriptions?atomic=true", "/subscriptions?atomic=true"),
            ("GET", "/channels/a/history?channel=b", "/channels/a/history?channel=b"),
            ("GET", "/subscribe?channel=b", "/subscribe?channel=b"),
        ] {
            assert_eq!(moved(method, target).as_deref(), Ok(path), "{target}");
        }
    }

    #[test]
    fn one_name_is_needed() {
        for (target, code) in [
            ("/history", ErrorCode::BadParameter),
            ("/history?limit=1", ErrorCode::BadParameter),
            ("/history?channel=a&channel=b", ErrorCode::BadParameter),
            ("/history?channel=a&user=b", ErrorCode::BadParameter),
            ("/erasure?channel=a", ErrorCode::BadParameter),
            ("/history?channel=%ff", ErrorCode::BadName),
        ] {
            assert_eq!(moved("GET", target), Err(code), "{target}");
        }
    }
}
