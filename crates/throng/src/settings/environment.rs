//! Settings from `THRONG_*` variables.
//!
//! A variable has the grammar of its flag. An unknown one is an error, because a misspelt one would
//! otherwise have no effect.

use std::ffi::OsString;

use throng_units::suggest::nearest;

use super::table::{Names, Options, SettingsError, names, present_name};

/// The prefix of every setting's variable.
const PREFIX: &str = "THRONG_";

/// Variables with the prefix that are not settings. The commands read the first three, the
/// project's tests the others; a server must start where they are exported.
const NOT_SETTINGS: [&str; 9] = [
    "THRONG_URL",
    "THRONG_TOKEN",
    "THRONG_KEY",
    "THRONG_BIN",
    "THRONG_FLOOD_SAMPLES",
    "THRONG_FUZZ_SECONDS",
    "THRONG_SEED",
    "THRONG_SEEDS",
    "THRONG_TEST_WITHOUT_IO_URING",
];

/// Kubernetes sets these variables in every container if a service is named `throng`.
fn is_from_kubernetes(name: &str) -> bool {
    name == "THRONG_PORT" || name.starts_with("THRONG_PORT_") || name.starts_with("THRONG_SERVICE_")
}

/// Reads the settings among `variables`.
pub(super) fn read(
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
    // Compared without the prefix: it makes all names look similar.
    let written = own_part(name);
    let former = written.to_ascii_lowercase().replace('_', "-");
    if let Some(present) = present_name(&former) {
        let present = present.to_ascii_uppercase().replace('-', "_");
        return SettingsError(format!("the variable {name} is now {PREFIX}{present}"));
    }
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

/// Parses the value with clap, as that of the flag.
fn read_one(names: &Names, value: &str) -> Result<Options, SettingsError> {
    let command = <Options as clap::Args>::augment_args(clap::Command::new("settings"));
    let flag = format!("{}={value}", names.flag);
    let read = command
        .try_get_matches_from(["settings", &flag])
        .and_then(|matches| <Options as clap::FromArgMatches>::from_arg_matches(&matches));
    read.map_err(|error| {
        let reason = std::error::Error::source(&error).map_or_else(
            || format!("{} is not allowed", format_args!("{value:?}")),
            ToString::to_string,
        );
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
    fn variables_have_the_grammar_of_flags() {
        let options = read_pairs(&[
            ("PATH", "/bin"),
            ("THRONG_WELCOME", "true"),
            ("THRONG_HISTORY_MESSAGES", "7"),
            ("THRONG_ALLOWED_ORIGINS", "https://a.example,https://b.example"),
            ("THRONG_URL", "http://localhost:1"),
            ("THRONG_TOKEN", "a.b.c"),
            ("THRONG_KEY", "throng_key_"),
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
    fn an_error_names_the_variable() {
        for (name, value, expected) in [
            ("THRONG_LISEN", "1", "unknown variable THRONG_LISEN; did you mean THRONG_LISTEN?"),
            (
                "THRONG_COLOUR_SCHEME",
                "1",
                "unknown variable THRONG_COLOUR_SCHEME; `throng serve --help` lists all settings",
            ),
            (
                "THRONG_PASSWORD",
                "1",
                "unknown variable THRONG_PASSWORD; `throng serve --help` lists all settings",
            ),
            (
                "THRONG_CONFIG",
                "t.toml",
                "unknown variable THRONG_CONFIG; the file of settings is named with --config, or \
                 is ./throng.toml",
            ),
            (
                "THRONG_BEHIND_POLICY",
                "skip",
                "the variable THRONG_BEHIND_POLICY is now THRONG_LAG_POLICY",
            ),
            ("THRONG_WELCOME", "so", "the variable THRONG_WELCOME: \"so\" is not true or false"),
            (
                "THRONG_WORKERS",
                "",
                "the variable THRONG_WORKERS: \"\" is not a whole number of at least 1, like 1000, \
                 10k or 1M, or \"auto\"",
            ),
        ] {
            assert_eq!(read_pairs(&[(name, value)]).unwrap_err(), expected);
        }
    }
}
