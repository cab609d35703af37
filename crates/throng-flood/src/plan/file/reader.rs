//! Reads TOML and notes where everything stands: every mistake has its line and column, and all of
//! them are told at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use throng_units::Switch;
use throng_units::suggest::nearest;

/// Where each key's value begins, in bytes from the start of the text.
pub(super) type Places = BTreeMap<String, usize>;

/// The text, what was found wrong in it, and where its values stand.
pub(super) struct Reader {
    problems: RefCell<Vec<(usize, String)>>,
    places: RefCell<Places>,
    /// All tables and their keys, for suggestions.
    known: &'static [(&'static str, &'static [&'static str])],
}

/// A table of the file.
pub(super) struct Section<'r, 't> {
    reader: &'r Reader,
    path: String,
    table: &'t DeTable<'t>,
}

impl Reader {
    pub(super) fn new(known: &'static [(&'static str, &'static [&'static str])]) -> Reader {
        Reader { problems: RefCell::default(), places: RefCell::default(), known }
    }

    /// What is wrong, in the order of the file; or where everything stands.
    pub(super) fn end(self) -> Result<Places, Vec<(usize, String)>> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        if problems.is_empty() { Ok(self.places.into_inner()) } else { Err(problems) }
    }

    pub(super) fn complain(&self, place: usize, message: impl Display) {
        self.problems.borrow_mut().push((place, message.to_string()));
    }

    /// A table whose keys are `keys` and no others.
    pub(super) fn section<'r, 't>(
        &'r self,
        path: String,
        table: &'t DeTable<'t>,
        keys: &[&'static str],
    ) -> Section<'r, 't> {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            self.places.borrow_mut().insert(path, value.span().start);
            if !keys.contains(&name) {
                let hint = self.hint(name, keys);
                self.complain(key.span().start, format!("unknown key {name:?}; {hint}"));
            }
        }
        Section { reader: self, path, table }
    }

    fn hint(&self, name: &str, keys: &[&'static str]) -> String {
        if let Some(meant) = nearest(name, keys.iter().copied()) {
            return format!("did you mean {meant:?}?");
        }
        let elsewhere = self.known.iter().find_map(|(table, of_table)| {
            // Not a key that another kind of this same table has; and only what was written
            // rightly: a guess at the table and at the key would be two.
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

    /// The dotted path of a key.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn complain_at(&self, key: &str, message: impl Display) {
        let place = self.value(key).map_or(0, |value| value.span().start);
        self.reader.complain(place, format!("{key}: {message}"));
    }

    /// A text or a number, read as `T` reads it.
    pub(super) fn read<T>(&self, key: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = self.value(key)?;
        let Some(text) = plain(value.get_ref()) else {
            self.complain_at(key, "is a single value: a text or a number");
            return None;
        };
        text.parse().map_err(|error| self.complain_at(key, error)).ok()
    }

    /// Whether a key says `true`; false if it is not there.
    pub(super) fn is_on(&self, key: &str) -> bool {
        match self.value(key).map(Spanned::get_ref) {
            Some(DeValue::Boolean(is_on)) => *is_on,
            _ => self.read::<Switch>(key).is_some_and(|switch| switch.0),
        }
    }

    /// A text, not a number.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let value = self.value(key)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.complain_at(key, "is a text, in quotation marks");
        }
        text
    }

    /// One text, or a list of them, each read as `T` reads it, with its place.
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
            let place = item.span().start;
            self.reader.places.borrow_mut().insert(format!("{}.{number}", self.path(key)), place);
            match plain(item.get_ref()).map(|text| text.parse()) {
                Some(Ok(value)) => list.push(value),
                Some(Err(error)) => self.reader.complain(place, format!("{key}: {error}")),
                None => self.reader.complain(place, format!("{key}: is a text or a list of texts")),
            }
        }
        Some(list)
    }

    /// Names and texts of a table.
    pub(super) fn pairs(&self, key: &str) -> Vec<(String, String)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            self.complain_at(key, format!("is a table, like {key} = {{ Authorization = \"…\" }}"));
            return Vec::new();
        };
        let mut pairs = Vec::new();
        for (name, value) in table {
            let name = name.get_ref().to_string();
            let path = format!("{}.{name}", self.path(key));
            self.reader.places.borrow_mut().insert(path, value.span().start);
            match plain(value.get_ref()) {
                Some(text) => pairs.push((name, text)),
                None => {
                    let place = value.span().start;
                    self.reader.complain(place, format!("{name}: is a text"));
                }
            }
        }
        pairs
    }

    /// A table within this one.
    pub(super) fn table<'s>(&'s self, key: &str, keys: &[&'static str]) -> Option<Section<'s, 't>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(self.reader.section(self.path(key), table, keys)),
            None => {
                self.complain_at(key, format!("is a table: [{}]", self.path(key)));
                None
            }
        }
    }

    /// The tables of a list, each with its place.
    pub(super) fn tables(&self, key: &str) -> Option<Vec<(usize, &'t DeTable<'t>)>> {
        let value = self.value(key)?;
        let Some(items) = value.get_ref().as_array() else {
            self.complain_at(key, format!("is a list of tables: [[{}]]", self.path(key)));
            return None;
        };
        let mut tables = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let path = format!("{}.{number}", self.path(key));
            self.reader.places.borrow_mut().insert(path, item.span().start);
            match item.get_ref().as_table() {
                Some(table) => tables.push((item.span().start, table)),
                None => {
                    let message = format!("{key}: is a list of tables: [[{}]]", self.path(key));
                    self.reader.complain(item.span().start, message);
                }
            }
        }
        Some(tables)
    }

    /// The reader that this is a table of.
    pub(super) fn reader(&self) -> &Reader {
        self.reader
    }
}

/// Texts and numbers as they are written; nothing else is a single value here.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}
