//! The grammar of the table of settings: the names of a row, its range, and how a running server
//! takes over a new value.

use throng_units::{Form, Value};

/// One setting, or the tables of one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Without its two hyphens; empty for a list.
    pub(super) flag: &'static str,
    /// The path of fields: `history.total_bytes`.
    pub(super) path: &'static str,
    pub(crate) change: Change,
    /// The least and the largest value, as texts; empty for none.
    pub(super) min: &'static str,
    pub(super) max: &'static str,
    /// Words for 0, if it is possible although it is less than `min`.
    pub(super) zero: &'static str,
    /// A time is a multiple of this.
    pub(super) step: &'static str,
    /// Ends the error for a value out of range.
    pub(super) why: &'static str,
}

/// How a running server takes over a new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Restart,
    /// By an upgrade.
    Upgrade,
    /// By an upgrade, unless fewer workers follow from it.
    UpgradeOfWorkers,
    /// By an upgrade, unless it ends the listener and thus its connections.
    UpgradeOfListener,
    Reload,
    /// By a reload, unless access begins or ceases to be controlled.
    ReloadAccess,
    /// By a reload, unless there are token keys for the first time or no longer.
    ReloadTokenKeys,
    /// By a reload, unless there are server keys for the first time or no longer.
    ReloadServerKeys,
    /// By a reload, unless there are new applications, or a limit of one begins or ends.
    ReloadApps,
    /// By a reload, if there is TLS before and after it.
    ReloadCertificates,
    /// By a reload, unless a limit begins or ends: clients are counted only where one is set.
    ReloadLimits,
}

impl Row {
    pub(super) const fn new(flag: &'static str, path: &'static str, change: Change) -> Row {
        Row { flag, path, change, min: "", max: "", zero: "", step: "1ms", why: "" }
    }

    /// The key in the file; a key of a table has the table's name and a dot before it.
    pub(super) fn key(&self) -> String {
        hyphenated(self.path)
    }

    /// Why the setting cannot have this value.
    pub(super) fn fault<T: Value>(&self, value: &T) -> Option<String> {
        self.fault_at(&self.key(), value)
    }

    /// As [`Row::fault`], for a value at `key` that has the range of this setting.
    pub(super) fn fault_at<T: Value>(&self, key: &str, value: &T) -> Option<String> {
        let number = value.magnitude()?;
        let of = |text: &str| text.parse::<T>().ok()?.magnitude();
        if of(self.step).is_some_and(|step| !number.is_multiple_of(step)) {
            let unit = if self.step == "1s" { "seconds" } else { "milliseconds" };
            return Some(format!("{key} must be in whole {unit}, not {value}"));
        }
        let is_possible = of(self.min).is_none_or(|min| number >= min)
            && of(self.max).is_none_or(|max| number <= max);
        if is_possible || (number == 0 && !self.zero.is_empty()) {
            return None;
        }
        let zero = match self.zero {
            "" => String::new(),
            zero => format!(", or 0 for {zero}"),
        };
        Some(format!("{key} must be {}{zero}, not {value}{}", self.range(), self.why))
    }

    fn range(&self) -> String {
        match (self.min, self.max) {
            (min, "") => format!("at least {min}"),
            ("", max) => format!("at most {max}"),
            (min, max) => format!("between {min} and {max}"),
        }
    }
}

/// Whether a flag of this type may stand alone.
pub(super) fn is_boolean<T: Value>() -> bool {
    T::FORM == Form::Boolean
}

/// The key for the name of a field.
pub(super) fn hyphenated(field: &str) -> String {
    field.replace('_', "-")
}

