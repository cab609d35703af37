//! Tables of options: a struct of what one source says, the flags and keys for it, its defaults and
//! its help, all from one list of rows.

use throng_settings::Section;

/// A table of a plan file, and the flags for its keys.
pub(super) trait Table: Default {
    /// The keys of the table, subtables included.
    const KEYS: &'static [&'static str];

    /// The subtables, each with its keys.
    const TABLES: &'static [(&'static str, &'static [&'static str])];

    /// Reads the table from a file, and reports errors to the section's reader.
    fn read(section: &Section<'_, '_>) -> Self;

    /// The default of every option that has one.
    fn defaults() -> Self;

    /// These options; where they say nothing, those of `lower`. Some lists are joined.
    fn or(self, lower: Self) -> Self;

    /// True if the option with this path of keys (`target.url`) is set.
    fn has(&self, key: &str) -> bool;

    /// Appends the options that are set as TOML: those of the table itself, then the subtables.
    fn write(&self, text: &mut String);
}

/// Defines the options of one table.
///
/// A row is `"key" field: Type = "default", "VALUE" as "flag" [clap's attributes], "help";`. VALUE
/// is the placeholder in the help. Without `as`, the flag has the name of the key. An option with a
/// default has a method of its name that returns the value or the default. The id of each flag is
/// its path of TOML keys.
macro_rules! options {
    (
        $(#[$doc:meta])*
        $name:ident, path $path:literal
        $( in $heading:literal {
            $(
                $key:literal $field:ident: $type:ty $(= $default:literal)?,
                $value:literal $(as $flag:literal)? $([$($argument:tt)*])?, $help:literal;
            )*
        } )*
        tables { $( $table_key:literal $table:ident: $table_type:ty, )* }
        others { $( $(#[$other_attribute:meta])* $other:ident: $other_type:ty, )* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, clap::Args)]
        pub struct $name {
            // The order of the flags in the help.
            $( $(#[$other_attribute])* pub $other: $other_type, )*
            $(
                #[doc = concat!("The table `[", $table_key, "]`.")]
                #[command(flatten)]
                pub $table: $table_type,
            )*
            $( $(
                #[doc = $help]
                #[arg(
                    id = concat!($path, $key),
                    help = concat!($help $(, " [default: ", $default, "]")?),
                    help_heading = $heading,
                    long = [$key $(, $flag)?].last().copied(),
                    value_name = $value,
                    $($($argument)*)?
                )]
                pub $field: Option<$type>,
            )* )*
        }

        impl $name {
            $( $( $(
                /// The value, or else the default.
                pub(super) fn $field(&self) -> $type {
                    self.$field.clone().unwrap_or_else(|| {
                        // A test parses every default.
                        $default.parse().expect(concat!("the default of ", $key))
                    })
                }
            )? )* )*
        }

        impl Table for $name {
            const KEYS: &'static [&'static str] = &[$( $($key,)* )* $($table_key,)*];

            const TABLES: &'static [(&'static str, &'static [&'static str])] =
                &[$( ($table_key, <$table_type>::KEYS), )*];

            fn read(section: &Section<'_, '_>) -> $name {
                $name {
                    $( $( $field: Value::read(section, $key), )* )*
                    $( $table: section
                        .table($table_key, <$table_type>::KEYS)
                        .map(|table| <$table_type>::read(&table))
                        .unwrap_or_default(), )*
                    $( $other: Default::default(), )*
                }
            }

            fn defaults() -> $name {
                $name {
                    $( $( $( $field: $default.parse().ok(), )? )* )*
                    $( $table: Table::defaults(), )*
                    ..$name::default()
                }
            }

            fn or(self, lower: $name) -> $name {
                $name {
                    $( $( $field: match (self.$field, lower.$field) {
                        (Some(value), Some(lower)) => Some(Value::or(value, lower)),
                        (value, lower) => value.or(lower),
                    }, )* )*
                    $( $table: self.$table.or(lower.$table), )*
                    $( $other: self.$other, )*
                }
            }

            fn has(&self, key: &str) -> bool {
                $( $( (key == concat!($path, $key) && self.$field.is_some()) || )* )*
                $( self.$table.has(key) || )*
                false
            }

            fn write(&self, text: &mut String) {
                $( $(
                    if let Some(value) = &self.$field {
                        text.push_str(&format!("{} = {}\n", $key, Value::toml(value)));
                    }
                )* )*
                $(
                    let mut table = String::new();
                    self.$table.write(&mut table);
                    if !table.is_empty() {
                        text.push_str(&format!("\n[{}]\n{table}", $table_key));
                    }
                )*
            }
        }
    };
}

pub(super) use options;
