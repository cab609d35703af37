//! Which settings of TLS are possible together.

use super::certificate_tables::CertificateTable;
use super::table::Settings;

/// What is wrong, if anything.
pub(super) fn tls(settings: &Settings) -> Option<String> {
    files(settings)
        .or_else(|| address(settings))
        .or_else(|| tickets(settings))
        .or_else(|| clients(settings))
}

fn files(settings: &Settings) -> Option<String> {
    let (certificate, key) = (&settings.tls_cert.0, &settings.tls_key.0);
    match (certificate, key) {
        (Some(path), None) => {
            return Some(format!(
                "tls-cert names {} and tls-key is missing; add the file with its key",
                path.display()
            ));
        }
        (None, Some(path)) => {
            return Some(format!(
                "tls-key names {} and tls-cert is missing; add the file with its certificate",
                path.display()
            ));
        }
        _ => {}
    }
    let fault = |table: &CertificateTable| {
        let missing = match (&table.cert, &table.key) {
            (Some(_), Some(_)) => return None,
            (None, _) => "cert",
            (Some(_), None) => "key",
        };
        Some(format!("{} has no `{missing}`; add the path of the file", table.at))
    };
    settings.certificates.iter().find_map(fault)
}

fn address(settings: &Settings) -> Option<String> {
    let has_certificate = settings.has_certificate();
    if settings.admin_tls.0 && settings.admin_listen.0.is_none() {
        return Some("admin-tls has no effect without admin-listen; add its address".into());
    }
    if settings.admin_tls.0 && !has_certificate {
        return Some("admin-tls needs a certificate; add --tls-cert and --tls-key".into());
    }
    if settings.redirect_http.0.is_some() && settings.tls_listen.0.is_none() {
        return Some("redirect-http has nowhere to send clients; add tls-listen".into());
    }
    if settings.redirect_port.0.is_some() && settings.redirect_http.0.is_none() {
        return Some("redirect-port has no effect without redirect-http; add it".into());
    }
    let Some(address) = settings.tls_listen.0 else {
        let is_unused = has_certificate && !settings.admin_tls.0;
        return is_unused.then(|| {
            "there is a certificate, and no listener that shows it; add tls-listen, such as \
             --tls-listen :443"
                .into()
        });
    };
    if !has_certificate {
        return Some(format!(
            "tls-listen {address} needs a certificate; add --tls-cert and --tls-key, or --acme \
             with the name of this server"
        ));
    }
    let others = [
        ("listen", Some(settings.listen.0)),
        ("admin-listen", settings.admin_listen.0),
        ("redirect-http", settings.redirect_http.0),
    ];
    let same = others.into_iter().find(|(_, other)| *other == Some(address) && address.port() != 0);
    if let Some((name, _)) = same {
        return Some(format!(
            "{name} and tls-listen are both {address}; give one of them another port"
        ));
    }
    let is_reachable = !address.ip().to_canonical().is_loopback();
    let is_guarded = settings.has_keys() || settings.demands_client_certificates();
    (is_reachable && !is_guarded && !settings.allow_anyone.0).then(|| {
        format!(
            "refusing to listen on {address}: others can reach it, and without keys everyone may \
             read and publish; run `throng key` and add the table that it prints to throng.toml, \
             or demand certificates of clients with --tls-client-ca, or add --allow-anyone if \
             everyone may"
        )
    })
}

fn tickets(settings: &Settings) -> Option<String> {
    settings.tls_ticket_keys.0.as_ref()?;
    if settings.tls_client_ca.0.is_some() {
        return Some(
            "tls-ticket-keys has no effect with tls-client-ca: sessions of clients with \
             certificates are never resumed; remove one of them"
                .into(),
        );
    }
    settings.tls_ticket_lifetime.0.is_zero().then(|| {
        "tls-ticket-keys has no effect, because tls-ticket-lifetime is 0; remove one of them".into()
    })
}

fn clients(settings: &Settings) -> Option<String> {
    if settings.tls_client_ca.0.is_some() {
        return None;
    }
    let set = [
        ("tls-client-crl", settings.tls_client_crl.0.is_some()),
        ("tls-client-user", settings.tls_client_user.0.is_some()),
    ];
    let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
    Some(format!(
        "{key} has no effect, because clients are asked for no certificate; add tls-client-ca"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::file;

    fn problem(text: &str) -> String {
        let settings = file::read("throng.toml", text).unwrap().resolve();
        super::tls(&settings).unwrap_or_default()
    }

    const FILES: &str = "tls-cert = 'c'\ntls-key = 'k'\n";

    #[test]
    fn possible_settings_are_accepted() {
        for text in [
            "tls-listen = 8443",
            "tls-listen = '0.0.0.0:443'\nallow-anyone = true",
            "tls-listen = '0.0.0.0:443'\ntls-client-ca = 'a'",
            "tls-listen = 8443\ntls-min-version = 1.3\ntls-ticket-lifetime = 0",
            "admin-listen = 9090\nadmin-tls = true",
            "tls-listen = 8443\n[[certificates]]\ncert = 'c'\nkey = 'k'",
        ] {
            assert_eq!(problem(&format!("{FILES}{text}")), "", "{text}");
        }
        assert_eq!(problem("tls-listen = 8443\n[[certificates]]\ncert = 'c'\nkey = 'k'"), "");
    }

    #[test]
    fn impossible_settings_are_rejected() {
        for (text, expected) in [
            ("tls-listen = 8443", "tls-listen 127.0.0.1:8443 needs a certificate; add --tls-cert"),
            ("tls-cert = 'c'", "tls-cert names c and tls-key is missing"),
            ("tls-key = 'k'", "tls-key names k and tls-cert is missing"),
            ("redirect-http = 80", "redirect-http has nowhere to send clients; add tls-listen"),
            ("redirect-port = 443", "redirect-port has no effect without redirect-http"),
            ("admin-tls = true", "admin-tls has no effect without admin-listen"),
            ("admin-tls = true\nadmin-listen = 1", "admin-tls needs a certificate"),
            (FILES, "there is a certificate, and no listener that shows it; add tls-listen"),
            (
                "tls-listen = 1\n[[certificates]]\ncert = 'c'",
                "throng.toml, [[certificates]] number 1 has no `key`",
            ),
        ] {
            let found = problem(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
        for (text, expected) in [
            ("tls-listen = 8080", "listen and tls-listen are both 127.0.0.1:8080"),
            (
                "tls-listen = 1\nadmin-listen = 1",
                "admin-listen and tls-listen are both 127.0.0.1:1; give one of them",
            ),
            ("tls-listen = '0.0.0.0:443'", "refusing to listen on 0.0.0.0:443: others can reach"),
            (
                "tls-listen = '0.0.0.0:443'\ntls-client-ca = 'a'\ntls-client-auth = 'optional'",
                "refusing to listen on 0.0.0.0:443: others can reach",
            ),
            (
                "tls-listen = 1\ntls-ticket-keys = 'a'\ntls-client-ca = 'b'",
                "tls-ticket-keys has no effect with tls-client-ca",
            ),
            (
                "tls-listen = 1\ntls-ticket-keys = 'a'\ntls-ticket-lifetime = 0",
                "tls-ticket-keys has no effect, because tls-ticket-lifetime is 0",
            ),
            ("tls-listen = 1\ntls-client-crl = 'a'", "tls-client-crl has no effect, because"),
            ("tls-listen = 1\ntls-client-user = 'cn'", "tls-client-user has no effect, because"),
        ] {
            let found = problem(&format!("{FILES}{text}"));
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
