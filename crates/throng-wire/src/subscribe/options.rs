//! The options of a subscription: what a client chooses for its connection, beside what it follows
//! and from where on.
//!
//! This is the one place for them. To add one, add its variant and its row; the rest of its name,
//! bounds, sentences and way follows: it is read from the query, refused if it is malformed or
//! given twice, suggested for a misspelt name, and passed on with the request. If the connection
//! needs it as long as it stands, the row says so: then the worker keeps it beside the connection,
//! and a process that takes over goes on with it. What is left is the code that honours it, its
//! line in the reference, and its entry in `openapi.json`, which the tests demand.

use crate::error::ErrorResponse;
use crate::percent::decode_query;

/// An option of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionOption {
    /// `true` to have each message as an envelope, `compact` to have short ones.
    Envelope,
    /// `true` to have a welcome, `false` to have none; overrides the setting.
    Welcome,
    /// Given to have messages of a WebSocket uncompressed, whatever the client offers.
    NoCompression,
    /// The longest silence on the connection, in seconds; overrides the setting.
    Heartbeat,
    /// `true` to have the time of publication in compact envelopes.
    Time,
    /// The least time between two deliveries of each channel that the request names, in
    /// milliseconds; the rule's may be longer.
    Pace,
}

/// The value of [`ConnectionOption::Envelope`] for compact envelopes.
pub(super) const COMPACT: u32 = 2;

/// The least value of [`ConnectionOption::Heartbeat`]: what all connections may cost at most.
const HEARTBEAT_S_MIN: u32 = 10;

/// The largest one: after longer silence proxies and routers have forgotten a connection.
const HEARTBEAT_S_MAX: u32 = 3600;

/// The least pace of a subscription: shorter ones cost more than they join.
pub const PACE_MS_MIN: u32 = 10;

/// The largest one: what comes within it waits in memory.
pub const PACE_MS_MAX: u32 = 60_000;

