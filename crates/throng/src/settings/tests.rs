//! All sources together, and the page that documents the settings.

use clap::FromArgMatches as _;

use throng_units::{Count, Size, Time};

use super::table::{Names, names};
use super::*;

/// The reference for users.
const PAGE: &str = include_str!("../../../../docs/reference/settings.md");

fn flags(arguments: &[&str]) -> Options {
    let command = <Options as clap::Args>::augment_args(clap::Command::new("throng"));
    let arguments = std::iter::once(&"throng").chain(arguments);
    Options::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn variables(pairs: &[(&str, &str)]) -> Options {
    environment::read(pairs.iter().map(|(name, value)| (name.into(), value.into()))).unwrap()
}

fn file(text: &str) -> Options {
    file::read("throng.toml", text).unwrap()
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let settings = flags(&["--heartbeat", "1s", "--welcome=false"])
        .or(variables(&[("THRONG_HEARTBEAT", "2s"), ("THRONG_HISTORY_AGE", "2s")]))
        .or(file("heartbeat = '3s'\nwelcome = true\nhistory = { age = '3s', messages = 3 }"))
        .resolve();
    assert_eq!(settings.heartbeat.to_string(), "1s");
    assert_eq!(settings.history.age.to_string(), "2s");
    assert_eq!(settings.history.messages.0, 3);
    assert!(!settings.welcome.0, "a flag can unset a switch of the file");
    assert_eq!(settings.drain_window.to_string(), "10s");
}

#[test]
fn a_switch_needs_no_value() {
    assert!(flags(&["--allow-anyone"]).resolve().allow_anyone.0);
    let settings = flags(&["--welcome", "--log", "warn"]).resolve();
    assert!(settings.welcome.0, "the next flag is not its value");
}

#[test]
fn printed_settings_read_back_as_the_same_settings() {
    let text = "
        listen = '127.0.0.1:1'
        max-connections = 5
        allowed-origins = ['https://a.example']
        [lag]
        policy = 'skip'
        [access]
        publish = 'user'
        [[channels]]
        match = 'a'
        age = '90s'
        subscribe = 'nobody'
        [[token-keys]]
        id = 'a'
        secret-file = 'token-secret'
        [[server-keys]]
        name = 'app'
        hash = 'sha256:a'
        scopes = ['publish']
        channels = ['a', 'b*']
    ";
    for settings in [Options::default().resolve(), file(text).resolve()] {
        let printed = toml::to_string(&settings).unwrap();
        assert_eq!(file(&printed).resolve(), settings, "{printed}");
    }
}

/// Texts of a value and the TOML that each becomes, by the value's placeholder in help texts.
fn grammar(value_name: &str) -> &'static [(&'static str, &'static str)] {
    match value_name {
        "NUMBER" => &[
            ("1000000", "1000000"),
            ("1_000_000", "1000000"),
            ("1,000,000", "1000000"),
            ("1M", "1000000"),
            ("1m", "1000000"),
            ("1.5k", "1500"),
            ("300K", "300000"),
        ],
        "SIZE" => &[
            ("65536", "\"64KiB\""),
            ("65_536", "\"64KiB\""),
            ("64k", "\"64KiB\""),
            ("64KB", "\"64KiB\""),
            ("64 KiB", "\"64KiB\""),
            ("1.5M", "\"1536KiB\""),
            ("1mb", "\"1MiB\""),
            ("1G", "\"1GiB\""),
        ],
        "TIME" => &[
            ("25", "\"25s\""),
            ("1.5", "\"1500ms\""),
            ("25s", "\"25s\""),
            ("25 S", "\"25s\""),
            ("500ms", "\"500ms\""),
            ("1.5h", "\"90m\""),
        ],
        "ADDRESS" => &[
            ("8080", "\"127.0.0.1:8080\""),
            (":8080", "\"127.0.0.1:8080\""),
            ("localhost:8080", "\"127.0.0.1:8080\""),
            ("[::1]:8080", "\"[::1]:8080\""),
            ("0.0.0.0:8080", "\"0.0.0.0:8080\""),
        ],
        "true|false" => &[("true", "true"), ("YES", "true"), ("on", "true"), ("0", "false")],
        "LEVEL" => &[("info", "\"info\""), ("INFO", "\"info\""), ("Trace", "\"trace\"")],
        "FORMAT" => &[("json", "\"json\""), ("Text", "\"text\"")],
        "POLICY" => &[("skip", "\"skip\""), ("Close", "\"close\"")],
        "ENGINE" => &[("NATS", "\"nats\""), ("memory", "\"memory\"")],
        "SERVER,…" => &[("A:1,tls://b", "[\"nats://a:1\", \"tls://b:4222\"]"), ("none", "[]")],
        "COPIES" => &[("3", "3"), (" 5", "5")],
        "PREFIX" => &[("push-1", "\"push-1\"")],
        "SYNC" => &[("interval", "\"interval\""), ("Never", "\"never\"")],
        "WHEN" => &[("auto", "\"auto\""), ("ON", "\"on\"")],
        "ORIGIN,…" => &[("https://A.example", "[\"https://a.example\"]"), ("None", "[]")],
        "HOST,…" => &[("Push.Example.", "[\"push.example\"]"), ("none", "[]")],
        "TEXT,…" => &[("push,Other", "[\"push\", \"Other\"]"), ("none", "[]")],
        "NETWORK,…" => &[("10.0.0.0/8,FD00::1", "[\"10.0.0.0/8\", \"fd00::1\"]"), ("None", "[]")],
        "always|never" => &[("Always", "\"always\""), ("never", "\"never\"")],
        "HEADER" => &[("Forwarded", "\"forwarded\""), ("None", "\"none\"")],
        "URL,…" => &[("https://a.example/k", "[\"https://a.example/k\"]"), ("none", "[]")],
        "NAME" => &[("__Host-token", "\"__Host-token\""), ("None", "\"none\"")],
        "FILE" | "PATH" => &[("revoked", "\"revoked\""), ("None", "\"none\"")],
        "DIRECTORY" => &[("LetsEncrypt", "\"letsencrypt\"")],
        "EMAIL" => &[("a@b.example", "\"a@b.example\""), ("None", "\"none\"")],
        "FIELD" => &[("CN", "\"cn\""), ("uri", "\"uri\"")],
        "VERSION" => &[("1.2", "\"1.2\""), ("1.3", "\"1.3\"")],
        "CHOICE" => &[("optional", "\"optional\""), ("Required", "\"required\"")],
        "JOURNAL" => &[("Nats", "\"nats\""), ("memory", "\"memory\"")],
        "MEMBERS" => &[("User", "\"user\""), ("none", "\"none\"")],
        "WHO" => &[("user", "\"user\""), ("Nobody", "\"nobody\"")],
        other => panic!("no samples for {other}: add them, or use a name that has some"),
    }
}

