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

/// Makes a change on a server without a data directory.
fn change_in<T>(
    kept: &KeptSubscriptions,
    user: &str,
    change: &KeptChange,
    announce: impl FnOnce(Vec<ChannelName>) -> T,
) -> Result<(KeptChanged, T), KeptError> {
    let plan = kept.plan(user, change, 0)?;
    Ok(kept.make(user, change, plan, announce))
}

fn changed(kept: &KeptSubscriptions, user: &str, change: &KeptChange) -> (usize, usize, usize) {
    let (changed, _) = change_in(kept, user, change, drop).expect("it is within the limits");
    (changed.added, changed.removed, changed.channels)
}

#[test]
fn a_change_announces_what_it_is_about() {
    let kept = KeptSubscriptions::default();
    let announced = |change: &KeptChange| {
        let (_, names) = change_in(&kept, "ann", change, |names| names).expect("it is allowed");
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
    let refused = |user, change: &KeptChange| change_in(&kept, user, change, drop).unwrap_err();
    assert_eq!(refused("ann", &add(&["a", "b", "c"])), KeptError::TooManyOfUser(3, 2));
    assert!(kept.is_empty());
    assert_eq!(changed(&kept, "ann", &add(&["a", "b"])), (2, 0, 2));
    assert_eq!(refused("ann", &add(&["c"])), KeptError::TooManyOfUser(3, 2));
    assert_eq!(refused("bob", &add(&["c", "d"])), KeptError::TooManyInAll(4, 3));
    assert_eq!(kept.check_all([("bob", &add(&["c"]))]), []);
    let two = [("eve", &add(&["c"])), ("bob", &add(&["c"]))];
    assert_eq!(kept.check_all(two), [(1, KeptError::TooManyInAll(4, 3))]);
    let swap = KeptChange::Update { add: strings(&["c"]), remove: strings(&["a"]) };
    assert_eq!(changed(&kept, "ann", &swap), (1, 1, 2));
}

#[test]
fn changes_of_one_user_add_up() {
    let kept = KeptSubscriptions::new(KeptLimits { max_per_user: 2, max_in_all: 9 });
    let too_many = KeptError::TooManyOfUser(3, 2);
    let each = ["a", "b", "c"].map(|name| add(&[name]));
    assert_eq!(kept.check_all(each.iter().map(|change| ("ann", change))), [(2, too_many)]);
    let none = KeptChange::Replace(Vec::new());
    let between = [&each[0], &each[1], &none, &each[2]].map(|change| ("ann", change));
    assert_eq!(kept.check_all(between), []);
    let twice = [&each[0], &each[0], &each[1]].map(|change| ("ann", change));
    assert_eq!(kept.check_all(twice), []);
}

#[test]
fn a_page_shows_and_counts_only_what_it_may() {
    let kept = KeptSubscriptions::default();
    changed(&kept, "ann", &add(&["a/1", "b/1", "a/2", "b/2", "a/3"]));
    let shown = |name: &str| name.starts_with("a/");
    let names = all(|after| kept.shown_channels_page("ann", after, 2, shown));
    assert_eq!(names, strings(&["a/1", "a/2", "a/3"]));
    let last = kept.shown_channels_page("ann", None, 3, shown);
    assert_eq!(last.next, None, "the others are not shown on a further page");
}

proptest! {
    #[test]
    fn changes_are_checked_as_they_would_be_made(
        before in prop::collection::vec((0u8..2, prop::collection::vec(0u8..6, 0..6)), 0..3),
        steps in prop::collection::vec(
            (
                0u8..2,
                0u8..4,
                prop::collection::vec(0u8..6, 0..5),
                prop::collection::vec(0u8..6, 0..3),
            ),
            0..8,
        ),
    ) {
        let kept = KeptSubscriptions::new(KeptLimits { max_per_user: 3, max_in_all: 5 });
        let names = |numbers: Vec<u8>| -> Vec<String> {
            numbers.into_iter().map(|n| format!("channel-{n}")).collect()
        };
        let user = |n: u8| if n == 0 { "ann" } else { "bob" };
        for (n, channels) in before {
            let _ = change_in(&kept, user(n), &KeptChange::Replace(names(channels)), drop);
        }
        let changes: Vec<_> = steps
            .into_iter()
            .map(|(n, kind, first, second)| {
                let (first, second) = (names(first), names(second));
                let change = match kind {
                    0 => KeptChange::Replace(first),
                    _ => KeptChange::Update { add: first, remove: second },
                };
                (user(n), change)
            })
            .collect();
        let checked = kept.check_all(changes.iter().map(|(user, change)| (*user, change)));
        let made = changes.iter().enumerate().filter_map(|(index, (user, change))| {
            Some((index, change_in(&kept, user, change, drop).err()?))
        });
        prop_assert_eq!(checked, made.collect::<Vec<_>>());
    }

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
