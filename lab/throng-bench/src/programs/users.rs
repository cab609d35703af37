//! Requests about many users: messages to their inboxes, what is in these, kept channels.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use throng_flood::Graph;

use crate::context::Abort;
use crate::http::Http;

/// Lines of a batch.
const BATCH: usize = 1_000;

/// Batches under way at a time.
const BATCHES: usize = 4;

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long the server may take to read what all users follow.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

const READ_LOOK: Duration = Duration::from_millis(50);

/// The message in an inbox.
const BODY: &str = "a message of one hundred bytes, as an application may send it to one of its \
                    users: {\"n\":12345678901}";

const _: () = assert!(BODY.len() == 100);

/// Publishes a message to the inbox of each of these users.
pub(crate) fn fill(url: &str, users: Range<usize>) -> Result<(), Abort> {
    let line = |user| json!({"user": format!("user-{user}"), "data": BODY}).to_string();
    post(&format!("{url}/publish"), users, line, |answer, lines| {
        answer.matches("\"id\":").count() == lines
    })
}

/// Has the server keep the channels of `count` friends for each user, in the graph of clients that
/// follow as many. A friend's number is the name of the channel.
pub(crate) fn keep(url: &str, users: usize, count: u32) -> Result<(), Abort> {
    /// The seed of floods.
    const SEED: u64 = 1;
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let graph = Graph::new(number(users), count, SEED);
    let line = |user| {
        let friends = graph.friends(number(user)).into_iter();
        let channels: Vec<_> = friends.map(|friend| friend.to_string()).collect();
        json!({"user": format!("user-{user}"), "channels": channels}).to_string()
    };
    post(&format!("{url}/subscriptions"), 0..users, line, |answer, lines| {
        number_in(answer, "lines") == Some(lines as u64)
    })
}

/// Posts a line for each of these numbers, in batches, some at a time. `is_right` checks the answer
/// to so many lines.
pub(super) fn post(
    url: &str,
    numbers: Range<usize>,
    line: impl Fn(usize) -> String + Sync,
    is_right: impl Fn(&str, usize) -> bool + Sync,
) -> Result<(), Abort> {
    let Range { start, end } = numbers;
    let (line, is_right) = (&line, &is_right);
    let one = |nth: usize| -> Result<(), String> {
        let http = Http::new(TIMEOUT);
        for from in (start + nth * BATCH..end).step_by(BATCHES * BATCH) {
            let to = end.min(from + BATCH);
            let batch: String = (from..to).flat_map(|number| [line(number), "\n".into()]).collect();
            let answer = http.post(url, batch.as_bytes(), None);
            let answer = answer.map_err(|error| format!("a batch has failed: {error}"))?;
            if !is_right(&answer, to - from) {
                let short: String = answer.chars().take(300).collect();
                return Err(format!("a batch was refused: {short}"));
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
    Ok(sent?)
}

/// Waits until the server has read what all users follow.
pub(super) fn wait_until_all_kept_are_read(url: &str) -> Result<(), Abort> {
    let (http, deadline) = (Http::new(TIMEOUT), Instant::now() + READ_TIMEOUT);
    while Instant::now() < deadline {
        let page = http.get(&format!("{url}/channels/0/followers?limit=1"));
        let page = page.map_err(|error| format!("followers: {error}"))?;
        if !page.contains("\"partial\":true") {
            return Ok(());
        }
        thread::sleep(READ_LOOK);
    }
    Err(Abort::Failed("the server has not read what all users follow".to_owned()))
}

fn number_in(json: &str, key: &str) -> Option<u64> {
    serde_json::from_str::<Value>(json).ok()?[key].as_u64()
}

/// Reads the newest message of inboxes; fails unless each has one.
pub(super) fn read(url: &str, users: impl Iterator<Item = usize>) -> Result<(), Abort> {
    let http = Http::new(TIMEOUT);
    for user in users {
        let page = http.get(&format!("{url}/users/user-{user}/history?limit=1"));
        let page = page.map_err(|error| format!("history: {error}"))?;
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
    let page = format!("{url}/users/user-{user}/subscriptions?limit=1");
    let answer = Http::new(TIMEOUT).get(&page).map_err(|error| format!("kept: {error}"))?;
    if number_in(&answer, "count") == Some(u64::from(count)) {
        return Ok(());
    }
    Err(Abort::Failed(format!("user-{user} does not follow {count} channels: {answer}")))
}