#[test]
fn flags_variables_and_keys_take_the_same_values() {
    let command = <Options as clap::Args>::augment_args(clap::Command::new("settings"));
    let value_name = |names: &Names| {
        let mut arguments = command.get_arguments();
        let found = arguments.find(|found| found.get_long() == names.flag.strip_prefix("--"));
        found.unwrap().get_value_names().unwrap()[0].to_string()
    };
    for names in names() {
        let (table, key) = names.key.split_once('.').unwrap_or(("", &names.key));
        let head = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        for (text, expected) in grammar(&value_name(&names)) {
            let mut sources = vec![
                flags(&[&format!("{}={text}", names.flag)]),
                variables(&[(&names.variable, text)]),
                file(&format!("{head}{key} = '{text}'")),
            ];
            // Numbers and booleans need no quotation marks in TOML.
            let bare = format!("{head}{key} = {text}");
            if toml::from_str::<toml::Table>(&bare).is_ok() {
                sources.push(file(&bare));
            }
            for source in sources {
                let settings = toml::Value::try_from(source.resolve()).unwrap();
                let found = names.key.split('.').try_fold(&settings, |value, key| value.get(key));
                assert_eq!(found.unwrap().to_string(), *expected, "{} {text}", names.flag);
            }
        }
    }
}

