use proptest::prelude::*;
use serde_json::{Value, json};

use super::list::ENTRIES_MAX;
use super::*;
use crate::page_range::{PageRange, PageStart};
use crate::subscribe::Replay;
use crate::{ErrorCode, ErrorResponse, Kind, Labels, Target};

fn channel(name: &str) -> Target {
    Target { kind: Kind::Channel, name: name.into() }
}

fn command(text: &str) -> Command {
    parse(text).command.unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> (&'static str, String) {
    match parse(text).command {
        Ok(command) => panic!("{text}: {command:?}"),
        Err(error) => (error.code.name(), error.message.into_owned()),
    }
}

/// The publication of a command with these fields besides type and channel.
fn published_as(fields: &str) -> Publication {
    match command(&format!(r#"{{"type":"publish","channel":"a",{fields}}}"#)) {
        Command::Publish { publication, .. } => publication,
        other => panic!("{other:?}"),
    }
}

fn publish_refused(fields: &str) -> (&'static str, String) {
    refused(&format!(r#"{{"type":"publish","channel":"a",{fields}}}"#))
}

fn publication(body: &[u8], content_type: Option<&str>) -> Publication {
    let content_type = content_type.map(String::from);
    Publication {
        body: body.to_vec(),
        content_type,
        key: None,
        expires_in_s: None,
        is_volatile: false,
        labels: Labels::default(),
    }
}

fn begin<'a>(id: &'a str, head: Option<&'a str>, recovered: Option<bool>) -> Begin<'a> {
    Begin { id, head, recovered, number: None }
}

fn answer(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap()
}

#[test]
fn every_command_of_the_reference_is_parsed() {
    assert_eq!(
        command(r#"{"type":"subscribe","channel":"a","since":"k-1","history":10,"ref":1}"#),
        Command::Subscribe {
            target: channel("a"),
            since: Some("k-1".into()),
            replay: Some(Replay::Last(10)),
            presence: false,
            member: None,
            expires_in_s: None,
            pace_ms: None,
        }
    );
    assert_eq!(
        command(r#"{"type":"unsubscribe","user":"ann"}"#),
        Command::Unsubscribe { target: Target { kind: Kind::User, name: "ann".into() } }
    );
    assert_eq!(
        command(r#"{"type":"publish","channel":"a","data":"x","key":"K","echo":false}"#),
        Command::Publish {
            target: channel("a"),
            publication: Publication { key: Some("K".into()), ..publication(b"x", None) },
            echo: false
        }
    );
    assert_eq!(
        command(r#"{"type":"history","channel":"a","limit":0,"before":"b","order":"newest"}"#),
        Command::History {
            target: channel("a"),
            limit: Some(0),
            page: PageRange { start: PageStart::Before("b".into()), is_newest_first: true },
        }
    );
    assert_eq!(
        command(r#"{"type":"presence","channel":"a"}"#),
        Command::Presence { target: channel("a"), limit: None, after: None }
    );
    assert_eq!(command(" {\"type\":\"p\\u0069ng\"}\n"), Command::Ping);
}

#[test]
fn a_token_is_a_bounded_string_that_nothing_shows() {
    let text = r#"{"type":"auth","token":"eyJ.s3cret.x","ref":"r"}"#;
    let received = parse(text);
    assert!(!format!("{received:?}").contains("s3cret"), "{received:?}");
    let Ok(Command::Auth { token }) = received.command else { panic!("{received:?}") };
    assert_eq!(token.text(), "eyJ.s3cret.x");
    for (field, code) in [
        (r#""ref":1"#.to_owned(), "bad_request"),
        (r#""token":["s3cret"]"#.to_owned(), "bad_request"),
        (r#""token":"s3cret","channel":"a""#.to_owned(), "bad_request"),
        (r#""token":"""#.to_owned(), "invalid_token"),
        (r#""token":"s3cret\n""#.to_owned(), "invalid_token"),
        (format!(r#""token":"{}""#, "s3cret".repeat(20_000)), "invalid_token"),
    ] {
        let (refused, message) = refused(&format!(r#"{{"type":"auth",{field}}}"#));
        assert_eq!(refused, code, "{message}");
        assert!(!message.contains("s3cret"), "{message}");
    }
}

#[test]
fn a_pace_is_whole_milliseconds_within_its_range() {
    let subscribe = |pace: &str| {
        parse(&format!(r#"{{"type":"subscribe","channel":"a","pace":{pace}}}"#)).command
    };
    let is_250 = |command| matches!(command, Ok(Command::Subscribe { pace_ms: Some(250), .. }));
    assert!(is_250(subscribe("250")));
    for pace in ["9", "60001", "\"250ms\"", "1.5", "-1"] {
        let error = subscribe(pace).expect_err(pace);
        let sentence = "the field `pace` must be a whole number of milliseconds, 10 to 60000";
        assert_eq!(error.message, sentence, "{pace}");
    }
}

#[test]
fn null_is_ignored() {
    let text = r#"{"type":"subscribe","channel":"a","user":null,"since":null}"#;
    let expected = Command::Subscribe {
        target: channel("a"),
        since: None,
        replay: None,
        presence: false,
        member: None,
        expires_in_s: None,
        pace_ms: None,
    };
    assert_eq!(command(text), expected);
    let text = r#"{"type":"publish","channel":"a","data":1}"#;
    assert!(matches!(command(text), Command::Publish { echo: true, .. }));
}

#[test]
fn unknown_names_are_refused_and_the_nearest_is_suggested() {
    let refused = |text: &str| {
        let error = parse(text).command.unwrap_err();
        assert_eq!(error.code.name(), "bad_request", "{text}");
        error.message
    };
    assert_eq!(
        refused(r#"{"type":"subscribe","channel":"a","sinec":"secret"}"#),
        "the field `sinec` is unknown in `subscribe`; did you mean `since`?"
    );
    assert_eq!(
        refused(r#"{"type":"publish","channel":"a","data":1,"limit":5}"#),
        "the field `limit` is unknown in `publish`; `type`, `ref`, `channel`, `user`, `data`, \
         `encoding`, `content_type`, `key`, `expires_in`, `volatile`, `event`, `tags`, \
         `state_key`, `tombstone` and `echo` are known"
    );
    assert_eq!(
        refused(r#"{"type":"subscrib","channel":"a"}"#),
        "the value of `type` is not a command; did you mean `subscribe`?"
    );
    assert_eq!(
        refused(r#"{"type":"nope"}"#),
        "the value of `type` is not a command; `subscribe`, `unsubscribe`, `publish`, `history`, \
         `presence`, `update`, `read`, `auth`, `ack` and `ping` are known"
    );
    for text in [
        r#"{"type":"ping","a b secret":1}"#,
        r#"{"type":"secret"}"#,
        r#"{"type":"ping","tokn":"secret"}"#,
    ] {
        assert!(!refused(text).contains("secret"), "{text}");
    }
    let many: String = (0..1000).map(|n| format!(r#","x{n}":{n}"#)).collect();
    refused(&format!(r#"{{"type":"ping"{many}}}"#));
    // The reply to a refused command has its `ref`.
    assert!(parse(r#"{"ref":7,"type":"ping","x":1}"#).reference.is_some());
    assert_eq!(refused(r#"{"type":"ping","type":"ping"}"#), "a field is given twice");
    assert_eq!(refused(r#"{"type":"ping","x":1,"\u0078":null}"#), "a field is given twice");
}

#[test]
fn a_read_marker_is_in_an_inbox_or_a_channel() {
    assert_eq!(refused(r#"{"type":"read"}"#).1, "the field `channel` or `user` is missing");
    let (_, message) = refused(r#"{"type":"read","channel":"a","user":"b"}"#);
    assert_eq!(message, "`channel` and `user` exclude each other");
    let target = Target { kind: Kind::Channel, name: "a".to_owned() };
    let read = Command::Read { target, id: None, back: false };
    assert_eq!(parse(r#"{"type":"read","channel":"a"}"#).command, Ok(read));
}

#[test]
fn the_type_of_data_decides_the_content_type() {
    assert_eq!(published_as(r#""data":"a\né""#), publication("a\né".as_bytes(), None));
    let json = Some("application/json");
    assert_eq!(published_as(r#""data": { "a" : [1] } "#), publication(b"{ \"a\" : [1] }", json));
    assert_eq!(published_as(r#""data":null"#), publication(b"null", json));
    assert_eq!(published_as(r#""data":12"#), publication(b"12", json));
    assert_eq!(
        published_as(r#""data":"AP8=","encoding":"base64""#),
        publication(b"\x00\xff", Some("application/octet-stream"))
    );
    assert_eq!(
        published_as(r#""data":"AP8","encoding":"base64","content_type":"image/png""#),
        publication(b"\x00\xff", Some("image/png"))
    );
    assert_eq!(
        published_as(r##""data":"# a","content_type":"text/markdown""##),
        publication(b"# a", Some("text/markdown"))
    );
    assert_eq!(
        published_as(r#""data":{},"content_type":"application/ld+json""#),
        publication(b"{}", Some("application/ld+json"))
    );
}

#[test]
fn errors_of_publications_name_the_field() {
    let cases = [
        (r#""key":"k""#, "data"),
        (r#""data":"x","encoding":"hex""#, "encoding"),
        (r#""data":"x","encoding":1"#, "encoding"),
        (r#""data":{},"encoding":"base64""#, "data"),
        (r#""data":"?","encoding":"base64""#, "data"),
        (r#""data":"x","content_type":7"#, "content_type"),
        (r#""data":"x","content_type":"""#, "content_type"),
        (r#""data":"x","content_type":"a/b\r\nX: y""#, "content_type"),
        (r#""data":"x","key":"""#, "key"),
        (r#""data":"x","key":"a\u0000""#, "key"),
        (r#""data":"x","echo":1"#, "echo"),
    ];
    for (fields, name) in cases {
        let (code, message) = publish_refused(fields);
        assert_eq!(code, "bad_request", "{fields}");
        assert!(message.contains(&format!("`{name}`")), "{fields}: {message}");
    }
    for (bytes, is_good) in [(128, true), (129, false)] {
        let key = "k".repeat(bytes);
        let text = format!(r#"{{"type":"publish","channel":"a","data":0,"key":"{key}"}}"#);
        assert_eq!(parse(&text).command.is_ok(), is_good);
    }
    assert_eq!(publish_refused(r#""data":"\ud800""#).0, "bad_utf8");
}

#[test]
fn errors_of_commands_say_what_is_wrong() {
    for text in ["", "x", "7", "null", "\"a\"", "[]", r#"["ping"]"#, "{", "{}x", r#"{"type":}"#] {
        assert_eq!(refused(text).0, "bad_json", "{text}");
    }
    let cases = [
        ("{}", "`type`"),
        (r#"{"type":7}"#, "`type`"),
        (r#"{"type":"dance"}"#, "`type`"),
        (r#"{"type":"subscribe"}"#, "`channel` or `user`"),
        (r#"{"type":"presence","channel":"a","user":"b"}"#, "`channel` and `user`"),
        (r#"{"type":"presence","channel":7}"#, "`channel`"),
        (r#"{"type":"presence","user":[]}"#, "`user`"),
        (r#"{"type":"presence","channel":"a","limit":"10"}"#, "`limit`"),
        (r#"{"type":"presence","channel":"a","limit":-1}"#, "`limit`"),
        (r#"{"type":"presence","channel":"a","limit":4294967296}"#, "`limit`"),
        (r#"{"type":"presence","channel":"a","limit":0}"#, "`limit`"),
        (r#"{"type":"presence","channel":"a","limit":1001}"#, "`limit`"),
        (r#"{"type":"history","channel":"a","limit":-1}"#, "`limit`"),
        (r#"{"type":"history","channel":"a","limit":1001}"#, "`limit`"),
        (r#"{"type":"history","channel":"a","before":1}"#, "`before`"),
        (r#"{"type":"history","channel":"a","after":false}"#, "`after`"),
        (r#"{"type":"subscribe","channel":"a","since":1}"#, "`since`"),
        (r#"{"type":"subscribe","channel":"a","history":1.5}"#, "`history`"),
        (r#"{"type":"subscribe","channel":"a","history":-1}"#, "0 to 100000"),
        (r#"{"type":"subscribe","channel":"a","history":100001}"#, "0 to 100000"),
        (r#"{"type":"ping","type":"ping"}"#, "twice"),
    ];
    for (text, part) in cases {
        let (code, message) = refused(text);
        assert_eq!(code, "bad_request", "{text}");
        assert!(message.contains(part), "{text}: {message}");
    }
    assert_eq!(
        refused(r#"{"type":"presence","user":"a//b"}"#).0,
        "bad_name",
        "names follow the rules of names"
    );
}

#[test]
fn a_short_reference_is_repeated() {
    let reference = |json: &str| parse(&format!(r#"{{"type":"ping","ref":{json}}}"#)).reference;
    let long = format!("\"{}\"", "x".repeat(62));
    for json in ["1", "-1.5e3", "\"a\\n\"", "\"\"", &long] {
        assert_eq!(reference(json).expect(json).get(), json);
    }
    let too_long = format!("\"{}\"", "x".repeat(63));
    for json in ["null", "true", "[1]", "{}", &too_long] {
        assert!(reference(json).is_none(), "{json}");
    }
    assert_eq!(parse(r#"{"type":"?","ref":7}"#).reference.unwrap().get(), "7");
}

#[test]
fn deep_nesting_does_not_recurse() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(published_as(&format!("\"data\":{deep}")).body, deep.as_bytes());
    let received = parse(&format!(r#"{{"type":"ping","x":{deep}}}"#));
    assert_eq!(received.command.unwrap_err().code.name(), "bad_request");
}

#[test]
fn greetings_match_the_reference() {
    assert_eq!(
        answer(|out| {
            let terms = Terms { heartbeat_s: 25, max_channels: 128, max_message_bytes: 65536 };
            welcome(out, "c-1", &terms, None);
        }),
        concat!(
            r#"{"type":"welcome","connection":"c-1","heartbeat":25,"channels_max":128,"#,
            r#""max_message_bytes":65536}"#
        )
    );
    assert_eq!(
        answer(|out| greeting(out, Some("c-1"), "k-1", Some(false), None)),
        r#"{"type":"welcome","connection":"c-1","id":"k-1","recovered":false}"#
    );
    assert_eq!(
        answer(|out| greeting(out, None, "k-1", None, Some(3))),
        r#"{"type":"welcome","id":"k-1","unread":3}"#
    );
}

#[test]
fn numbers_of_channels_are_told_as_in_the_reference() {
    let a = channel("a");
    let numbered = Begin { number: Some(17), ..begin("k-1", Some("k-3"), None) };
    assert_eq!(
        answer(|out| subscribed(out, &a, numbered, None)),
        r#"{"type":"subscribed","channel":"a","id":"k-1","number":17,"head":"k-3"}"#
    );
    let of = |target: &Target| Numbered { target: target.clone(), number: 17, epoch: "k3v9x2" };
    let ann = Target { kind: Kind::User, name: "an\"n".to_owned() };
    assert_eq!(
        answer(|out| numbers(out, &[of(&a), of(&ann), of(&a)])),
        concat!(
            r#"{"type":"numbers","channels":[["a",17,"k3v9x2"],["a",17,"k3v9x2"]],"#,
            r#""users":[["an\"n",17,"k3v9x2"]]}"#
        )
    );
    assert_eq!(
        answer(|out| numbers(out, &[of(&ann)])),
        r#"{"type":"numbers","users":[["an\"n",17,"k3v9x2"]]}"#
    );
}

#[test]
fn replies_match_the_reference() {
    let a = channel("a");
    let reference = raw("\"r\"");
    assert_eq!(
        answer(|out| subscribed(out, &a, begin("k-1", None, Some(true)), Some(&reference))),
        r#"{"type":"subscribed","channel":"a","id":"k-1","recovered":true,"ref":"r"}"#
    );
    assert_eq!(
        answer(|out| subscribed(out, &a, begin("k-1", Some("k-3"), None), None)),
        r#"{"type":"subscribed","channel":"a","id":"k-1","head":"k-3"}"#
    );
    assert_eq!(
        answer(|out| unsubscribed(out, &a, None)),
        r#"{"type":"unsubscribed","channel":"a"}"#
    );
    assert_eq!(
        answer(|out| published(out, &a, Some("k-1"), 3, false, None)),
        r#"{"type":"published","channel":"a","id":"k-1","subscribers":3}"#
    );
    assert_eq!(
        answer(|out| published(out, &a, Some("k-1"), 3, true, Some(&raw("7")))),
        r#"{"type":"published","channel":"a","id":"k-1","subscribers":3,"duplicate":true,"ref":7}"#
    );
    assert_eq!(
        answer(|out| published_body(out, Some("k-1"), 0.into(), false)),
        r#"{"id":"k-1","subscribers":0}"#
    );
    assert_eq!(
        answer(|out| published(out, &a, None, 3, false, Some(&raw("7")))),
        r#"{"type":"published","channel":"a","volatile":true,"subscribers":3,"ref":7}"#
    );
    let partial = Counted { subscribers: 2, is_partial: true, is_local: false };
    assert_eq!(
        answer(|out| published_body(out, Some("k-1"), partial, false)),
        r#"{"id":"k-1","subscribers":2,"partial":true}"#
    );
    let dropped = [("lagging", 1), ("skipped", 0), ("closed", 2), ("expired", 0)];
    let outcome = "timeout";
    let (matched, written, behind, unknown, is_partial) = (9, 4, 2, 1, true);
    let is_local = true;
    let receipt =
        ReceiptFields { outcome, matched, written, behind, unknown, dropped, is_partial, is_local };
    assert_eq!(
        answer(|out| receipt_body(out, "k-1", 9.into(), &receipt)),
        r#"{"id":"k-1","subscribers":9,"receipt":{"outcome":"timeout","matched":9,"written":4,"#
            .to_owned()
            + r#""behind":2,"unknown":1,"dropped":3,"#
            + r#""dropped_by":{"lagging":1,"skipped":0,"closed":2,"expired":0},"#
            + r#""partial":true,"local":true}}"#
    );
    assert_eq!(
        answer(|out| gap(out, &a, Some(12), "k-9")),
        r#"{"type":"gap","channel":"a","missed":12,"id":"k-9"}"#
    );
    let uncounted = answer(|out| gap(out, &a, None, "k-9"));
    assert_eq!(uncounted, r#"{"type":"gap","channel":"a","id":"k-9"}"#);
    assert_eq!(
        answer(|out| error(out, &ErrorResponse::new(ErrorCode::BadName, "no \"good\""), None)),
        r#"{"type":"error","code":"bad_name","message":"no \"good\""}"#
    );
    let user = Target { kind: Kind::User, name: "u".into() };
    assert_eq!(
        answer(|out| read(out, &user, (Some("k-9"), 3), Some(&raw("7")))),
        r#"{"type":"read","user":"u","read":"k-9","unread":3,"ref":7}"#
    );
    assert_eq!(answer(|out| read_body(out, &user, (None, 0))), r#"{"user":"u","unread":0}"#);
    assert_eq!(answer(|out| pong(out, Some(&reference))), r#"{"type":"pong","ref":"r"}"#);
}

#[test]
fn replies_about_tokens_match_the_reference() {
    let a = channel("a");
    let ungranted = ErrorResponse::new(ErrorCode::Forbidden, "the token does not grant this");
    assert_eq!(
        answer(|out| revoked(out, &a, &ungranted)),
        concat!(
            r#"{"type":"unsubscribed","channel":"a","code":"forbidden","#,
            r#""message":"the token does not grant this"}"#
        )
    );
    assert_eq!(
        answer(|out| authenticated(out, Some("an\"n"), 900, Some(&raw("1")))),
        r#"{"type":"authenticated","user":"an\"n","expires_in":900,"ref":1}"#
    );
    assert_eq!(
        answer(|out| authenticated(out, None, 0, None)),
        r#"{"type":"authenticated","expires_in":0}"#
    );
    assert_eq!(answer(|out| expiring(out, 90)), r#"{"type":"expiring","expires_in":90}"#);
    assert_eq!(
        answer(|out| closed(out, "token_expired", 4002, "the token has expired")),
        concat!(
            r#"{"type":"closed","code":"token_expired","close_code":4002,"#,
            r#""message":"the token has expired"}"#
        )
    );
}

#[test]
fn lists_have_the_same_fields_as_frames_and_as_bodies() {
    let a = channel("a");
    let envelopes = ["{}", "[1]"].map(|json| {
        move |out: &mut Vec<u8>| {
            out.extend_from_slice(json.as_bytes());
        }
    });
    let (is_recovered, is_ended, is_local) = (None, false, false);
    let page =
        HistoryPage { target: &a, id: "k-2", has_more: true, is_recovered, is_ended, is_local };
    let whole = HistoryPage { has_more: false, is_recovered: Some(true), is_local: true, ..page };
    assert_eq!(
        answer(|out| history(out, page, envelopes, Some(&raw("1")))),
        r#"{"type":"history","channel":"a","id":"k-2","messages":[{},[1]],"more":true,"ref":1}"#
    );
    assert_eq!(
        answer(|out| history_body(out, whole, envelopes)),
        concat!(
            r#"{"channel":"a","id":"k-2","messages":[{},[1]],"more":false,"#,
            r#""recovered":true,"local":true}"#
        )
    );
}

proptest! {
    #[test]
    fn any_message_survives_the_round_trip(name in "[a-z\"\\\\é]{1,9}", text: String, number: i64) {
        let target = channel(&name);
        let sent = json!({"type": "publish", "channel": name, "data": text, "ref": number});
        let received = parse(&sent.to_string());
        let reference = received.reference.unwrap();
        prop_assert_eq!(reference.get(), number.to_string());
        let publication = publication(text.as_bytes(), None);
        let expected = Command::Publish { target: target.clone(), publication, echo: true };
        prop_assert_eq!(received.command.unwrap(), expected);

        let begin = begin(&text, None, None);
        let line = answer(|out| subscribed(out, &target, begin, Some(&reference)));
        prop_assert!(!line.contains(['\n', '\r']));
        let value: Value = serde_json::from_str(&line).unwrap();
        let expected = json!({"type": "subscribed", "channel": name, "id": text, "ref": number});
        prop_assert_eq!(value, expected);
    }
}

fn list(text: &str) -> (List, Vec<Entry>) {
    let Command::Many(list) = command(text) else { panic!("{text} has a list") };
    let entries = (0..list.len()).filter_map(|index| list.entry(index, text)).collect();
    (list, entries)
}

#[test]
fn a_list_is_read_entry_by_entry() {
    let text = r#"{"ref":1, "channels" : ["a" ,"é\n", {"user":"u","since":"k-1"},
        {"channel":"\u0062","history":0,"pace":90},"*",{"channel":"c","limit":1},[],{}],
        "history":5,"pace":20,"type":"subscribe"}"#;
    let (list, entries) = list(text);
    assert_eq!((list.verb(), list.len(), entries.len()), (Verb::Subscribe, 8, 8));
    assert_eq!(list.entry(8, text), None);
    let wanted = |since: Option<&str>, history: Option<u32>| {
        let since = since.map(String::from);
        let pace_ms = Some(if history == Some(0) { 90 } else { 20 });
        Wanted { since, replay: history.map(Replay::Last), pace_ms }
    };
    let entry = |target: Target, wanted| Entry { target: Some(target), wanted: Ok(wanted) };
    assert_eq!(entries[0], entry(channel("a"), wanted(None, Some(5))));
    let user = Target { kind: Kind::User, name: "u".into() };
    assert_eq!(entries[2], entry(user, wanted(Some("k-1"), Some(5))));
    assert_eq!(entries[3], entry(channel("b"), wanted(None, Some(0))));
    let error = |index: usize| {
        let Entry { target, wanted } = &entries[index];
        (target.as_ref().map(|it| &*it.name), wanted.as_ref().map_err(|error| error.code))
    };
    assert_eq!(error(1), (Some("é\n"), Err(ErrorCode::BadName)));
    assert_eq!(error(4), (Some("*"), Err(ErrorCode::BadName)));
    assert_eq!(error(5), (Some("c"), Err(ErrorCode::BadRequest)));
    assert_eq!(error(6), (None, Err(ErrorCode::BadRequest)));
    assert_eq!(error(7), (None, Err(ErrorCode::BadRequest)));
}

#[test]
fn a_list_has_a_form_and_a_limit() {
    let of = |list: &str| refused(&format!(r#"{{"type":"unsubscribe","channels":{list}}}"#)).1;
    assert_eq!(of("[]"), "the list `channels` is empty");
    assert_eq!(of("{}"), "the field `channels` must be a list");
    let many = |count: usize| format!("[{}\"a\"]", "\"a\",".repeat(count - 1));
    assert_eq!(of(&many(ENTRIES_MAX + 1)), "the list `channels` has more than 10000 entries");
    let text = format!(r#"{{"type":"unsubscribe","channels":{}}}"#, many(ENTRIES_MAX));
    assert_eq!(list(&text).1.len(), ENTRIES_MAX);
    for field in [r#""channel":"a""#, r#""since":"k-1""#, r#""presence":true"#] {
        let text = format!(r#"{{"type":"subscribe","channels":["a"],{field}}}"#);
        assert_eq!(refused(&text).0, "bad_request", "{text}");
    }
}

#[test]
fn what_is_for_one_channel_is_said_to_whoever_gives_it_to_many() {
    for (name, value) in [("presence", "true"), ("info", "{}"), ("expires_in", "9")] {
        let field = format!(r#""{name}":{value}"#);
        let (_, of_all) = refused(&format!(r#"{{"type":"subscribe","channels":["a"],{field}}}"#));
        let text = format!(r#"{{"type":"subscribe","channels":[{{"channel":"a",{field}}}]}}"#);
        let of_one = list(&text).1[0].wanted.clone().expect_err("it is refused").message;
        for message in [&*of_all, &*of_one] {
            let begin = format!("the field `{name}` is for one channel: ");
            assert!(message.starts_with(&begin), "{message}");
        }
    }
}

#[test]
fn the_answer_to_a_list_has_its_entries_in_order() {
    let mut reply = ListReply::new(Verb::Subscribe);
    let numbered = Begin { number: Some(17), ..begin("k-1", Some("k-3"), Some(true)) };
    reply.subscribed(&channel("a\""), numbered);
    let error = ErrorResponse::new(ErrorCode::Forbidden, "no");
    reply.refused(Some(&channel("b")), &error);
    reply.refused(None, &error);
    assert_eq!(
        answer(|out| reply.write(out, Some(&raw("7")))),
        concat!(
            r#"{"type":"subscribed","channels":[{"channel":"a\"","id":"k-1","number":17,"#,
            r#""head":"k-3","recovered":true},"#,
            r#"{"channel":"b","error":{"code":"forbidden","message":"no"}},"#,
            r#"{"error":{"code":"forbidden","message":"no"}}],"ref":7}"#
        )
    );
    let mut reply = ListReply::new(Verb::Unsubscribe);
    reply.unsubscribed(&channel("a"));
    reply.unsubscribed(&Target { kind: Kind::User, name: "u".into() });
    assert_eq!(
        answer(|out| reply.write(out, None)),
        r#"{"type":"unsubscribed","channels":["a",{"user":"u"}]}"#
    );
}
