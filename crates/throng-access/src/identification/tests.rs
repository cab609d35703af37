//! The table of cases, which the end-to-end tests run through every way into the server, and the
//! order of the steps.

mod world;

use std::collections::BTreeMap;

use serde::Deserialize;
use throng_core::later::{Later, Ticket};

use super::*;
use crate::limit;
use world::{Asked, NOW, World};

#[derive(Deserialize)]
struct Case {
    shows: Vec<String>,
    #[serde(rename = "in")]
    places: Vec<String>,
    page: Option<String>,
    times: Option<usize>,
    error: Option<String>,
    says: Option<String>,
}

#[derive(Deserialize)]
struct ExpectedError {
    status: u16,
    close: Option<u16>,
}

#[derive(Deserialize)]
struct Table {
    errors: BTreeMap<String, ExpectedError>,
    #[serde(flatten)]
    servers: BTreeMap<String, Vec<Case>>,
}

fn table() -> Table {
    let text = include_str!("../../tests/fixtures/identification.json");
    let mut table: Table = serde_json::from_str(text).expect("the table of cases");
    // The control plane knows operators by itself.
    table.servers.remove("operators");
    table
}

/// Takes the steps until the client is known or refused. No answer comes later.
fn identify(world: &World, shown: &Asked<'_>, answers: Answers) -> Result<Client, Refused> {
    let mut identification = Identification::new(&world.access, shown, answers)?;
    loop {
        match identification.step(NOW) {
            Step::Known(client) => return Ok(client),
            Step::Awaited => panic!("it has to say now"),
            Step::Refused(refused) => return Err(refused),
            Step::Verify(token) => {
                let tokens = world.access.tokens.as_ref().expect("it verifies tokens");
                let mut issue = || Ticket::new(drop);
                let (later, address) = (Later::new(&mut issue), || shown.address);
                let verdict = tokens.verify(&mut tokens.verifier(), token, address, NOW, later);
                identification.verified(verdict.now(), NOW);
            }
            Step::Ask(connect, question) => {
                let mut issue = || Ticket::new(drop);
                let answer = connect.who(question.newcomer(), Later::new(&mut issue));
                identification.told(answer.now(), NOW);
            }
        }
    }
}

fn message(refused: &Refused) -> String {
    match refused {
        Refused::Error(error) => error.message.to_string(),
        Refused::Limited(refusal) => refusal.to_string(),
    }
}

#[test]
fn each_case_of_the_table_has_its_error() {
    let table = table();
    for (server, cases) in &table.servers {
        let world = World::of(server);
        for (number, case) in cases.iter().enumerate() {
            for (nth, places) in case.places.iter().enumerate() {
                let name =
                    format!("{server}: {:?} in {places:?}, page {:?}", case.shows, case.page);
                // Each has an address of its own, so that the limits of others do not count.
                let address = format!("192.0.2.{}", 1 + number * 8 + nth);
                let request = world.request(&case.shows, places, case.page.as_deref());
                let mut shown = request.shown();
                shown.address = address.parse().ok();
                let outcomes: Vec<_> = (0..case.times.unwrap_or(1))
                    .map(|_| identify(&world, &shown, Answers::default()))
                    .collect();
                check(&table, case, &name, &outcomes);
            }
        }
    }
}

fn check(table: &Table, case: &Case, name: &str, outcomes: &[Result<Client, Refused>]) {
    let Some(code) = &case.error else {
        let refused = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
        return assert_eq!(refused, None, "{name}");
    };
    // Whether a client who shows nothing may do something is for the access policy to decide.
    if code == "unauthorized" && case.shows.is_empty() {
        return assert!(matches!(outcomes, [Ok(Client::Anonymous)]), "{name}: {outcomes:?}");
    }
    let refused = outcomes.last().and_then(|outcome| outcome.as_ref().err());
    let refused = refused.unwrap_or_else(|| panic!("{name} is accepted"));
    assert_eq!(refused.code().name(), code, "{name}");
    if let Some(says) = &case.says {
        assert_eq!(&message(refused), says, "{name}");
    }
    let expected = &table.errors[code];
    assert_eq!(refused.code().status(), expected.status, "{name}");
    assert_eq!(refused.code().subscription_close_code(), expected.close, "{name}");
}

