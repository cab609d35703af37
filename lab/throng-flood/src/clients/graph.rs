//! Who follows whom: a graph with a power-law number of followers, computed instead of stored.
//!
//! Each user follows the same number of others, drawn so that the user of popularity rank `r` is
//! chosen with a density of `r^(-2/3)`. The number of users with `d` followers then falls with
//! `d^(-5/2)`; measured follower graphs have exponents of 2 to 3. The most popular of `n` users
//! has about `edges * n^(2/3)` followers, and never more than `n - 1`.

use crate::random::{random, unit};

/// A graph of users, who are numbered from 0, like clients and streams.
#[derive(Debug, Clone, Copy)]
pub struct Graph {
    users: u32,
    /// How many others each user follows.
    edges: u32,
    seed: u64,
    /// Coprime to `users`. A user's number is the popularity rank times this, modulo `users`, so
    /// that popular users are spread over threads, ports and publishing connections.
    spread: u64,
}

impl Graph {
    /// The graph of a seed. A user follows at most all others.
    pub fn new(users: u32, edges: u32, seed: u64) -> Graph {
        let edges = edges.min(users.saturating_sub(1));
        Graph { users, edges, seed, spread: coprime_step(users) }
    }

    /// The users that a user follows: distinct, without itself, ascending.
    pub fn friends(&self, user: u32) -> Vec<u32> {
        let mut friends = Vec::with_capacity(self.edges as usize);
        for edge in 0..self.edges {
            let mut rank = self.draw(user, edge);
            loop {
                let friend = self.user_of(rank);
                match friends.binary_search(&friend) {
                    Err(at) if friend != user => {
                        friends.insert(at, friend);
                        break;
                    }
                    // The next free rank. There is one, because `edges < users`.
                    _ => rank = (rank + 1) % self.users,
                }
            }
        }
        friends
    }

    /// A random popularity rank. The cube makes the density `r^(-2/3)`.
    fn draw(&self, user: u32, edge: u32) -> u32 {
        let uniform = unit(random(self.seed, u64::from(user) << 32 | u64::from(edge)));
        ((uniform.powi(3) * f64::from(self.users)) as u32).min(self.users - 1)
    }

    fn user_of(&self, rank: u32) -> u32 {
        // Below `users`, which is a `u32`.
        (u64::from(rank) * self.spread % u64::from(self.users)) as u32
    }
}

/// A step near the golden section of `users` that visits all of them before it repeats.
fn coprime_step(users: u32) -> u64 {
    let users = u64::from(users.max(1));
    let golden = (users as f64 * 0.618_034) as u64;
    (golden.max(1)..).find(|&step| gcd(step, users) == 1).unwrap_or(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followers(graph: &Graph) -> Vec<u32> {
        let mut followers = vec![0; graph.users as usize];
        for user in 0..graph.users {
            for friend in graph.friends(user) {
                followers[friend as usize] += 1;
            }
        }
        followers
    }

    #[test]
    fn users_follow_distinct_others() {
        for users in [1, 2, 3, 10, 97, 1000] {
            let graph = Graph::new(users, 20, 7);
            for user in 0..users {
                let friends = graph.friends(user);
                assert_eq!(friends.len(), graph.edges as usize, "{users} users");
                assert!(friends.is_sorted_by(|a, b| a < b), "{friends:?}");
                assert!(friends.iter().all(|&friend| friend < users && friend != user));
            }
        }
    }

    #[test]
    fn no_users_have_no_friends() {
        assert_eq!(Graph::new(0, 5, 1).edges, 0);
    }

    #[test]
    fn the_seed_makes_the_graph() {
        let graph = |seed| Graph::new(500, 8, seed).friends(3);
        assert_eq!(graph(1), graph(1));
        assert_ne!(graph(1), graph(2));
    }

    #[test]
    fn the_number_of_followers_is_a_power_law() {
        let users = 20_000;
        let mut followers = followers(&Graph::new(users, 10, 42));
        followers.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(followers.iter().sum::<u32>(), users * 10);
        // Rank r has c * r^(-2/3) followers: 8 times the rank is a quarter of them.
        let around = |rank: usize| {
            let ranks = &followers[rank - rank / 10..rank + rank / 10];
            f64::from(ranks.iter().sum::<u32>())
        };
        let ratio = (around(200) / 40.0) / (around(1600) / 320.0);
        assert!((3.0..5.3).contains(&ratio), "{ratio}");
        let expected = 10.0 * f64::from(users).powf(2.0 / 3.0);
        let most = f64::from(followers[0]);
        assert!((0.5 * expected..2.0 * expected).contains(&most), "{most} of {expected}");
    }

    #[test]
    fn ranks_are_a_permutation() {
        for users in [1, 2, 6, 30, 1024] {
            let graph = Graph::new(users, 1, 0);
            let mut deliveries: Vec<u32> = (0..users).map(|rank| graph.user_of(rank)).collect();
            deliveries.sort_unstable();
            assert!(deliveries.into_iter().eq(0..users));
        }
    }
}