/// Defines two structs: the settings of one source, all optional, and the effective settings.
///
/// A row is `"flag" field: Type = "default" [attributes], "help";`. The attributes are fields of
/// [`Row`]. A row without `change` has that of its table.
macro_rules! settings {
    (
        $(#[$doc:meta])*
        $options:ident => $settings:ident, keys $prefix:literal, change $change:ident
        $( in $heading:literal {
            $(
                $flag:literal $field:ident: $type:ty = $default:literal
                    $([ $($attribute:ident = $value:expr),* ])?,
                    $help:literal;
            )*
        } )*
        tables { $( $table:ident: $table_options:ident => $table_settings:ident, )* }
        lists { $(
            $(#[$list_doc:meta])*
            $list:ident: $item:ty, keys $keys:expr, change $list_change:ident;
        )* }
    ) => {
        $(#[$doc])*
        ///
        /// `None` where the source does not set a value.
        #[derive(Debug, Clone, Default, clap::Args)]
        pub(crate) struct $options {
            $( $(
                #[arg(
                    id = concat!($prefix, stringify!($field)),
                    long = $flag,
                    help = concat!($help, " [default: ", $default, "]"),
                    help_heading = $heading,
                    value_name = <$type as Value>::PLACEHOLDER,
                    num_args = if is_boolean::<$type>() { 0..=1 } else { 1..=1 },
                    require_equals = is_boolean::<$type>(),
                    default_missing_value = "true",
                    hide_possible_values = true,
                    hide_short_help = !BASIC.contains(&$flag),
                    // So that the setting rejects -1, and not clap as an unknown flag.
                    allow_negative_numbers = true,
                )]
                $field: Option<$type>,
            )* )*
            $(
                #[command(flatten)]
                $table: $table_options,
            )*
            $(
                #[arg(skip)]
                $list: Option<Vec<$item>>,
            )*
        }

        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) struct $settings {
            $( $(
                #[doc = $help]
                #[serde(serialize_with = "toml_value::write")]
                pub(crate) $field: $type,
            )* )*
            $(
                #[doc = concat!("The table `[", stringify!($table), "]`.")]
                pub(crate) $table: $table_settings,
            )*
            $(
                $(#[$list_doc])*
                #[serde(skip_serializing_if = "Vec::is_empty")]
                pub(crate) $list: Vec<$item>,
            )*
        }

        impl $options {
            /// Reads the settings in a file's table.
            pub(crate) fn read(section: &Section<'_, '_>) -> $options {
                $options {
                    $( $( $field: section.setting(&hyphenated(stringify!($field))), )* )*
                    $( $table: section
                        .table(&hyphenated(stringify!($table)), &$table_settings::keys())
                        .map(|table| $table_options::read(&table))
                        .unwrap_or_default(), )*
                    $( $list: section.records(&hyphenated(stringify!($list)), $keys), )*
                }
            }

            /// These settings, completed with those of `lower`.
            pub(crate) fn or(self, lower: $options) -> $options {
                $options {
                    $( $( $field: self.$field.or(lower.$field), )* )*
                    $( $table: self.$table.or(lower.$table), )*
                    $( $list: self.$list.or(lower.$list), )*
                }
            }

            /// These settings, which stand in the file `name`: relative paths are relative to its
            /// directory, and the tables of lists know their place, for errors.
            pub(crate) fn placed(self, name: &Path) -> $options {
                let directory = name.parent().unwrap_or(Path::new(""));
                $options {
                    $( $( $field: self.$field.map(|value| value.placed(directory)), )* )*
                    $( $table: self.$table.placed(name), )*
                    $( $list: self.$list.map(|mut tables| {
                        tables.iter_mut().zip(1..).for_each(|(table, nth)| table.place(name, nth));
                        tables
                    }), )*
                }
            }

            /// These settings, completed with the defaults.
            pub(crate) fn resolve(self) -> $settings {
                // A test parses every default, so none can fail to parse here.
                $settings {
                    $( $( $field: self.$field.unwrap_or_else(|| {
                        $default.parse().expect(concat!("the default of ", $flag))
                    }), )* )*
                    $( $table: self.$table.resolve(), )*
                    $( $list: self.$list.unwrap_or_default(), )*
                }
            }
        }

        impl $settings {
            const ROWS: &[Row] = &[
                $( $( Row {
                    $( $( $attribute: $value, )* )?
                    ..Row::new($flag, concat!($prefix, stringify!($field)), Change::$change)
                }, )* )*
                $( Row::new("", stringify!($list), Change::$list_change), )*
            ];

            /// The keys of the table, subtables and lists included.
            pub(super) fn keys() -> Vec<String> {
                let own = Self::ROWS.iter().map(|row| row.path.rsplit('.').next().unwrap_or(""));
                let tables: [&str; _] = [$( stringify!($table) ),*];
                own.chain(tables).map(hyphenated).collect()
            }

            /// The keys of this table, then those of each table and list, by their headers.
            pub(super) fn known(header: String) -> KnownTables {
                let tables: [KnownTables; _] = [$(
                    $table_settings::known(format!("[{}]", hyphenated(stringify!($table))))
                ),*];
                let lists: KnownTables = vec![$( (
                    format!("[[{}]]", hyphenated(stringify!($list))),
                    $keys.iter().copied().map(str::to_owned).collect(),
                ) ),*];
                [vec![(header, Self::keys())], tables.concat(), lists].concat()
            }

            /// All rows, those of tables included.
            pub(super) fn rows() -> Vec<&'static Row> {
                let tables: [Vec<&Row>; _] = [$( $table_settings::rows() ),*];
                Self::ROWS.iter().chain(tables.into_iter().flatten()).collect()
            }

            /// Why the first setting with an impossible value cannot have it.
            pub(super) fn fault(&self) -> Option<String> {
                let mut rows = Self::ROWS.iter();
                $( $( if let Some(fault) = rows.next()?.fault(&self.$field) {
                    return Some(fault);
                } )* )*
                $( if let Some(fault) = self.$table.fault() {
                    return Some(fault);
                } )*
                None
            }

            /// Takes over the settings of `new` whose rows `takes` accepts.
            pub(crate) fn take(&mut self, new: &$settings, takes: &dyn Fn(&Row) -> bool) {
                let mut rows = Self::ROWS.iter();
                let mut is_taken = || rows.next().is_some_and(takes);
                $( $( if is_taken() {
                    self.$field.clone_from(&new.$field);
                } )* )*
                $( if is_taken() {
                    self.$list.clone_from(&new.$list);
                } )*
                $( self.$table.take(&new.$table, takes); )*
            }
        }
    };
}

pub(super) use settings;