/// True if a client that may sign in later is waited for, once the application has answered.
fn is_waited_for(world: &World, shown: &Asked<'_>) -> Result<bool, ErrorCode> {
    let found = Identification::new(&world.access, shown, Answers::default());
    let mut identification = found.map_err(|refused| refused.code())?;
    identification.let_come_later();
    loop {
        match identification.step(NOW) {
            Step::Awaited => return Ok(true),
            Step::Known(_) | Step::Verify(_) => return Ok(false),
            Step::Refused(refused) => return Err(refused.code()),
            Step::Ask(connect, question) => {
                let mut issue = || Ticket::new(drop);
                let answer = connect.who(question.newcomer(), Later::new(&mut issue));
                identification.told(answer.now(), NOW);
            }
        }
    }
}

#[test]
fn a_client_that_shows_nothing_may_be_waited_for() {
    for (server, shows, places, is_waited, questions) in [
        ("keys", [].as_slice(), "", Ok(true), 0),
        // A header may name a user: only the application can tell.
        ("application", &[], "", Ok(true), 0),
        ("application", &["session"], "session", Ok(false), 1),
        ("application", &["stranger"], "session", Ok(true), 1),
        ("application", &["good"], "header", Ok(false), 0),
        ("keys", &["good"], "header", Ok(false), 0),
        ("keys", &["long"], "query", Err(ErrorCode::InvalidToken), 0),
        ("keys", &["good"], "schemeless", Err(ErrorCode::InvalidToken), 0),
        ("certificates", &["certificate"], "certificate", Ok(false), 0),
        ("keys", &["certificate"], "certificate", Ok(true), 0),
        ("open", &[], "", Ok(false), 0),
    ] {
        let world = World::of(server);
        let shows: Vec<_> = shows.iter().map(|&name| name.to_owned()).collect();
        let request = world.request(&shows, places, None);
        let found = is_waited_for(&world, &request.shown());
        let name = format!("{server}: {shows:?} in {places:?}");
        assert_eq!((found, world.questions()), (is_waited, questions), "{name}");
    }
}

#[test]
fn strangers_beyond_their_rate_are_waited_for_and_not_asked_about() {
    let world = World::of("limited");
    let request = world.request(&["stranger".to_owned()], "session", None);
    let mut shown = request.shown();
    shown.address = "192.0.2.1".parse().ok();
    (0..20).for_each(|_| assert_eq!(is_waited_for(&world, &shown), Ok(true)));
    assert!(world.questions() < 20, "{} questions", world.questions());
}

#[test]
fn a_server_without_keys_looks_at_nothing() {
    let world = World::of("open");
    for (shows, places) in [("forged", "header"), ("key", "query"), ("malformed", "cookie")] {
        let request = world.request(&[shows.to_owned()], places, Some("other"));
        let client = identify(&world, &request.shown(), Answers::default());
        assert!(matches!(client, Ok(Client::Anonymous)), "{client:?}");
    }
}

#[test]
fn the_admin_listener_asks_no_application_and_charges_no_address() {
    let world = World::of("limited");
    let request = world.request(&["stranger".to_owned()], "session", None);
    let mut shown = request.shown();
    shown.listener = Listener::Admin;
    let client = identify(&world, &shown, Answers::default());
    assert!(matches!(client, Ok(Client::Anonymous)), "{client:?}");
    let request = world.request(&["locked out".to_owned()], "header", None);
    let mut shown = request.shown();
    shown.listener = Listener::Admin;
    let client = identify(&world, &shown, Answers::default()).expect("the token is valid");
    assert_eq!(client.credentials().user(), Some("ann"));
    assert_eq!(world.access.limited_address(&shown), Ok(None));
}

