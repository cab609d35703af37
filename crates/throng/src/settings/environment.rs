//! Settings from `THRONG_*` variables.
//!
//! A variable is read exactly as its flag would be. An unknown one is refused, because a
//! misspelt one would otherwise be silently without effect.

use std::ffi::OsString;

use throng_units::suggest::nearest;

use super::written::quoted;
use super::{Names, Options, SettingsError, names};

/// What the variable of every setting begins with.
const PREFIX: &str = "THRONG_";

/// Variables of that kind that are not settings of the server: the client commands have one, our
/// tests the others, and a server must start where those are exported.
const NOT_SETTINGS: [&str; 7] = [
    "THRONG_URL",
    "THRONG_BIN",
    "THRONG_FLOOD_SAMPLES",
    "THRONG_FUZZ_SECONDS",
    "THRONG_SEED",
    "THRONG_SEEDS",
    "THRONG_TEST_WITHOUT_IO_URING",
];

/// Kubernetes puts such variables into every container beside a service that is named `throng`.
fn is_from_kubernetes(name: &str) -> bool {
    name == "THRONG_PORT" || name.starts_with("THRONG_PORT_") || name.starts_with("THRONG_SERVICE_")
}

/// What the variables say.
pub fn read(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Options, SettingsError> {
    let known = names();
    let mut options = Options::default();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if NOT_SETTINGS.contains(&name) || is_from_kubernetes(name) {
            continue;
        }
        let Some(names) = known.iter().find(|names| names.variable == name) else {
            return Err(unknown(name, &known));
        };
        let value = value
            .into_string()
            .map_err(|_| SettingsError(format!("the variable {name} is not UTF-8")))?;
        options = options.or(read_one(names, &value)?);
    }
    Ok(options)
}

fn unknown(name: &str, known: &[Names]) -> SettingsError {
    // What all names begin with says nothing about which one is near.
    let written = own_part(name);
    let hint = match nearest(written, known.iter().map(|names| own_part(&names.variable))) {
        Some(meant) => format!("did you mean {PREFIX}{meant}?"),
        None if name == "THRONG_CONFIG" => {
            "the file of settings is named with --config, or is ./throng.toml".to_owned()
        }
        None => "`throng serve --help` lists all settings".to_owned(),
    };
    SettingsError(format!("unknown variable {name}; {hint}"))
}

fn own_part(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// Lets clap read the value as that of the flag, so that both are read by the same code.
fn read_one(names: &Names, value: &str) -> Result<Options, SettingsError> {
    let command = <Options as clap::Args>::augment_args(clap::Command::new("settings"));
    let flag = format!("{}={value}", names.flag);
    let read = command
        .try_get_matches_from(["settings", &flag])
        .and_then(|matches| <Options as clap::FromArgMatches>::from_arg_matches(&matches));
    read.map_err(|error| {
        let reason = std::error::Error::source(&error)
            .map_or_else(|| format!("{} is not allowed", quoted(value)), ToString::to_string);
        SettingsError(format!("the variable {}: {reason}", names.variable))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pairs(pairs: &[(&str, &str)]) -> Result<Options, String> {
        read(pairs.iter().map(|(name, value)| (name.into(), value.into())))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn reads_variables_as_flags() {
        let options = read_pairs(&[
            ("PATH", "/bin"),
            ("THRONG_WELCOME", "true"),
            ("THRONG_HISTORY_MESSAGES", "7"),
            ("THRONG_ALLOWED_ORIGINS", "https://a.example,https://b.example"),
            ("THRONG_URL", "http://localhost:1"),
            ("THRONG_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("THRONG_SERVICE_HOST", "10.0.0.1"),
            ("THRONG_SEEDS", "10000"),
            ("THRONG_SEED", "7"),
            ("THRONG_FUZZ_SECONDS", "60"),
            ("THRONG_BIN", "target/release/throng"),
        ]);
        let settings = options.unwrap().resolve();
        assert!(settings.welcome.0);
        assert_eq!(settings.history.messages.0, 7);
        assert_eq!(settings.allowed_origins.0.len(), 2);
    }

    #[test]
    fn refuses_by_name() {
        for (name, value, expected) in [
            ("THRONG_LISEN", "1", "unknown variable THRONG_LISEN; did you mean THRONG_LISTEN?"),
            (
                "THRONG_COLOUR_SCHEME",
                "1",
                "unknown variable THRONG_COLOUR_SCHEME; `throng serve --help` lists all settings",
            ),
            (
                "THRONG_TOKEN",
                "1",
                "unknown variable THRONG_TOKEN; `throng serve --help` lists all settings",
            ),
            (
                "THRONG_CONFIG",
                "t.toml",
                "unknown variable THRONG_CONFIG; the file of settings is named with --config, or \
                 is ./throng.toml",
            ),
            ("THRONG_WELCOME", "so", "the variable THRONG_WELCOME: \"so\" is not true or false"),
            (
                "THRONG_WORKERS",
                "",
                "the variable THRONG_WORKERS: \"\" is not a whole number from 1 on, like 1000, 10k \
                 or 1M, or \"auto\"",
            ),
        ] {
            assert_eq!(read_pairs(&[(name, value)]).unwrap_err(), expected);
        }
    }
}
