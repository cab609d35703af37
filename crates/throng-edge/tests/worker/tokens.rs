//! Connections with tokens.

use std::sync::Arc;

use throng_access::algorithm::Algorithm;
use throng_access::authenticator::{Fetched, Now};
use throng_access::keys::{Key, KeySet, KeySources, PublishedKeys, RefreshSettings};
use throng_access::limit::{LimitSettings, Limiter};
use throng_access::revocation::Revocations;
use throng_access::token::Signer;
use throng_access::{
    AccessControl, AccessRules, Authenticator, Authority, ChannelAccess, Clients, Policy,
    ServerKeys,
};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

pub(crate) fn key(id: &str) -> Arc<Key> {
    let secret = [id.as_bytes()[0]; 32];
    Arc::new(Key::from_secret(Some(id), Algorithm::Hs256, &secret).expect("it is long enough"))
}

/// A token of the key `id`, with these claims.
pub(crate) fn token_of_key(id: &str, claims: &str) -> String {
    let secret = [id.as_bytes()[0]; 32];
    let signer = Signer::new(Some(id), Algorithm::Hs256, &secret).expect("a key");
    signer.sign(claims)
}

/// A token that expires at `exp`, with further claims.
pub(crate) fn token(exp: u64, claims: &str) -> String {
    token_of_key("a", &format!(r#"{{"exp": {exp}, "iat": 1, {claims}}}"#))
}

/// A token of `ann` for the rooms, which lives long.
pub(crate) fn token_of_ann() -> String {
    token(3600, r#""sub": "ann", "jti": "t1", "throng": {"subscribe": ["rooms/*"]}"#)
}

pub(crate) fn control(policy: AccessRules) -> AccessControl {
    control_and_revocations(policy).0
}

/// Access control with one key, `a`, and its revocations.
pub(crate) fn control_and_revocations(policy: AccessRules) -> (AccessControl, Arc<Revocations>) {
    limited_control(policy, LimitSettings::default())
}

/// The same with limits of clients.
pub(crate) fn limited_control(
    policy: AccessRules,
    limits: LimitSettings,
) -> (AccessControl, Arc<Revocations>) {
    let keys = PublishedKeys::new(KeySet::new(vec![key("a")]).expect("one key"));
    let revocations = Arc::new(Revocations::default());
    let authority =
        Authority::new(Arc::clone(&keys), Policy::default(), Arc::clone(&revocations), 100);
    let mut sources = KeySources::new(keys);
    let source = sources.add();
    sources.replace(source, vec![key("a")]).expect("one key");
    let clients = Arc::new(Clients { limiter: Limiter::new(limits), ..Clients::default() });
    let authenticator = Authenticator::new(authority, sources, Arc::clone(&clients), || {});
    let tokens = Some(Arc::new(authenticator));
    (AccessControl { tokens, clients, ..AccessControl::open(Arc::new(policy)) }, revocations)
}

pub(crate) fn rig() -> Rig {
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    Rig::with_control(settings, Arc::new(control(AccessRules::default())))
}

fn get(rig: &mut Rig, target: &str, fields: &str) -> Client {
    let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let client = rig.connect(&head);
    rig.work();
    rig.worker.check_invariants();
    client
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

pub(crate) fn websocket(rig: &mut Rig, target: &str, token: &str, protocol: &str) -> Client {
    let fields = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {protocol}, throng.token.{token}\r\n",
    );
    get(rig, target, &fields)
}

/// True if a close frame with this code is among what has come.
pub(crate) fn has_close(client: &Client, code: u16) -> bool {
    let bytes = client.received_bytes();
    let at = bytes
        .windows(4)
        .position(|window| window[0] == 0x88 && u16::from_be_bytes([window[2], window[3]]) == code);
    at.is_some()
}

#[test]
fn a_subscription_needs_a_token_that_grants_it() {
    let mut rig = rig();
    let ann = token_of_ann();
    for (target, fields, status) in [
        ("/channels/rooms%2Fa", bearer(&ann), 200),
        ("/channels/rooms%2Fa", String::new(), 401),
        ("/channels/news", bearer(&ann), 403),
        ("/users/ann", bearer(&ann), 200),
        ("/users/bob", bearer(&ann), 403),
        ("/users/ann", String::new(), 401),
        ("/subscribe?channel=rooms/a&user=ann", bearer(&ann), 200),
        ("/subscribe?channel=rooms/a&user=bob", bearer(&ann), 403),
        ("/channels/rooms%2Fa", bearer(&ann.replace('.', ".x")), 401),
        ("/channels/rooms%2Fa", bearer("throng_key_nonsense"), 401),
    ] {
        let received = get(&mut rig, target, &fields).received();
        assert!(received.starts_with(&format!("HTTP/1.1 {status}")), "{target}: {received}");
    }
    let target = format!("/channels/rooms%2Fa?token={ann}");
    let received = get(&mut rig, &target, "Accept: text/event-stream\r\n").received();
    assert!(received.starts_with("HTTP/1.1 200") && received.contains("no-referrer"), "{received}");
}

#[test]
fn a_websocket_is_opened_to_say_what_is_wrong_with_its_token() {
    let mut rig = rig();
    let expired = token(0, r#""sub": "ann""#);
    rig.pass(200);
    for (target, token, code) in [
        ("/channels/news", token_of_ann(), 4005),
        ("/channels/news", expired, 4002),
        ("/channels/news", token_of_ann().replace('.', ".x"), 4003),
    ] {
        let client = websocket(&mut rig, target, &token, "throng.plain");
        assert!(has_close(&client, code), "{code}");
    }
}

#[test]
fn a_plain_websocket_that_may_not_publish_is_told_so_and_stays() {
    let mut rig = rig();
    let client = websocket(&mut rig, "/channels/rooms%2Fa", &token_of_ann(), "throng.plain");
    client.received();
    rig.send_frame(&client, "hello");
    rig.work();
    assert!(client.received().contains(r#""code":"forbidden""#));
    rig.publish("rooms/a", "news", None);
    rig.work();
    assert!(client.received().contains("news"));
}

#[test]
fn a_user_is_recognised_in_commands_without_an_inbox() {
    let mut rig = rig();
    let claims = r#""sub": "ann", "throng": {"subscribe": ["private/{user}/*"]}"#;
    let client = websocket(&mut rig, "/subscribe", &token(3600, claims), "throng.v1");
    client.received();
    for (command, expected) in [
        (r#"{"type":"subscribe","channel":"private/ann/x"}"#, r#""type":"subscribed""#),
        (r#"{"type":"subscribe","channel":"private/bob/x"}"#, r#""code":"forbidden""#),
        (r#"{"type":"subscribe","user":"bob"}"#, r#""code":"forbidden""#),
        (r#"{"type":"subscribe","user":"ann"}"#, r#""type":"subscribed""#),
        (r#"{"type":"publish","channel":"private/ann/x","data":1}"#, r#""code":"forbidden""#),
    ] {
        rig.send_frame(&client, command);
        rig.work();
        let received = client.received();
        assert!(received.contains(expected), "{command}: {received}");
    }
}

#[test]
fn a_connection_ends_with_its_token() {
    let mut rig = rig();
    let token = token(100, r#""sub": "ann", "throng": {"subscribe": ["a"]}"#);
    let v1 = websocket(&mut rig, "/channels/a", &token, "throng.v1");
    let plain = websocket(&mut rig, "/channels/a", &token, "throng.plain");
    let sse = get(&mut rig, "/channels/a", &(bearer(&token) + "Accept: text/event-stream\r\n"));
    for client in [&v1, &plain, &sse] {
        client.received();
    }
    // A tenth of its life is left, and the leeway is ten seconds.
    rig.pass(980);
    assert!(!v1.received().contains("expiring"));
    rig.pass(90);
    assert!(v1.received().contains(r#""type":"expiring""#));
    rig.pass(10);
    assert!(!v1.received().contains("expiring"), "once");
    assert_eq!(rig.count(Counter::ClosedExpired), 0);
    let poll = get(&mut rig, "/channels/a?wait=60", &bearer(&token));
    rig.pass(40);
    assert!(has_close(&v1, 4002) && has_close(&plain, 4002));
    let received = sse.received();
    assert!(received.contains("event: closed") && received.contains("token_expired"), "{received}");
    assert!(poll.received().starts_with("HTTP/1.1 204"));
    assert_eq!(rig.count(Counter::ClosedExpired), 3);
    rig.worker.check_invariants();
}

#[test]
fn a_newer_token_of_the_same_user_goes_on() {
    let mut rig = rig();
    let first = token(100, r#""sub": "ann", "throng": {"subscribe": ["a", "b"]}"#);
    let client = websocket(&mut rig, "/subscribe?channel=a&channel=b", &first, "throng.v1");
    client.received();
    let mut show = |claims: &str| {
        let token = token(1000, claims);
        rig.send_frame(&client, &format!(r#"{{"type":"auth","token":"{token}"}}"#));
        rig.work();
        rig.worker.check_invariants();
        client.received()
    };
    assert!(show(r#""sub": "bob""#).contains(r#""code":"forbidden""#));
    assert!(show(r#""jti": "x""#).contains(r#""code":"forbidden""#));
    let received = show(r#""sub": "ann", "throng": {"subscribe": ["a"]}"#);
    assert!(received.contains(r#""type":"authenticated","user":"ann","expires_in":101"#));
    assert!(received.contains(r#""type":"unsubscribed","channel":"b","code":"forbidden""#));
    rig.pass(2000);
    assert_eq!(rig.count(Counter::ClosedExpired), 0, "the first token is over");
    for channel in ["a", "b"] {
        rig.publish(channel, "to follow", None);
    }
    rig.work();
    assert_eq!(client.received().matches("to follow").count(), 1);
}

#[test]
fn an_unknown_key_waits_for_newer_keys() {
    let access = Arc::new(control(AccessRules::new(Vec::new(), ChannelAccess::OPEN)));
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::clone(&access));
    let tokens = access.tokens.as_ref().expect("it has keys");
    let now = |steady_ms| Now { steady_ms, unix_s: 1 };
    let source = tokens.add_url(RefreshSettings::default(), now(100));
    let token = |id| token_of_key(id, r#"{"exp": 3600, "sub": "ann"}"#);
    let (good, bad) = (bearer(&token("b")), bearer(&token("c")));
    let clients = [
        get(&mut rig, "/users/ann", &good),
        get(&mut rig, "/users/ann", &bad),
        websocket(&mut rig, "/subscribe", &token_of_ann(), "throng.v1"),
    ];
    rig.send_frame(&clients[2], &format!(r#"{{"type":"auth","token":"{}"}}"#, token("b")));
    rig.work();
    assert_eq!(clients[0].received(), "");
    assert_eq!(tokens.begin(now(100)), [source]);
    let fetched = Fetched { keys: vec![key("b")], lifetime_ms: None };
    assert_eq!(tokens.fetched(source, Some(fetched), now(200)), Ok(true));
    rig.work();
    assert!(clients[0].received().starts_with("HTTP/1.1 200"));
    assert!(clients[1].received().starts_with("HTTP/1.1 401"));
    assert!(clients[2].received().contains(r#""type":"authenticated""#));
    assert_eq!(refused(&access), [("unknown_key", 1)]);
    rig.worker.check_invariants();
}

/// Why credentials were refused, and how often.
fn refused(access: &AccessControl) -> Vec<(&'static str, u64)> {
    access.refused_credentials.by_reason().filter(|&(_, count)| count > 0).collect()
}

#[test]
fn refused_credentials_are_counted_once() {
    let access = Arc::new(control(AccessRules::new(Vec::new(), ChannelAccess::OPEN)));
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::clone(&access));
    get(&mut rig, "/channels/a", &bearer(&token_of_ann().replace('.', ".x")));
    get(&mut rig, "/channels/a", &bearer("throng_key_nonsense"));
    assert_eq!(refused(&access), [("signature", 1), ("malformed_server_key", 1)]);
    let tokens = access.tokens.as_ref().expect("it has keys");
    let now = Now { steady_ms: 100, unix_s: 1 };
    let source = tokens.add_url(RefreshSettings::default(), now);
    let of_late_key = token_of_key("b", r#"{"exp": 3600, "sub": "ann"}"#);
    get(&mut rig, "/channels/a", &bearer(&of_late_key));
    rig.pass(60);
    assert_eq!(refused(&access)[2..], [("unanswered", 1)]);
    // Nobody waits for the verdict any more.
    assert_eq!(tokens.begin(now), [source]);
    let fetched = Fetched { keys: vec![key("c")], lifetime_ms: None };
    assert_eq!(tokens.fetched(source, Some(fetched), now), Ok(true));
    rig.work();
    assert_eq!(refused(&access)[2..], [("unanswered", 1)]);
    assert_eq!(rig.count(Counter::UnawaitedAnswers), 1);
}

#[test]
fn a_server_key_follows_what_its_scopes_name() {
    use throng_access::server_key::{KeyHash, generate};
    use throng_access::{Scope, ServerKey};
    let text = generate().expect("random bytes");
    let hash = KeyHash::of(&text).expect("a key");
    let key = ServerKey::new("app", hash, vec![Scope::Subscribe], None);
    let server_keys = ServerKeys::new(vec![key]).expect("one key");
    let server_keys = Arc::new(server_keys).into();
    let access = AccessControl { server_keys, ..control(AccessRules::default()) };
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::new(access));
    let received = get(&mut rig, "/users/ann", &bearer(&text)).received();
    assert!(received.starts_with("HTTP/1.1 200"), "{received}");
    let from_page = bearer(&text) + "Origin: http://localhost\r\n";
    let received = get(&mut rig, "/users/ann", &from_page).received();
    assert!(received.starts_with("HTTP/1.1 403"), "{received}");
    let received = get(&mut rig, &format!("/users/ann?token={text}"), "").received();
    assert!(received.starts_with("HTTP/1.1 403"), "{received}");
}
