//! Every setting, defined once: a flag, a `THRONG_*` variable and a key of `throng.toml`.
//!
//! A source of settings is read into [`Options`], which holds only what that source says; flags win
//! over variables, variables over the file, the file over what holds unless set. [`Settings`] is
//! the outcome, checked. Nothing here binds, starts or changes anything.

mod admin;
pub mod channels;
mod check;
mod duration;
mod environment;
mod file;
mod lists;
mod written;

use std::ffi::OsString;
use std::path::Path;

use admin::AdminAddress;
use channels::ChannelTable;
use duration::Time;
use lists::{Hosts, Origins};
use written::{Address, Automatic, Count, Demo, Level, Policy, Ring, Size, Switch, Written};

/// What is wrong with the settings, and where it stands: one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Defines a struct of what one source says (clap's and serde's), and one of what holds.
macro_rules! settings {
    (
        $(#[$doc:meta])*
        $options:ident => $settings:ident, keys $prefix:literal
        $( in $heading:literal {
            $( $flag:literal $field:ident: $type:ty = $default:literal, $help:literal; )*
        } )*
        tables { $( $table:ident: $table_options:ident => $table_settings:ident, )* }
        lists { $( $(#[$list_doc:meta])* $list:ident: $item:ty, )* }
    ) => {
        $(#[$doc])*
        ///
        /// As far as one source says.
        #[derive(Debug, Clone, Default, clap::Args, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct $options {
            $( $(
                #[arg(
                    id = concat!($prefix, stringify!($field)),
                    long = $flag,
                    help = concat!($help, " [default: ", $default, "]"),
                    help_heading = $heading,
                    value_name = <$type as Written>::NAME,
                    num_args = <$type as Written>::ARGUMENTS,
                    require_equals = *<$type as Written>::ARGUMENTS.start() == 0,
                    default_missing_value = "true",
                    hide_possible_values = true,
                    // So that -1 is refused as a value, in the words of the setting.
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
        pub struct $settings {
            $( $(
                #[doc = $help]
                pub $field: $type,
            )* )*
            $(
                #[doc = concat!("The table `[", stringify!($table), "]`.")]
                pub $table: $table_settings,
            )*
            $(
                $(#[$list_doc])*
                #[serde(skip_serializing_if = "Vec::is_empty")]
                pub $list: Vec<$item>,
            )*
        }

        impl $options {
            /// What these say, and where they say nothing, what `lower` says.
            fn or(self, lower: $options) -> $options {
                $options {
                    $( $( $field: self.$field.or(lower.$field), )* )*
                    $( $table: self.$table.or(lower.$table), )*
                    $( $list: self.$list.or(lower.$list), )*
                }
            }

            /// What holds, as far as nothing else is said.
            fn resolve(self) -> $settings {
                // A test reads every default, so that none can fail to parse here.
                $settings {
                    $( $( $field: self.$field.unwrap_or_else(|| {
                        $default.parse().expect(concat!("the default of ", $flag))
                    }), )* )*
                    $( $table: self.$table.resolve(), )*
                    $( $list: self.$list.unwrap_or_default(), )*
                }
            }
        }
    };
}

settings! {
    /// All settings of the server.
    Options => Settings, keys ""
    in "Address" {
        "listen" listen: Address = "127.0.0.1:8080",
            "Address and port to listen on; a port alone means 127.0.0.1";
        "allow-anyone" allow_anyone: Switch = "false",
            "Allow an address that others can reach, although nothing checks who may do what";
        "allowed-origins" allowed_origins: Origins = "none",
            "Origins whose pages may connect, comma-separated; `*` for any";
        "allowed-hosts" allowed_hosts: Hosts = "none",
            "Host names under which the server answers, comma-separated; `*` for any";
        "clients-publish" clients_publish: Switch = "true",
            "Whether clients may publish; if not, only the admin listener accepts messages";
        "demo" demo: Demo = "auto",
            "Serve the chat at / and /chat; auto does on loopback, if clients may publish";
    }
    in "Admin listener" {
        "admin-listen" admin_listen: AdminAddress = "none",
            "Address and port of status page, metrics and publishing, then available there only";
        "admin-allow-anyone" admin_allow_anyone: Switch = "false",
            "Allow it an address that others can reach, although nothing checks who asks";
    }
    in "Connections" {
        "max-connections" max_connections: Automatic = "auto",
            "Most open connections; auto is what a worker per core holds, more starts workers";
        "workers" workers: Automatic = "auto",
            "Fewest worker threads; auto is one per core";
        "io-uring" io_uring: Ring = "auto",
            "Use io_uring for fan-outs; auto does where the kernel (6.1 or later) allows it";
        "heartbeat" heartbeat: Time = "25s",
            "A connection is not silent for longer: a pong, comment or blank chunk; 0 for none";
        "ping-interval" ping_interval: Time = "225s",
            "Interval of pings; a WebSocket that does not answer one is closed; 0 for no pings";
        "welcome" welcome: Switch = "false",
            "Greet each subscription with a line or event";
        "head-timeout" head_timeout: Time = "10s",
            "Time in which a request head must arrive";
        "idle-timeout" idle_timeout: Time = "75s",
            "Time after which a kept-alive connection without a request is closed";
        "drain-window" drain_window: Time = "10s",
            "On shutdown, time over which reconnecting clients are spread";
        "drain-timeout" drain_timeout: Time = "10s",
            "On shutdown, time for requests and messages that are still on their way";
    }
    in "Limits" {
        "max-head-bytes" max_head_bytes: Size = "16KiB",
            "Largest request line and headers, together";
        "max-message-bytes" max_message_bytes: Size = "64KiB",
            "Largest message";
        "max-batch-bytes" max_batch_bytes: Size = "8MiB",
            "Largest batch";
        "max-channels-per-connection" max_channels_per_connection: Count = "128",
            "Most channels that one connection may follow";
        "max-held-bytes" max_held_bytes: Size = "1GiB",
            "Half-sent requests and unread answers in all; then those who hold most are closed";
    }
    in "Log" {
        "log" log: Level = "info",
            "What is logged to stderr: error, warn, info, debug or trace";
    }
    tables {
        history: HistoryOptions => History,
        behind: BehindOptions => Behind,
    }
    lists {
        /// What holds for some channels only.
        channels: ChannelTable,
    }
}

settings! {
    /// What is kept of each channel.
    HistoryOptions => History, keys "history."
    in "History" {
        "history-messages" messages: Count = "100",
            "Messages kept per channel";
        "history-bytes" bytes: Size = "1MiB",
            "Bytes kept per channel";
        "history-age" age: Time = "1h",
            "How long messages are kept, per channel";
        "history-total-bytes" total_bytes: Size = "1GiB",
            "Bytes kept in total; beyond it the oldest messages of all channels are dropped first";
    }
    tables {}
    lists {}
}

settings! {
    /// When a subscriber is too far behind, and what happens then.
    BehindOptions => Behind, keys "behind."
    in "Slow subscribers" {
        "behind-messages" messages: Count = "1000",
            "Messages that a subscriber may fall behind";
        "behind-bytes" bytes: Size = "1MiB",
            "Bytes that a subscriber may fall behind; the limit reached first counts";
        "behind-policy" policy: Policy = "close",
            "What happens beyond either: close the connection, or skip with a gap message";
    }
    tables {}
    lists {}
}

/// Loads the settings: flags over variables over the file, which is `named`, or else `throng.toml`
/// in the working directory if there is one.
pub fn load(
    flags: Options,
    variables: impl Iterator<Item = (OsString, OsString)>,
    named: Option<&Path>,
) -> Result<Settings, SettingsError> {
    let environment = environment::read(variables)?;
    let file = file::find_and_read(named)?;
    let settings = flags.or(environment).or(file).resolve();
    check::check(&settings)?;
    Ok(settings)
}

/// One setting's three names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Names {
    flag: String,
    variable: String,
    key: String,
}

/// The names of every setting, in the order of definition.
fn names() -> Vec<Names> {
    let command = <Options as clap::Args>::augment_args(clap::Command::new("settings"));
    let named = command.get_arguments().filter_map(|argument| {
        let flag = argument.get_long()?;
        Some(Names {
            flag: format!("--{flag}"),
            variable: format!("THRONG_{}", flag.to_ascii_uppercase().replace('-', "_")),
            key: argument.get_id().as_str().replace('_', "-"),
        })
    });
    named.collect()
}

#[cfg(test)]
mod tests;
