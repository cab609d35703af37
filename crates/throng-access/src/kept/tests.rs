use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn add(channels: &[&str]) -> KeptChange {
    KeptChange::Update { add: strings(channels), remove: Vec::new() }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn all(page: impl Fn(Option<u32>) -> KeptPage) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let KeptPage { names: part, next, count } = page(after);
        names.extend(part.into_iter().map(String::from));
        if next.is_none() {
            assert_eq!(count, names.len());
            names.sort_unstable();
            return names;
        }
        after = next;
    }
}

fn changed(kept: &KeptSubscriptions, user: &str, change: &KeptChange) -> (usize, usize, usize) {
    let (changed, _) = kept.change(user, change, drop).expect("it is within the limits");
    (changed.added, changed.removed, changed.channels)
}

#[test]
fn a_change_announces_what_it_is_about() {
    let kept = KeptSubscriptions::default();
    let announced = |change: &KeptChange| {
        let (_, names) = kept.change("ann", change, |names| names).expect("it is allowed");
        names.iter().map(|name| name.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(announced(&add(&["a", "b", "a"])), strings(&["a", "b"]));
    assert_eq!(announced(&add(&["a"])), strings(&["a"]), "others may not have heard of it yet");
    let replaced = KeptChange::Replace(strings(&["b", "c"]));
    assert_eq!(announced(&replaced), strings(&["a", "b", "c"]));
    let both = KeptChange::Update { add: strings(&["b"]), remove: strings(&["b", "c"]) };
    assert_eq!(announced(&both), strings(&["b", "c"]), "what is added is not removed");
    assert!(kept.has("ann", "b") && !kept.has("ann", "c") && !kept.has("bob", "b"));
    assert_eq!(kept.channels_of("ann"), 1);
    assert_eq!(announced(&KeptChange::Replace(Vec::new())), strings(&["b"]));
    assert!(kept.is_empty());
    assert_eq!(kept.counts(), KeptCounts { users: 0, channels: 0, subscriptions: 0 });
}

#[test]
fn limits_refuse_a_change_as_a_whole() {
    let kept = KeptSubscriptions::new(KeptLimits { max_per_user: 2, max_in_all: 3 });
    let refused = |user, change: &KeptChange| kept.change(user, change, drop).unwrap_err();
    assert_eq!(refused("ann", &add(&["a", "b", "c"])), KeptError::TooManyOfUser(3, 2));
    assert!(kept.is_empty());
    assert_eq!(changed(&kept, "ann", &add(&["a", "b"])), (2, 0, 2));
    assert_eq!(refused("ann", &add(&["c"])), KeptError::TooManyOfUser(3, 2));
    assert_eq!(refused("bob", &add(&["c", "d"])), KeptError::TooManyInAll(4, 3));
    assert_eq!(kept.check("bob", &add(&["c"]), 0), Ok(1));
    assert_eq!(kept.check("bob", &add(&["c"]), 1), Err(KeptError::TooManyInAll(4, 3)));
    let swap = KeptChange::Update { add: strings(&["c"]), remove: strings(&["a"]) };
    assert_eq!(changed(&kept, "ann", &swap), (1, 1, 2));
}

proptest! {
    #[test]
    fn users_and_channels_agree_with_a_model(
        steps in prop::collection::vec(
            (0u8..6, 0u8..3, prop::collection::vec(0u8..12, 0..6)), 1..40,
        ),
    ) {
        let kept = KeptSubscriptions::default();
        let mut model: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (user, kind, channels) in steps {
            let user = format!("user-{user}");
            let channels: Vec<_> = channels.iter().map(|n| format!("channel-{n}")).collect();
            let of_user = model.entry(user.clone()).or_default();
            let before = of_user.clone();
            let change = match kind {
                0 => {
                    *of_user = channels.iter().cloned().collect();
                    KeptChange::Replace(channels)
                }
                1 => {
                    of_user.extend(channels.iter().cloned());
                    KeptChange::Update { add: channels, remove: Vec::new() }
                }
                _ => {
                    of_user.retain(|name| !channels.contains(name));
                    KeptChange::Update { add: Vec::new(), remove: channels }
                }
            };
            let expected = (
                of_user.difference(&before).count(),
                before.difference(of_user).count(),
                of_user.len(),
            );
            prop_assert_eq!(changed(&kept, &user, &change), expected);
            for (user, channels) in &model {
                let page = |after| kept.channels_page(user, after, 2);
                prop_assert_eq!(all(page), channels.iter().cloned().collect::<Vec<_>>());
            }
            for n in 0..12 {
                let name = format!("channel-{n}");
                let followers = model.iter().filter(|(_, channels)| channels.contains(&name));
                let followers: Vec<_> = followers.map(|(user, _)| user.clone()).collect();
                prop_assert_eq!(all(|after| kept.followers_page(&name, after, 2)), followers);
            }
            let counts = kept.counts();
            prop_assert_eq!(counts.subscriptions, model.values().map(BTreeSet::len).sum::<usize>());
            prop_assert_eq!(counts.users, model.values().filter(|all| !all.is_empty()).count());
        }
    }
}
