//! Members of channels: what is kept of them, and what they are after an upgrade.

use throng_wire::v1::ShownMember;

use super::*;
use crate::rules::MembersRule;

const CONNECTION: ShownMember<'_> =
    ShownMember { connection: Some("002d5e1b30000001"), user: Some("ann"), info: None };

const ANN: ShownMember<'_> = ShownMember { connection: None, user: Some("ann"), info: None };

fn rule(are_connections: bool) -> Rule {
    Rule { members: Some(MembersRule { are_connections, grace_ms: 0 }), ..Rule::default() }
}

fn fixture(are_connections: bool) -> Fixture {
    Fixture::with_rule(rule(are_connections), 1, usize::MAX)
}

fn room() -> ChannelName {
    ChannelName::channel("room")
}

#[test]
fn an_upgrade_makes_no_connection_a_user_and_no_user_a_connection() {
    for (shown, key, expected) in [
        (CONNECTION, "002d5e1b30000001", r#"{"connection":"002d5e1b30000001","user":"ann","#),
        (ANN, "ann", r#"{"user":"ann","#),
    ] {
        let was_connection = shown.connection.is_some();
        let mut fixture = fixture(was_connection);
        fixture.engine.begin_member(1, &room(), shown).expect("there is room");
        fixture.rules = Arc::new(Rules::new(Vec::new(), rule(!was_connection)));
        fixture.freeze_and_thaw();
        let now_ms = crate::clock::now_ms();
        fixture.engine.resume_member(now_ms, &room(), shown);
        let info = r#"{"is":"away"}"#;
        let updated =
            fixture.engine.update_member(now_ms, &room(), (key, Some("ann")), info).unwrap();
        let members = fixture.engine.members(now_ms, &room(), None, 9).members;
        let expected = format!(r#"{expected}"info":{info}}}"#);
        assert_eq!((updated, members), (true, vec![expected.into()]));
    }
}

#[test]
fn a_member_that_is_resumed_late_joins_as_what_it_was() {
    let fixture = fixture(true);
    fixture.engine.resume_member(1, &room(), CONNECTION);
    let members = fixture.engine.members(1, &room(), None, 9).members;
    assert_eq!(members, [CONNECTION.object().into()]);
    let metrics = fixture.engine.member_metrics();
    assert_eq!((metrics.members, metrics.joined), (1, 1));
}

#[test]
fn those_who_have_left_are_remembered_for_a_minute_and_counted() {
    let fixture = fixture(false);
    let come_and_go = |count: usize| {
        for n in 0..count {
            let user = format!("user {n}");
            let shown = ShownMember { connection: None, user: Some(&user), info: None };
            fixture.engine.begin_member(1, &room(), shown).expect("there is room");
            fixture.engine.end_member(1, &room(), &user, 0);
        }
        fixture.engine.metrics()
    };
    let bytes_per_tombstone = come_and_go(100).state_bytes as usize / 100;
    assert!(bytes_per_tombstone > 100, "{bytes_per_tombstone}");
    let all = come_and_go(5_000);
    assert_eq!((all.state_keys, all.members), (0, 0));
    let counted = all.state_bytes as usize / bytes_per_tombstone;
    assert!((900..1_100).contains(&counted), "{counted} tombstones");
    assert!(all.bytes < 2 * all.state_bytes, "{} with placeholders", all.bytes);
    fixture.tick_all(60_001);
    let later = fixture.engine.metrics();
    assert_eq!((later.state_bytes, later.bytes), (0, 0));
}

#[test]
fn a_member_of_a_poll_stays_for_the_least_grace() {
    let fixture = fixture(false);
    let members = |now_ms| {
        fixture.engine.tick(now_ms);
        fixture.engine.members(now_ms, &room(), None, 9).members.len()
    };
    fixture.engine.begin_member(1, &room(), ANN).expect("there is room");
    fixture.engine.end_member(1, &room(), "ann", 500);
    assert_eq!(members(500), 1);
    fixture.engine.begin_member(500, &room(), ANN).expect("there is room");
    fixture.engine.end_member(500, &room(), "ann", 500);
    assert_eq!(members(999), 1);
    assert_eq!(members(1_000), 0);
    let metrics = fixture.engine.member_metrics();
    assert_eq!((metrics.joined, metrics.left), (1, 1));
}
