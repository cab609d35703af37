//! `POST /subscriptions`: changes of many users, one JSON object per line.

use std::sync::Arc;

use http::request::Parts;
use hyper::body::Incoming;
use serde_json::{Value, json};
use throng_access::{KeptChange, KeptChanged, KeptSubscriptions, ServerKey};
use throng_core::{ChannelName, Kind};
use throng_wire::{ErrorCode, ErrorResponse, check_name};

use super::body::KeptBody;
use crate::control::Control;
use crate::http::answer::{Answer, ApiError};
use crate::http::{body, large_answer, query};
use crate::kept_changes::{Announced, ChangeOrder, RefusedChange, When, check_user};

/// Maximum number of lines of a request.
const LINES_MAX: usize = 10_000;

/// A turn ends before this many channels are named or ended, after its first line, so that it takes
/// far less time than a request waits for the store.
const CHANGED_PER_TURN: usize = 10_000;

/// Makes the changes of the lines that are right. With `atomic=true`, nothing changes unless all
/// lines are right; with `check=true`, nothing changes at all.
pub(super) async fn import(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    key: Option<Arc<ServerKey>>,
) -> Result<Answer, ApiError> {
    let query = query::of(head, &["atomic", "check"])?;
    let flag = |name| Ok::<_, ApiError>(query::flag(query, name)?.unwrap_or(false));
    let (is_atomic, is_check) = (flag("atomic")?, flag("check")?);
    let kind = body::BodyKind::Batch;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    let (orders, mut bad) = parse(&bytes, key.as_deref())?;
    let mut totals = BulkTotals::default();
    let mut announced = Announced::default();
    if is_check || is_atomic {
        let are_right = bad.is_empty();
        let when = if is_check || !are_right { When::Never } else { When::AllPossible };
        let made = control.kept_changes.make(key, orders, when).await?;
        totals.add(&made.changed);
        announced.extend(made.announced);
        bad.extend(made.refused);
    } else {
        let first = orders.first().map_or(0, |order| order.line);
        let mut left = orders.into_iter();
        while let Some(from) = left.as_slice().first().map(|order| order.line) {
            let lines_max = control.kept_changes.lines_per_turn();
            let users = left.as_slice().iter().take(lines_max).map(|order| &*order.user);
            let read = control.kept_changes.read_users(users).await;
            read.map_err(|error| if from == first { error } else { at_line(error, from) })?;
            let turn = turn(&control.kept, left.as_slice(), lines_max);
            let orders = left.by_ref().take(turn).collect();
            let made = control.kept_changes.make(key.clone(), orders, When::Possible).await;
            let is_first = from == first;
            let made = made.map_err(|error| if is_first { error } else { at_line(error, from) })?;
            totals.add(&made.changed);
            announced.extend(made.announced);
            bad.extend(made.refused);
        }
    }
    announced.wait().await?;
    bad.sort_by_key(|bad| bad.line);
    answer(control, &totals, &bad)
}

/// How many of these changes, of which there is one, are made before others get their turn, and a
/// client that has gone ends its request.
fn turn(kept: &KeptSubscriptions, orders: &[ChangeOrder], lines_max: usize) -> usize {
    let mut changed = 0;
    let is_of_turn = |order: &&ChangeOrder| {
        let is_of_turn = changed == 0 || changed + most(kept, order) <= CHANGED_PER_TURN;
        changed += most(kept, order);
        is_of_turn
    };
    orders.iter().take(lines_max).take_while(is_of_turn).count()
}

/// How many channels a change adds and removes at most.
fn most(kept: &KeptSubscriptions, ChangeOrder { user, change, .. }: &ChangeOrder) -> usize {
    match change {
        KeptChange::Replace(channels) => channels.len() + kept.channels_of(user),
        KeptChange::Update { add, remove } => add.len() + remove.len(),
    }
}

/// The error of changes that begin with a line, but not the first one.
fn at_line(error: ErrorResponse, line: usize) -> ErrorResponse {
    let message =
        format!("{}; the lines of this request before line {line} are applied", error.message);
    ErrorResponse { message: message.into(), ..error }
}

