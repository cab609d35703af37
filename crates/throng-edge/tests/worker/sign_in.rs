//! Clients that show who they are on connections that stand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use throng_access::limit::{ClientLimits, LimitSettings, Quantity};
use throng_access::server_key::{KeyHash, generate};
use throng_access::session::Tagger;
use throng_access::token::TokenId;
use throng_access::{
    AccessControl, AccessRules, ChannelAccess, Connect, ConnectVerdict, Identity, Newcomer, Passed,
    PassedHeaders, Policy, Revocation, RevocationLog, Revocations, ServerKey, ServerKeys,
};
use throng_core::events::{Event, EventSink};
use throng_core::{Answer, Later, ScanAction, ScanClose, ScanTarget, Ticket};
use throng_edge::{Counter, LateIdentity, Settings};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::presence::ask;
use crate::rig::{Client, Rig};
use crate::scan::{scan, user};
use crate::token_world::Disk;
use crate::tokens::{
    control, control_and_revocations, has_close, limited_control, token, token_of_ann,
    token_of_key, websocket,
};

const WITHIN: LateIdentity =
    LateIdentity { within: Some(Duration::from_secs(10)), may_sign_in: false };
const AT_ANY_TIME: LateIdentity = LateIdentity { within: None, may_sign_in: true };

fn rig(late_identity: LateIdentity, access: AccessControl) -> Rig {
    let settings = Settings { late_identity, welcome: false, ..Settings::for_tests() };
    Rig::with_control(settings, Arc::new(access))
}

/// A client that has shown nothing, and has read its greeting.
fn stranger(rig: &mut Rig) -> Client {
    let client = rig.v1();
    let received = client.received();
    assert!(received.contains("101") && received.contains("welcome"), "{received}");
    client
}

fn say(rig: &mut Rig, client: &Client, command: &str) -> String {
    rig.send_frame(client, command);
    rig.work();
    rig.worker.check_invariants();
    client.received()
}

