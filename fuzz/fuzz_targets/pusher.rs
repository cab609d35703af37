//! The Pusher protocol: no frame, member, body or query panics, and what is written is JSON with an
//! event, at which its clients do not throw.
//!
//! Input: one byte for what it is, then the text.

#![no_main]

use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use throng_pusher::App;
use throng_pusher::client_frame::{ClientFrame, Member, SignedUser};
use throng_pusher::request::{self, Pairs};
use throng_pusher::server_frame::{self, Data};
use throng_pusher::trigger::Trigger;

fn check_frame(frame: &[u8]) {
    let frame: serde_json::Value = serde_json::from_slice(frame).expect("JSON");
    assert!(frame["event"].is_string(), "{frame}");
}

fn frame(text: &str) {
    let mut out = Vec::new();
    match ClientFrame::read(text) {
        Ok(ClientFrame::Event(event)) => {
            let json = event.data.map_or("null", |data| data.get());
            let name = (&*event.event, &*event.channel);
            server_frame::event(&mut out, name, Data::Json(json), Some(text), Some(text));
        }
        Ok(ClientFrame::Subscribe(subscribe)) => {
            let _ = subscribe.signed_text("1.2");
            let id = subscribe.since.as_deref();
            let resumed = id.map(|id| server_frame::Resumed { id, is_recovered: true });
            server_frame::succeeded(&mut out, &subscribe.channel, resumed);
        }
        Ok(ClientFrame::SignIn(sign_in)) => server_frame::signed_in(&mut out, &sign_in.user_data),
        Ok(_) => return,
        Err(error) => server_frame::error(&mut out, 4200, &error.to_string()),
    }
    check_frame(&out);
}

fn member(text: &str) {
    let Some(Member { user_id, user_info }) = Member::read(text) else { return };
    let mut out = Vec::new();
    server_frame::member_added(&mut out, "presence-a", &user_id, user_info);
    check_frame(&out);
    out.clear();
    let all = [(Cow::Borrowed(&*user_id), user_info)];
    server_frame::succeeded_with(&mut out, "presence-a", None, all.into_iter());
    check_frame(&out);
}

fn query(text: &str) {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (Cow::Owned(name.to_owned()), Cow::Owned(value.to_owned()))
    };
    let mut pairs: Pairs<'_> = text.split('&').map(pair).collect();
    let app = App::new("1", "key", b"0123456789abcdef", "a/").expect("an application");
    let line = ("GET", "/apps/1/channels");
    assert!(request::check(&app, line, &pairs, 0).is_err(), "nobody has signed it");
    pairs.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("auth_"));
    for (name, value) in [("auth_key", "key"), ("auth_version", "1.0"), ("auth_timestamp", "0")] {
        pairs.push((name.into(), value.into()));
    }
    let signature = app.keys()[0].signer().sign(&request::signed_text(line.0, line.1, &pairs));
    pairs.push(("auth_signature".into(), signature.into()));
    assert_eq!(request::check(&app, line, &pairs, 0), Ok(()));
}

fuzz_target!(|data: &[u8]| {
    let [which, rest @ ..] = data else { return };
    let Ok(text) = str::from_utf8(rest) else { return };
    match which % 4 {
        0 => frame(text),
        1 => {
            member(text);
            let _ = SignedUser::read(text);
        }
        2 => {
            let _ = (Trigger::read(rest), Trigger::read_batch(rest));
        }
        _ => query(text),
    }
});
