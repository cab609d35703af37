//! Members of channels: who joins and leaves, what they show, and who is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use throng_access::{
    Access, AccessControl, AccessRules, Action, AllowAll, Asker, ChannelAccess, Decision,
};
use throng_core::{Answer, ChannelName, Later, MembersRule, Rule, Rules, Ticket};
use throng_edge::Settings;

use crate::ended::end;
use crate::rig::{Client, Rig};
use crate::tokens::{bearer, control, token, websocket};

const GRACE_MS: u64 = 1_000;

pub(crate) fn rules(are_connections: bool) -> Rules {
    let grace_ms = if are_connections { 0 } else { GRACE_MS };
    let members = Some(MembersRule { are_connections, grace_ms });
    let room = Rule { pattern: "room".into(), members, ..Rule::default() };
    Rules::new(vec![room], Rule::default())
}

pub(crate) fn rig_with(access: AccessControl, are_connections: bool) -> Rig {
    let settings = Settings {
        welcome: false,
        heartbeat: Duration::ZERO,
        ping_interval: Duration::ZERO,
        ..Settings::for_tests()
    };
    Rig::with_rules(settings, Arc::new(access), rules(are_connections))
}

fn rig() -> Rig {
    rig_with(AccessControl::open(Arc::new(AllowAll)), false)
}

pub(crate) fn pass(rig: &mut Rig, ticks: u32) {
    for _ in 0..ticks {
        rig.pass(1);
        rig.engine.tick(rig.now_ms());
        rig.work();
    }
}

/// What a client was told, as `event who info`, since the last call.
pub(crate) fn told(rig: &mut Rig, client: &Client) -> Vec<String> {
    rig.work();
    let received = client.received();
    let objects = received.split("{\"type\":\"presence\"").skip(1).map(|rest| {
        let json = format!("{{\"type\":\"presence\"{rest}");
        let mut values = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
        values.next().expect("an object").expect("JSON")
    });
    let event = |it: Value| {
        assert_eq!(it["channel"], "room");
        assert!(it["id"].as_str().is_some_and(|id| id.contains('-')), "{it}");
        let event = it["event"].as_str().expect("an event").to_owned();
        if event == "state" {
            return format!("state {}", it["members"]);
        }
        let member = &it["member"];
        let info = member.get("info").map_or(String::new(), |info| format!(" {info}"));
        format!("{event} {}{info}", member["user"].as_str().unwrap_or("?"))
    };
    objects.map(event).collect()
}

#[test]
fn a_user_joins_once_and_leaves_with_the_last_connection_after_the_grace() {
    let mut rig = rig();
    let watcher = rig.get("/channels/room?presence=true");
    assert_eq!(told(&mut rig, &watcher), ["state 0"]);
    let first = rig.get("/channels/room?user=ann");
    let second = rig.get("/channels/room?user=ann");
    let nobody = rig.get("/channels/room");
    assert_eq!(told(&mut rig, &watcher), ["join ann"]);
    rig.hang_up(&first);
    pass(&mut rig, 30);
    assert_eq!(told(&mut rig, &watcher), [""; 0]);
    rig.hang_up(&second);
    pass(&mut rig, 9);
    let back = rig.get("/channels/room?user=ann");
    pass(&mut rig, 30);
    assert_eq!(told(&mut rig, &watcher), [""; 0], "she was back within the grace");
    rig.hang_up(&back);
    rig.hang_up(&nobody);
    pass(&mut rig, 9);
    assert_eq!(told(&mut rig, &watcher), [""; 0]);
    pass(&mut rig, 2);
    assert_eq!(told(&mut rig, &watcher), ["leave ann"]);
    assert_eq!(rig.engine.member_metrics().members, 0);
}

#[test]
fn the_list_comes_before_what_changes() {
    let mut rig = rig();
    let others = ["ann", "bob"].map(|user| rig.get(&format!("/channels/room?user={user}")));
    let watcher = rig.get("/channels/room?user=cy&presence=true");
    let list = ["join ann", "join bob", "join cy", "state 3"];
    assert_eq!(told(&mut rig, &watcher), list, "its own member is in it");
    rig.hang_up(&others[0]);
    pass(&mut rig, 12);
    assert_eq!(told(&mut rig, &watcher), ["leave ann"]);
    let late = rig.get("/channels/room?presence=true");
    // The newest change is always there, so that the log ends at its head.
    assert_eq!(told(&mut rig, &late), ["join bob", "join cy", "leave ann", "state 2"]);
}