fn show(rig: &mut Rig, client: &Client, token: &str) -> String {
    say(rig, client, &format!(r#"{{"type":"auth","token":"{token}"}}"#))
}

fn listed(rig: &mut Rig, name: &str) -> u64 {
    scan(rig, user(name), ScanAction::List { limit: 9 }).count
}

/// Revokes the token with this id.
fn revoke(revocations: Arc<Revocations>, id: &str) {
    let log = RevocationLog::open(Disk::default(), revocations, &Policy::default(), 10, 0);
    let revocation = Revocation::Token { id: TokenId::of(id), at_s: 1 };
    log.expect("an empty disk").revoke(&[revocation], 1).expect("the disk takes it");
}

#[test]
fn a_client_that_shows_nothing_in_time_is_closed() {
    let mut rig = rig(WITHIN, control(AccessRules::default()));
    let client = stranger(&mut rig);
    rig.pass(99);
    assert_eq!(client.received(), "");
    rig.pass(1);
    assert!(has_close(&client, 4003));
    assert_eq!(rig.count(Counter::ClosedUnidentified), 1);
    rig.worker.check_invariants();
}

#[test]
fn a_stranger_may_do_nothing_before_it_shows_who_it_is() {
    let mut rig = rig(WITHIN, control(AccessRules::new(Vec::new(), ChannelAccess::OPEN)));
    let client = stranger(&mut rig);
    for command in [
        r#"{"type":"subscribe","channel":"a"}"#,
        r#"{"type":"publish","channel":"a","data":1}"#,
        r#"{"type":"history","channel":"a"}"#,
        r#"{"type":"unsubscribe","channel":"a"}"#,
    ] {
        let received = say(&mut rig, &client, command);
        assert!(received.contains(r#""code":"unauthorized""#), "{command}: {received}");
    }
    assert!(say(&mut rig, &client, r#"{"type":"ping"}"#).contains("pong"));
    assert!(show(&mut rig, &client, &token_of_ann()).contains(r#""user":"ann""#));
    let received = say(&mut rig, &client, r#"{"type":"subscribe","channel":"a"}"#);
    assert!(received.contains("subscribed"), "{received}");
    rig.pass(2000);
    assert_eq!(rig.count(Counter::ClosedUnidentified), 0);
}

#[test]
fn a_request_that_shows_something_is_decided_at_once() {
    let mut rig = rig(WITHIN, control(AccessRules::default()));
    let client = websocket(&mut rig, "/subscribe", &token_of_ann(), "throng.v1");
    assert_eq!(listed(&mut rig, "ann"), 1);
    drop(client);
    let client = websocket(&mut rig, "/subscribe", "a.b", "throng.v1");
    assert!(has_close(&client, 4003));
    let handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: throng.v1\r\n";
    for (target, more) in
        [("/subscribe", "Authorization: eyJhIjoxfQ.e30.x\r\n"), ("/channels/a", "")]
    {
        let fields = format!("Host: localhost\r\n{handshake}{more}");
        let client = rig.connect(&format!("GET {target} HTTP/1.1\r\n{fields}\r\n"));
        assert!(has_close(&client, 4003), "{target} {more}");
    }
}

#[test]
fn a_token_in_time_waits_for_its_key_beyond_the_deadline() {
    use throng_access::authenticator::{Fetched, Now};
    use throng_access::keys::RefreshSettings;
    let access = control(AccessRules::default());
    let tokens = Arc::clone(access.tokens.as_ref().expect("it has keys"));
    let mut rig = rig(WITHIN, access);
    let now = |steady_ms| Now { steady_ms, unix_s: 1 };
    let source = tokens.add_url(RefreshSettings::default(), now(100));
    let late = token_of_key("b", r#"{"exp": 3600, "sub": "ann"}"#);
    let clients = [stranger(&mut rig), stranger(&mut rig)];
    rig.pass(90);
    assert_eq!(show(&mut rig, &clients[0], &late), "");
    assert_eq!(tokens.begin(now(100)), [source]);
    rig.pass(20);
    assert!(has_close(&clients[1], 4003));
    let fetched = Fetched { keys: vec![crate::tokens::key("b")], lifetime_ms: None };
    assert_eq!(tokens.fetched(source, Some(fetched), now(200)), Ok(true));
    rig.work();
    assert!(clients[0].received().contains(r#""type":"authenticated","user":"ann""#));
    assert_eq!(rig.count(Counter::ClosedUnidentified), 1);
}

#[test]
fn a_stranger_that_asks_again_and_again_is_closed_all_the_same() {
    use throng_access::authenticator::Now;
    use throng_access::keys::RefreshSettings;
    let access = control(AccessRules::default());
    let tokens = Arc::clone(access.tokens.as_ref().expect("it has keys"));
    let mut rig = rig(WITHIN, access);
    tokens.add_url(RefreshSettings::default(), Now { steady_ms: 100, unix_s: 1 });
    let client = stranger(&mut rig);
    for number in 0..9 {
        let late = token_of_key("b", &format!(r#"{{"exp": 3600, "sub": "ann{number}"}}"#));
        rig.send_frame(&client, &format!(r#"{{"type":"auth","token":"{late}"}}"#));
    }
    (0..16).for_each(|_| rig.pass(10));
    assert_eq!(rig.count(Counter::ClosedUnidentified), 1);
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl EventSink for Heard {
    fn notify(&self, _: u64, event: Event<'_>) {
        let text = match event {
            Event::Connected { user, .. } => format!("connected {}", user.unwrap_or("nobody")),
            Event::Disconnected { reason, .. } => format!("disconnected {reason}"),
            _ => return,
        };
        self.0.lock().expect("it does not panic").push(text);
    }
}

#[test]
fn the_application_hears_of_a_client_once_it_is_known() {
    for (late_identity, expected) in [
        (WITHIN, ["connected ann", "disconnected peer"].as_slice()),
        (AT_ANY_TIME, &["connected nobody", "connected ann", "disconnected peer"]),
    ] {
        let mut rig = rig(late_identity, control(AccessRules::default()));
        let heard = Arc::new(Heard::default());
        rig.notify(Arc::clone(&heard) as Arc<dyn EventSink>);
        let clients = [stranger(&mut rig), stranger(&mut rig)];
        show(&mut rig, &clients[0], &token_of_ann());
        rig.hang_up(&clients[0]);
        let mut heard = heard.0.lock().expect("it does not panic").clone();
        heard.dedup();
        assert_eq!(heard, expected);
    }
}

#[test]
fn scans_by_user_find_a_client_that_has_signed_in() {
    for late_identity in [WITHIN, AT_ANY_TIME] {
        let (access, revocations) = control_and_revocations(AccessRules::default());
        let mut rig = rig(late_identity, access);
        let clients = [stranger(&mut rig), stranger(&mut rig), stranger(&mut rig)];
        assert_eq!(listed(&mut rig, "ann"), 0);
        for client in &clients[..2] {
            assert!(show(&mut rig, client, &token_of_ann()).contains("authenticated"));
        }
        assert_eq!(listed(&mut rig, "ann"), 2);
        rig.replace_process();
        assert_eq!(listed(&mut rig, "ann"), 2);
        let received = say(&mut rig, &clients[0], r#"{"type":"subscribe","user":"bob"}"#);
        assert!(received.contains(r#""code":"forbidden""#), "{received}");
        for command in
            [r#"{"type":"subscribe","user":"ann"}"#, r#"{"type":"subscribe","channel":"rooms/a"}"#]
        {
            let received = say(&mut rig, &clients[0], command);
            assert!(received.contains("subscribed"), "{received}");
        }
        let asked = ask(&rig, rig.now_ms(), "rooms/a");
        rig.work();
        assert_eq!(asked.try_recv().expect("an answer").users, ["ann".into()]);
        rig.publish_to_user("ann", "for ann");
        rig.work();
        assert!(clients[0].received().contains("for ann"));
        let close = ScanClose { code: 4600, reason: "moved".into(), may_return: false };
        let tags = Tagger::from_seed([0; 16]).of_user("ann");
        revoke(revocations, "t1");
        let sessions = ScanTarget::Sessions(vec![tags]);
        assert_eq!(scan(&mut rig, sessions, ScanAction::Revoke).count, 2);
        assert_eq!(rig.count(Counter::ClosedRevoked), 2);
        let received = show(&mut rig, &clients[2], &token_of_ann());
        assert!(received.contains(r#""code":"token_revoked""#), "{received}");
        let other = token(3600, r#""sub": "ann""#);
        assert!(show(&mut rig, &clients[2], &other).contains("authenticated"));
        assert_eq!(scan(&mut rig, user("ann"), ScanAction::Close(close)).count, 1);
        assert!(has_close(&clients[2], 4600));
    }
}

#[test]
fn nobody_becomes_a_user_once() {
    let mut rig = rig(AT_ANY_TIME, control(AccessRules::new(Vec::new(), ChannelAccess::OPEN)));
    let client = stranger(&mut rig);
    let received = say(&mut rig, &client, r#"{"type":"subscribe","channel":"a"}"#);
    assert!(received.contains("subscribed"), "{received}");
    let of = |name| token(3600, &format!(r#""sub": "{name}""#));
    assert!(show(&mut rig, &client, &of("ann")).contains(r#""user":"ann""#));
    assert!(show(&mut rig, &client, &of("bob")).contains(r#""code":"forbidden""#));
    rig.publish("a", "news", None);
    rig.work();
    assert!(client.received().contains("news"), "it still follows the channel");
    let without = control(AccessRules::new(Vec::new(), ChannelAccess::OPEN));
    let mut rig = self::rig(LateIdentity::default(), without);
    let client = stranger(&mut rig);
    assert!(show(&mut rig, &client, &of("ann")).contains(r#""code":"forbidden""#));
}

#[test]
fn subscriptions_of_nobody_that_the_user_may_not_have_end() {
    let open = ChannelAccess::OPEN;
    let pattern = throng_access::pattern::Pattern::new(throng_core::Kind::Channel, "a");
    let rules = AccessRules::new(vec![(pattern.expect("a pattern"), open)], open);
    let mut rig = rig(AT_ANY_TIME, control(rules));
    let client = stranger(&mut rig);
    say(&mut rig, &client, r#"{"type":"subscribe","channel":"a"}"#);
    assert!(show(&mut rig, &client, &token_of_ann()).contains("authenticated"));
    assert_eq!(rig.worker.subscriptions_in_all(), 1, "anyone may follow it");
}

#[test]
fn the_limits_of_a_user_count_a_client_that_has_signed_in() {
    let user = ClientLimits { connections: 1, subscriptions: 1, ..ClientLimits::default() };
    let limits = LimitSettings { user, ..LimitSettings::default() };
    let open = || AccessRules::new(Vec::new(), ChannelAccess::OPEN);
    for late_identity in [WITHIN, AT_ANY_TIME] {
        let (access, _) = limited_control(open(), limits);
        let clients = Arc::clone(&access.clients);
        let ann = clients.limiter.user(Some(access.tagger.user("ann")));
        let mut rig = rig(late_identity, access);
        let [first, second] = [stranger(&mut rig), stranger(&mut rig)];
        assert!(show(&mut rig, &first, &token_of_ann()).contains("authenticated"));
        let received = show(&mut rig, &second, &token_of_ann());
        assert!(received.contains(r#""code":"too_many_requests""#), "{received}");
        assert_eq!(
            (clients.limiter.held(ann, Quantity::Connections), listed(&mut rig, "ann")),
            (1, 1)
        );
        say(&mut rig, &first, r#"{"type":"subscribe","channel":"a"}"#);
        let received = say(&mut rig, &first, r#"{"type":"subscribe","channel":"b"}"#);
        assert!(received.contains(r#""code":"too_many_requests""#), "{received}");
        rig.replace_process();
        assert_eq!(clients.limiter.held(ann, Quantity::Subscriptions), 1);
        rig.hang_up(&first);
        rig.work();
        assert_eq!(clients.limiter.holders(), 0);
        assert!(show(&mut rig, &second, &token_of_ann()).contains("authenticated"));
        rig.hang_up(&second);
        assert_eq!(clients.limiter.holders(), 0);
    }
}

#[test]
fn what_nobody_follows_counts_for_the_user_after_a_sign_in() {
    let user = ClientLimits { subscriptions: 1, ..ClientLimits::default() };
    let limits = LimitSettings { user, ..LimitSettings::default() };
    let (access, _) = limited_control(AccessRules::new(Vec::new(), ChannelAccess::OPEN), limits);
    let clients = Arc::clone(&access.clients);
    let mut rig = rig(AT_ANY_TIME, access);
    let client = stranger(&mut rig);
    for channel in ["a", "b"] {
        say(&mut rig, &client, &format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#));
    }
    let received = show(&mut rig, &client, &token_of_ann());
    assert!(received.contains(r#""code":"too_many_requests""#), "{received}");
    assert_eq!((clients.limiter.holders(), listed(&mut rig, "ann")), (0, 0));
    say(&mut rig, &client, r#"{"type":"unsubscribe","channel":"b"}"#);
    assert!(show(&mut rig, &client, &token_of_ann()).contains("authenticated"));
    say(&mut rig, &client, r#"{"type":"unsubscribe","channel":"a"}"#);
    rig.hang_up(&client);
    assert_eq!(clients.limiter.holders(), 0);
}

#[test]
fn a_deadline_and_a_late_session_go_on_in_a_new_process() {
    let mut rig = rig(WITHIN, control(AccessRules::default()));
    let clients = [stranger(&mut rig), stranger(&mut rig)];
    rig.pass(50);
    rig.replace_process();
    let received = say(&mut rig, &clients[0], r#"{"type":"subscribe","channel":"a"}"#);
    assert!(received.contains(r#""code":"unauthorized""#), "{received}");
    assert!(show(&mut rig, &clients[0], &token_of_ann()).contains("authenticated"));
    rig.replace_process();
    rig.pass(49);
    assert_eq!(rig.count(Counter::ClosedUnidentified), 0);
    rig.pass(2);
    assert!(has_close(&clients[1], 4003));
    assert_eq!((rig.count(Counter::ClosedUnidentified), listed(&mut rig, "ann")), (1, 1));
}

/// An application that knows one session, by a header, and answers at once or when it is told to.
#[derive(Debug, Default)]
struct Application {
    is_late: bool,
    asked: Mutex<Vec<(Ticket<ConnectVerdict>, ConnectVerdict)>>,
}

impl Application {
    /// Gives the answers to all questions.
    fn answer(&self) {
        let asked = std::mem::take(&mut *self.asked.lock().expect("it does not panic"));
        asked.into_iter().for_each(|(ticket, verdict)| ticket.answer(verdict));
    }
}

impl Connect for Application {
    fn known(&self, _: Newcomer<'_>) -> Option<Arc<Identity>> {
        None
    }

    fn who(
        &self,
        newcomer: Newcomer<'_>,
        later: Later<'_, ConnectVerdict>,
    ) -> Answer<ConnectVerdict> {
        let shown = newcomer.details.headers.expect("a request");
        let session = shown.iter().find_map(|(name, value)| (name == "x-session").then_some(value));
        let verdict = match session {
            Some("of ann") => {
                Ok(Arc::new(Identity::of_application(Some("ann".into()), Arc::default(), 1, 3600)))
            }
            Some("banned") => Err(ErrorResponse::from(ErrorCode::Forbidden)),
            _ => Err(ErrorResponse::from(ErrorCode::Unauthorized)),
        };
        if !self.is_late {
            return verdict.into();
        }
        let (ticket, coming) = later.ticket();
        self.asked.lock().expect("it does not panic").push((ticket, verdict));
        coming
    }

    fn decides_tokens(&self) -> bool {
        false
    }

    fn recheck(&self, _: &Identity, _: u64) -> Result<(), ErrorResponse> {
        Ok(())
    }

    fn passes_ambient(&self, _: &PassedHeaders) -> bool {
        false
    }

    fn passes_cookies(&self) -> bool {
        false
    }
}

#[test]
fn the_application_is_asked_about_a_header_before_a_client_is_waited_for() {
    for is_late in [false, true] {
        let application = Arc::new(Application { is_late, ..Application::default() });
        let access = AccessControl {
            connect: Some(Arc::clone(&application) as Arc<dyn Connect>),
            passed: Passed { headers: ["x-session".into()].into(), ..Passed::default() },
            ..control(AccessRules::default())
        };
        let mut rig = rig(WITHIN, access);
        let clients =
            ["X-Session: of ann\r\n", "X-Session: of nobody\r\n", "X-Session: banned\r\n", ""]
                .map(|field| rig.v1_with(field));
        rig.work();
        assert_eq!(application.asked.lock().unwrap().len(), if is_late { 3 } else { 0 });
        application.answer();
        rig.work();
        assert_eq!(listed(&mut rig, "ann"), 1);
        assert!(has_close(&clients[2], 4005));
        for (client, error) in [(0, "forbidden"), (1, "unauthorized"), (3, "unauthorized")] {
            let received = say(&mut rig, &clients[client], r#"{"type":"subscribe","user":"bob"}"#);
            assert!(received.contains(&format!(r#""code":"{error}""#)), "{client}: {received}");
        }
        assert!(show(&mut rig, &clients[1], &token_of_ann()).contains("authenticated"));
        rig.pass(110);
        assert_eq!(rig.count(Counter::ClosedUnidentified), 1);
        assert_eq!(listed(&mut rig, "ann"), 2);
    }
}

#[test]
fn no_command_shows_a_server_key_and_none_escapes_its_limits() {
    let text = generate().expect("random bytes");
    let server_key = ServerKey::new("app", KeyHash::of(&text).expect("a key"), Vec::new(), None);
    let server_keys = ServerKeys::new(vec![server_key]).expect("one key");
    let key = ClientLimits { connections: 1, connects_per_s: 1, ..ClientLimits::default() };
    let limits = LimitSettings { key, ..LimitSettings::default() };
    for late_identity in [LateIdentity::default(), WITHIN, AT_ANY_TIME] {
        let (access, _) = limited_control(AccessRules::default(), limits);
        let clients = Arc::clone(&access.clients);
        let server_keys = Arc::new(server_keys.clone()).into();
        let mut rig = rig(late_identity, AccessControl { server_keys, ..access });
        let client = stranger(&mut rig);
        let received = show(&mut rig, &client, &text);
        assert!(received.contains(r#""code":"forbidden""#), "{received}");
        assert_eq!(clients.limiter.holders(), 0);
        let field = format!("Authorization: Bearer {text}\r\n");
        let [first, second] = [(); 2].map(|()| rig.v1_with(&field));
        assert!(first.received().contains("welcome"), "the command counted as no connection");
        assert!(has_close(&second, 4006));
    }
}

/// The table of cases of `throng-access`: who shows a credential later is told the same.
#[test]
fn a_credential_that_comes_later_has_the_error_of_the_table() {
    let text = include_str!("../../../throng-access/tests/fixtures/identification.json");
    let table: Value = serde_json::from_str(text).expect("the table of cases");
    let (access, revocations) = control_and_revocations(AccessRules::default());
    revoke(revocations, "revoked");
    let hash = KeyHash::of(&generate().expect("random bytes")).expect("a key");
    let server_key = ServerKey::new("app", hash, Vec::new(), None);
    let server_keys = ServerKeys::new(vec![server_key]).expect("one key");
    let access = AccessControl { server_keys: Arc::new(server_keys).into(), ..access };
    let mut rig = rig(WITHIN, access);
    rig.pass(1000);
    let mut count = 0;
    for case in table["keys"].as_array().expect("cases") {
        let (places, shows) = (case["in"].to_string(), case["shows"].as_array().expect("a list"));
        if !places.contains("command") {
            continue;
        }
        count += 1;
        let name = shows[0].as_str().expect("a name");
        let client = stranger(&mut rig);
        let received = show(&mut rig, &client, &credential(name));
        let Some(error) = case["error"].as_str() else {
            assert!(received.contains("authenticated"), "{name}: {received}");
            continue;
        };
        assert!(received.contains(&format!(r#""code":"{error}""#)), "{name}: {received}");
        let says = case["says"].to_string();
        assert!(received.contains(&format!(r#""message":{says}"#)), "{name}: {received}");
    }
    assert!(count >= 10, "{count} cases");
}

/// A credential of the table, a hundred seconds after the beginning of time.
fn credential(name: &str) -> String {
    let of_ann = |claims: &str| token_of_key("a", &format!(r#"{{"sub": "ann", {claims}}}"#));
    match name {
        "good" => of_ann(r#""exp": 900"#),
        "forged" => {
            let (good, other) = (of_ann(r#""exp": 900"#), of_ann(r#""exp": 901"#));
            let (signed, _) = good.rsplit_once('.').expect("three parts");
            let (_, signature) = other.rsplit_once('.').expect("three parts");
            format!("{signed}.{signature}")
        }
        "malformed" => "a.b".into(),
        "long" => "x".repeat(8193),
        "of an unknown key" => token_of_key("x", r#"{"sub": "ann", "exp": 900}"#),
        "expired" => of_ann(r#""exp": 50"#),
        "early" => of_ann(r#""exp": 900, "nbf": 500"#),
        "revoked" => of_ann(r#""exp": 900, "jti": "revoked""#),
        "key" | "unknown key" => generate().expect("random bytes"),
        _ => panic!("there is no credential {name}"),
    }
}
