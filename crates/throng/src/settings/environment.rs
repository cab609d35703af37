//! Settings from `THRONG_*` variables.
//!
//! A variable has the grammar of its flag. One that is nearly the name of a setting is an error,
//! because it would otherwise have no effect. All others belong to somebody else and stop nothing:
//! those of Kubernetes, of the guides and of the project's tests are known, and the server warns of
//! the rest.

use std::ffi::OsString;

use throng_units::suggest::{is_slip, nearest};

use super::table::{Names, Options, SettingsError, names};

/// The prefix of every setting's variable.
const PREFIX: &str = "THRONG_";

/// Variables with the prefix that are not settings. Commands read the first three, and `throng
/// flood` the fourth. The guides give the others to the application, which often shares a file of
/// variables with the server.
const NOT_SETTINGS: [&str; 6] = [
    "THRONG_URL",
    "THRONG_TOKEN",
    "THRONG_KEY",
    "THRONG_FLOOD_SECRET",
    "THRONG_SECRET",
    "THRONG_TOKEN_SECRET",
];

/// Variables of the project's tests and scripts. A server must start where they are exported.
const OF_TESTS: [&str; 14] = [
    "THRONG_BIN",
    "THRONG_BUILD",
    "THRONG_FAULT_SECONDS",
    "THRONG_FLOOD_SAMPLES",
    "THRONG_FUZZ_SECONDS",
    "THRONG_KEEP",
    "THRONG_KILLS",
    "THRONG_NODE_CHAOS_SECONDS",
    "THRONG_NODE_UPGRADES",
    "THRONG_PICTURES",
    "THRONG_STOCK_CUTS",
    "THRONG_UPGRADES",
    "THRONG_UPGRADE_FROM",
    "THRONG_UPGRADE_KILLS",
];

/// Begins further variables of the project's tests.
const OF_TESTS_PREFIXES: [&str; 2] = ["THRONG_TEST_", "THRONG_PACKAGES"];

/// Ends further ones.
const OF_TESTS_ENDS: [&str; 2] = ["_SEED", "_SEEDS"];

/// Whether Kubernetes sets this variable for a service whose name begins with `throng`:
/// `X_SERVICE_HOST`, `X_SERVICE_PORT[_NAME]`, `X_PORT`, and `X_PORT_1_TCP[_ADDR|_PORT|_PROTO]`,
/// where X is the name of the service.
fn is_from_kubernetes(name: &str, value: &str) -> bool {
    if let Some((_, end)) = name.split_once("_SERVICE_") {
        return end == "HOST" || end == "PORT" || end.starts_with("PORT_");
    }
    let is_url = || {
        let scheme = value.split_once("://").map(|(scheme, _)| scheme);
        matches!(scheme, Some("tcp" | "udp" | "sctp"))
    };
    // A setting, such as THRONG_REDIRECT_PORT, has a number.
    if let Some(service) = name.strip_suffix("_PORT")
        && !service.contains("_PORT_")
    {
        return service == "THRONG" || is_url();
    }
    name.match_indices("_PORT_").any(|(at, word)| {
        let mut parts = name[at + word.len()..].split('_');
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        parts.next().is_some_and(|part| !part.is_empty() && is_number(part))
            && matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"))
            && matches!(parts.next(), None | Some("ADDR" | "PORT" | "PROTO"))
            && parts.next().is_none()
    })
}

/// Whether a variable with the prefix has a purpose besides the settings.
fn is_known(name: &str, value: &str) -> bool {
    NOT_SETTINGS.contains(&name)
        || OF_TESTS.contains(&name)
        || OF_TESTS_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || OF_TESTS_ENDS.iter().any(|end| name.ends_with(end))
        || is_from_kubernetes(name, value)
}

/// The variables with the prefix that have no purpose besides the settings.
fn candidates(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, OsString)> {
    variables.filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
        (!is_known(&name, &value.to_string_lossy())).then_some((name, value))
    })
}

