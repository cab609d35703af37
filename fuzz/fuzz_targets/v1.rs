//! Commands of `throng.v1` and lines of a batch: no input panics, and every reply is one line of
//! JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use throng_wire::credential::TOKEN_BYTES_MAX;
use throng_wire::envelope::{self, Data, Envelope, Facts};
use throng_wire::labels::StateKey;
use throng_wire::v1::{self, Command, Publication, Received};
use throng_wire::{ErrorCode, Labels, Target, batch, check_name, chunk, sse};

fn check_line(write: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    write(&mut out);
    assert!(!out.contains(&b'\n') && !out.contains(&b'\r'), "a line break");
    let line = std::str::from_utf8(&out).expect("UTF-8");
    assert!(serde_json::from_str::<&RawValue>(line).is_ok(), "not JSON: {line}");
}

/// Encodes the message for each transport.
fn check_publication(target: &Target, publication: &Publication) {
    let body = &publication.body;
    let content_type = publication.content_type.as_deref();
    let data = match (content_type, std::str::from_utf8(body)) {
        (_, Err(_)) => Data::Binary(body),
        (Some("application/json"), Ok(json)) if serde_json::from_str::<&RawValue>(json).is_ok() => {
            Data::Json(json)
        }
        (_, Ok(text)) => Data::Text(text),
    };
    let Target { kind, name } = target;
    let (kind, id, expires_ms) = (*kind, Some("e-1"), Some(2));
    let Labels { event, tags, key } = &publication.labels;
    let (event, tags) = (event.as_deref(), tags.as_deref());
    let (key, is_tombstone) = match key {
        Some(StateKey { name, is_removed }) => (Some(&**name), *is_removed),
        None => (None, false),
    };
    let facts = Facts { event, tags, key, is_tombstone, ..Facts::default() };
    let envelope = Envelope { kind, name, id, time_ms: 1, expires_ms, facts, content_type, data };
    check_line(|out| envelope::write(out, &envelope));

    let mut out = Vec::new();
    sse::write_event(&mut out, Some("e-1"), None, body);
    assert!(out.ends_with(b"\n\n"));
    let lines = out[..out.len() - 2].split(|&byte| byte == b'\n');
    assert!(lines.skip(1).all(|line| line.starts_with(b"data: ") && !line.contains(&b'\r')));

    if !body.is_empty() {
        out.clear();
        chunk::write_chunk(&mut out, body);
        assert_eq!(chunk::inner(&out), body);
    }
}

fn check_target(target: &Target, reference: Option<&RawValue>) {
    assert_eq!(check_name(&target.name, target.kind.noun()), Ok(()));
    let users = [target.name.as_str()];
    let (head, recovered, number) = (Some("e-2"), Some(true), Some(1));
    let begin = v1::Begin { id: "e-1", head, recovered, number };
    check_line(|out| v1::subscribed(out, target, begin, reference));
    let numbered = v1::Numbered { target: target.clone(), number: 1, epoch: "e" };
    check_line(|out| v1::numbers(out, std::slice::from_ref(&numbered)));
    let (more, is_partial, is_local) = (false, true, true);
    let members = [v1::ShownMember { connection: None, user: Some(users[0]), info: None }.object()];
    let members = [&*members[0]];
    let present = v1::Present {
        connections: 1,
        users: &users,
        members: Some(&members),
        next: Some(users[0]),
        more,
        is_partial,
        is_local,
    };
    check_line(|out| v1::presence(out, target, present, reference));
    check_line(|out| v1::presence_body(out, target, present));
    let error = ErrorCode::Forbidden.into();
    check_line(|out| v1::updated(out, target, reference));
    check_line(|out| v1::members(out, users[0], "e-1", 1, users.len() > 1));
    check_line(|out| v1::revoked(out, target, &error));
    check_line(|out| v1::published(out, target, Some("e-1"), 1, true, reference));
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match batch::parse_line(text) {
        Ok(item) => {
            check_target(&item.target, None);
            check_publication(&item.target, &item.publication);
        }
        Err(error) => check_line(|out| error.write_body(out)),
    }
    let Received { reference, command } = v1::parse(text);
    let reference = reference.as_deref();
    match command {
        Ok(Command::Publish { target, publication, .. }) => {
            check_target(&target, reference);
            check_publication(&target, &publication);
        }
        Ok(
            Command::Subscribe { target, .. }
            | Command::Unsubscribe { target }
            | Command::History { target, .. }
            | Command::Presence { target, .. }
            | Command::Read { target, .. },
        ) => check_target(&target, reference),
        Ok(Command::Update { target, info }) => {
            check_target(&target, reference);
            let (connection, user, info) = (None, Some(&*target.name), Some(&*info));
            let object = v1::ShownMember { connection, user, info }.object();
            let (channel, event, id) = (&*target.name, "update", "e-1");
            let event = v1::MemberEvent { channel, event, id, time_ms: 1, object: &object };
            check_line(|out| v1::member(out, event));
        }
        Ok(Command::Many(list)) => {
            let mut reply = v1::ListReply::new(list.verb());
            for index in 0..list.len() {
                let v1::Entry { target, wanted } = list.entry(index, text).expect("an entry");
                match (wanted, target) {
                    (Ok(_), target) => check_target(&target.expect("a name"), reference),
                    (Err(error), target) => reply.refused(target.as_ref(), &error),
                }
            }
            check_line(|out| reply.write(out, reference));
        }
        Ok(Command::Auth { token }) => {
            assert!(token.text().len() <= TOKEN_BYTES_MAX);
            assert_eq!(format!("{token:?}"), "Token(..)");
            check_line(|out| v1::expiring(out, 1));
            check_line(|out| v1::authenticated(out, Some(token.text()), 1, reference));
        }
        Ok(Command::SignIn { .. }) => unreachable!("it is no command of `throng.v1`"),
        Ok(Command::Ack { frames }) => assert!(frames > 0),
        Ok(Command::Ping) => check_line(|out| v1::pong(out, reference)),
        Err(error) => {
            check_line(|out| v1::error(out, &error, reference));
            check_line(|out| v1::closed(out, error.code.name(), 4002, &error.message));
        }
    }
});
