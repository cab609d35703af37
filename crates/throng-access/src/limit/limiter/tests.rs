use super::*;

const NOW_MS: u64 = 1_800_000_000_000;

fn limiter(address: ClientLimits, user: ClientLimits) -> Limiter {
    Limiter::new(LimitSettings { address, user, ..LimitSettings::default() })
}

fn at(text: &str) -> Option<IpAddr> {
    Some(text.parse().expect("an address"))
}

fn refused<T>(result: Result<T, Refusal>) -> Option<(Subject, Quantity)> {
    result.err().map(|refusal| (refusal.subject, refusal.quantity))
}

#[test]
fn without_limits_nothing_is_kept() {
    let limiter = Limiter::default();
    let client = limiter
        .address(at("192.0.2.1"))
        .and(limiter.user(Some(7)))
        .and(limiter.server_key(Some(8)));
    assert!(client.is_empty() && limiter.shards.is_empty());
    limiter.connect(client, NOW_MS).unwrap();
    limiter.publish(client, 1000, 1 << 30, NOW_MS).unwrap();
    limiter.charge_bad_token(at("192.0.2.1"), NOW_MS);
    limiter.may_verify(at("192.0.2.1"), NOW_MS).unwrap();
    limiter.disconnect(client);
}

#[test]
fn connections_are_limited_until_they_end() {
    let two = ClientLimits { connections: 2, ..ClientLimits::default() };
    let limiter = limiter(two, ClientLimits::default());
    let client = limiter.address(at("2001:db8::1"));
    let neighbour = limiter.address(at("2001:db8::ffff"));
    let other = limiter.address(at("2001:db8:0:1::1"));
    limiter.connect(client, NOW_MS).unwrap();
    limiter.connect(neighbour, NOW_MS).unwrap();
    let expected = Some((Subject::Address, Quantity::Connections));
    assert_eq!(refused(limiter.connect(client, NOW_MS)), expected);
    limiter.connect(other, NOW_MS).unwrap();
    assert_eq!((limiter.held(client, Quantity::Connections), limiter.holders()), (2, 2));
    limiter.disconnect(neighbour);
    limiter.connect(client, NOW_MS).unwrap();
    limiter.resume_connection(client);
    assert_eq!(limiter.held(client, Quantity::Connections), 3, "one from before always counts");
    (0..3).for_each(|_| limiter.disconnect(client));
    limiter.disconnect(other);
    assert_eq!(limiter.holders(), 0);
    assert_eq!(limiter.refused(Subject::Address, Quantity::Connections), 1);
}

#[test]
fn what_is_admitted_counts_once_it_is_held() {
    let limits = ClientLimits { connections: 1, connects_per_s: 2, ..ClientLimits::default() };
    let limiter = limiter(ClientLimits::default(), limits);
    let ann = limiter.user(Some(7));
    limiter.admit_connection(ann, true, NOW_MS).unwrap();
    limiter.admit_connection(ann, true, NOW_MS).unwrap();
    let often = Some((Subject::User, Quantity::Connects));
    assert_eq!(refused(limiter.admit_connection(ann, true, NOW_MS)), often);
    limiter.admit_connection(ann, false, NOW_MS).unwrap();
    limiter.hold_connection(ann).unwrap();
    let many = Some((Subject::User, Quantity::Connections));
    assert_eq!(refused(limiter.hold_connection(ann)), many);
    for is_new in [false, true] {
        assert_eq!(refused(limiter.admit_connection(ann, is_new, NOW_MS + 1000)), many);
    }
    limiter.disconnect(ann);
    limiter.admit_connection(ann, true, NOW_MS + 1000).unwrap();
    limiter.admit_connection(ann, true, NOW_MS + 1000).unwrap();
    assert_eq!(limiter.holders(), 0);
}

#[test]
fn a_client_that_is_refused_is_charged_nothing() {
    let limits = ClientLimits { connections: 1, connects_per_s: 2, ..ClientLimits::default() };
    let limiter = limiter(limits, ClientLimits::default());
    let client = limiter.address(at("192.0.2.1"));
    limiter.connect(client, NOW_MS).unwrap();
    for _ in 0..5 {
        limiter.connect(client, NOW_MS).unwrap_err();
    }
    limiter.disconnect(client);
    limiter.connect(client, NOW_MS).unwrap();
    limiter.disconnect(client);
    let refusal = limiter.connect(client, NOW_MS).unwrap_err();
    assert_eq!((refusal.quantity, refusal.after_ms), (Quantity::Connects, Some(500)));
    limiter.connect(client, NOW_MS + 500).unwrap();
}

#[test]
fn what_one_part_refuses_is_given_back_to_the_others() {
    let address = ClientLimits { subscriptions: 5, ..ClientLimits::default() };
    let user = ClientLimits { subscriptions: 3, ..ClientLimits::default() };
    let limiter = limiter(address, user);
    let (here, ann) = (limiter.address(at("192.0.2.1")), limiter.user(Some(7)));
    let both = here.and(ann);
    limiter.subscribe(both, 2).unwrap();
    let expected = Some((Subject::User, Quantity::Subscriptions));
    assert_eq!(refused(limiter.subscribe(both, 2)), expected);
    assert_eq!(limiter.held(here, Quantity::Subscriptions), 2);
    limiter.subscribe(here, 3).unwrap();
    let expected = Some((Subject::Address, Quantity::Subscriptions));
    assert_eq!(refused(limiter.subscribe(both, 1)), expected);
    limiter.unsubscribe(both, 2);
    limiter.unsubscribe(here, 3);
    assert_eq!(limiter.holders(), 0);
}

#[test]
fn messages_and_their_bytes_are_limited() {
    let limits = ClientLimits {
        publishes_per_s: 10,
        published_bytes_per_s: 1000,
        ..ClientLimits::default()
    };
    let limiter = limiter(ClientLimits::default(), limits);
    let ann = limiter.user(Some(7));
    limiter.publish(ann, 4, 900, NOW_MS).unwrap();
    let expected = Some((Subject::User, Quantity::PublishedBytes));
    assert_eq!(refused(limiter.publish(ann, 1, 200, NOW_MS)), expected);
    limiter.publish(ann, 6, 100, NOW_MS).unwrap();
    let expected = Some((Subject::User, Quantity::Publishes));
    assert_eq!(refused(limiter.publish(ann, 1, 1, NOW_MS)), expected);
    limiter.publish(limiter.user(Some(8)), 1, 1, NOW_MS).unwrap();
    limiter.publish(ann, 1, 1, NOW_MS + 100).unwrap();
}

#[test]
fn bad_tokens_count_and_good_ones_do_not() {
    let limiter = Limiter::new(LimitSettings { bad_tokens_per_s: 10, ..LimitSettings::default() });
    let here = at("192.0.2.1");
    for _ in 0..100 {
        limiter.may_verify(here, NOW_MS).unwrap();
    }
    for _ in 0..10 {
        limiter.may_verify(here, NOW_MS).unwrap();
        limiter.charge_bad_token(here, NOW_MS);
    }
    let refusal = limiter.may_verify(here, NOW_MS).unwrap_err();
    assert_eq!((refusal.quantity, refusal.after_ms), (Quantity::BadTokens, Some(100)));
    limiter.may_verify(at("192.0.2.2"), NOW_MS).unwrap();
    limiter.may_verify(None, NOW_MS).unwrap();
    limiter.may_verify(here, NOW_MS + 100).unwrap();
}
