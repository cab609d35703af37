//! Answers of `throng.v1`, notices, and error responses.

use serde_json::Value;
use throng_core::{Kind, MemoryStep};

use super::Client;
use super::expected::{Command, Greeting, PublishAnswer};
use super::message::{envelope, noun};
use super::plan::{Plan, Transport};
use super::view::{View, is_out_of_reach};
use crate::decode::http::Head;
use crate::model::{Begin, Model};
use crate::{Check, ensure};

/// The beginning of the message about an answer that did not come in time.
const UNANSWERED: &str = "an answer that this needs";

/// The text of errors for want of memory.
const SHORT_OF_MEMORY: &str = "short of memory";

impl Client {
    /// A JSON object that is not a message: a greeting, a gap, or an answer to a command.
    pub(super) fn notice(&mut self, value: &Value, view: View<'_>) -> Check {
        if let Some(greeting) = self.greetings.pop_front() {
            return self.greeting(greeting, value, view);
        }
        if value["type"] == "presence" && value.get("event").is_some() {
            return self.told_of_member(value, view);
        }
        if let Some(at) = self.changing_of(value, view.model) {
            match value["type"].as_str() {
                Some("gap") => return self.lagged(at, value, view),
                Some("conflated") => return self.passed_over(at, value, view),
                Some("state") => return self.state(at, value, view),
                Some("ended") => return self.over(at, value, view),
                _ => {}
            }
        }
        if value["type"] == "gap" {
            return self.gap(value, view);
        }
        if value["type"] == "conflated" {
            return self.conflated(value, view);
        }
        if value["type"] == "expired" {
            self.has_expired = true;
            return Ok(());
        }
        ensure!(self.plan.transport == Transport::V1, "unexpected: {value}");
        let reference = value["ref"].as_u64().ok_or_else(|| format!("no ref: {value}"))?;
        let at = self.commands.iter().position(|(known, _)| *known == reference);
        let at = at.ok_or_else(|| format!("no command has the ref of {value}"))?;
        let (_, command) = self.commands.remove(at);
        ensure!(at == 0, "answered out of order: {value}");
        self.answer(&command, value, view)
    }

    fn greeting(&mut self, greeting: Greeting, value: &Value, view: View<'_>) -> Check {
        let is_expected = match greeting {
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
            Greeting::Subscribed(begin) => {
                self.learn_number(begin.topic, value)?;
                is_subscribed(value, begin, view.model)
            }
            Greeting::Numbers => {
                view.notes.saw("compact: numbers");
                return self.learn_numbers(value, view);
            }
        };
        ensure!(is_expected, "{value} instead of {greeting:?}");
        Ok(())
    }

    /// Learns the number of a channel from the confirmation of a subscription.
    fn learn_number(&mut self, topic: usize, value: &Value) -> Check {
        let number = value.get("number").and_then(Value::as_u64);
        ensure!(number.is_some() == self.plan.compact.is_some(), "the number of {value}");
        self.numbers.extend(number.map(|number| (topic, number)));
        Ok(())
    }

    /// Learns the numbers of all channels from a notice.
    fn learn_numbers(&mut self, value: &Value, view: View<'_>) -> Check {
        ensure!(value["type"] == "numbers", "{value} instead of numbers");
        let lists = [(Kind::Channel, "channels"), (Kind::User, "users")];
        for (kind, field) in lists {
            let topics = self.plan.targets.iter().filter(|&&it| view.model.topics[it].kind == kind);
            let topics: Vec<_> = topics.copied().collect();
            let told = value.get(field).and_then(Value::as_array);
            let told = told.map_or(&[][..], |told| &told[..]);
            ensure!(told.len() == topics.len(), "{value} for {topics:?}");
            for (&topic, told) in topics.iter().zip(told) {
                let id = view.model.id(topic, 0);
                let epoch = id.split('-').next();
                let is_it = told[0] == view.model.topics[topic].name && told[2].as_str() == epoch;
                ensure!(is_it, "{told} for {topic}");
                let number = told[1].as_u64().ok_or("no number")?;
                self.numbers.insert(topic, number);
            }
        }
        Ok(())
    }

    fn is_own_name(&self, value: &Value) -> bool {
        let name = value.as_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        name.is_some() && name == self.name
    }

