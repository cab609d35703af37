//! Revocations in pages, for operators.

use std::collections::BinaryHeap;

use super::{Revocation, Revocations, Subject};

/// Some of the revocations that hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RevocationPage {
    /// In the order of [`Subject`].
    pub revocations: Vec<Revocation>,
    pub has_more: bool,
}

impl Revocations {
    /// The first `limit` revocations behind `after`, or of all. Looks at every revocation, and
    /// keeps only the page.
    pub fn page(&self, after: Option<&Subject>, limit: usize) -> RevocationPage {
        // The largest is on top, and gives way to smaller ones.
        let mut smallest: BinaryHeap<(Subject, u32)> = BinaryHeap::new();
        let mut has_more = false;
        let mut consider = |subject: Subject, moment_s: u32| {
            if after.is_some_and(|after| subject <= *after) {
                return;
            }
            smallest.push((subject, moment_s));
            if smallest.len() > limit {
                smallest.pop();
                has_more = true;
            }
        };
        let set = self.read();
        for (&id, &at_s) in &set.tokens {
            consider(Subject::Token(id), at_s);
        }
        for (user, &before_s) in &set.users {
            consider(Subject::User(user.clone()), before_s);
        }
        drop(set);
        let sorted = smallest.into_sorted_vec().into_iter();
        let revocations =
            sorted.map(|(subject, moment_s)| Revocation::of(subject, moment_s)).collect();
        RevocationPage { revocations, has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenId;
    use proptest::prelude::*;

    proptest! {
        /// Pages of any size, one after the other, are all revocations in order.
        #[test]
        fn pages_lead_through_all(
            tokens in prop::collection::btree_set(any::<u8>(), 0..20),
            users in prop::collection::btree_set("[a-e]{1,2}", 0..20),
            limit in 1..8_usize,
        ) {
            let revocations = Revocations::default();
            let tokens = tokens.iter().map(|id| Subject::Token(TokenId::of(&id.to_string())));
            let users = users.iter().map(|user| Subject::User(user.as_str().into()));
            let mut expected: Vec<_> = tokens.chain(users).collect();
            for subject in &expected {
                revocations.add(&Revocation::of(subject.clone(), 7));
            }
            expected.sort();
            let mut found = Vec::new();
            loop {
                let page = revocations.page(found.last(), limit);
                prop_assert!(page.revocations.len() <= limit);
                found.extend(page.revocations.iter().map(Revocation::subject));
                if !page.has_more {
                    break;
                }
                prop_assert_eq!(page.revocations.len(), limit);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