/// Reads the settings among `variables`.
pub(super) fn read(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Options, SettingsError> {
    let known = names();
    let mut options = Options::default();
    for (name, value) in candidates(variables) {
        let Some(names) = known.iter().find(|names| names.variable == name) else {
            if let Some(meant) = meant(&name, &known) {
                return Err(SettingsError(meant));
            }
            continue;
        };
        let value = value
            .into_string()
            .map_err(|_| SettingsError(format!("the variable {name} is not UTF-8")))?;
        options = options.or(read_one(names, &value)?);
    }
    Ok(options)
}

/// A warning for each of the `variables` that looks like a setting and is none, in order of names.
pub(super) fn warnings(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let known = names();
    let is_setting = |name: &String| known.iter().any(|names| names.variable == *name);
    let mut unknown: Vec<String> =
        candidates(variables).map(|(name, _)| name).filter(|name| !is_setting(name)).collect();
    unknown.sort();
    unknown.into_iter().map(|name| format!("the variable {name} {}", hint(&name, &known))).collect()
}

/// The error for a variable that is nearly the name of a setting.
fn meant(name: &str, known: &[Names]) -> Option<String> {
    // Compared without the prefix: it makes all names look similar.
    let written = own_part(name);
    nearest_setting(written, known)
        .filter(|meant| is_slip(written, meant))
        .map(|meant| format!("unknown variable {name}; did you mean {PREFIX}{meant}?"))
}

fn hint(name: &str, known: &[Names]) -> String {
    match nearest_setting(own_part(name), known) {
        _ if name == "THRONG_CONFIG" => "is not read: the file of settings is named with \
            --config, or is ./throng.toml"
            .to_owned(),
        Some(meant) => format!("is no setting and is ignored; did you mean {PREFIX}{meant}?"),
        None => "is no setting and is ignored; `throng serve --help` lists all".to_owned(),
    }
}

fn nearest_setting<'a>(written: &str, known: &'a [Names]) -> Option<&'a str> {
    nearest(written, known.iter().map(|names| own_part(&names.variable)))
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

    fn warnings_of(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(|name| (name.into(), "x".into())))
    }

    #[test]
    fn variables_have_the_grammar_of_flags() {
        let options = read_pairs(&[
            ("PATH", "/bin"),
            ("THRONG_WELCOME", "true"),
            ("THRONG_HISTORY_MESSAGES", "7"),
            ("THRONG_ALLOWED_ORIGINS", "https://a.example,https://b.example"),
        ]);
        let settings = options.unwrap().resolve();
        assert!(settings.welcome.0);
        assert_eq!(settings.history.messages.0, 7);
        assert_eq!(settings.allowed_origins.0.len(), 2);
    }

    #[test]
    fn variables_of_kubernetes_are_ignored_for_every_service() {
        for service in ["THRONG", "THRONG_ADMIN", "THRONG_NATS", "THRONG_REDIRECT", "THRONG_LISTE"]
        {
            let variables = [
                ("_SERVICE_HOST", "10.0.0.1"),
                ("_SERVICE_PORT", "8081"),
                ("_SERVICE_PORT_HTTP_ADMIN", "8081"),
                ("_PORT", "tcp://10.0.0.1:8081"),
                ("_PORT_8081_TCP", "tcp://10.0.0.1:8081"),
                ("_PORT_8081_TCP_ADDR", "10.0.0.1"),
                ("_PORT_8081_TCP_PORT", "8081"),
                ("_PORT_443_UDP_PROTO", "udp"),
            ]
            .map(|(end, value)| (format!("{service}{end}"), value));
            let pairs: Vec<_> =
                variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            assert!(read_pairs(&pairs).is_ok(), "{service}");
            let pairs = pairs.iter().map(|(name, value)| (name.into(), value.into()));
            assert_eq!(warnings(pairs), [""; 0], "{service}");
        }
        let settings = read_pairs(&[("THRONG_REDIRECT_PORT", "8443")]).unwrap().resolve();
        assert_eq!(settings.redirect_port.to_string(), "8443");
    }

    #[test]
    fn a_variable_of_somebody_else_is_a_warning() {
        let all = ["THRONG_PASSWORD", "THRONG_ADMIN_URL", "THRONG_TLS_PORT", "THRONG_CONFIG"];
        assert!(read_pairs(&all.map(|name| (name, "x"))).is_ok());
        assert_eq!(
            warnings_of(&all),
            [
                "the variable THRONG_ADMIN_URL is no setting and is ignored; did you mean \
                 THRONG_ADMIN_TLS?",
                "the variable THRONG_CONFIG is not read: the file of settings is named with \
                 --config, or is ./throng.toml",
                "the variable THRONG_PASSWORD is no setting and is ignored; `throng serve --help` \
                 lists all",
                "the variable THRONG_TLS_PORT is no setting and is ignored; did you mean \
                 THRONG_TLS_CERT?",
            ]
        );
    }

    /// Whatever a reader copies from here into a shell or a file of variables stops no server.
    #[test]
    fn the_variables_of_guides_and_scripts_are_known() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let folders = ["docs", "examples", "packaging", "scripts", "clients"];
        let mut files = vec![format!("{root}/README.md"), format!("{root}/CONTRIBUTING.md")];
        let mut waiting: Vec<_> = folders.iter().map(|folder| format!("{root}/{folder}")).collect();
        while let Some(folder) = waiting.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let path = entry.path().display().to_string();
                let is_ours =
                    !["node_modules", ".venv", "dist"].iter().any(|end| path.ends_with(end));
                let kind = entry.file_type().unwrap();
                if kind.is_dir() && is_ours {
                    waiting.push(path);
                } else if kind.is_file() {
                    files.push(path);
                }
            }
        }
        let mut found = std::collections::BTreeSet::new();
        for file in &files {
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            // It has a wrong name on purpose.
            if !file.ends_with("settings.md") {
                found.extend(
                    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                        .filter(|word| word.len() > PREFIX.len() && word.starts_with(PREFIX))
                        .map(str::to_owned),
                );
            }
        }
        assert!(found.contains("THRONG_TOKEN_SECRET"), "{found:?}");
        let names: Vec<_> = found.iter().map(String::as_str).collect();
        assert_eq!(warnings_of(&names), [""; 0]);
    }

    #[test]
    fn an_error_names_the_variable() {
        for (name, value, expected) in [
            ("THRONG_LISEN", "1", "unknown variable THRONG_LISEN; did you mean THRONG_LISTEN?"),
            (
                "THRONG_MAX_MESAGE_BYTE",
                "1",
                "unknown variable THRONG_MAX_MESAGE_BYTE; did you mean THRONG_MAX_MESSAGE_BYTES?",
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
