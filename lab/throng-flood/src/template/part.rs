//! The parts of a template: reads them from its text, and fills them in.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use throng_units::suggest::nearest;

use super::table::{ColumnTable, PLACEHOLDERS};

/// A literal text or a placeholder.
#[derive(Debug, Clone)]
pub(super) enum TemplatePart {
    Text(Box<[u8]>),
    Client,
    ClientModulo(usize),
    Stream,
    /// All streams, with this between them.
    Streams(Arc<[TemplatePart]>),
    Run,
    Payload,
    Column(Arc<ColumnTable>, usize),
    Made(Arc<dyn PerClient>),
}

/// Makes a text for each client, such as a token.
pub(crate) trait PerClient: fmt::Debug + Send + Sync {
    /// Appends the text of the client in `values`.
    fn write(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>);
}

/// The values of placeholders.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TemplateValues<'a> {
    /// The client's number.
    pub client: usize,
    /// The number of the run.
    pub run: u32,
    /// The stream that is published to, or the first one that the client follows.
    pub stream: u32,
    /// All streams that the client follows; if empty, only `stream`.
    pub streams: &'a [u32],
    /// The message that is published.
    pub payload: &'a [u8],
}

/// A placeholder, for [`Template::has`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// Any that differs between clients: `{i}`, `{i%N}` or a column.
    Client,
    /// `{stream}` or `{streams:…}`.
    Stream,
    /// `{streams:…}`, but not `{stream}`.
    Streams,
    /// `{payload}`, the published message.
    Payload,
}

/// Why a template cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl TemplatePart {
    /// Parses a whole text. Columns must be those of `table`.
    pub(super) fn read_all(
        text: &str,
        table: Option<&Arc<ColumnTable>>,
    ) -> Result<Vec<TemplatePart>, TemplateError> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find('{') {
            plain.extend_from_slice(&rest.as_bytes()[..brace]);
            rest = &rest[brace..];
            if let Some(after) = rest.strip_prefix("{{") {
                plain.push(b'{');
                rest = after;
                continue;
            }
            if !rest[1..].starts_with(|next: char| next.is_ascii_alphabetic() || next == '_') {
                plain.push(b'{');
                rest = &rest[1..];
                continue;
            }
            let Some(end) = closing_brace(rest) else {
                let place: String = rest.chars().take(20).collect();
                let fault = "is not closed; write {{ for a brace";
                return Err(TemplateError(format!("the brace at {place:?} {fault}")));
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain).into()));
            }
            parts.push(TemplatePart::read(&rest[1..end], table)?);
            rest = &rest[end + 1..];
        }
        plain.extend_from_slice(rest.as_bytes());
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain.into()));
        }
        Ok(parts)
    }

    /// Appends the value.
    pub(super) fn render(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>) {
        // Writing to a `Vec` cannot fail.
        let _ = match self {
            TemplatePart::Text(text) => to.write_all(text),
            TemplatePart::Client => write!(to, "{}", values.client),
            TemplatePart::ClientModulo(n) => write!(to, "{}", values.client % n),
            TemplatePart::Stream => write!(to, "{}", values.stream),
            TemplatePart::Streams(separator) => {
                let alone = [values.stream];
                let streams = if values.streams.is_empty() { &alone } else { values.streams };
                for (position, stream) in streams.iter().enumerate() {
                    let separator = if position == 0 { &[] } else { &separator[..] };
                    separator.iter().for_each(|part| part.render(values, to));
                    let _ = write!(to, "{stream}");
                }
                Ok(())
            }
            TemplatePart::Run => write!(to, "{:08x}", values.run),
            TemplatePart::Payload => to.write_all(values.payload),
            // Clients beyond the last line start again at the first.
            TemplatePart::Column(table, column) => {
                to.write_all(table.cell(values.client % table.rows(), *column).as_bytes())
            }
            TemplatePart::Made(made) => {
                made.write(values, to);
                Ok(())
            }
        };
    }

    /// True if it is the placeholder.
    pub(super) fn is(&self, place: Placeholder) -> bool {
        match self {
            TemplatePart::Client | TemplatePart::ClientModulo(_) | TemplatePart::Column(..) => {
                place == Placeholder::Client
            }
            TemplatePart::Stream => place == Placeholder::Stream,
            TemplatePart::Streams(_) => {
                matches!(place, Placeholder::Stream | Placeholder::Streams)
            }
            TemplatePart::Payload => place == Placeholder::Payload,
            TemplatePart::Text(_) | TemplatePart::Run | TemplatePart::Made(_) => false,
        }
    }

    /// The table of which a value is filled in, if any is.
    pub(super) fn table(&self) -> Option<&ColumnTable> {
        match self {
            TemplatePart::Column(table, _) => Some(table),
            TemplatePart::Streams(separator) => separator.iter().find_map(TemplatePart::table),
            _ => None,
        }
    }

    /// Parses the text between braces.
    fn read(name: &str, table: Option<&Arc<ColumnTable>>) -> Result<TemplatePart, TemplateError> {
        if let Some(separator) = name.strip_prefix("streams:") {
            return Ok(TemplatePart::Streams(TemplatePart::read_all(separator, table)?.into()));
        }
        if let Some(number) = name.strip_prefix("i%") {
            let number = number.parse().ok().filter(|&number| number > 0);
            return number.map(TemplatePart::ClientModulo).ok_or_else(|| {
                let expected = "after % stands a whole number from 1 on, like {i%100}";
                TemplateError(format!("{{{name}}}: {expected}"))
            });
        }
        match name {
            "i" => return Ok(TemplatePart::Client),
            "stream" => return Ok(TemplatePart::Stream),
            "streams" => return TemplatePart::read("streams:,", table),
            "run" => return Ok(TemplatePart::Run),
            "payload" => return Ok(TemplatePart::Payload),
            _ => {}
        }
        if let Some(table) = table
            && let Some(column) = table.column(name)
        {
            return Ok(TemplatePart::Column(Arc::clone(table), column));
        }
        let columns = table.into_iter().flat_map(|table| table.columns());
        let hint = match nearest(name, PLACEHOLDERS.into_iter().chain(columns)) {
            Some(meant) => format!("did you mean {{{meant}}}?"),
            None if table.is_some() => "no column of the file has this name".to_owned(),
            None => "known are {i}, {i%N}, {stream}, {streams:SEPARATOR}, {run} and {payload}, \
                     and {{ for a brace"
                .to_owned(),
        };
        Err(TemplateError(format!("there is nothing to fill in for {{{name}}}; {hint}")))
    }
}

/// The end of the brace that `text` starts with. Separators may contain placeholders.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    text.bytes().position(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}
