//! The settings of proxies and of limits per client, as both planes use them.

use throng_access::Clients;
use throng_access::address::{AddressMethod, AddressSource, Networks};
use throng_access::limit::{ClientLimits, LimitKeys, LimitSettings, Limiter};
use throng_access::session::Tagger;
use throng_units::{Count, Size};

use super::app_tables::AppTable;
use super::table::Settings;

/// How many bad tokens per second of an address are verified, unless a setting says so.
const BAD_TOKENS_PER_S: u32 = 10;

/// How many questions of an address are open at a time, unless a setting says so. A subscription
/// asks as many as it has channels.
const QUESTIONS: usize = 256;

/// Where the addresses of clients come from, and their limits.
pub(crate) fn clients(settings: &Settings, tagger: &Tagger) -> Clients {
    let method = match settings.client_address_header.0 {
        _ if settings.proxy_protocol.0 => AddressMethod::ProxyProtocol,
        Some(header) => AddressMethod::Header(header),
        None => AddressMethod::None,
    };
    // The texts were parsed when they were read.
    let proxies = settings.trusted_proxies.0.iter().filter_map(|text| text.parse().ok()).collect();
    Clients {
        source: AddressSource::new(method, Networks::new(proxies)),
        limiter: Limiter::new(limits(settings))
            .with_keys(LimitKeys::with_secret(tagger.secret("limits")))
            .with_apps(app_limits(settings, tagger))
            .with_prefixes(app_tags(settings, tagger)),
    }
}

/// The limits of applications, by the tags of their clients' sessions.
pub(crate) fn app_limits(
    settings: &Settings,
    tagger: &Tagger,
) -> impl Iterator<Item = (u64, ClientLimits)> {
    let of = |app: &AppTable| (tagger.app(app.id.as_deref().unwrap_or_default()), limits_of(app));
    settings.apps.iter().map(of)
}

/// The tags of applications by the prefixes of their names.
fn app_tags(settings: &Settings, tagger: &Tagger) -> impl Iterator<Item = (Box<str>, u64)> {
    let tag = |app: &AppTable| tagger.app(app.id.as_deref().unwrap_or_default());
    settings.apps.iter().map(move |app| (app.prefix().into(), tag(app)))
}

/// The most channels of applications, by the prefixes of their names.
pub(crate) fn channel_limits(settings: &Settings) -> impl Iterator<Item = (String, u64)> {
    let limit = |app: &AppTable| Some((app.prefix(), app.max_channels?.0 as u64));
    settings.apps.iter().filter_map(limit)
}

/// The limits of an application.
pub(crate) fn limits_of(app: &AppTable) -> ClientLimits {
    let count = |count: Option<Count>| count.map_or(0, |count| number(count.0));
    let size = |size: Option<Size>| size.map_or(0, |size| number(size.0));
    ClientLimits {
        connections: count(app.max_connections),
        connects_per_s: count(app.connect_rate),
        subscriptions: count(app.max_subscriptions),
        publishes_per_s: count(app.publish_rate),
        published_bytes_per_s: size(app.publish_byte_rate),
        read_bytes_per_s: size(app.read_byte_rate),
    }
}

/// The limits of a table, which has the same settings for each kind of client.
macro_rules! client_limits {
    ($table:expr) => {{
        let table = $table;
        ClientLimits {
            connections: number(table.max_connections.0),
            connects_per_s: number(table.connect_rate.0),
            subscriptions: number(table.max_subscriptions.0),
            publishes_per_s: number(table.publish_rate.0),
            published_bytes_per_s: number(table.publish_byte_rate.0),
            read_bytes_per_s: number(table.read_byte_rate.0),
        }
    }};
}

/// The limits of clients.
pub(crate) fn limits(settings: &Settings) -> LimitSettings {
    let auto = if are_addresses_known(settings) { BAD_TOKENS_PER_S } else { 0 };
    let questions = QUESTIONS.max(settings.max_channels_per_connection.0);
    let questions = if are_addresses_known(settings) { questions } else { 0 };
    LimitSettings {
        address: address_limits(settings),
        bad_tokens_per_s: settings.per_address.bad_token_rate.0.map_or(auto, number),
        questions: number(settings.per_address.max_questions.0.unwrap_or(questions)),
        user: client_limits!(&settings.per_user),
        key: client_limits!(&settings.per_key),
    }
}