/// The changes of all lines together.
#[derive(Debug, Default)]
struct BulkTotals {
    lines: usize,
    added: usize,
    removed: usize,
}

impl BulkTotals {
    fn add(&mut self, all: &[KeptChanged]) {
        self.lines += all.len();
        self.added += all.iter().map(|changed| changed.added).sum::<usize>();
        self.removed += all.iter().map(|changed| changed.removed).sum::<usize>();
    }
}

fn answer(
    control: &Control,
    totals: &BulkTotals,
    bad: &[RefusedChange],
) -> Result<Answer, ApiError> {
    for RefusedChange { error, .. } in bad {
        control.refusals.record(error.code);
    }
    let errors: Vec<Value> = bad
        .iter()
        .map(|RefusedChange { line, error }| {
            json!({ "line": line, "error": error.code.name(), "message": error.message })
        })
        .collect();
    let BulkTotals { lines, added, removed } = totals;
    let body = json!({ "lines": lines, "added": added, "removed": removed, "errors": errors });
    large_answer::json(&control.publish_answers, body.to_string())
}

/// The changes of the lines, and what is wrong with the others.
fn parse(
    bytes: &[u8],
    key: Option<&ServerKey>,
) -> Result<(Vec<ChangeOrder>, Vec<RefusedChange>), ApiError> {
    let (mut orders, mut bad) = (Vec::new(), Vec::new());
    for (index, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        if orders.len() + bad.len() == LINES_MAX {
            let message = format!("there are more than {LINES_MAX} lines; nothing was changed");
            return Err(ApiError::new(ErrorCode::TooLarge, message));
        }
        // Counted from 1, with empty lines.
        let line = index + 1;
        match parse_line(bytes, key) {
            Ok((user, change)) => orders.push(ChangeOrder { line, user, change }),
            Err(error) => bad.push(RefusedChange { line, error }),
        }
    }
    Ok((orders, bad))
}

fn parse_line(
    bytes: &[u8],
    key: Option<&ServerKey>,
) -> Result<(String, KeptChange), ErrorResponse> {
    let mut body = KeptBody::parse(bytes)?;
    let Some(user) = body.user.take() else {
        return Err(ErrorResponse::new(ErrorCode::BadJson, "the line has no `user`"));
    };
    check_name(&user, Kind::User.noun())?;
    check_user(key, &ChannelName::user(&user))?;
    Ok((user, body.change(key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(user: &str, change: KeptChange) -> ChangeOrder {
        ChangeOrder { line: 1, user: user.into(), change }
    }

    fn add(names: usize) -> KeptChange {
        KeptChange::Update { add: (0..names).map(|n| n.to_string()).collect(), remove: vec![] }
    }

    #[test]
    fn a_turn_has_few_lines_and_few_changes() {
        let kept = KeptSubscriptions::default();
        let turn_of = |sizes: &[usize]| {
            let orders: Vec<_> = sizes.iter().map(|&names| order("ann", add(names))).collect();
            turn(&kept, &orders, 64)
        };
        assert_eq!(turn_of(&[1; 1000]), 64);
        assert_eq!(turn_of(&[1; 10]), 10);
        assert_eq!(turn_of(&[2 * CHANGED_PER_TURN, 1]), 1, "each turn has a line");
        assert_eq!(turn_of(&[CHANGED_PER_TURN / 2, CHANGED_PER_TURN / 2, 1]), 2);
    }

    #[test]
    fn channels_that_a_line_ends_count() {
        let kept = KeptSubscriptions::default();
        let users = ["ann", "bob", "cy"];
        for user in users {
            let change = add(CHANGED_PER_TURN / 2);
            let plan = kept.plan(user, &change, 0).expect("it is within the limits");
            kept.make(user, &change, plan, drop);
        }
        let ends = users.map(|user| order(user, KeptChange::Replace(Vec::new())));
        assert_eq!(turn(&kept, &ends, 64), 2);
    }
}
