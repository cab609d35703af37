//! Reads TOML tables, and collects the errors with their positions.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use throng_units::Switch;
use throng_units::suggest::nearest;

/// Tables with their keys.
pub type KnownTables = &'static [(&'static str, &'static [&'static str])];

/// The errors found in one file so far.
pub struct Reader {
    errors: RefCell<Vec<(usize, String)>>,
    /// Where files named in the text are looked for.
    directory: PathBuf,
    /// All tables and their keys, for suggestions.
    known: KnownTables,
}

/// A table of the file.
pub struct Section<'r, 't> {
    reader: &'r Reader,
    table: &'t DeTable<'t>,
}

/// A value of the file.
type Value<'t> = Spanned<DeValue<'t>>;

impl Reader {
    /// A reader of a file in `directory`, which may have these tables.
    pub fn new(known: KnownTables, directory: &Path) -> Reader {
        Reader { errors: RefCell::default(), directory: directory.to_owned(), known }
    }

    /// The errors, in the order of the file.
    pub fn errors(self) -> Vec<(usize, String)> {
        let mut errors = self.errors.into_inner();
        errors.sort();
        errors
    }

    /// Reports an error at a position in bytes.
    pub fn error(&self, position: usize, message: impl Display) {
        self.errors.borrow_mut().push((position, message.to_string()));
    }

    /// A table that may have these keys; others are errors.
    pub fn section<'r, 't>(
        &'r self,
        table: &'t DeTable<'t>,
        keys: &[&'static str],
    ) -> Section<'r, 't> {
        for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            let hint = self.hint(name, keys);
            self.error(key.span().start, format!("unknown key {name:?}; {hint}"));
        }
        Section { reader: self, table }
    }

    fn hint(&self, name: &str, keys: &[&'static str]) -> String {
        if let Some(meant) = nearest(name, keys.iter().copied()) {
            return format!("did you mean {meant:?}?");
        }
        let elsewhere = self.known.iter().find_map(|(table, of_table)| {
            // Not for a key that another kind of the same table has. The key must be spelt
            // correctly: guessing both table and key would be too much.
            let is_this = keys.iter().all(|key| of_table.contains(key));
            (of_table.contains(&name) && !is_this).then(|| match *table {
                "" => format!("{name:?} stands above all tables"),
                table => format!("{name:?} belongs to the table {table}"),
            })
        });
        elsewhere.unwrap_or_else(|| format!("known here are {}", keys.join(", ")))
    }
}

impl<'r, 't> Section<'r, 't> {
    /// True if the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Reports an error in the value of a key.
    pub fn error_at(&self, key: &str, message: impl Display) {
        let position = self.table.get(key).map_or(0, |value| value.span().start);
        self.reader.error(position, format!("{key}: {message}"));
    }

    /// Reads the value of a key with `read`.
    fn value<T, E: Display>(
        &self,
        key: &str,
        read: impl FnOnce(&'t DeValue<'t>) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.table.get(key)?;
        read(value.get_ref()).map_err(|error| self.error_at(key, error)).ok()
    }

    /// Parses a text or number.
    pub fn read<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        let text =
            self.value(key, |value| plain(value).ok_or("is a single value: a text or a number"))?;
        self.value(key, |_| text.parse())
    }

    /// Reads a boolean, or parses a text or number as one.
    pub fn switch(&self, key: &str) -> Option<Switch> {
        match self.table.get(key)?.get_ref() {
            DeValue::Boolean(is_on) => Some(Switch(*is_on)),
            _ => self.read(key),
        }
    }

    /// Parses the path of a file, relative to the directory of the plan.
    pub fn read_file<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        let path = self.reader.directory.join(self.text(key)?);
        self.value(key, |_| path.to_string_lossy().parse())
    }

    /// Reads a text; a number is an error.
    pub fn text(&self, key: &str) -> Option<String> {
        let text = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
        self.value(key, |value| text(value).ok_or("is a text, in quotation marks"))
    }

    /// Parses one text or number, or an array of them.
    pub fn list<T: FromStr<Err: Display>>(&self, key: &str) -> Option<Vec<T>> {
        let value = self.table.get(key)?;
        let items: Vec<&Value<'_>> = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        let read = |item: &Value<'_>| {
            let text = plain(item.get_ref()).ok_or("is a text or a list of texts".to_owned());
            text.and_then(|text| text.parse().map_err(|error: T::Err| error.to_string()))
        };
        let read = |item: &Value<'_>| self.reported(item, key, read(item));
        Some(items.into_iter().filter_map(read).collect())
    }

    /// Reads a table of names and texts.
    pub fn pairs(&self, key: &str) -> Option<Vec<(String, String)>> {
        let message = || format!("is a table, like {key} = {{ Authorization = \"…\" }}");
        let table = self.value(key, |value| value.as_table().ok_or_else(message))?;
        let read = |(name, value): (&Spanned<_>, &Value<'_>)| {
            let name = AsRef::<str>::as_ref(name.get_ref()).to_owned();
            let text = plain(value.get_ref()).ok_or("is a text".to_owned());
            Some((self.reported(value, &name, text)?, name)).map(|(text, name)| (name, text))
        };
        Some(table.iter().filter_map(read).collect())
    }

    /// A table within this one.
    pub fn table(&self, key: &str, keys: &[&'static str]) -> Option<Section<'r, 't>> {
        let message = || format!("is a table: [{key}]");
        let table = self.value(key, |value| value.as_table().ok_or_else(message))?;
        Some(self.reader.section(table, keys))
    }

    /// The tables of an array, each with its position. Their keys are not checked yet, because one
    /// of them may decide which others there may be.
    pub fn tables(&self, key: &str) -> Option<Vec<(usize, &'t DeTable<'t>)>> {
        let message = || format!("is a list of tables: [[{key}]]");
        let items = self.value(key, |value| value.as_array().ok_or_else(message))?;
        let read = |item: &'t Value<'t>| {
            let table = item.get_ref().as_table().ok_or_else(message);
            Some((item.span().start, self.reported(item, key, table)?))
        };
        Some(items.iter().filter_map(read).collect())
    }

    /// The value that was read; an error is reported at its place.
    fn reported<T>(&self, at: &Value<'_>, key: &str, read: Result<T, String>) -> Option<T> {
        let report = |error| self.reader.error(at.span().start, format!("{key}: {error}"));
        read.map_err(report).ok()
    }

    /// The reader of the whole file.
    pub fn reader(&self) -> &'r Reader {
        self.reader
    }
}

/// Where the value with this path of keys starts, or else the closest table around it; `None` if
/// not even the first key is there.
pub fn position(table: &DeTable<'_>, path: &str) -> Option<usize> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let mut value = table.get(first)?;
    for key in rest.split('.').filter(|key| !key.is_empty()) {
        let inner = match key.parse::<usize>() {
            Ok(number) => value.get_ref().get(number),
            Err(_) => value.get_ref().get(key),
        };
        let Some(inner) = inner else { break };
        value = inner;
    }
    Some(value.span().start)
}

/// A text or number as written; nothing else is a single value.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}