/// A row of the page's table.
struct Documented {
    names: Names,
    default: String,
    change: String,
    meaning: String,
}

fn documented() -> Vec<Documented> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `--"));
    let rows = rows.map(|line| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let mut cell = || cells.next().expect("a row has six cells").to_owned();
        let mut code = || cell().trim_matches('`').to_owned();
        let names = Names { flag: code(), variable: code(), key: code() };
        Documented { names, default: code(), change: cell(), meaning: cell() }
    });
    rows.collect()
}

#[test]
fn the_page_documents_every_setting_and_no_other() {
    let key = |names: &Names| names.key.clone();
    let mut documented: Vec<Names> = documented().into_iter().map(|row| row.names).collect();
    let mut known = names();
    documented.sort_by_key(key);
    known.sort_by_key(key);
    assert_eq!(documented, known);
    for key in [channels::KEYS, key_tables::TOKEN_KEYS, key_tables::SERVER_KEYS].concat() {
        assert!(PAGE.contains(&format!("`{key}`")), "{key} is not documented");
    }
}

#[test]
fn the_page_states_the_defaults() {
    let settings = toml::Value::try_from(Options::default().resolve()).unwrap();
    for Documented { names, default, .. } in documented() {
        let found = names.key.split('.').try_fold(&settings, |value, key| value.get(key));
        let found = match found.expect(&names.key) {
            toml::Value::String(text) => text.clone(),
            toml::Value::Array(list) if list.is_empty() => "none".into(),
            other => other.to_string(),
        };
        assert_eq!(found, default, "{}", names.key);
    }
}

#[test]
fn the_page_states_ranges_and_how_values_change() {
    for Documented { names, change, meaning, .. } in documented() {
        let row = row(&names.key).unwrap();
        let expected = match row.change {
            Change::Restart => "restart",
            Change::Upgrade | Change::UpgradeOfWorkers | Change::UpgradeOfListener => "upgrade",
            _ => "reload",
        };
        assert_eq!(change, expected, "{}", names.key);
        for bound in [row.min, row.max].into_iter().filter(|bound| !bound.is_empty()) {
            assert!(meaning.contains(&format!("`{bound}`")), "{}: {bound}", names.key);
        }
    }
}

#[test]
fn every_range_is_valid() {
    for row in Settings::rows() {
        for bound in [row.min, row.max, row.step].into_iter().filter(|bound| !bound.is_empty()) {
            let is_value = bound.parse::<Time>().is_ok() || bound.parse::<Size>().is_ok();
            assert!(is_value || bound.parse::<Count>().is_ok(), "{}: {bound}", row.key());
        }
    }
    let max = |key: &str| row(key).unwrap().max;
    assert_eq!(max("workers"), throng_edge::limits::WORKERS_MAX.to_string());
    assert_eq!(max("max-head-bytes"), Size(throng_edge::HEAD_BYTES_MAX).to_string());
    let settings = file(
        "max-head-bytes = '1KiB'\ncompression-level = 6\nheartbeat = 0\nmax-memory = '32MiB'\n\
         max-revocations = '10M'",
    );
    assert_eq!(settings.resolve().fault(), None, "the ends are in the range");
}

#[test]
fn the_planes_are_tested_with_the_defaults_of_users() {
    let settings = Options::default().resolve();
    let planes =
        crate::plane_settings::edge_settings(&settings, crate::memory::MemoryPlan::unlimited());
    let tests = throng_edge::Settings::for_tests();
    assert_eq!(format!("{planes:?}"), format!("{tests:?}"));
    let rule = rules(&settings);
    let name = throng_core::ChannelName::channel("news");
    assert_eq!(rule.get(rule.find(&name)), &throng_core::Rule::default());
}

#[test]
fn a_limit_that_an_empty_data_directory_may_reach_is_refused() {
    let check =
        |limit| check::check(&flags(&["--data", "/d", "--data-max-bytes", limit]).resolve());
    let refused = check("255MiB").unwrap_err().to_string();
    assert!(refused.starts_with("data-max-bytes (255MiB) is less than 256MiB"), "{refused}");
    assert!(check("256MiB").is_ok() && check("0").is_ok());
}
