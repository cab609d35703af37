//! Requests about many users: messages to their inboxes, what is in these, kept channels.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use throng_flood::Graph;
use ureq::Agent;

use crate::context::Abort;

/// Lines of a batch.
const BATCH: usize = 1_000;

/// Batches under way at a time.
const BATCHES: usize = 4;

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The message in an inbox.
const BODY: &str = "a message of one hundred bytes, as an application may send it to one of its \
                    users: {\"n\":12345678901}";

const _: () = assert!(BODY.len() == 100);

fn agent() -> Agent {
    Agent::config_builder().proxy(None).timeout_global(Some(TIMEOUT)).build().into()
}

/// The channels that a user follows: those of friends, each of which has its number as a name, in
/// the graph of clients that follow so many.
pub(super) fn friends(users: usize, user: usize, count: u32) -> Vec<String> {
    /// That of floods.
    const SEED: u64 = 1;
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let friends = Graph::new(number(users), count, SEED).friends(number(user));
    friends.into_iter().map(|friend| friend.to_string()).collect()
}

/// Publishes a message to the inbox of each of these users.
pub(super) fn fill(url: &str, users: Range<usize>) -> Result<(), Abort> {
    let line = |user: usize| json!({"user": format!("user-{user}"), "data": BODY}).to_string();
    send(users, &line, |agent, batch, lines| {
        let answer = agent.post(format!("{url}/publish")).send(batch)?;
        let answer = answer.into_body().read_to_string()?;
        let published = answer.matches("\"id\":").count();
        Ok(if published == lines { None } else { Some(answer) })
    })
}

/// Has the server keep channels for each of these users.
pub(super) fn keep(
    url: &str,
    users: Range<usize>,
    channels_of: impl Fn(usize) -> Vec<String> + Sync,
) -> Result<(), Abort> {
    let line = |user: usize| {
        json!({"user": format!("user-{user}"), "channels": channels_of(user)}).to_string()
    };
    send(users, &line, |agent, batch, lines| {
        let answer = agent.post(format!("{url}/subscriptions")).send(batch)?;
        let answer = answer.into_body().read_to_string()?;
        let right = serde_json::from_str::<Value>(&answer).ok();
        let right = right.and_then(|answer| answer["lines"].as_u64());
        Ok(if right == Some(lines as u64) { None } else { Some(answer) })
    })
}

/// Sends a line for each user, in batches, some at a time. `post` returns the answer if it is not
/// what it should be.
fn send(
    users: Range<usize>,
    line: &(impl Fn(usize) -> String + Sync),
    post: impl Fn(&Agent, String, usize) -> Result<Option<String>, ureq::Error> + Sync,
) -> Result<(), Abort> {
    let Range { start, end } = users;
    let one = |nth: usize| -> Result<(), String> {
        let agent = agent();
        for from in (start + nth * BATCH..end).step_by(BATCHES * BATCH) {
            let to = end.min(from + BATCH);
            let batch: String = (from..to).flat_map(|user| [line(user), "\n".into()]).collect();
            match post(&agent, batch, to - from) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let short: String = answer.chars().take(300).collect();
                    return Err(format!("a batch was refused: {short}"));
                }
                Err(error) => return Err(format!("a batch has failed: {error}")),
            }
        }
        Ok(())
    };
    let sent: Result<(), String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..BATCHES).map(|nth| scope.spawn(move || one(nth))).collect();
        let panicked = |_| Err("a thread has panicked".to_owned());
        // The scope waits for all of them, also after an error.
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    });
    sent.map_err(Abort::Failed)
}

/// Reads the newest message of inboxes; fails unless each has one.
pub(super) fn read(url: &str, users: impl Iterator<Item = usize>) -> Result<(), Abort> {
    let agent = agent();
    for user in users {
        let page = agent.get(format!("{url}/users/user-{user}/history?limit=1")).call();
        let page = page.and_then(|mut page| page.body_mut().read_to_string());
        let page = page.map_err(|error| Abort::Failed(format!("history: {error}")))?;
        let has_message = serde_json::from_str::<Value>(&page)
            .is_ok_and(|page| page["messages"].as_array().is_some_and(|all| all.len() == 1));
        if !has_message {
            return Err(Abort::Failed(format!("the message of user-{user} is missing: {page}")));
        }
    }
    Ok(())
}

/// Fails unless the server keeps this many channels for a user.
pub(super) fn check_kept(url: &str, user: usize, count: u32) -> Result<(), Abort> {
    let answer = agent().get(format!("{url}/users/user-{user}/subscriptions?limit=1")).call();
    let answer = answer.and_then(|mut answer| answer.body_mut().read_to_string());
    let answer = answer.map_err(|error| Abort::Failed(format!("kept channels: {error}")))?;
    let kept = serde_json::from_str::<Value>(&answer).ok();
    if kept.and_then(|kept| kept["count"].as_u64()) == Some(u64::from(count)) {
        return Ok(());
    }
    Err(Abort::Failed(format!("user-{user} does not follow {count} channels: {answer}")))
}