    fn answer(&mut self, command: &Command, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let kind = value["type"].as_str().unwrap_or_default();
        let message = value["message"].as_str().unwrap_or_default();
        if kind == "error" && message.starts_with(UNANSWERED) {
            let may_be_late = view.may_be_late() || matches!(command, Command::Presence(_));
            ensure!(may_be_late && value["code"] == "busy", "not answered in time: {value}");
            return self.unanswered(command, view);
        }
        if kind == "error" && message.contains(SHORT_OF_MEMORY) {
            let refusing = match command {
                Command::Subscribe(..) | Command::Enter { .. } => MemoryStep::RefuseSubscriptions,
                Command::History(_) => MemoryStep::RefuseReads,
                Command::Refused(_) => MemoryStep::RefuseReads,
                _ => return Err(format!("{command:?} is refused for want of memory")),
            };
            ensure!(view.may_be_short(refusing) && value["code"] == "busy", "{value}");
            if let Some(topic) = command.followed() {
                self.will_follow.retain(|&other| other != topic);
            }
            view.notes.saw("memory: command refused");
            return Ok(());
        }
        if kind == "error" && value["code"] == "not_created" {
            let topic = command.followed().ok_or_else(|| format!("{command:?}: {value}"))?;
            ensure!(view.may_be_missing(topic, self.opened_ms), "{value}, but it is there");
            self.will_follow.retain(|&other| other != topic);
            view.notes.saw("made: command refused before");
            return Ok(());
        }
        match *command {
            Command::Ping => ensure!(kind == "pong", "the answer to a ping: {value}"),
            Command::Refused(code) => {
                ensure!(kind == "error" && value["code"] == code, "{value} instead of {code}");
                let is_denied = code == "forbidden";
                view.notes.saw(if is_denied { "decision: command denied" } else { "v1: refused" });
            }
            Command::Subscribe(topic, wants_state) => {
                ensure!(kind == "subscribed", "{value}");
                self.subscribed(topic, wants_state, value, view)?;
                view.notes.saw("v1: subscribed");
            }
            Command::SubscribeMany(ref entries) => {
                return self.subscribed_many(entries, value, view);
            }
            Command::UnsubscribeMany(ref entries) => {
                return self.unsubscribed_many(entries, value, view);
            }
            Command::Enter { channel, watches, shown } => {
                self.entered((channel, watches, shown), value, view)?;
            }
            Command::Update(channel, number) => self.updated((channel, number), value, view)?,
            Command::Unsubscribe(topic) if kind == "error" => {
                self.left_ended(topic, value, view)?
            }
            Command::Unsubscribe(topic) => {
                ensure!(kind == "unsubscribed" && is_named(value, topic, model), "{value}");
                self.leaves(topic, model);
                view.notes.saw("v1: unsubscribed");
            }
            Command::Publish(topic) => return self.published(topic, value, view),
            Command::History(topic) => return self.page(topic, value, view),
            Command::Presence(topic) => {
                ensure!(kind == "presence" && is_named(value, topic, model), "{value}");
                let is_complete = value["connections"].is_u64() && value["users"].is_array();
                ensure!(is_complete && value["more"] == false, "{value}");
                self.check_present(topic, value, view)?;
                view.notes.saw("v1: presence");
            }
        }
        Ok(())
    }

    /// It follows one more channel, as this part of an answer says.
    pub(super) fn subscribed(
        &mut self,
        topic: usize,
        wants_state: bool,
        value: &Value,
        view: View<'_>,
    ) -> Check {
        let (begin, _) = self.engine.begins.pop_front().ok_or("not subscribed")?;
        let is_expected = begin.topic == topic && is_begun(value, begin, view.model);
        ensure!(is_expected, "{value} instead of {begin:?}");
        self.learn_number(topic, value)?;
        if begin.is_recovered == Some(false) {
            self.gaps += 1;
        }
        self.begin(&begin, wants_state, view)?;
        self.enters(topic, None, view.model);
        Ok(())
    }