#[test]
fn a_client_is_admitted_once_and_before_the_application_is_asked() {
    let world = World::of("application");
    let request = world.request(&["good".to_owned()], "header", None);
    let shown = request.shown();
    let mut identification =
        Identification::new(&world.access, &shown, Answers::default()).expect("a credential");
    let Step::Verify(token) = identification.step(NOW) else { panic!("a token") };
    let identity = world.verify(token);
    identification.verified(Some(Ok(identity)), NOW);
    assert_eq!(shown.admitted.get(), 0);
    let Step::Ask(connect, question) = identification.step(NOW) else { panic!("a question") };
    assert_eq!(shown.admitted.get(), 1);
    assert_eq!(question.newcomer().token.map(|token| token.text), Some(&*world.token("good")));
    let mut issue = || Ticket::new(drop);
    let answer = connect.who(question.newcomer(), Later::new(&mut issue)).now();
    identification.told(answer, NOW);
    assert!(matches!(identification.step(NOW), Step::Known(Client::Token(_))));
    assert!(matches!(identification.step(NOW), Step::Known(Client::Token(_))));
    assert_eq!(shown.admitted.get(), 1);
}

#[test]
fn whoever_is_not_admitted_is_not_asked_about() {
    let world = World::of("application");
    let request = world.request(&["good".to_owned()], "header", None);
    let mut shown = request.shown();
    shown.is_full = true;
    let refused = identify(&world, &shown, Answers::default()).expect_err("its user is limited");
    assert!(matches!(refused, Refused::Limited(refusal) if refusal == world::FULL));
    assert_eq!(world.questions(), 0);
}

#[test]
fn only_a_denial_with_401_counts_as_a_bad_token() {
    let world = World::of("limited");
    let here = "192.0.2.1".parse().ok();
    let may_verify = || {
        world.access.clients.limiter.may_verify(here, NOW.steady_ms).map_err(|refusal| {
            assert_eq!(refusal.quantity, limit::Quantity::BadTokens);
        })
    };
    for code in [ErrorCode::Forbidden, ErrorCode::Busy] {
        (0..50).for_each(|_| world.access.charge_denial(here, &code.into(), NOW.steady_ms));
        assert_eq!(may_verify(), Ok(()), "{code}");
    }
    let error = ErrorCode::Unauthorized.into();
    (0..50).for_each(|_| world.access.charge_denial(here, &error, NOW.steady_ms));
    assert_eq!(may_verify(), Err(()));
}

#[test]
fn a_credential_that_is_refused_is_counted_by_its_reason() {
    for (server, shows, places, reason) in [
        ("keys", "forged", "header", "signature"),
        ("keys", "expired", "cookie", "expired"),
        ("keys", "key", "query", "server_key_place"),
        ("keys", "unknown key", "header", "unknown_server_key"),
        ("server keys", "good", "header", "no_token_keys"),
        ("late keys", "of a late key", "header", "keys_unavailable"),
    ] {
        let world = World::of(server);
        let request = world.request(&[shows.to_owned()], places, None);
        let shown = request.shown();
        assert!(identify(&world, &shown, Answers::default()).is_err(), "{reason}");
        let counted = world.access.refused_credentials.by_reason();
        let counted: Vec<_> = counted.filter(|&(_, count)| count > 0).collect();
        assert_eq!(counted, [(reason, 1)]);
    }
}

#[test]
fn a_question_without_an_answer_refuses_the_client_for_now() {
    let world = World::of("application");
    for (shows, places) in [("good", "header"), ("session", "session")] {
        let request = world.request(&[shows.to_owned()], places, None);
        let shown = request.shown();
        let mut identification =
            Identification::new(&world.access, &shown, Answers::default()).expect("a credential");
        if let Step::Verify(token) = identification.step(NOW) {
            let identity = world.verify(token);
            identification.verified(Some(Ok(identity)), NOW);
        }
        assert!(matches!(identification.step(NOW), Step::Ask(..)));
        identification.told(None, NOW);
        let Step::Refused(refused) = identification.step(NOW) else { panic!("no answer") };
        assert_eq!(refused.code(), ErrorCode::Busy);
    }
}

#[test]
fn a_certificate_names_the_user_of_a_token_without_one() {
    let world = World::of("certificates");
    let shows = ["certificate", "of nobody"].map(str::to_owned);
    let request = world.request(&shows, "certificate header", None);
    let client = identify(&world, &request.shown(), Answers::default()).expect("ann");
    assert_eq!(client.credentials().user(), Some("ann"));
}
