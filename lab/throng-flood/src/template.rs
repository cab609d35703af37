//! Templates of URLs, headers, frames and bodies, for each client and each message.
//!
//! | placeholder | value |
//! |---|---|
//! | `{i}` | the client's number, from 0 |
//! | `{i%N}` | the client's number, modulo N |
//! | `{stream}` | the number of the stream: the first that a client follows, or the one published
//! to |
//! | `{streams:SEPARATOR}` | the numbers of all streams that a client follows |
//! | `{run}` | the run, eight hexadecimal digits; different in each run |
//! | `{payload}` | the message that is published |
//! | `{column}` | a value of the client's line in a CSV file; `{url}` with a file of URLs |
//!
//! `{{` is a brace. A brace not followed by a letter is literal, so most JSON needs no escapes:
//! `{"channel":"c{stream}"}`.

mod part;
mod table;

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use part::TemplatePart;
pub(crate) use part::{PerClient, Placeholder, TemplateError, TemplateValues};
pub(crate) use table::ColumnTable;

/// A text with placeholders.
#[derive(Clone)]
pub struct Template {
    text: Arc<str>,
    parts: Arc<[TemplatePart]>,
}

impl Template {
    /// Parses a template without a table.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        Template::with_table(text, None)
    }

    /// Parses a template that may use the columns of `table`.
    pub(crate) fn with_table(
        text: &str,
        table: Option<&Arc<ColumnTable>>,
    ) -> Result<Template, TemplateError> {
        Ok(Template { text: text.into(), parts: TemplatePart::read_all(text, table)?.into() })
    }

    /// This text, then `before`, then what is made for each client. [`Template::text`] shows that
    /// as `made_as`.
    pub(crate) fn followed_by(
        &self,
        before: &str,
        made: Arc<dyn PerClient>,
        made_as: &str,
    ) -> Template {
        let literal = Template::literal(before);
        let more = literal.parts.iter().cloned().chain([TemplatePart::Made(made)]);
        Template {
            text: format!("{}{}{made_as}", self.text, literal.text).into(),
            parts: self.parts.iter().cloned().chain(more).collect(),
        }
    }

    /// A text without placeholders.
    pub fn literal(text: &str) -> Template {
        let parts = [TemplatePart::Text(text.as_bytes().into())];
        Template { text: text.replace('{', "{{").into(), parts: parts.into() }
    }

    /// The text, as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Appends the text with all values.
    pub(crate) fn render(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>) {
        self.parts.iter().for_each(|part| part.render(values, to));
    }

    /// The text with all values. Invalid UTF-8 in the payload is replaced.
    pub(crate) fn rendered(&self, values: &TemplateValues<'_>) -> String {
        let mut bytes = Vec::with_capacity(self.text.len() + values.payload.len());
        self.render(values, &mut bytes);
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// How often the placeholder occurs.
    pub fn count(&self, place: Placeholder) -> usize {
        self.parts.iter().filter(|part| part.is(place)).count()
    }

    /// True if the placeholder occurs.
    pub fn has(&self, place: Placeholder) -> bool {
        self.count(place) > 0
    }

    /// The rows of the table that it uses; `None` if it uses none.
    pub fn rows(&self) -> Option<usize> {
        self.parts.iter().find_map(TemplatePart::table).map(ColumnTable::rows)
    }
}

impl PerClient for Template {
    fn write(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>) {
        self.render(values, to);
    }
}

impl std::str::FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Template, TemplateError> {
        Template::parse(text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Template) -> bool {
        self.text == other.text
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str, client: usize) -> String {
        let values =
            TemplateValues { client, run: 0xbeef, stream: 7, streams: &[7, 9], payload: b"hello" };
        Template::parse(text).unwrap().rendered(&values)
    }

    #[test]
    fn all_placeholders_are_rendered() {
        for (text, expected) in [
            ("/c/{i}", "/c/42"),
            ("/c/{i%10}", "/c/2"),
            ("s{stream}", "s7"),
            ("a={streams:&a=}", "a=7&a=9"),
            ("{streams}", "7,9"),
            ("c={run}-{streams:&c={run}-}&x", "c=0000beef-7&c=0000beef-9&x"),
            ("{run}", "0000beef"),
            ("{payload}{payload}", "hellohello"),
            ("", ""),
            ("plain", "plain"),
        ] {
            assert_eq!(fill(text, 42), expected, "{text}");
        }
    }

    #[test]
    fn json_needs_no_escapes() {
        for (text, expected) in [
            (r#"{"a":{"b":"{payload}"}}"#, r#"{"a":{"b":"hello"}}"#),
            ("{}", "{}"),
            (r#"{"connect":{},"id":1}"#, r#"{"connect":{},"id":1}"#),
            ("{{payload}", "{payload}"),
            ("{{}", "{}"),
            ("{ payload}", "{ payload}"),
            ("{", "{"),
            ("}", "}"),
        ] {
            assert_eq!(fill(text, 0), expected, "{text}");
        }
        let text = "{{i} {\"a\":{i}}";
        assert_eq!(Template::literal(&fill(text, 1)).text(), "{{i} {{\"a\":1}");
        assert_eq!(Template::literal("{i}").rendered(&TemplateValues::default()), "{i}");
    }

    #[test]
    fn unknown_placeholders_are_explained() {
        for (text, expected) in [
            ("/c/{strem}", "nothing to fill in for {strem}; did you mean {stream}?"),
            ("{colour}", "nothing to fill in for {colour}; known are {i}, {i%N}"),
            ("{i%0}", "{i%0}: after % stands a whole number from 1 on, like {i%100}"),
            ("{i%x}", "{i%x}: after %"),
            ("a{stream", "the brace at \"{stream\" is not closed; write {{ for a brace"),
        ] {
            let error = Template::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn columns_come_from_the_line_of_the_client() {
        let table =
            Arc::new(ColumnTable::csv("users.csv", "user,token\nann,t1\nbo,\"t,2\"\n").unwrap());
        let template = Template::with_table("/u/{user}?t={token}", Some(&table)).unwrap();
        let render =
            |client| template.rendered(&TemplateValues { client, ..TemplateValues::default() });
        assert_eq!(
            [render(0), render(1), render(2)],
            ["/u/ann?t=t1", "/u/bo?t=t,2", "/u/ann?t=t1"]
        );
        assert_eq!(template.rows(), Some(2));
        let error = Template::with_table("{tokn}", Some(&table)).unwrap_err();
        assert!(error.to_string().ends_with("did you mean {token}?"), "{error}");
    }

    #[test]
    fn placeholders_can_be_queried() {
        let template = Template::parse("{i}{i%3}{stream}").unwrap();
        assert_eq!(template.count(Placeholder::Client), 2);
        assert!(template.has(Placeholder::Stream) && !template.has(Placeholder::Payload));
    }
}