    fn subscribed_many(
        &mut self,
        entries: &[(usize, Option<&'static str>)],
        value: &Value,
        view: View<'_>,
    ) -> Check {
        let answers = value["channels"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_whole = value["type"] == "subscribed" && answers.len() == entries.len();
        ensure!(is_whole, "{value} instead of {entries:?}");
        for (&(topic, refused), answer) in entries.iter().zip(answers) {
            let error = &answer["error"];
            let message = error["message"].as_str().unwrap_or_default();
            let is_late = message.starts_with(UNANSWERED) && view.may_be_late();
            let is_short = message.contains(SHORT_OF_MEMORY)
                && view.may_be_short(MemoryStep::RefuseSubscriptions);
            if is_late || is_short {
                ensure!(error["code"] == "busy", "{answer}");
                view.notes.saw("many: entry refused for now");
                if refused.is_none() {
                    self.will_follow.retain(|&other| other != topic);
                }
            } else if let Some(code) = refused {
                ensure!(error["code"] == code, "{answer} instead of {code}");
                view.notes.saw("many: entry refused");
            } else {
                self.subscribed(topic, false, answer, view)?;
                view.notes.saw("many: subscribed");
            }
        }
        Ok(())
    }

    fn unsubscribed_many(
        &mut self,
        entries: &[(usize, bool)],
        value: &Value,
        view: View<'_>,
    ) -> Check {
        let answers = value["channels"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_whole = value["type"] == "unsubscribed" && answers.len() == entries.len();
        ensure!(is_whole, "{value} instead of {entries:?}");
        for (&(topic, was_followed), answer) in entries.iter().zip(answers) {
            if !was_followed {
                ensure!(answer["error"]["code"] == "not_subscribed", "{answer}");
                continue;
            }
            let named = &view.model.topics[topic];
            let is_it = answer == named.name || is_named(answer, topic, view.model);
            ensure!(is_it && answer.get("error").is_none(), "{answer} instead of {}", named.name);
            self.leaves(topic, view.model);
            view.notes.saw("many: unsubscribed");
        }
        Ok(())
    }

    fn published(&mut self, topic: usize, value: &Value, view: View<'_>) -> Check {
        let answer = self.engine.published.pop_front().ok_or("not published")?;
        let PublishAnswer::Accepted { id, subscribers, is_duplicate } = answer else {
            let is_busy = value["type"] == "error" && value["code"] == "busy";
            ensure!(is_busy, "{value} instead of busy");
            view.notes.saw("busy: command refused");
            return Ok(());
        };
        let is_expected = value["type"] == "published"
            && is_named(value, topic, view.model)
            && value["id"] == *id
            && value["subscribers"] == subscribers
            && value["duplicate"].as_bool().unwrap_or_default() == is_duplicate;
        ensure!(is_expected, "{value} instead of {id}, {subscribers}, {is_duplicate}");
        Ok(())
    }

    /// An answer that a command needs did not come in time.
    fn unanswered(&mut self, command: &Command, view: View<'_>) -> Check {
        view.notes.saw("wait: command refused");
        match *command {
            Command::Subscribe(topic, _) | Command::Enter { channel: topic, .. } => {
                self.will_follow.retain(|&other| other != topic);
            }
            Command::Publish(_) => match self.engine.published.front() {
                Some(PublishAnswer::Undecided) => drop(self.engine.published.pop_front()),
                _ => drop(self.publications.pop_front().ok_or("it was published")?),
            },
            Command::History(_) | Command::Presence(_) | Command::Update(..) => {}
            // Whether it is allowed is asked first.
            Command::Refused(code) if code != "not_subscribed" => {}
            _ => return Err(format!("{command:?} needs no answer from elsewhere")),
        }
        Ok(())
    }

    fn page(&mut self, topic: usize, value: &Value, view: View<'_>) -> Check {
        let is_page = value["type"] == "history" && is_named(value, topic, view.model);
        ensure!(is_page, "a page: {value}");
        let (offsets, has_more) = self.engine.pages.pop_front().ok_or("no page was read")?;
        let envelopes = offsets.into_iter().filter_map(|offset| {
            let entry = view.model.entry(topic, offset)?;
            Some(envelope(view.model, topic, entry))
        });
        let expected = Value::Array(envelopes.collect());
        ensure!(value["messages"] == expected, "{value} instead of {expected}");
        ensure!(value["more"] == has_more, "{value}, but more is {has_more}");
        view.notes.saw("v1: history");
        Ok(())
    }

    /// The server skipped messages: only a channel whose lag policy is to skip may report a gap,
    /// and only to a subscription beyond its lag limit.
    fn gap(&mut self, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let reader = view.reader(self.name);
        let cursor = self.cursors.iter_mut().find(|cursor| is_named(value, cursor.topic, model));
        let cursor = cursor.ok_or_else(|| format!("a gap of a channel not followed: {value}"))?;
        let topic = cursor.topic;
        ensure!(model.topics[topic].skips(), "a gap where the lag policy is to close: {value}");
        let to = model.offset(topic, value["id"].as_str().unwrap_or_default())?;
        let is_far = is_out_of_reach(cursor.offset, model.head(topic));
        if model.are_consecutive(topic) {
            let missed = value["missed"].as_u64().unwrap_or_default();
            ensure!(missed > 0 && missed <= to, "{value}");
            let from = to - missed;
            let is_next =
                from >= cursor.offset && model.passes_over(topic, cursor.offset, from, reader);
            ensure!(is_next, "{value}, but the cursor is {}", cursor.offset);
        } else {
            view.notes.saw("offsets skip: gap");
            ensure!(value.get("missed").is_none(), "{value}, but offsets skip");
            if is_far {
                view.notes.saw("offsets skip: gap, out of reach");
            }
            // One that is out of reach goes on before a message, wherever its predecessor is.
            let is_message = is_far || model.entry(topic, to).is_some();
            ensure!(to > cursor.offset && is_message, "{value}, the cursor is {}", cursor.offset);
        }
        let exceeds_lag = model.exceeds_lag(topic, model.previous(topic, to), model.head(topic))
            || view.may_be_dropped(topic, to)
            || is_far;
        ensure!(exceeds_lag, "{value}, but {} is within the lag limit", cursor.offset);
        cursor.offset = to;
        self.gaps += 1;
        view.notes.saw("lag: skipped");
        Ok(())
    }

    /// The client has skipped messages for a newer one, as only channels with that policy have it.
    fn conflated(&mut self, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let numbers = &self.numbers;
        let is_meant = |topic| match value["number"].as_u64() {
            Some(number) => numbers.get(&topic) == Some(&number),
            None => is_named(value, topic, model),
        };
        let cursor = self.cursors.iter_mut().find(|cursor| is_meant(cursor.topic));
        let cursor = cursor.ok_or_else(|| format!("a channel not followed: {value}"))?;
        ensure!(model.topics[cursor.topic].is_latest(), "not a channel that conflates: {value}");
        let count = value["count"].as_u64();
        ensure!(count.is_none_or(|count| count > 0), "nothing skipped: {value}");
        let is_counted = count.is_some() || !model.are_consecutive(cursor.topic);
        ensure!(is_counted, "not counted: {value}");
        view.notes.saw(match count {
            Some(_) => "latest: skipped",
            None => "latest: skipped, in an unknown number",
        });
        cursor.skipped.add(count);
        Ok(())
    }

    /// Checks that the server may answer with this error. `plan` is the refused request, if it was
    /// one that subscribes.
    pub(super) fn refusal(&mut self, head: &Head, plan: Option<&Plan>, view: View<'_>) -> Check {
        let expected = plan.and_then(Plan::refusal);
        let waited_ms = view.now.now_ms - self.opened_ms;
        let handoff_failed = self.pipe.borrow().handoff_failed;
        let is_full = view.terms.is_scarce
            || view.has_stopped_accepting
            || handoff_failed
            || (view.may_be_late() && plan.is_some());
        let is_told = !is_full && plan.is_some() && view.may_be_told();
        let may_be_short = view.may_be_short(MemoryStep::RefuseSubscriptions);
        let is_for_memory = !is_full && plan.is_some() && may_be_short;
        let may_refuse = match head.status {
            400 => expected.is_some(),
            403 => plan.is_some_and(|plan| plan.targets.iter().any(|&topic| view.is_secret(topic))),
            404 => self.may_lack_channels(plan, view),
            408 => waited_ms >= view.terms.head_ms,
            503 => {
                ensure!(head.header("retry-after").is_some(), "503 without Retry-After");
                let may_refuse = is_full || is_for_memory || is_told;
                let bytes = self.pipe.borrow().read_bytes();
                self.is_evicted = !may_refuse && self.may_evict(bytes, view);
                may_refuse || self.is_evicted
            }
            _ => false,
        };
        ensure!(may_refuse, "refused with {head:?}");
        if let Some(plan) = plan.filter(|_| head.status == 503) {
            self.check_refused_poll(plan, view)?;
        }
        ensure!(head.header("connection") == Some("close"), "refused and kept: {head:?}");
        let is_page = plan.is_none() && self.is_prompt && head.status == 503;
        let is_first = self.messages == 0 && self.position.is_empty();
        ensure!(!is_page || !is_first || handoff_failed, "a page is refused: {head:?}");
        match head.status {
            400 => view.notes.saw("refused: bad request"),
            403 => view.notes.saw("decision: request denied"),
            404 => view.notes.saw("made: request refused before"),
            408 => view.notes.saw("refused: slow head"),
            _ if view.has_stopped_accepting => view.notes.saw("refused: draining"),
            _ if self.is_evicted => view.notes.saw("overload: refused"),
            _ if is_told && !is_for_memory => view.notes.saw("storm: request told"),
            _ if is_for_memory => view.notes.saw("memory: request refused"),
            _ => view.notes.saw("refused: full"),
        }
        self.is_refused = true;
        self.requests.clear();
        Ok(())
    }
}

impl Client {
    /// True if a channel that it asks for may not have been there, and has to be created.
    pub(super) fn may_lack_channels(&self, plan: Option<&Plan>, view: View<'_>) -> bool {
        let is_missing = |&topic: &usize| view.may_be_missing(topic, self.opened_ms);
        plan.is_some_and(|plan| plan.targets.iter().any(is_missing))
    }
}

fn is_named(value: &Value, topic: usize, model: &Model) -> bool {
    let named = &model.topics[topic];
    value[noun(named.kind)] == named.name
}

fn is_subscribed(value: &Value, begin: Begin, model: &Model) -> bool {
    value["type"] == "subscribed" && is_begun(value, begin, model)
}

/// True if an answer, or a part of one, says that a subscription has begun like this.
fn is_begun(value: &Value, begin: Begin, model: &Model) -> bool {
    is_named(value, begin.topic, model)
        && value["id"] == model.id(begin.topic, begin.cursor)
        && value.get("recovered").and_then(Value::as_bool) == begin.is_recovered
}