/// The values of an option, each of which is a number once it is read.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// `true` or `false`, as 1 and 0.
    Flag,
    /// `true` or `false`, as 1 and 0, or this word, as 2.
    FlagOr(&'static str),
    /// Only this word, as 0.
    Word(&'static str),
    /// Whole seconds, with or without their unit.
    Seconds { least: u32, most: u32 },
    /// Whole milliseconds, with or without their unit.
    Milliseconds { least: u32, most: u32 },
}

/// All that is known of an option.
struct Row {
    option: ConnectionOption,
    /// The query parameter.
    name: &'static str,
    values: Values,
    /// True if a connection keeps it as long as it streams. Its place in the table names it in
    /// frozen state, and never changes.
    is_kept: bool,
}

const ROWS: [Row; 6] = {
    use ConnectionOption::*;
    let heartbeat = Values::Seconds { least: HEARTBEAT_S_MIN, most: HEARTBEAT_S_MAX };
    let pace = Values::Milliseconds { least: PACE_MS_MIN, most: PACE_MS_MAX };
    [
        row(Envelope, "envelope", Values::FlagOr("compact"), false),
        row(Welcome, "welcome", Values::Flag, false),
        row(NoCompression, "compression", Values::Word("none"), false),
        row(Heartbeat, "heartbeat", heartbeat, true),
        row(Time, "time", Values::Flag, false),
        row(Pace, "pace", pace, false),
    ]
};

const fn row(option: ConnectionOption, name: &'static str, values: Values, is_kept: bool) -> Row {
    Row { option, name, values, is_kept }
}

/// The query parameters of all options.
pub(super) const NAMES: [&str; ROWS.len()] = {
    let (mut names, mut at) = ([""; ROWS.len()], 0);
    while at < ROWS.len() {
        assert!(ROWS[at].option as usize == at, "the row of an option is at its number");
        names[at] = ROWS[at].name;
        at += 1;
    }
    names
};

/// The options that a client has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options([Option<u32>; ROWS.len()]);

impl Options {
    /// The value of an option, if the client has given it.
    pub fn get(&self, option: ConnectionOption) -> Option<u32> {
        self.0[option as usize]
    }

    /// The value of an option that is `true` or `false`, if the client has given it.
    pub fn flag(&self, option: ConnectionOption) -> Option<bool> {
        self.get(option).map(|value| value != 0)
    }

    /// These with another value of one.
    #[must_use]
    pub(super) fn with(mut self, option: ConnectionOption, value: u32) -> Options {
        self.0[option as usize] = Some(value);
        self
    }

    /// Reads a query parameter, whose value is percent-encoded. Returns false if it is no option.
    pub(super) fn read(&mut self, name: &str, value: &str) -> Result<bool, ErrorResponse> {
        let Some(row) = ROWS.iter().find(|row| row.name == name) else { return Ok(false) };
        let read = decode_query(value).and_then(|value| row.values.read(&value));
        let read = read.ok_or_else(|| {
            let must = row.values.demand();
            ErrorResponse::bad_parameter(format!("the parameter `{name}` {must}"))
        })?;
        match self.0[row.option as usize].replace(read) {
            None => Ok(true),
            // The client could not know which of two values counts.
            Some(_) => {
                Err(ErrorResponse::bad_parameter(format!("the parameter `{name}` is given twice")))
            }
        }
    }

    /// The options that the connection keeps as long as it streams.
    #[must_use]
    pub fn kept(&self) -> Options {
        let mut kept = *self;
        for row in ROWS.iter().filter(|row| !row.is_kept) {
            kept.0[row.option as usize] = None;
        }
        kept
    }

    /// True if the client has given none.
    pub fn are_none(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The number and the value of each, for frozen state.
    pub fn numbered(&self) -> impl Iterator<Item = (u8, u32)> {
        (0..).zip(self.0).filter_map(|(number, value)| Some((number, value?)))
    }

    /// Options that were kept by another process. `None` if there are no such ones.
    pub fn from_numbered(numbered: impl Iterator<Item = (u8, u32)>) -> Option<Options> {
        let mut options = Options::default();
        for (number, value) in numbered {
            let row = ROWS.get(usize::from(number)).filter(|row| row.is_kept)?;
            options.0[row.option as usize] = Some(value).filter(|_| row.values.have(value));
            options.0[row.option as usize]?;
        }
        Some(options)
    }
}

impl Values {
    /// The number that stands for a value; `None` for what is none.
    fn read(self, text: &str) -> Option<u32> {
        match (self, text) {
            (Values::Flag | Values::FlagOr(_), "true" | "1") => Some(1),
            (Values::Flag | Values::FlagOr(_), "false" | "0") => Some(0),
            (Values::FlagOr(word), text) if text == word => Some(2),
            (Values::Word(word), text) if text == word => Some(0),
            (Values::Seconds { .. }, text) => self.number(text, "s"),
            (Values::Milliseconds { .. }, text) => self.number(text, "ms"),
            _ => None,
        }
    }

    /// The number of a text with or without its unit; `None` if it is none, or out of range.
    fn number(self, text: &str, unit: &str) -> Option<u32> {
        let digits = text.strip_suffix(unit).unwrap_or(text);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number)?;
        self.have(number).then_some(number)
    }

    /// True if a value has this number.
    fn have(self, number: u32) -> bool {
        match self {
            Values::Flag => number <= 1,
            Values::FlagOr(_) => number <= 2,
            Values::Word(_) => number == 0,
            Values::Seconds { least, most } | Values::Milliseconds { least, most } => {
                (least..=most).contains(&number)
            }
        }
    }

    /// The end of the sentence that refuses anything else.
    fn demand(self) -> String {
        match self {
            Values::Flag => "must be `true` or `false`".to_owned(),
            Values::FlagOr(word) => format!("must be `true`, `false` or `{word}`"),
            Values::Word(word) => format!("can only be `{word}`"),
            Values::Seconds { least, most } => {
                format!("must be a whole number of seconds, {least} to {most}, such as `60s`")
            }
            Values::Milliseconds { least, most } => {
                format!(
                    "must be a whole number of milliseconds, {least} to {most}, such as `250ms`"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_read_once_and_by_its_name() {
        let mut options = Options::default();
        assert!(options.are_none());
        assert_eq!(options.read("envelope", "tr%75e"), Ok(true));
        assert_eq!(options.read("envelop", "true"), Ok(false));
        assert_eq!(options.flag(ConnectionOption::Envelope), Some(true));
        let mut compact = Options::default();
        assert_eq!(compact.read("envelope", "compact"), Ok(true));
        assert_eq!(compact.get(ConnectionOption::Envelope), Some(COMPACT));
        let bad = Options::default().read("envelope", "short").expect_err("no such word");
        assert_eq!(bad.message, "the parameter `envelope` must be `true`, `false` or `compact`");
        assert_eq!(options.flag(ConnectionOption::Welcome), None);
        let twice = options.read("envelope", "true").expect_err("it is there already");
        assert_eq!(twice.message, "the parameter `envelope` is given twice");
        let bad = options.read("compression", "gzip").expect_err("no such word");
        assert_eq!(bad.message, "the parameter `compression` can only be `none`");
    }

    #[test]
    fn a_heartbeat_is_a_bounded_number_of_seconds() {
        let read = |value| {
            let mut options = Options::default();
            options.read("heartbeat", value).map(|_| options.get(ConnectionOption::Heartbeat))
        };
        for (value, seconds) in [("60s", 60), ("60", 60), ("10s", 10), ("3600", 3600)] {
            assert_eq!(read(value), Ok(Some(seconds)));
        }
        for value in ["", "s", "9", "9s", "3601", "1m", "60.5", "-60", "+60", "60ss", "4294967356"]
        {
            let error = read(value).expect_err(value);
            let sentence = "the parameter `heartbeat` must be a whole number of seconds, 10 to \
                            3600, such as `60s`";
            assert_eq!(error.message, sentence, "{value}");
        }
        let options = Options::default().with(ConnectionOption::Heartbeat, 60);
        assert_eq!(Options::from_numbered(options.kept().numbered()), Some(options));
        assert_eq!(Options::from_numbered([(3, 9)].into_iter()), None);
    }

    #[test]
    fn a_pace_is_a_bounded_number_of_milliseconds() {
        let read = |value| {
            let mut options = Options::default();
            options.read("pace", value).map(|_| options.get(ConnectionOption::Pace))
        };
        for (value, pace_ms) in [("250ms", 250), ("250", 250), ("10ms", 10), ("60000", 60_000)] {
            assert_eq!(read(value), Ok(Some(pace_ms)));
        }
        for value in ["", "ms", "9", "1s", "60001ms", "0.5", "-10"] {
            let error = read(value).expect_err(value);
            let sentence = "the parameter `pace` must be a whole number of milliseconds, 10 to \
                            60000, such as `250ms`";
            assert_eq!(error.message, sentence, "{value}");
        }
    }

    #[test]
    fn only_kept_options_outlive_their_request() {
        for row in &ROWS {
            let options = Options::default().with(row.option, 0);
            let number = row.option as u8;
            let is_sound = row.values.have(0);
            assert_eq!(options.kept().are_none(), !row.is_kept, "{}", row.name);
            let read = Options::from_numbered([(number, 0)].into_iter());
            assert_eq!(read, (row.is_kept && is_sound).then_some(options), "{}", row.name);
        }
        let unknown = Options::from_numbered([(ROWS.len() as u8, 0)].into_iter());
        assert_eq!(unknown, None);
    }
}
