//! Reads TOML tables, and records the position of every key and error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use throng_units::Switch;
use throng_units::suggest::nearest;

/// Where the value of each key starts, in bytes, by its path of keys.
pub(super) type Positions = BTreeMap<String, usize>;

/// The errors and positions found in one file so far.
pub(super) struct TomlReader {
    errors: RefCell<Vec<(usize, String)>>,
    positions: RefCell<Positions>,
    /// Where files named in the text are looked for.
    directory: PathBuf,
    /// All tables and their keys, for suggestions.
    known: &'static [(&'static str, &'static [&'static str])],
}

/// A table of the file.
pub(super) struct Section<'r, 't> {
    reader: &'r TomlReader,
    path: String,
    table: &'t DeTable<'t>,
}

impl TomlReader {
    pub(super) fn new(
        known: &'static [(&'static str, &'static [&'static str])],
        directory: &Path,
    ) -> TomlReader {
        let directory = directory.to_owned();
        TomlReader { errors: RefCell::default(), positions: RefCell::default(), directory, known }
    }

    /// The positions of all keys, or the errors in the order of the file.
    pub(super) fn finish(self) -> Result<Positions, Vec<(usize, String)>> {
        let mut errors = self.errors.into_inner();
        errors.sort();
        if errors.is_empty() { Ok(self.positions.into_inner()) } else { Err(errors) }
    }

    pub(super) fn error(&self, position: usize, message: impl Display) {
        self.errors.borrow_mut().push((position, message.to_string()));
    }

    /// Reports an error in the value with this path of keys.
    pub(super) fn error_at_key(&self, key: &str, message: impl Display) {
        let position = self.positions.borrow().get(key).copied().unwrap_or_default();
        self.error(position, message);
    }

    /// A table that may have these keys; others are errors.
    pub(super) fn section<'r, 't>(
        &'r self,
        path: String,
        table: &'t DeTable<'t>,
        keys: &[&'static str],
    ) -> Section<'r, 't> {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            self.positions.borrow_mut().insert(path, value.span().start);
            if !keys.contains(&name) {
                let hint = self.hint(name, keys);
                self.error(key.span().start, format!("unknown key {name:?}; {hint}"));
            }
        }
        Section { reader: self, path, table }
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

impl<'t> Section<'_, 't> {
    fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    /// Whether the key is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The path of a key.
    fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Reports an error in the value of a key.
    pub(super) fn error_at(&self, key: &str, message: impl Display) {
        let position = self.value(key).map_or(0, |value| value.span().start);
        self.reader.error(position, format!("{key}: {message}"));
    }

    /// Parses a text or number.
    pub(super) fn read<T>(&self, key: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = self.value(key)?;
        let Some(text) = plain(value.get_ref()) else {
            self.error_at(key, "is a single value: a text or a number");
            return None;
        };
        text.parse().map_err(|error| self.error_at(key, error)).ok()
    }

    /// Reads a boolean, or parses a text or number as one.
    pub(super) fn switch(&self, key: &str) -> Option<Switch> {
        match self.value(key)?.get_ref() {
            DeValue::Boolean(is_on) => Some(Switch(*is_on)),
            _ => self.read(key),
        }
    }

    /// Parses the path of a file, relative to the directory of the plan.
    pub(super) fn read_file<T>(&self, key: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let path = self.reader.directory.join(self.text(key)?);
        path.to_string_lossy().parse().map_err(|error| self.error_at(key, error)).ok()
    }

    /// Reads a text; a number is an error.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let value = self.value(key)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.error_at(key, "is a text, in quotation marks");
        }
        text
    }

    /// Parses one text or number, or an array of them.
    pub(super) fn list<T>(&self, key: &str) -> Option<Vec<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = self.value(key)?;
        let single = std::slice::from_ref(value);
        let items: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => single.iter().collect(),
        };
        let mut list = Vec::new();
        for (number, item) in items.into_iter().enumerate() {
            let position = item.span().start;
            let path = format!("{}.{number}", self.path(key));
            self.reader.positions.borrow_mut().insert(path, position);
            match plain(item.get_ref()).map(|text| text.parse()) {
                Some(Ok(value)) => list.push(value),
                Some(Err(error)) => self.reader.error(position, format!("{key}: {error}")),
                None => self.reader.error(position, format!("{key}: is a text or a list of texts")),
            }
        }
        Some(list)
    }

    /// Reads a table of names and texts.
    pub(super) fn pairs(&self, key: &str) -> Option<Vec<(String, String)>> {
        let Some(table) = self.value(key)?.get_ref().as_table() else {
            self.error_at(key, format!("is a table, like {key} = {{ Authorization = \"…\" }}"));
            return None;
        };
        let mut pairs = Vec::new();
        for (name, value) in table {
            let name = name.get_ref().to_string();
            let (path, position) = (format!("{}.{name}", self.path(key)), value.span().start);
            self.reader.positions.borrow_mut().insert(path, position);
            match plain(value.get_ref()) {
                Some(text) => pairs.push((name, text)),
                None => self.reader.error(position, format!("{name}: is a text")),
            }
        }
        Some(pairs)
    }

    /// A table within this one.
    pub(super) fn table<'s>(&'s self, key: &str, keys: &[&'static str]) -> Option<Section<'s, 't>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(self.reader.section(self.path(key), table, keys)),
            None => {
                self.error_at(key, format!("is a table: [{}]", self.path(key)));
                None
            }
        }
    }

    /// The tables of an array, each with its position.
    pub(super) fn raw_tables(&self, key: &str) -> Option<Vec<RawTable<'t>>> {
        let value = self.value(key)?;
        let message = format!("is a list of tables: [[{}]]", self.path(key));
        let Some(items) = value.get_ref().as_array() else {
            self.error_at(key, message);
            return None;
        };
        let mut tables = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let (path, position) = (format!("{}.{number}", self.path(key)), item.span().start);
            self.reader.positions.borrow_mut().insert(path.clone(), position);
            match item.get_ref().as_table() {
                Some(table) => tables.push(RawTable { path, position, table }),
                None => self.reader.error(position, format!("{key}: {message}")),
            }
        }
        Some(tables)
    }

    /// The tables of an array, which may have these keys, each with its position.
    pub(super) fn tables(
        &self,
        key: &str,
        keys: &[&'static str],
    ) -> Option<Vec<(usize, Section<'_, 't>)>> {
        let tables = self.raw_tables(key)?.into_iter();
        let section =
            |raw: RawTable<'t>| (raw.position, self.reader.section(raw.path, raw.table, keys));
        Some(tables.map(section).collect())
    }

    pub(super) fn reader(&self) -> &TomlReader {
        self.reader
    }
}

/// A table whose keys are not checked yet, because one of them decides which others there may be.
pub(super) struct RawTable<'t> {
    pub(super) path: String,
    pub(super) position: usize,
    pub(super) table: &'t DeTable<'t>,
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
