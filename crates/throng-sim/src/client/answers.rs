//! The answers of `throng.v1`, the notices, and refusals.

use serde_json::Value;

use super::message::{envelope, noun};
use super::plan::{Plan, Way};
use super::{Client, Command, Cursor, Greeting, View};
use crate::decode::http::Head;
use crate::model::{Begin, Model};
use crate::{Check, ensure};

impl Client {
    /// A JSON object of the server's own.
    pub(super) fn notice(&mut self, value: &Value, view: View<'_>) -> Check {
        if let Some(greeting) = self.greetings.pop_front() {
            return self.greeting(greeting, value, view);
        }
        if value["type"] == "gap" {
            return self.gap(value, view);
        }
        ensure!(self.plan.way == Way::V1, "unasked: {value}");
        let reference = value["ref"].as_u64().ok_or_else(|| format!("no ref: {value}"))?;
        let at = self.commands.iter().position(|(known, _)| *known == reference);
        let at = at.ok_or_else(|| format!("an answer to nothing: {value}"))?;
        let (_, command) = self.commands.remove(at);
        // Presence is found out by all workers; everything else is answered in order.
        let mut before = self.commands[..at].iter();
        let is_next = before.all(|(_, it)| matches!(it, Command::Presence(_)));
        ensure!(is_next, "answered out of order: {value}");
        self.answer(&command, value, view)
    }

    fn greeting(&mut self, greeting: Greeting, value: &Value, view: View<'_>) -> Check {
        let is_it = match greeting {
            Greeting::Resumed(recovered) => {
                value["type"] == "resumed" && value["recovered"] == recovered
            }
            Greeting::Welcome => {
                view.notes.saw("welcome");
                value["type"] == "welcome" && self.is_own_name(&value["connection"])
            }
            Greeting::WelcomeV1 => {
                let heartbeat_s = view.terms.heartbeat_ms / 1000;
                value["type"] == "welcome"
                    && self.is_own_name(&value["connection"])
                    && value["heartbeat"] == heartbeat_s
            }
            Greeting::Subscribed(begin) => is_subscribed(value, begin, view.model),
        };
        ensure!(is_it, "{value} instead of {greeting:?}");
        Ok(())
    }

    fn is_own_name(&self, value: &Value) -> bool {
        let name = value.as_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        name.is_some() && name == self.name
    }

    fn answer(&mut self, command: &Command, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let kind = value["type"].as_str().unwrap_or_default();
        match *command {
            Command::Ping => ensure!(kind == "pong", "a ping's answer: {value}"),
            Command::Refused(code) => {
                ensure!(kind == "error" && value["code"] == code, "{value} and not {code}");
                view.notes.saw("v1: refused");
            }
            Command::Subscribe(topic) => {
                let (begin, _) = self.known.begins.pop_front().ok_or("not subscribed")?;
                let is_it = begin.topic == topic && is_subscribed(value, begin, model);
                ensure!(is_it, "{value} instead of {begin:?}");
                if begin.is_recovered == Some(false) {
                    self.gaps += 1;
                }
                self.cursors.push(Cursor { topic, at: begin.cursor });
                view.notes.saw("v1: subscribed");
            }
            Command::Unsubscribe(topic) => {
                ensure!(kind == "unsubscribed" && is_named(value, topic, model), "{value}");
                self.cursors.retain(|cursor| cursor.topic != topic);
                view.notes.saw("v1: unsubscribed");
            }
            Command::Publish(topic) => {
                let known = self.known.published.pop_front().ok_or("not published")?;
                let Some((id, subscribers, is_duplicate)) = known else {
                    ensure!(kind == "error" && value["code"] == "busy", "{value} and not busy");
                    view.notes.saw("busy: command refused");
                    return Ok(());
                };
                let is_it = kind == "published"
                    && is_named(value, topic, model)
                    && value["id"] == *id
                    && value["subscribers"] == subscribers
                    && value["duplicate"].as_bool().unwrap_or_default() == is_duplicate;
                ensure!(is_it, "{value}, but it was {id}, {subscribers}, {is_duplicate}");
            }
            Command::History(topic) => return self.page(topic, value, view),
            Command::Presence(topic) => {
                ensure!(kind == "presence" && is_named(value, topic, model), "{value}");
                let is_whole = value["connections"].is_u64() && value["users"].is_array();
                ensure!(is_whole && value["more"] == false, "{value}");
                view.notes.saw("v1: presence");
            }
        }
        Ok(())
    }

