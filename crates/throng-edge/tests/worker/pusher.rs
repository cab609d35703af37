//! The Pusher protocol, over a worker with real frames.

use std::sync::Arc;

use throng_access::limit::{ClientLimits, LimitSettings, Limiter, Quantity};
use throng_access::session::Tagger;
use throng_access::{AccessControl, AccessRules, AppSettings, Apps, Clients};
use throng_core::{
    ChannelName, Channels, Epoch, MembersRule, MemoryEngine, Rule, Rules, ScanAction, ScanClose,
    ScanTarget, Watchlists,
};
use throng_edge::Settings;
use throng_pusher::App;
use throng_wire::websocket::{Opcode, parse_server_frame};

use crate::rig::{Client, Rig};
use crate::scan::scan;

const UPGRADE: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A ping of the WebSocket, masked with zeros.
const PING: &[u8] = b"\x89\x80\0\0\0\0";

const SECRET: &[u8] = b"7ad3773142a6692b25b8";

fn app() -> App {
    App::new("1", "app-key", SECRET, "shop/").expect("an application")
}

fn other_app() -> App {
    App::new("2", "other-key", SECRET, "mall/").expect("an application")
}

fn rig() -> Rig {
    rig_with(Clients::default(), [app().into()]).0
}

/// A worker with the rules of a server without any other keys.
fn rig_with<const N: usize>(clients: Clients, apps: [AppSettings; N]) -> (Rig, Arc<AccessControl>) {
    rig_of(clients, apps, Rule::default())
}

/// A worker of an application whose channels have this rule.
pub(crate) fn rig_with_rule(rule: Rule) -> Rig {
    rig_with_limits(rule, LimitSettings::default())
}

/// The same, with limits of its clients.
pub(crate) fn rig_with_limits(rule: Rule, limits: LimitSettings) -> Rig {
    let clients = Clients { limiter: Limiter::new(limits), ..Clients::default() };
    rig_of(clients, [app().with_history(true).into()], rule).0
}

fn rig_of<const N: usize>(
    clients: Clients,
    apps: [AppSettings; N],
    fallback: Rule,
) -> (Rig, Arc<AccessControl>) {
    let (access, rules) = parts(clients, apps, fallback);
    (Rig::with_rules(Settings::for_tests(), Arc::clone(&access), rules), access)
}

/// A worker of an application whose users may watch others.
pub(crate) fn rig_with_watchlists(limits: LimitSettings) -> Rig {
    let clients = Clients { limiter: Limiter::new(limits), ..Clients::default() };
    let (access, rules) = parts(clients, [app().into()], Rule::default());
    let watchlists = Arc::new(Watchlists::new(vec!["shop/".to_owned()], None));
    let memory = |rules, queues| {
        let memory = MemoryEngine::new(Epoch::numbered(35), rules, queues, 1 << 30);
        memory.with_events(Some(watchlists.clone())).with_watchlists(0, Some(watchlists))
    };
    Rig::with_memory(Settings::for_tests(), (access, rules), memory, |memory| {
        Channels::new(memory, Vec::new())
    })
}

fn parts<const N: usize>(
    clients: Clients,
    apps: [AppSettings; N],
    fallback: Rule,
) -> (Arc<AccessControl>, Rules) {
    let tagger = Tagger::from_seed([7; 16]);
    let apps = Apps::new(apps).expect("they go together").named_by(&tagger);
    let access = Arc::new(AccessControl {
        apps: Arc::new(apps).into(),
        tagger,
        clients: Arc::new(clients),
        ..AccessControl::open(Arc::new(AccessRules::default()))
    });
    let members = Some(MembersRule { are_connections: false, grace_ms: 0 });
    let rule = Rule { pattern: "shop/presence-*".into(), members, ..fallback.clone() };
    (access, Rules::new(vec![rule], fallback))
}

pub(crate) struct Peer {
    pub(crate) client: Client,
    socket: String,
}

