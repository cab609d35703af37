//! Reads TOML tables, and collects the errors with their positions.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize as _;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use throng_units::suggest::nearest;
use throng_units::{Invalid, Switch};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::toml_value;

/// Tables with their keys, as their headers are written: `[target]`, `[[phases]]`, or nothing for
/// the keys above all tables.
pub type KnownTables = Vec<(String, Vec<String>)>;

/// The errors found in one file so far.
pub struct Reader {
    errors: RefCell<Vec<(usize, String)>>,
    /// Where files named in the text are looked for.
    directory: PathBuf,
    /// All tables and their keys, for suggestions.
    known: KnownTables,
    /// The hint for a key that is like no other.
    help: Option<&'static str>,
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
        Reader { errors: RefCell::default(), directory: directory.to_owned(), known, help: None }
    }

    /// The same, with a hint for a key that is like no other.
    pub fn with_help(self, help: &'static str) -> Reader {
        Reader { help: Some(help), ..self }
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
        keys: &[impl AsRef<str>],
    ) -> Section<'r, 't> {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        for key in table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            let hint = self.hint(name, &keys);
            self.error(key.span().start, format!("unknown key {name:?}; {hint}"));
        }
        Section { reader: self, table }
    }

    fn hint(&self, name: &str, keys: &[&str]) -> String {
        if let Some(place) = self.elsewhere(name, keys) {
            return place;
        }
        let tables = self.known.iter().filter_map(|(table, keys)| {
            let table = table.strip_prefix('[')?.strip_suffix(']')?;
            (!table.starts_with('[')).then_some((table, keys))
        });
        // Above all tables, `history-messages` is like `messages` in the table `[history]`.
        let is_top = self.known.first().is_some_and(|(_, top)| has_all(top, keys));
        let of_tables: Vec<String> = tables
            .filter(|_| is_top)
            .flat_map(|(table, keys)| keys.iter().map(move |key| format!("{table}.{key}")))
            .collect();
        let candidates = keys.iter().copied().chain(of_tables.iter().map(String::as_str));
        match nearest(name, candidates).map(|meant| (meant, meant.split_once('.'))) {
            Some((_, Some((table, key)))) => {
                format!("did you mean {key:?} in the table [{table}]?")
            }
            Some((meant, None)) => format!("did you mean {meant:?}?"),
            // The help has the keys above all tables.
            None => self
                .help
                .filter(|_| is_top)
                .map_or_else(|| format!("known here are {}", keys.join(", ")), str::to_owned),
        }
    }

    /// The place of a key that is spelt correctly. In TOML each key belongs to the table whose
    /// header it follows, also after an empty line.
    fn elsewhere(&self, name: &str, keys: &[&str]) -> Option<String> {
        // Not for a key that another kind of the same table has.
        let (table, _) = self.known.iter().find(|(_, of_table)| {
            of_table.iter().any(|key| key == name) && !has_all(of_table, keys)
        })?;
        Some(match table.as_str() {
            "" => "it belongs to no table, so move it above the first one".to_owned(),
            table if table.starts_with("[[") => {
                format!("it belongs in a table that begins with {table}")
            }
            table => format!("it belongs to the table {table}"),
        })
    }

    fn error_count(&self) -> usize {
        self.errors.borrow().len()
    }
}

fn has_all(known: &[String], keys: &[&str]) -> bool {
    keys.iter().all(|key| known.iter().any(|known| known == key))
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

    /// Reads a setting of the server.
    pub fn setting<T: throng_units::Value>(&self, key: &str) -> Option<T> {
        self.value(key, |value| {
            let value = Spanned::new(0..0, value.clone()).into_deserializer();
            let value = toml::Value::deserialize(value)
                .map_err(|error| Invalid(error.message().to_owned()))?;
            toml_value::from_toml(&value)
        })
    }

    /// A table within this one.
    pub fn table(&self, key: &str, keys: &[impl AsRef<str>]) -> Option<Section<'r, 't>> {
        let value = self.table.get(key)?;
        let Some(table) = value.get_ref().as_table() else {
            self.misplaced(key, "a single value", &format!("begin a table with [{key}]"));
            return None;
        };
        Some(self.reader.section(table, keys))
    }

    /// The tables of an array, each with its position. Their keys are not checked yet, because one
    /// of them may decide which others there may be.
    pub fn tables(&self, key: &str) -> Option<Vec<(usize, &'t DeTable<'t>)>> {
        let value = self.table.get(key)?;
        let items = value.get_ref().as_array().map(|items| items.iter());
        let tables = items.and_then(|items| {
            let tables = items.map(|item| Some((item.span().start, item.get_ref().as_table()?)));
            tables.collect::<Option<Vec<_>>>()
        });
        if tables.is_none() {
            let is = if value.get_ref().is_table() { "a single table" } else { "a single value" };
            self.misplaced(key, is, &format!("begin each table with [[{key}]]"));
        }
        tables
    }

    /// The tables of an array as structs, which have these keys.
    pub fn records<T: DeserializeOwned>(&self, key: &str, keys: &[&str]) -> Option<Vec<T>> {
        let read = |(position, table): (usize, &'t DeTable<'t>)| {
            let errors = self.reader.error_count();
            self.reader.section(table, keys);
            if self.reader.error_count() > errors {
                return None;
            }
            let value = Spanned::new(position..position, DeValue::Table(table.clone()));
            let report = |error: toml::de::Error| {
                let at = error.span().map_or(position, |span| span.start);
                let found = table.iter().find(|(_, value)| value.span().contains(&at));
                let name = found.map_or(key, |(name, _)| name.get_ref().as_ref());
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                self.reader.error(at, format!("{name}: {message}"));
            };
            T::deserialize(value.into_deserializer()).map_err(report).ok()
        };
        Some(self.tables(key)?.into_iter().filter_map(read).collect())
    }

    /// Reports a key that should be a table, or several.
    fn misplaced(&self, key: &str, is: &str, help: &str) {
        let position = self.table.get_key_value(key).map_or(0, |(key, _)| key.span().start);
        self.reader.error(position, format!("`{key}` is not {is}; {help}"));
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
