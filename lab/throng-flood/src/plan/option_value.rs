//! How the options of each type are read from TOML and written as TOML.

use std::fmt::Display;
use std::str::FromStr;

use throng_settings::Section;
use throng_units::{Count, Ports, Rate, Size, Switch, Time};

use super::files::{CertificateFile, SecretFile, TokenTable, UrlTable, ValueTable};
use super::server_process::ServerProcess;
use super::sources::LocalAddresses;
use super::values::{
    Header, Network, Node, Pattern, Ping, PortRange, Profile, PublishTransport, Share, Streams,
    Subscribed, TokenPlace, Transport, joined,
};
use crate::assertions::Assertion;

/// The value of an option.
pub(super) trait Value: Sized {
    /// Reads a key; `None` if it is absent, or invalid, which is reported to the section's reader.
    fn read(section: &Section<'_, '_>, key: &str) -> Option<Self>;

    /// The value as TOML.
    fn toml(&self) -> String;

    /// The value if `lower` is set, too.
    fn or(self, _lower: Self) -> Self {
        self
    }
}

/// A value of which there may be several, in a list.
pub(super) trait Single: FromStr<Err: Display> {
    /// True if the lists of flags and file are joined; otherwise the flags replace the file's.
    const IS_JOINED: bool = false;

    /// Reads a key, as [`Value::read`] does.
    fn read(section: &Section<'_, '_>, key: &str) -> Option<Self> {
        section.read(key)
    }

    /// Reads a key with several.
    fn read_all(section: &Section<'_, '_>, key: &str) -> Option<Vec<Self>> {
        section.list(key)
    }

    /// The value as TOML.
    fn toml(&self) -> String;

    /// Several values as TOML.
    fn all_toml(all: &[Self]) -> String {
        format!("[{}]", all.iter().map(Single::toml).collect::<Vec<_>>().join(", "))
    }
}

/// A text as TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A number as it is, anything else as a text.
fn scalar(value: &impl ToString) -> String {
    let text = value.to_string();
    let is_number = text.starts_with(|first: char| first.is_ascii_digit())
        && text.parse::<f64>().is_ok_and(f64::is_finite);
    if is_number { text } else { quoted(&text) }
}

/// Types with the method of [`Section`] that reads them, and how they are written.
macro_rules! singles {
    ($($read:ident $($type:ty),+ => $toml:expr;)+) => { $($(
        impl Single for $type {
            fn read(section: &Section<'_, '_>, key: &str) -> Option<$type> {
                section.$read(key)
            }

            fn toml(&self) -> String {
                let toml: fn(&$type) -> String = $toml;
                toml(self)
            }
        }
    )+)+ };
}

singles! {
    read Count, Rate, Share, Size, Time, PortRange, ServerProcess, Streams, Subscribed => scalar;
    read Network, Node, Pattern, Profile, PublishTransport, TokenPlace, Transport => scalar;
    read Ports => |ports| scalar(&joined(&ports.0));
    read LocalAddresses => |addresses| quoted(&joined(&addresses.0));
    text String => |text| quoted(text);
    switch Switch => |switch| switch.0.to_string();
    read_file CertificateFile, SecretFile, TokenTable => |file| quoted(&file.to_string());
    // Their contents stand in the URLs and values of a plan; no plan that is printed names them.
    read_file UrlTable, ValueTable => |_| quoted("");
}

impl<T: Single> Value for T {
    fn read(section: &Section<'_, '_>, key: &str) -> Option<T> {
        Single::read(section, key)
    }

    fn toml(&self) -> String {
        Single::toml(self)
    }
}

impl<T: Single> Value for Vec<T> {
    fn read(section: &Section<'_, '_>, key: &str) -> Option<Vec<T>> {
        T::read_all(section, key)
    }

    fn toml(&self) -> String {
        T::all_toml(self)
    }

    /// Those of flags come after those of the file.
    fn or(self, lower: Vec<T>) -> Vec<T> {
        if T::IS_JOINED { lower.into_iter().chain(self).collect() } else { self }
    }
}

impl Single for Assertion {
    const IS_JOINED: bool = true;

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Headers are a table.
impl Single for Header {
    const IS_JOINED: bool = true;

    fn read_all(section: &Section<'_, '_>, key: &str) -> Option<Vec<Header>> {
        Some(section.pairs(key)?.into_iter().map(|(name, value)| Header(name, value)).collect())
    }

    fn toml(&self) -> String {
        format!("{} = {}", self.0, quoted(&self.1))
    }

    fn all_toml(all: &[Header]) -> String {
        format!("{{ {} }}", all.iter().map(Single::toml).collect::<Vec<_>>().join(", "))
    }
}

/// Pings are tables.
impl Single for Ping {
    fn read_all(section: &Section<'_, '_>, key: &str) -> Option<Vec<Ping>> {
        let reader = section.reader();
        let read = |(position, table)| {
            let ping = reader.section(table, &["ask", "answer"]);
            let ping = ping.text("ask").zip(ping.text("answer"));
            if ping.is_none() {
                reader.error(position, "pings: each has an `ask` and an `answer`");
            }
            ping.map(|(ask, answer)| Ping { ask, answer })
        };
        Some(section.tables(key)?.into_iter().filter_map(read).collect())
    }

    fn toml(&self) -> String {
        format!("{{ ask = {}, answer = {} }}", quoted(&self.ask), quoted(&self.answer))
    }
}
