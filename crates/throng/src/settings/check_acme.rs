//! Which settings of ACME are possible together.

use super::table::Settings;

/// The longest name that DNS allows, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// What is wrong, if anything.
pub(super) fn acme(settings: &Settings) -> Option<String> {
    let names = &settings.acme.0;
    if names.is_empty() {
        let set = [
            ("acme-email", settings.acme_email.0.is_some()),
            ("acme-ca", settings.acme_ca.0.is_some()),
        ];
        let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
        return Some(format!("{key} has no effect without acme; add the names of this server"));
    }
    if let Some(name) = names.iter().find(|name| !is_public_name(name)) {
        return Some(format!(
            "acme: no authority validates {name:?} over TLS; give the full names of this server, \
             like push.example.com"
        ));
    }
    if settings.tls_listen.0.is_none() {
        return Some(
            "acme needs tls-listen, because the authority connects to it; add --tls-listen :443"
                .into(),
        );
    }
    None
}

/// What the server needs for ACME and only its own start can know: a unit of systemd names the
/// directory. `None` if nothing lacks.
pub(crate) fn missing_state(settings: &Settings) -> Option<String> {
    let lacks = !settings.acme.0.is_empty() && settings.state_directory().is_none();
    lacks.then(|| {
        "acme needs a directory for its account and certificates; add --state DIR, or \
         StateDirectory= to the unit of systemd"
            .into()
    })
}

/// Whether this may be the full name of a host: no wildcard, no address, no single label.
fn is_public_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    name.contains('.')
        && !is_address
        && name.len() <= NAME_BYTES_MAX
        && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::super::file;

    fn problem(text: &str) -> String {
        let settings = file::read("throng.toml", text).unwrap().resolve();
        super::acme(&settings).unwrap_or_default()
    }

    #[test]
    fn possible_settings_are_accepted() {
        for text in [
            "",
            "acme = ['push.example.com', 'b.example']\ntls-listen = 443\nstate = 's'",
            "acme = ['a.example']\ntls-listen = 443\nstate = 's'\nacme-email = 'a@b.example'",
        ] {
            assert_eq!(problem(text), "", "{text}");
        }
    }

    #[test]
    fn impossible_settings_are_rejected() {
        let long = format!("{}.example", "x".repeat(64));
        for name in ["*", "localhost", "127.0.0.1", "a..b", "-a.example", "a_b.example", &long] {
            let text = format!("acme = ['{name}']\ntls-listen = 443\nstate = 's'");
            assert!(problem(&text).starts_with("acme: no authority validates"), "{name}");
        }
        for (text, expected) in [
            ("acme = ['a.example']\nstate = 's'", "acme needs tls-listen"),
            ("acme-email = 'a@b.example'", "acme-email has no effect without acme"),
            ("acme-ca = 'a'", "acme-ca has no effect without acme"),
        ] {
            let found = problem(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