/// Whether anything is limited of clients, those of applications included.
pub(crate) fn has_limits(settings: &Settings) -> bool {
    let is_limited = |app: &AppTable| !limits_of(app).is_none();
    limits(settings) != LimitSettings::default() || settings.apps.iter().any(is_limited)
}

fn address_limits(settings: &Settings) -> ClientLimits {
    client_limits!(&settings.per_address)
}

/// A number beyond the range is as good as that.
fn number(setting: usize) -> u32 {
    u32::try_from(setting).unwrap_or(u32::MAX)
}

/// Whether an address probably is a client's. On loopback, it may be that of a proxy which is not
/// listed.
fn are_addresses_known(settings: &Settings) -> bool {
    let is_local = settings.listen.0.ip().to_canonical().is_loopback();
    !settings.trusted_proxies.0.is_empty() || !is_local
}

/// What keeps limits per address from being what their names say.
pub(crate) fn address_warning(settings: &Settings) -> Option<&'static str> {
    let names_clients = settings.proxy_protocol.0 || settings.client_address_header.0.is_some();
    if address_limits(settings).is_none() {
        return None;
    }
    if !settings.trusted_proxies.0.is_empty() && !names_clients {
        return Some(
            "limits per address do not apply to clients behind the trusted proxies, whose \
             addresses are not known: set client-address-header or proxy-protocol",
        );
    }
    (!are_addresses_known(settings)).then_some(
        "limits per address count all clients behind a proxy on this machine as one: if there is a \
         proxy, list it in trusted-proxies, and set client-address-header or proxy-protocol",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file;

    fn of(text: &str) -> (LimitSettings, Option<&'static str>, bool) {
        let settings = file::read("throng.toml", text).expect("a file").resolve();
        let clients = clients(&settings, &Tagger::from_seed([7; 16]));
        (limits(&settings), address_warning(&settings), clients.keeps_addresses())
    }

    #[test]
    fn without_settings_nothing_is_limited() {
        assert_eq!(of(""), (LimitSettings::default(), None, false));
    }

    #[test]
    fn limits_are_those_of_the_tables() {
        let (limits, warning, keeps_addresses) =
            of("[per-address]\nmax-connections = 7\nconnect-rate = 8\nbad-token-rate = 9\n\
             publish-byte-rate = '1MiB'\npublish-rate = '1M'\n\
             [per-user]\npublish-rate = 10\nmax-connections = 12\nmax-subscriptions = 13\n\
             [per-key]\npublish-byte-rate = 11\nconnect-rate = 14");
        assert_eq!((limits.address.connections, limits.address.connects_per_s), (7, 8));
        assert_eq!((limits.address.published_bytes_per_s, limits.bad_tokens_per_s), (1 << 20, 9));
        assert_eq!(limits.address.publishes_per_s, 1_000_000);
        assert_eq!((limits.user.publishes_per_s, limits.key.published_bytes_per_s), (10, 11));
        assert_eq!((limits.user.connections, limits.user.subscriptions), (12, 13));
        assert_eq!((limits.key.connects_per_s, limits.key.subscriptions), (14, 0));
        assert!(keeps_addresses && warning.is_some_and(|text| text.contains("on this machine")));
    }

    #[test]
    fn a_proxy_that_names_no_clients_is_pointed_out() {
        let limit = "[per-address]\nmax-connections = 7";
        let proxies = "trusted-proxies = ['127.0.0.1', '10.0.0.0/8']\n";
        let (_, warning, _) = of(&format!("{proxies}{limit}"));
        assert!(warning.is_some_and(|text| text.contains("behind the trusted proxies")));
        let header = "client-address-header = 'forwarded'\n";
        let (limits, warning, _) = of(&format!("{proxies}{header}{limit}"));
        assert_eq!((limits.bad_tokens_per_s, limits.questions, warning), (10, 256, None));
        let (limits, ..) = of("listen = '0.0.0.0:80'\nmax-channels-per-connection = 300");
        assert_eq!(limits.questions, 300);
        let (limits, ..) = of("listen = '0.0.0.0:80'\n[per-address]\nmax-questions = 7");
        assert_eq!(limits.questions, 7);
    }
}