#[test]
fn members_show_what_they_choose_and_changes_are_told_once() {
    let mut rig = rig();
    let watcher = rig.get("/channels/room?presence=true");
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","user":"ann"}"#);
    let subscribe = r#"{"type":"subscribe","channel":"room","info":{"name":"Ann", "x":[1]}}"#;
    rig.send_frame(&client, subscribe);
    let shown = r#"{"name":"Ann","x":[1]}"#;
    assert_eq!(told(&mut rig, &watcher)[1..], [format!("join ann {shown}")]);
    let update =
        |info: &str| format!(r#"{{"type":"update","channel":"room","info":{info},"ref":1}}"#);
    for (info, expected) in [
        (r#"{"name":"Ann","x":[1]}"#, None),
        (r#"{"name":"A."}"#, Some(r#"update ann {"name":"A."}"#)),
        (r#" { "name" : "A." } "#, None),
        ("{}", Some("update ann {}")),
    ] {
        client.received();
        rig.send_frame(&client, &update(info));
        let answer = client.received();
        assert!(answer.contains(r#"{"type":"updated","channel":"room","ref":1}"#), "{answer}");
        assert_eq!(told(&mut rig, &watcher), expected.into_iter().collect::<Vec<_>>());
    }
    let other = rig.get("/channels/room?user=ann");
    assert_eq!(told(&mut rig, &watcher), [""; 0], "a connection that says nothing");
    rig.hang_up(&client);
    pass(&mut rig, 20);
    let page = rig.engine.members(rig.now_ms(), &ChannelName::channel("room"), None, 9);
    assert_eq!(page.members, [r#"{"user":"ann","info":{}}"#.into()]);
    drop(other);
}

#[test]
fn what_a_member_may_not_show_is_refused() {
    let mut rig = rig();
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","user":"ann"}"#);
    let mega = format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 20));
    let kilo = format!(r#"{{"x":"{}"}}"#, "x".repeat(1 << 10));
    for (info, code) in
        [(kilo.as_str(), "too_large"), ("[]", "bad_request"), ("7", "bad_request"), (&mega, "")]
    {
        client.received();
        let command = format!(r#"{{"type":"subscribe","channel":"room","info":{info}}}"#);
        rig.send_frame(&client, &command);
        rig.work();
        let answer = client.received();
        // A frame beyond the limit ends the connection, as for every command.
        let expected =
            if code.is_empty() { "too_large: ".to_owned() } else { format!(r#""code":"{code}"#) };
        assert!(answer.contains(&expected), "{answer}");
    }
    let client = rig.v1();
    for (command, code) in [
        (r#"{"type":"subscribe","channel":"room","info":{}}"#, "bad_request"),
        (r#"{"type":"subscribe","channel":"hall","info":{}}"#, "bad_request"),
        (r#"{"type":"update","channel":"room","info":{}}"#, "not_subscribed"),
        (r#"{"type":"update","channel":"hall","info":{}}"#, "bad_request"),
        (r#"{"type":"update","channel":"room"}"#, "bad_request"),
    ] {
        client.received();
        rig.send_frame(&client, command);
        let answer = client.received();
        assert!(answer.contains(&format!(r#""code":"{code}""#)), "{command}: {answer}");
    }
    assert_eq!(rig.engine.member_metrics().joined, 0);
}

#[test]
fn what_a_client_says_of_itself_needs_its_right() {
    let mut rig = rig_with(control(AccessRules::default()), false);
    let watcher = token(3600, r#""sub":"w","throng":{"presence":["room"],"subscribe":["room"]}"#);
    let watcher = rig.connect(&format!(
        "GET /channels/room?presence=true HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        bearer(&watcher)
    ));
    assert_eq!(told(&mut rig, &watcher), ["join w", "state 1"]);
    let client = |rig: &mut Rig, grants: &str| {
        let claims = format!(r#""sub":"ann","throng":{{"subscribe":["room"]{grants}}}"#);
        let token = token(3600, &claims);
        websocket(rig, "/subscribe", &token, "throng.v1")
    };
    let mute = client(&mut rig, "");
    let subscribe = r#"{"type":"subscribe","channel":"room","info":{"a":1}}"#;
    let update = r#"{"type":"update","channel":"room","info":{"a":2}}"#;
    rig.send_frame(&mute, subscribe);
    assert!(mute.received().contains(r#""code":"forbidden""#));
    rig.send_frame(&mute, r#"{"type":"subscribe","channel":"room"}"#);
    rig.send_frame(&mute, update);
    assert!(mute.received().contains(r#""code":"forbidden""#));
    assert_eq!(told(&mut rig, &watcher), ["join ann"]);
    let free = client(&mut rig, r#","update":["room"]"#);
    rig.send_frame(&free, subscribe);
    rig.send_frame(&free, update);
    assert_eq!(told(&mut rig, &watcher), [r#"update ann {"a":1}"#, r#"update ann {"a":2}"#]);
}

#[test]
fn a_token_says_what_its_user_shows() {
    let mut rig = rig_with(control(AccessRules::default()), false);
    let own = r#""throng":{"subscribe":["room"],"presence":["room"],"update":["room"]}"#;
    let token =
        |user: &str, info: &str| token(3600, &format!(r#""sub":"{user}","info":{info},{own}"#));
    let ann = rig.connect(&format!(
        "GET /channels/room?presence=true HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        bearer(&token("ann", r#"{"name": "Ann"}"#))
    ));
    assert_eq!(told(&mut rig, &ann), [r#"join ann {"name":"Ann"}"#, "state 1"]);
    // It is another program's claim, or too large.
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(1100));
    let _others = [("bob", "7"), ("cy", &large)].map(|(user, info)| {
        let client = websocket(&mut rig, "/channels/room", &token(user, info), "throng.v1");
        assert_eq!(told(&mut rig, &ann), [format!("join {user}")]);
        client
    });
    let dee = websocket(&mut rig, "/subscribe", &token("dee", r#"{"a":1}"#), "throng.v1");
    rig.work();
    rig.replace_process();
    rig.send_frame(&dee, r#"{"type":"subscribe","channel":"room"}"#);
    assert_eq!(told(&mut rig, &ann), [r#"join dee {"a":1}"#], "in another process");
    let update = r#"{"type":"update","channel":"room","info":{"a":2}}"#;
    rig.send_frame(&dee, update);
    assert_eq!(told(&mut rig, &ann), [r#"update dee {"a":2}"#]);
}

#[test]
fn an_inbox_that_anyone_may_read_makes_nobody_its_user() {
    let open = AccessRules::new(Vec::new(), ChannelAccess::OPEN);
    let mut rig = rig_with(control(open), false);
    let client = rig.get("/channels/room?user=ann");
    let v1 = rig.v1();
    rig.send_frame(&v1, r#"{"type":"subscribe","user":"ann"}"#);
    rig.send_frame(&v1, r#"{"type":"subscribe","channel":"room"}"#);
    rig.work();
    let (stream, frames) = (client.received(), v1.received());
    assert!(frames.contains(r#"{"type":"subscribed","channel":"room""#), "{stream} {frames}");
    assert_eq!(rig.engine.member_metrics().joined, 0);
}

#[test]
fn a_token_makes_nobody_somebody_else() {
    let mut rig = rig_with(control(AccessRules::default()), false);
    // Who may read the inbox of another user is not that user.
    let claims = r#""sub":"eve","throng":{"subscribe":["room",{"users":"*"}]}"#;
    let eve = token(3600, claims);
    let anyone = token(3600, r#""throng":{"subscribe":["room",{"users":"*"}]}"#);
    for token in [&eve, &anyone] {
        rig.connect(&format!(
            "GET /channels/room?user=ann HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            bearer(token)
        ));
        let client = websocket(&mut rig, "/subscribe", token, "throng.v1");
        rig.send_frame(&client, r#"{"type":"subscribe","user":"ann"}"#);
        rig.send_frame(&client, r#"{"type":"subscribe","channels":["room"]}"#);
        rig.work();
    }
    let page = rig.engine.members(rig.now_ms(), &ChannelName::channel("room"), None, 9);
    assert_eq!(page.members, [r#"{"user":"eve"}"#.into()]);
}

#[test]
fn each_connection_is_a_member_where_the_rule_says_so() {
    let mut rig = rig_with(AccessControl::open(Arc::new(AllowAll)), true);
    let watcher = rig.get("/channels/room?presence=true");
    let first = rig.get("/channels/room?user=ann");
    let second = rig.get("/channels/room");
    assert_eq!(told(&mut rig, &watcher), ["join ?", "state 1", "join ann", "join ?"]);
    rig.hang_up(&first);
    assert_eq!(told(&mut rig, &watcher), ["leave ann"], "at once");
    drop(second);
}

#[test]
fn a_plain_websocket_that_follows_members_publishes_to_its_channel() {
    let mut rig = rig();
    let reader = rig.get("/channels/room");
    let client = rig.connect(
        "GET /channels/room?user=ann&presence=true HTTP/1.1\r\nHost: localhost\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    rig.send_frame(&client, "hello");
    rig.work();
    assert!(reader.received().contains("hello"), "{}", client.received());
}

#[test]
fn a_long_poll_gets_the_list_and_then_what_changes() {
    let mut rig = rig();
    let ann = rig.get("/channels/room?user=ann");
    let poll =
        |rig: &mut Rig, known: &str| rig.get(&format!("/channels/room?wait=300&presence={known}"));
    let id_of = |received: &str| {
        let (_, rest) = received.rsplit_once(r#""id":""#).expect("an id");
        rest.split('"').next().expect("an end").to_owned()
    };
    let first = poll(&mut rig, "true");
    let id = id_of(&first.received());
    let first = poll(&mut rig, "true");
    assert_eq!(told(&mut rig, &first), ["join ann", "state 1"]);
    let second = poll(&mut rig, &id);
    pass(&mut rig, 10);
    assert_eq!(second.received(), "", "nothing has changed");
    let bob = rig.get("/channels/room?user=bob");
    pass(&mut rig, 1);
    let received = second.received();
    assert!(received.contains(r#""event":"join""#) && received.contains("bob"), "{received}");
    rig.hang_up(&ann);
    pass(&mut rig, 12);
    let third = poll(&mut rig, &id_of(&received));
    assert_eq!(told(&mut rig, &third), ["leave ann"], "what came in between");
    let unknown = poll(&mut rig, "zzzz-7");
    assert_eq!(told(&mut rig, &unknown), ["join bob", "leave ann", "state 1"]);
    drop(bob);
}

#[test]
fn a_long_poll_with_members_is_told_that_the_channel_has_ended() {
    let mut rig = rig();
    let first = rig.get("/channels/room?wait=300&presence=true");
    let received = first.received();
    let (_, rest) = received.rsplit_once(r#""id":""#).expect("an id");
    let (id, _) = rest.split_once('"').expect("an end");
    let waiting = rig.get(&format!("/channels/room?wait=300&presence={id}"));
    end(&rig, "room", "last");
    pass(&mut rig, 1);
    let received = waiting.received();
    assert!(received.contains("Throng-Ended: true\r\n"), "{received}");
    assert!(received.contains("last"), "{received}");
    rig.worker.check_invariants();
}

#[test]
fn members_and_those_who_follow_them_go_on_in_another_process() {
    let mut rig = rig();
    let watcher = rig.get("/channels/room?presence=true");
    let clients = ["ann", "bob"].map(|user| rig.get(&format!("/channels/room?user={user}")));
    assert_eq!(told(&mut rig, &watcher).len(), 3);
    rig.replace_process();
    pass(&mut rig, 150);
    assert_eq!(told(&mut rig, &watcher), [""; 0]);
    rig.hang_up(&clients[1]);
    pass(&mut rig, 12);
    assert_eq!(told(&mut rig, &watcher), ["leave bob"]);
}

#[test]
fn a_channel_without_the_rule_has_no_members() {
    let mut rig = rig();
    let refused = rig.get("/channels/hall?user=ann&presence=true").received();
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("`members`"), "{refused}");
    let client = rig.get("/channels/hall?user=ann");
    rig.work();
    assert_eq!(rig.engine.member_metrics().joined, 0);
    assert_eq!(rig.engine.metrics().channels, 2, "the channel and the inbox");
    drop(client);
}

/// An application that lets each client into the room, and says there what it shows: at once, or
/// when the test wants it.
#[derive(Debug, Default)]
struct Showing {
    is_late: bool,
    open: Mutex<Vec<Ticket<Decision>>>,
}

impl Showing {
    fn decision() -> Decision {
        Decision::AllowedShowing { info: r#"{"in":"it"}"#.into(), until_ms: None }
    }
}

impl Access for Showing {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        match action {
            Action::Subscribe(name) if name.name() == "room" && !asker.is_repeated => {
                if !self.is_late {
                    return Showing::decision().into();
                }
                let (ticket, answer) = later.ticket();
                self.open.lock().expect("no test panics here").push(ticket);
                answer
            }
            _ => Decision::Allowed.into(),
        }
    }
}

#[test]
fn the_application_says_with_its_permission_what_a_client_shows() {
    for is_late in [false, true] {
        let access = Arc::new(Showing { is_late, ..Showing::default() });
        let policy = Arc::clone(&access) as Arc<dyn Access>;
        let mut rig = rig_with(AccessControl::open(policy), false);
        let decide = |rig: &mut Rig, count: usize| {
            let waiting = std::mem::take(&mut *access.open.lock().expect("no test panics here"));
            assert_eq!(waiting.len(), if is_late { count } else { 0 });
            waiting.into_iter().for_each(|ticket| ticket.answer(Showing::decision()));
            rig.work();
        };
        let watcher = rig.get("/channels/room?presence=true");
        decide(&mut rig, 1);
        assert_eq!(told(&mut rig, &watcher), ["state 0"]);
        let ann = rig.get("/subscribe?channel=hall&channel=room&user=ann");
        let clients = [
            ("bob", r#"{"type":"subscribe","channel":"room"}"#),
            ("cy", r#"{"type":"subscribe","channels":["hall","room"]}"#),
        ]
        .map(|(user, command)| {
            let client = rig.connect(&format!(
                "GET /subscribe?user={user} HTTP/1.1\r\nHost: localhost\r\n\
                 Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Sec-WebSocket-Protocol: throng.v1\r\n\r\n"
            ));
            rig.send_frame(&client, command);
            client
        });
        decide(&mut rig, 3);
        let shown = ["ann", "bob", "cy"].map(|user| format!(r#"join {user} {{"in":"it"}}"#));
        assert_eq!(told(&mut rig, &watcher), shown);
        drop((ann, clients));
    }
}

/// Users or connections that leave without a grace.
pub(crate) fn rig_without_grace(access: AccessControl, are_connections: bool) -> Rig {
    let members = Some(MembersRule { are_connections, grace_ms: 0 });
    let room = Rule { pattern: "room".into(), members, ..Rule::default() };
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    Rig::with_rules(settings, Arc::new(access), Rules::new(vec![room], Rule::default()))
}

#[test]
fn a_long_poll_stays_a_member_until_the_next_one() {
    for are_connections in [false, true] {
        let access = AccessControl::open(Arc::new(AllowAll));
        let mut rig = rig_without_grace(access, are_connections);
        let watcher = rig.get("/channels/room?presence=true");
        let before = told(&mut rig, &watcher).len();
        assert_eq!(before, if are_connections { 2 } else { 1 });
        let poll = "GET /channels/room?user=ann&wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let client = rig.connect(poll);
        assert_eq!(told(&mut rig, &watcher), ["join ann"]);
        for text in ["1", "2"] {
            rig.publish("room", text, None);
            pass(&mut rig, 50);
            assert!(client.received().ends_with(text));
            rig.send(&client, poll.as_bytes());
            pass(&mut rig, 150);
            assert_eq!(told(&mut rig, &watcher), [""; 0], "it polls again");
        }
        rig.publish("room", "3", None);
        pass(&mut rig, 99);
        assert_eq!(told(&mut rig, &watcher), [""; 0]);
        pass(&mut rig, 2);
        assert_eq!(told(&mut rig, &watcher), ["leave ann"]);
        // A connection that is closed after the poll does not come back.
        let once = poll.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let last = rig.connect(&once);
        assert_eq!(told(&mut rig, &watcher), ["join ann"]);
        rig.publish("room", "4", None);
        rig.work();
        let expected = if are_connections { &["leave ann"][..] } else { &[] };
        assert_eq!(told(&mut rig, &watcher), expected);
        drop(last);
    }
}

#[test]
fn a_user_who_is_erased_leaves_without_a_grace() {
    let mut rig = rig();
    let watcher = rig.get("/channels/room?presence=true");
    let [ann, bob] = ["ann", "bob"].map(|user| rig.get(&format!("/channels/room?user={user}")));
    assert_eq!(told(&mut rig, &watcher), ["state 0", "join ann", "join bob"]);
    rig.engine.part_with_user(rig.now_ms(), "ann", 0);
    assert_eq!(told(&mut rig, &watcher), [""; 0], "she is here");
    rig.hang_up(&ann);
    rig.hang_up(&bob);
    rig.engine.part_with_user(rig.now_ms(), "ann", 0);
    assert_eq!(told(&mut rig, &watcher), ["leave ann"]);
    pass(&mut rig, 12);
    assert_eq!(told(&mut rig, &watcher), ["leave bob"]);
}