    fn page(&mut self, topic: usize, value: &Value, view: View<'_>) -> Check {
        let is_it = value["type"] == "history" && is_named(value, topic, view.model);
        ensure!(is_it, "a page: {value}");
        let (offsets, has_more) = self.known.pages.pop_front().ok_or("no page was read")?;
        let envelopes = offsets.into_iter().filter_map(|offset| {
            let entry = view.model.entry(topic, offset)?;
            Some(envelope(view.model, topic, offset, entry))
        });
        let expected = Value::Array(envelopes.collect());
        ensure!(value["messages"] == expected, "{value} instead of {expected}");
        ensure!(value["more"] == has_more, "{value}, and more is {has_more}");
        view.notes.saw("v1: history");
        Ok(())
    }

    /// Messages are gone: only if the policy says so, and only if it may be that far behind.
    fn gap(&mut self, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let name = self.name;
        let cursor = self.cursors.iter_mut().find(|it| is_named(value, it.topic, model));
        let cursor = cursor.ok_or_else(|| format!("a gap elsewhere: {value}"))?;
        let topic = cursor.topic;
        ensure!(model.topics[topic].skips(), "a gap where the policy is to close: {value}");
        let to = model.offset(value["id"].as_str().unwrap_or_default())?;
        let missed = value["missed"].as_u64().unwrap_or_default();
        ensure!(missed > 0 && missed <= to, "{value}");
        let from = to - missed;
        let is_next = from >= cursor.at && model.is_only_excepted(topic, cursor.at, from, name);
        ensure!(is_next, "{value}, but the client stands at {}", cursor.at);
        let is_behind =
            model.may_be_behind(topic, to - 1, model.head(topic)) || view.may_be_dropped(topic, to);
        ensure!(is_behind, "{value}, but {} is within what one may be behind", cursor.at);
        cursor.at = to;
        self.gaps += 1;
        view.notes.saw("lag: skipped");
        Ok(())
    }

    /// A request was refused: rightly?
    pub(super) fn refusal(&mut self, head: &Head, plan: Option<&Plan>, view: View<'_>) -> Check {
        let expected = plan.and_then(Plan::refusal);
        let waited_ms = view.now.now_ms - self.opened_ms;
        let was_turned_away = self.pipe.borrow().was_turned_away;
        let may = match head.status {
            400 => expected.is_some(),
            408 => waited_ms >= view.terms.head_ms,
            503 => {
                ensure!(head.header("retry-after").is_some(), "503 without Retry-After");
                let has_no_room =
                    view.terms.is_scarce || view.has_stopped_accepting || was_turned_away;
                self.is_overload =
                    !has_no_room && view.may_be_much(self.pipe.borrow().read_bytes());
                has_no_room || self.is_overload
            }
            _ => false,
        };
        ensure!(may, "refused with {head:?}");
        if let Some(plan) = plan.filter(|_| head.status == 503) {
            self.judge_refused_poll(plan, view)?;
        }
        ensure!(head.header("connection") == Some("close"), "refused and kept: {head:?}");
        let is_page = plan.is_none() && self.is_prompt && head.status == 503;
        let is_first = self.messages == 0 && self.position.is_empty();
        ensure!(!is_page || !is_first || was_turned_away, "a page is refused: {head:?}");
        match head.status {
            400 => view.notes.saw("refused: bad request"),
            408 => view.notes.saw("refused: slow head"),
            _ if view.has_stopped_accepting => view.notes.saw("refused: draining"),
            _ if self.is_overload => view.notes.saw("overload: refused"),
            _ => view.notes.saw("refused: full"),
        }
        self.refused = true;
        self.asked.clear();
        Ok(())
    }
}

fn is_named(value: &Value, topic: usize, model: &Model) -> bool {
    let named = &model.topics[topic];
    value[noun(named.kind)] == named.name
}

fn is_subscribed(value: &Value, begin: Begin, model: &Model) -> bool {
    value["type"] == "subscribed"
        && is_named(value, begin.topic, model)
        && value["id"] == model.id(begin.cursor)
        && value.get("recovered").and_then(Value::as_bool) == begin.is_recovered
}
