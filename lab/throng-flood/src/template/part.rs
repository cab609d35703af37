//! Parses the text of a template into its parts.

use std::sync::Arc;

use throng_units::suggest::nearest;

use super::table::{ColumnTable, PLACEHOLDERS};

/// A literal text or a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TemplatePart {
    Text(Box<[u8]>),
    Client,
    ClientModulo(usize),
    Stream,
    Streams(Arc<[TemplatePart]>),
    Run,
    Payload,
    Column(usize),
}

/// Why a template cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace is not closed.
    #[error("the brace at {place:?} is not closed; write {{{{ for a brace")]
    Open {
        /// The brace and what follows.
        place: String,
    },
    /// There is no such placeholder.
    #[error("there is nothing to fill in for {{{name}}}; {hint}")]
    Unknown {
        /// The name, as written.
        name: String,
        /// A similar name, or all names.
        hint: String,
    },
    /// `%` is not followed by a positive whole number.
    #[error("{{{name}}}: after % stands a whole number from 1 on, like {{i%100}}")]
    Modulo {
        /// The placeholder, as written.
        name: String,
    },
}

impl TemplatePart {
    /// Parses a whole text. Columns must be those of `table`.
    pub(super) fn read_all(
        text: &str,
        table: Option<&ColumnTable>,
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
                return Err(TemplateError::Open { place: rest.chars().take(20).collect() });
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

    /// True if a value of the table is filled in.
    pub(super) fn is_of_table(&self) -> bool {
        match self {
            TemplatePart::Column(_) => true,
            TemplatePart::Streams(separator) => separator.iter().any(TemplatePart::is_of_table),
            _ => false,
        }
    }

    /// Parses the text between braces.
    fn read(name: &str, table: Option<&ColumnTable>) -> Result<TemplatePart, TemplateError> {
        if let Some(separator) = name.strip_prefix("streams:") {
            return Ok(TemplatePart::Streams(TemplatePart::read_all(separator, table)?.into()));
        }
        if let Some(number) = name.strip_prefix("i%") {
            let number = number.parse().ok().filter(|&number| number > 0);
            return number
                .map(TemplatePart::ClientModulo)
                .ok_or_else(|| TemplateError::Modulo { name: name.to_owned() });
        }
        match name {
            "i" => return Ok(TemplatePart::Client),
            "stream" => return Ok(TemplatePart::Stream),
            "streams" => return TemplatePart::read("streams:,", table),
            "run" => return Ok(TemplatePart::Run),
            "payload" => return Ok(TemplatePart::Payload),
            _ => {}
        }
        if let Some(column) = table.and_then(|table| table.column(name)) {
            return Ok(TemplatePart::Column(column));
        }
        let columns = table.into_iter().flat_map(ColumnTable::columns);
        let hint = match nearest(name, PLACEHOLDERS.into_iter().chain(columns)) {
            Some(meant) => format!("did you mean {{{meant}}}?"),
            None if table.is_some() => "no column of the file has this name".to_owned(),
            None => "known are {i}, {i%N}, {stream}, {streams:SEPARATOR}, {run} and {payload}, \
                     and {{ for a brace"
                .to_owned(),
        };
        Err(TemplateError::Unknown { name: name.to_owned(), hint })
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