impl Peer {
    pub(crate) fn new(rig: &mut Rig) -> Peer {
        let head = format!("GET /app/app-key?protocol=7&client=js HTTP/1.1\r\n{UPGRADE}");
        let client = rig.connect(&head);
        rig.work();
        let bytes = client.received_bytes();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        assert!(bytes.starts_with(b"HTTP/1.1 101 "));
        let greeting = frames(&bytes[end..]).concat();
        let start = r#"{"event":"pusher:connection_established","data":"{\"socket_id\":\""#;
        let rest = greeting.strip_prefix(start).expect("a greeting");
        let (socket, rest) = rest.split_once('\\').expect("a socket id");
        assert_eq!(rest, r#"",\"activity_timeout\":120}"}"#);
        Peer { client, socket: socket.to_owned() }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        frames(&self.client.received_bytes())
    }

    pub(crate) fn say(&self, rig: &mut Rig, text: &str) -> Vec<String> {
        rig.send_frame(&self.client, text);
        rig.work();
        rig.worker.check_invariants();
        self.heard()
    }

    pub(crate) fn subscribe(
        &self,
        rig: &mut Rig,
        channel: &str,
        data: Option<&str>,
    ) -> Vec<String> {
        let signed = match data {
            None => format!("{}:{channel}", self.socket),
            Some(data) => format!("{}:{channel}:{data}", self.socket),
        };
        let auth = format!("app-key:{}", app().keys()[0].signer().sign(&signed));
        let data = serde_json::json!({ "channel": channel, "auth": auth, "channel_data": data });
        let frame = serde_json::json!({ "event": "pusher:subscribe", "data": data });
        self.say(rig, &frame.to_string())
    }

    pub(crate) fn sign_in(&self, rig: &mut Rig, user: &str) -> Vec<String> {
        self.sign_in_with(rig, &format!(r#"{{"id":"{user}"}}"#))
    }

    pub(crate) fn sign_in_with(&self, rig: &mut Rig, user_data: &str) -> Vec<String> {
        let signed = format!("{}::user::{user_data}", self.socket);
        let auth = format!("app-key:{}", app().keys()[0].signer().sign(&signed));
        let data = serde_json::json!({ "user_data": user_data, "auth": auth });
        let frame = serde_json::json!({ "event": "pusher:signin", "data": data });
        self.say(rig, &frame.to_string())
    }
}

fn frames(bytes: &[u8]) -> Vec<String> {
    let (mut at, mut texts) = (0, Vec::new());
    while let Some(frame) = parse_server_frame(&bytes[at..]).expect("a frame") {
        let payload = &bytes[at..][frame.payload];
        texts.push(match frame.opcode {
            Opcode::Close => {
                let code = u16::from_be_bytes([payload[0], payload[1]]);
                format!("close {code}")
            }
            Opcode::Text => without_id(&String::from_utf8_lossy(payload)),
            other => format!("{other:?}"),
        });
        at += frame.length;
    }
    texts
}

/// The frame of an event without its id, which another test looks at.
fn without_id(frame: &str) -> String {
    match frame.rsplit_once(",\"id\":\"") {
        Some((event, id)) if !id.contains([',', '\\']) => format!("{event}}}"),
        _ => frame.to_owned(),
    }
}

fn succeeded(channel: &str) -> String {
    let event = "pusher_internal:subscription_succeeded";
    format!(r#"{{"event":"{event}","channel":"{channel}","data":"{{}}"}}"#)
}

fn of_room(event: &str, data: &str) -> String {
    let data = serde_json::to_string(data).expect("a text");
    format!(r#"{{"event":"pusher_internal:{event}","channel":"presence-r","data":{data}}}"#)
}

#[test]
fn a_public_key_opens_the_channels_of_its_application() {
    let mut rig = rig();
    let peer = Peer::new(&mut rig);
    let text = r#"{"event":"pusher:subscribe","data":{"auth":"","channel":"news"}}"#;
    assert_eq!(peer.say(&mut rig, text), [succeeded("news")]);
    assert_eq!(peer.say(&mut rig, text), [succeeded("news")], "once more");
    rig.publish("news", "native", None);
    rig.publish("shop/news", "hello", None);
    rig.work();
    assert_eq!(peer.heard(), [r#"{"event":"message","channel":"news","data":"hello"}"#]);
    let unsubscribe = r#"{"event":"pusher:unsubscribe","data":{"channel":"news"}}"#;
    assert_eq!(peer.say(&mut rig, unsubscribe), [""; 0]);
    assert_eq!(peer.say(&mut rig, unsubscribe), [""; 0]);
    rig.publish("shop/news", "hello", None);
    rig.work();
    assert_eq!(peer.heard(), [""; 0]);
    for channel in ["shop/news", "../news", "*"] {
        let text = text.replace("news", channel);
        let refused = peer.say(&mut rig, &text);
        assert!(refused[1].contains("4300"), "{refused:?}");
    }
}

#[test]
fn a_key_that_is_none_is_told_so_behind_the_upgrade() {
    let mut rig = rig();
    for (key, code) in [("other", 4001), ("app-key?protocol=8", 4007)] {
        let client = rig.connect(&format!("GET /app/{key} HTTP/1.1\r\n{UPGRADE}"));
        rig.work();
        let bytes = client.received_bytes();
        assert!(bytes.starts_with(b"HTTP/1.1 101 "));
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let frames = frames(&bytes[end..]);
        assert!(frames[0].contains(&format!("{{\"code\":{code},")), "{frames:?}");
        assert_eq!(frames[1], format!("close {code}"));
    }
    let mut none = Rig::new();
    let client = none.connect(&format!("GET /app/app-key HTTP/1.1\r\n{UPGRADE}"));
    none.work();
    assert!(client.received().starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_private_channel_is_followed_with_a_signature_of_this_connection() {
    let mut rig = rig();
    let (one, other) = (Peer::new(&mut rig), Peer::new(&mut rig));
    assert_ne!(one.socket, other.socket);
    assert_eq!(one.subscribe(&mut rig, "private-a", None), [succeeded("private-a")]);
    let thief = Peer { client: other.client, socket: one.socket.clone() };
    let refused = thief.subscribe(&mut rig, "private-a", None);
    assert!(refused[0].contains("pusher:subscription_error"), "{refused:?}");
    assert!(refused[1].contains("4009"), "{refused:?}");
    rig.publish("shop/private-a", "secret", None);
    rig.work();
    assert_eq!(one.heard().len(), 1);
    assert_eq!(thief.heard(), [""; 0]);
}

#[test]
fn members_are_told_first_and_then_what_changes() {
    let mut rig = rig();
    let (ann, bob, again) = (Peer::new(&mut rig), Peer::new(&mut rig), Peer::new(&mut rig));
    let of_ann = r#"{"user_id":"ann","user_info":{"n":1}}"#;
    let of_bob = r#"{"user_id":7}"#;
    let hash = r#""hash":{"ann":{"n":1}}"#;
    let alone = format!(r#"{{"presence":{{"count":1,"ids":["ann"],{hash}}}}}"#);
    let alone = of_room("subscription_succeeded", &alone);
    assert_eq!(ann.subscribe(&mut rig, "presence-r", Some(of_ann)), [alone]);
    let both = r#"{"presence":{"count":2,"ids":["7","ann"],"hash":{"7":{},"ann":{"n":1}}}}"#;
    let both = of_room("subscription_succeeded", both);
    assert_eq!(bob.subscribe(&mut rig, "presence-r", Some(of_bob)), std::slice::from_ref(&both));
    let added = of_room("member_added", r#"{"user_id":"7","user_info":{}}"#);
    assert_eq!(ann.heard(), [added]);
    // A member joins once, however many connections it has.
    assert_eq!(again.subscribe(&mut rig, "presence-r", Some(of_bob)), std::slice::from_ref(&both));
    assert_eq!(again.subscribe(&mut rig, "presence-r", Some(of_bob)), [both]);
    let unsubscribe = r#"{"event":"pusher:unsubscribe","data":{"channel":"presence-r"}}"#;
    assert_eq!(again.say(&mut rig, unsubscribe), [""; 0]);
    assert_eq!(ann.heard(), [""; 0]);
    rig.hang_up(&bob.client);
    rig.work();
    let removed = of_room("member_removed", r#"{"user_id":"7"}"#);
    assert_eq!(ann.heard(), [removed]);
    // The protocol has no word for a member that shows something else.
    let other = r#"{"user_id":"ann","user_info":{"n":2}}"#;
    again.subscribe(&mut rig, "presence-r", Some(other));
    assert_eq!(ann.heard(), [r#"{"event":"pusher:pong","data":"{}"}"#]);
    rig.publish("shop/presence-r", "after", None);
    rig.work();
    assert_eq!(ann.heard().len(), 1);
    let bare = ann.subscribe(&mut rig, "presence-s", None);
    assert!(bare[0].contains("channel_data"), "{bare:?}");
}

#[test]
fn a_member_that_comes_and_goes_is_told_ten_times_a_second() {
    let mut rig = rig();
    let (ann, bob) = (Peer::new(&mut rig), Peer::new(&mut rig));
    ann.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"ann"}"#));
    let unsubscribe = r#"{"event":"pusher:unsubscribe","data":{"channel":"presence-r"}}"#;
    for _ in 0..100 {
        bob.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"bob"}"#));
        bob.say(&mut rig, unsubscribe);
    }
    let told = ann.heard();
    let count = |event| told.iter().filter(|frame| frame.contains(event)).count();
    assert_eq!((count("member_added"), count("member_removed")), (11, 10));
    // Once it stays away, it has left.
    rig.pass(30);
    rig.engine.tick(rig.now_ms());
    rig.work();
    assert_eq!(ann.heard(), [of_room("member_removed", r#"{"user_id":"bob"}"#)]);
}

#[test]
fn a_channel_has_a_hundred_members() {
    let mut rig = rig();
    let mut peers = Vec::new();
    for at in 0..101 {
        let peer = Peer::new(&mut rig);
        let data = format!(r#"{{"user_id":"{at}"}}"#);
        let heard = peer.subscribe(&mut rig, "presence-r", Some(&data));
        let is_in = heard[0].contains("subscription_succeeded");
        assert_eq!(is_in, at < 100, "{at}: {heard:?}");
        peers.push(peer);
    }
    let again = Peer::new(&mut rig).subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"5"}"#));
    assert!(again[0].contains(r#"\"count\":100,"#), "who is a member has room: {again:?}");
}

#[test]
fn a_channel_has_as_many_members_as_its_application_allows() {
    // More than are read in one step.
    let most = 120;
    let app = AppSettings { max_members: most, ..AppSettings::from(app()) };
    let (mut rig, _) = rig_with(Clients::default(), [app]);
    let mut peers = Vec::new();
    let mut join = |at: usize| {
        let peer = Peer::new(&mut rig);
        let data = format!(r#"{{"user_id":"{at}"}}"#);
        peers.push(peer);
        peers.last().expect("a peer").subscribe(&mut rig, "presence-r", Some(&data))
    };
    (0..most - 1).for_each(|at| drop(join(at)));
    let last = join(most - 1);
    assert!(last[0].contains(r#"\"count\":120,"#), "{last:?}");
    for at in 0..most {
        assert!(last[0].contains(&format!(r#"\"{at}\":"#)), "{at}: {last:?}");
    }
    let refused = join(most);
    assert!(refused[0].contains("at most 120 members"), "{refused:?}");
}

#[test]
fn clients_publish_to_others_what_nobody_keeps() {
    let mut rig = rig();
    let (ann, bob) = (Peer::new(&mut rig), Peer::new(&mut rig));
    let event = r#"{"event":"client-t","data":{"t":1},"channel":"presence-r"}"#;
    let refused = ann.say(&mut rig, event);
    assert!(refused[0].contains("4301"), "it does not follow the channel: {refused:?}");
    ann.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"ann"}"#));
    bob.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"bob"}"#));
    ann.heard();
    assert_eq!(ann.say(&mut rig, event), [""; 0]);
    assert_eq!(
        bob.heard(),
        [r#"{"event":"client-t","channel":"presence-r","data":{"t":1},"user_id":"ann"}"#]
    );
    let refused: usize = (0..12).map(|_| ann.say(&mut rig, event).len()).sum();
    assert_eq!(refused, 3, "ten in a second, of which it had one");
    assert_eq!(bob.heard().len(), 9);
    rig.pass(10);
    assert_eq!(ann.say(&mut rig, event), [""; 0]);
    assert_eq!(bob.heard().len(), 1);
}

#[test]
fn a_cache_channel_begins_with_its_newest_event() {
    let mut rig = rig();
    let peer = Peer::new(&mut rig);
    let text = r#"{"event":"pusher:subscribe","data":{"channel":"cache-c"}}"#;
    let miss = r#"{"event":"pusher:cache_miss","channel":"cache-c"}"#.to_owned();
    assert_eq!(peer.say(&mut rig, text), [succeeded("cache-c"), miss]);
    rig.publish("shop/cache-c", "old", None);
    rig.publish("shop/cache-c", "new", None);
    rig.work();
    let newest = r#"{"event":"message","channel":"cache-c","data":"new"}"#.to_owned();
    let later = Peer::new(&mut rig);
    assert_eq!(later.say(&mut rig, text), [succeeded("cache-c"), newest]);
}

#[test]
fn a_user_signs_in_to_its_inbox_and_can_be_closed() {
    let mut rig = rig();
    let (ann, other) = (Peer::new(&mut rig), Peer::new(&mut rig));
    let text =
        r##"{"event":"pusher:subscribe","data":{"auth":"","channel":"#server-to-user-ann"}}"##;
    assert!(ann.say(&mut rig, text)[1].contains("4009"), "before it has signed in");
    let signed_in = ann.sign_in(&mut rig, "ann");
    assert!(signed_in[0].starts_with(r#"{"event":"pusher:signin_success","#), "{signed_in:?}");
    assert_eq!(ann.sign_in(&mut rig, "ann"), signed_in);
    assert!(ann.sign_in(&mut rig, "bob")[0].contains("4009"), "it is ann");
    assert_eq!(ann.say(&mut rig, text), [succeeded("#server-to-user-ann")]);
    other.sign_in(&mut rig, "bob");
    assert!(other.say(&mut rig, text)[1].contains("4009"));
    rig.publish_to_user("ann", "of the server's own ann");
    rig.publish_to_user("shop/ann", "hey");
    rig.work();
    let hey = r##"{"event":"message","channel":"#server-to-user-ann","data":"hey"}"##;
    assert_eq!(ann.heard(), [hey]);
    let tags = Tagger::from_seed([7; 16]).of_user("shop/ann");
    let target = ScanTarget::User { inbox: ChannelName::user("shop/ann"), tags };
    let close = ScanClose { code: 4500, reason: "over".into(), may_return: false };
    scan(&mut rig, target, ScanAction::Close(close));
    assert_eq!(ann.heard().last().map(String::as_str), Some("close 4009"));
    assert_eq!(other.heard(), [""; 0]);
}

#[test]
fn a_connection_goes_on_in_another_process() {
    let mut rig = rig();
    let (ann, bob) = (Peer::new(&mut rig), Peer::new(&mut rig));
    ann.sign_in(&mut rig, "ann");
    ann.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"ann"}"#));
    rig.replace_process();
    rig.work();
    // Its application, its socket id, its user and its member are what they were.
    assert_eq!(ann.subscribe(&mut rig, "private-a", None), [succeeded("private-a")]);
    let text = r##"{"event":"pusher:subscribe","data":{"channel":"#server-to-user-ann"}}"##;
    assert_eq!(ann.say(&mut rig, text), [succeeded("#server-to-user-ann")]);
    let both = bob.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"bob"}"#));
    assert!(both[0].contains(r#"\"count\":2,"#), "{both:?}");
    assert!(ann.heard()[0].contains("member_added"));
    bob.say(&mut rig, r#"{"event":"client-t","channel":"presence-r"}"#);
    assert_eq!(
        ann.heard(),
        [r#"{"event":"client-t","channel":"presence-r","data":null,"user_id":"bob"}"#]
    );
}

#[test]
fn an_idle_connection_gets_pongs_and_needs_no_answer() {
    let mut rig = rig();
    let peer = Peer::new(&mut rig);
    let pong = r#"{"event":"pusher:pong","data":"{}"}"#;
    for ping in [r#"{"event":"pusher:ping"}"#, r#"{"event":"pusher:ping","data":{}}"#] {
        assert_eq!(peer.say(&mut rig, ping), [pong]);
    }
    // It would ask after 120 s. The pings of its library, which the protocol does not see, change
    // nothing.
    for pings_each_s in [usize::MAX, 20] {
        let mut seconds = 1..115;
        let is_told = seconds.any(|second| {
            rig.pass(10);
            if second % pings_each_s == 0 {
                rig.send(&peer.client, PING);
            }
            peer.heard().iter().any(|frame| frame == pong)
        });
        assert!(is_told && !peer.client.is_closed(), "{pings_each_s}");
    }
}

fn refused(rig: &mut Rig, key: &str, headers: &str) -> Vec<String> {
    let client = rig.connect(&format!("GET /app/{key} HTTP/1.1\r\n{headers}{UPGRADE}"));
    rig.work();
    let bytes = client.received_bytes();
    assert!(bytes.starts_with(b"HTTP/1.1 101 "));
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    frames(&bytes[end..])
}

#[test]
fn keys_and_pages_that_may_not_use_an_application_are_closed_for_good() {
    let app = app().with_key("older", SECRET, true).expect("a key");
    let app = app.with_key("oldest", SECRET, false).expect("a key");
    let origins = vec!["https://shop.example".to_owned()];
    let app = AppSettings { origins, ..AppSettings::from(app) };
    let (mut rig, _) = rig_with(Clients::default(), [app]);
    let disabled = refused(&mut rig, "oldest", "");
    assert_eq!(disabled.last().map(String::as_str), Some("close 4003"), "{disabled:?}");
    let page = refused(&mut rig, "app-key", "Origin: https://evil.example\r\n");
    assert_eq!(page.last().map(String::as_str), Some("close 4009"), "{page:?}");
    for headers in ["", "Origin: https://shop.example\r\n"] {
        let greeting = refused(&mut rig, "older", headers);
        assert!(greeting[0].contains("connection_established"), "{greeting:?}");
    }
}

#[test]
fn an_application_that_is_gone_loses_its_clients() {
    let (mut rig, access) = rig_with(Clients::default(), [app(), other_app()].map(Into::into));
    let peer = Peer::new(&mut rig);
    peer.subscribe(&mut rig, "private-a", None);
    scan(&mut rig, ScanTarget::All, ScanAction::Recheck);
    assert_eq!(peer.heard(), [""; 0], "nothing has changed");
    access.apps.store(Arc::new(Apps::new([other_app()]).expect("one")));
    scan(&mut rig, ScanTarget::All, ScanAction::Recheck);
    assert_eq!(peer.heard().last().map(String::as_str), Some("close 4009"));
    let none = refused(&mut rig, "app-key", "");
    assert_eq!(none.last().map(String::as_str), Some("close 4001"));
}

#[test]
fn an_application_has_limits_of_its_own() {
    let tagger = Tagger::from_seed([7; 16]);
    let limits = ClientLimits {
        connections: 2,
        subscriptions: 3,
        publishes_per_s: 2,
        ..ClientLimits::default()
    };
    let limiter = Limiter::new(LimitSettings::default()).with_apps([(tagger.app("1"), limits)]);
    let clients = Clients { limiter, ..Clients::default() };
    let (mut rig, access) = rig_with(clients, [app(), other_app()].map(Into::into));
    let (ann, bob) = (Peer::new(&mut rig), Peer::new(&mut rig));
    let client = rig.connect(&format!("GET /app/app-key HTTP/1.1\r\n{UPGRADE}"));
    rig.work();
    // Behind the upgrade it would come back each second.
    assert!(client.received().starts_with("HTTP/1.1 429 "));
    assert!(refused(&mut rig, "other-key", "")[0].contains("connection_established"));
    assert!(ann.sign_in(&mut rig, "ann")[0].contains("signin_success"), "it is no new one");
    for channel in ["private-a", "private-b"] {
        assert_eq!(ann.subscribe(&mut rig, channel, None), [succeeded(channel)]);
    }
    assert_eq!(bob.subscribe(&mut rig, "private-a", None), [succeeded("private-a")]);
    let full = bob.subscribe(&mut rig, "private-b", None);
    assert!(full[0].contains("subscription_error") && full[0].contains("429"), "{full:?}");
    let event = r#"{"event":"client-t","data":{},"channel":"private-a"}"#;
    let heard: Vec<_> = (0..3).flat_map(|_| ann.say(&mut rig, event)).collect();
    assert!(heard.len() == 1 && heard[0].contains("4301"), "it stays: {heard:?}");
    assert_eq!(bob.heard().len(), 2);
    rig.replace_process();
    rig.work();
    let held = |quantity| {
        let limiter = &access.clients.limiter;
        limiter.held(limiter.app(Some(tagger.app("1"))), quantity)
    };
    assert_eq!((held(Quantity::Connections), held(Quantity::Subscriptions)), (2, 3));
    rig.hang_up(&ann.client);
    rig.work();
    assert_eq!((held(Quantity::Connections), held(Quantity::Subscriptions)), (1, 1));
    assert_eq!(bob.subscribe(&mut rig, "private-b", None), [succeeded("private-b")]);
}

/// The texts of frames with the ids of events.
fn texts(bytes: &[u8]) -> Vec<serde_json::Value> {
    let (mut at, mut texts) = (0, Vec::new());
    while let Some(frame) = parse_server_frame(&bytes[at..]).expect("a frame") {
        texts.push(serde_json::from_slice(&bytes[at..][frame.payload]).expect("JSON"));
        at += frame.length;
    }
    texts
}

#[test]
fn a_client_goes_on_from_the_last_event_that_it_has_had() {
    let (mut rig, _) = rig_with(Clients::default(), [app().with_history(true).into()]);
    let peer = Peer::new(&mut rig);
    let subscribe =
        |rest: &str| format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"news"{rest}}}}}"#);
    rig.send_frame(&peer.client, &subscribe(""));
    for text in ["one", "two", "three"] {
        rig.publish("shop/news", text, None);
    }
    rig.work();
    let events = texts(&peer.client.received_bytes());
    let id = events[1]["id"].as_str().expect("an id");
    assert_eq!((events.len(), events[1]["data"].as_str()), (4, Some("one")));
    let heard = |rig: &mut Rig, rest: &str| {
        let later = Peer::new(rig);
        rig.send_frame(&later.client, &subscribe(rest));
        rig.work();
        let frames = texts(&later.client.received_bytes());
        let data = |frame: &serde_json::Value| frame["data"].as_str().unwrap_or("-").to_owned();
        frames.iter().map(data).collect::<Vec<_>>()
    };
    let since = heard(&mut rig, &format!(r#","since":"{id}""#));
    assert_eq!(since[0], format!(r#"{{"id":"{id}","recovered":true}}"#));
    assert_eq!(since[1..], ["two", "three"]);
    assert_eq!(heard(&mut rig, r#","history":2"#)[1..], ["two", "three"]);
    let lost = heard(&mut rig, r#","since":"zzzzzzzzz-1""#);
    assert!(lost[0].ends_with(r#""recovered":false}"#), "{lost:?}");
    assert!(heard(&mut rig, r#","since":"x""#)[0].contains("400"));
    let (mut rig, _) = rig_with(Clients::default(), [app().into()]);
    for rest in [r#","history":2"#, r#","since":"zzzzzzzzz-1""#] {
        assert!(heard(&mut rig, rest)[0].contains("403"), "only where the settings say so");
    }
}
