//! The applications whose clients speak the Pusher protocol, and what their keys and signatures
//! allow.
//!
//! An application's key opens only names that begin with its prefix. The rest of the server sees
//! its client as a client with a token that grants these names, and its signed request as one with
//! a server key for them. So rules, limits, sessions, revocations and callouts apply unchanged.
//!
//! A reload may replace all of it, but for the names: the sessions of clients have grants, and an
//! application is found by them.

use std::sync::Arc;

use throng_core::name::Kind;
use throng_core::{ConnectionName, NodeTag};
use throng_pusher::app::AppKey;
use throng_pusher::hide::Hider;
use throng_pusher::{App, SocketId};
use throng_wire::OriginPolicy;

use crate::grants::Grants;
use crate::pattern::Pattern;
use crate::server_key::{KeyHash, Scope, ServerKey};
use crate::session::Tagger;
use crate::token::Identity;

/// The most applications of a server. Each takes a rule of channels.
const APPS_MAX: usize = 100;

/// The most members of a presence channel that an application may have, and be confirmed with in
/// one frame: with the most that each may show, some 10 MB.
pub const APP_MEMBERS_MAX: usize = 5_000;

/// The same without a setting: Pusher's own number.
pub const APP_MEMBERS: usize = 100;

/// Why applications do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppsError {
    #[error("there are more than {APPS_MAX} applications")]
    TooMany,
    #[error("two applications have the same {0}")]
    Twice(&'static str),
}

/// An application, and the pages that may use it.
#[derive(Debug)]
pub struct AppSettings {
    pub app: App,
    /// Origins as the setting `allowed-origins` has them; empty for any.
    pub origins: Vec<String>,
    /// The most members of a presence channel.
    pub max_members: usize,
}

impl From<App> for AppSettings {
    fn from(app: App) -> AppSettings {
        AppSettings { app, origins: Vec::new(), max_members: APP_MEMBERS }
    }
}

/// An application, and what its clients and its requests may do.
#[derive(Debug)]
pub struct ClientApp {
    app: App,
    origins: Vec<String>,
    max_members: usize,
    /// Hides the numbers of connections in their names. Its secret is the server's, because an
    /// application may replace its own.
    hider: Hider,
    /// A client that has not signed in.
    anonymous: Arc<Identity>,
    server_key: Arc<ServerKey>,
}

impl ClientApp {
    fn new(AppSettings { app, origins, max_members }: AppSettings) -> ClientApp {
        let own = |rest: &str| format!("{}{rest}", app.prefix());
        let all = own("*");
        // What is behind `private-` and `presence-` is signed: a client gets so far only with that.
        // Its user's inbox needs no grant.
        let claim = serde_json::json!({
            "subscribe": [all],
            "presence": [own("presence-*")],
            "publish": [own("private-*"), own("presence-*")],
        });
        let grants = Grants::from_claim(&claim.to_string());
        let grants = Arc::new(grants.expect("a prefix is text of a pattern"));
        let pattern = |kind| Pattern::new(kind, &all).expect("a prefix is text of a pattern");
        let patterns = vec![pattern(Kind::Channel), pattern(Kind::User)];
        // No key of the settings has such a name, and no key at all this hash.
        let name = format!("app:{}", app.id());
        let hash = KeyHash::NONE;
        let key = ServerKey::new(&name, hash, vec![Scope::Publish], Some(patterns));
        let anonymous = Arc::new(Identity::of_app(app.id(), None, grants));
        let hider = hider(&Tagger::from_seed([0; 16]), &app);
        ClientApp { app, origins, max_members, hider, anonymous, server_key: Arc::new(key) }
    }

    /// The application itself.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// The identity of a client that has shown the key of the application.
    pub fn client(&self) -> &Arc<Identity> {
        &self.anonymous
    }

    /// The identity of a client that the application has signed to be this user of its own.
    pub fn client_of(&self, user: &str) -> Identity {
        let grants = Arc::clone(self.anonymous.grants());
        Identity::of_app(self.app.id(), Some(self.app.own(user).into()), grants)
    }

    /// True if pages of this origin may use the application. A client without one is no page.
    pub fn allows_page(&self, origin: Option<&str>, policy: OriginPolicy<'_>) -> bool {
        let policy = OriginPolicy { origins: &self.origins, hosts: &[], ..policy };
        let is_allowed = |origin| policy.allows_page(origin, None);
        self.origins.is_empty() || origin.is_none_or(is_allowed)
    }

    /// The most members of a presence channel.
    pub fn max_members(&self) -> usize {
        self.max_members
    }

    /// The rights of a request that the application has signed.
    pub fn server_key(&self) -> &Arc<ServerKey> {
        &self.server_key
    }
}

/// All applications of a server.
#[derive(Debug, Default)]
pub struct Apps {
    list: Vec<Arc<ClientApp>>,
    /// The number of this server in the names of its connections, where it shares its channels with
    /// no other one.
    alone: u64,
}

impl Apps {
    /// These applications.
    ///
    /// # Errors
    ///
    /// They do not go together.
    pub fn new(apps: impl IntoIterator<Item = impl Into<AppSettings>>) -> Result<Apps, AppsError> {
        let apps: Vec<AppSettings> = apps.into_iter().map(Into::into).collect();
        if apps.len() > APPS_MAX {
            return Err(AppsError::TooMany);
        }
        for (at, AppSettings { app, .. }) in apps.iter().enumerate() {
            for AppSettings { app: other, .. } in &apps[..at] {
                let has_key = |key: &AppKey| other.key(key.name()).is_some();
                let twice = match app {
                    _ if app.id() == other.id() => "id",
                    _ if app.keys().iter().any(has_key) => "key",
                    _ if app.prefix() == other.prefix() => "prefix",
                    _ => continue,
                };
                return Err(AppsError::Twice(twice));
            }
        }
        let list = apps.into_iter().map(|app| Arc::new(ClientApp::new(app))).collect();
        Ok(Apps { list, alone: 0 })
    }

    /// The same, whose connections have names that no other server gives, nor this one after a
    /// restart: signatures of channels have no other bound. A process that takes over connections
    /// has the same tagger, and so the same names.
    #[must_use]
    pub fn named_by(mut self, tagger: &Tagger) -> Apps {
        for own in self.list.iter_mut().filter_map(Arc::get_mut) {
            own.hider = hider(tagger, &own.app);
        }
        let secret = tagger.secret("the names of connections for applications");
        let number = secret.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Apps { alone: number, ..self }
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The applications in the order of the settings.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ClientApp>> {
        self.list.iter()
    }

    /// The application with this public key, and the key.
    pub fn with_key(&self, key: &str) -> Option<(&Arc<ClientApp>, &AppKey)> {
        self.list.iter().find_map(|own| Some((own, own.app.key(key)?)))
    }

    /// The application with this id.
    pub fn with_id(&self, id: &str) -> Option<&Arc<ClientApp>> {
        self.list.iter().find(|own| own.app.id() == id)
    }

    /// The application whose clients have these grants: no two have the same.
    pub fn with_grants(&self, grants: &Arc<Grants>) -> Option<&Arc<ClientApp>> {
        let is_same = |own: &&Arc<ClientApp>| {
            let known = own.anonymous.grants();
            Arc::ptr_eq(known, grants) || known == grants
        };
        self.list.iter().find(is_same)
    }

    /// A connection, as clients and applications call it.
    pub fn socket(&self, app: &ClientApp, connection: ConnectionName) -> SocketId {
        let node = match connection.node() {
            NodeTag::ALONE => self.alone,
            node => node.number(),
        };
        SocketId { node, number: app.hider.hide(connection.number(), node) }
    }

    /// The connection that clients of an application, and the application, call so.
    pub fn connection(&self, app: &ClientApp, socket: SocketId) -> ConnectionName {
        let number = app.hider.reveal(socket.number, socket.node);
        let connection = ConnectionName::numbered(number);
        if socket.node == self.alone {
            connection
        } else {
            connection.on(NodeTag::numbered(socket.node))
        }
    }
}

/// Nodes of a cluster have one tagger.
fn hider(tagger: &Tagger, app: &App) -> Hider {
    Hider::new(&tagger.secret(&format!("the names of connections of application {}", app.id())))
}

#[cfg(test)]
mod tests {
    use throng_core::name::ChannelName;

    use super::*;
    use crate::permission::Permission;
    use crate::policy::{Action, Credentials};
    use crate::rule::AccessRules;

    fn app(id: &str, key: &str, prefix: &str) -> App {
        App::new(id, key, b"7ad3773142a6692b25b8", prefix).unwrap()
    }

    #[test]
    fn a_key_opens_the_names_of_its_application_only() {
        let apps = Apps::new([app("1", "a", "shop/"), app("2", "b", "shop2/")]).unwrap();
        let (shop, _) = apps.with_key("a").unwrap();
        let (client, ann) = (shop.client(), shop.client_of("ann"));
        let allows = |identity: &Identity, permission, name: &ChannelName| {
            identity.grants().allow(permission, name, identity.user())
        };
        for (permission, name, is_allowed) in [
            (Permission::Subscribe, "shop/news", true),
            (Permission::Subscribe, "shop/private-a", true),
            (Permission::Subscribe, "news", false),
            (Permission::Subscribe, "shop", false),
            (Permission::Subscribe, "shop2/news", false),
            (Permission::Publish, "shop/news", false),
            (Permission::Publish, "shop/private-a", true),
            (Permission::Publish, "shop2/private-a", false),
            (Permission::Presence, "shop/presence-a", true),
            (Permission::Presence, "shop/news", false),
            (Permission::History, "shop/news", false),
            (Permission::Erase, "shop/news", false),
        ] {
            let channel = ChannelName::channel(name);
            assert_eq!(allows(client, permission, &channel), is_allowed, "{permission:?} {name}");
            assert_eq!(allows(&ann, permission, &channel), is_allowed, "{permission:?} {name}");
        }
        for name in ["shop/ann", "ann", "shop/bob", "shop2/ann"] {
            let inbox = ChannelName::user(name);
            let may = |client: &Identity| {
                let credentials =
                    Credentials::Known { user: client.user(), grants: client.grants() };
                AccessRules::default().decide(credentials, Action::Subscribe(&inbox)).is_ok()
            };
            assert_eq!((may(&ann), may(client)), (name == "shop/ann", false), "{name}");
        }
        assert_eq!(ann.user(), Some("shop/ann"));
        let key = shop.server_key();
        let publishes = |name: ChannelName| key.grants().allow(Permission::Publish, &name, None);
        assert!(publishes(ChannelName::channel("shop/news")));
        assert!(publishes(ChannelName::user("shop/ann")));
        assert!(!publishes(ChannelName::channel("shop2/news")));
        assert!(!publishes(ChannelName::user("ann")));
        let thawed = Grants::from_frozen(&client.grants().to_frozen()).unwrap();
        let found = apps.with_grants(&Arc::new(thawed)).unwrap();
        assert!(Arc::ptr_eq(found, shop) && apps.with_grants(&Arc::default()).is_none());
    }

    #[test]
    fn applications_differ_in_everything() {
        for (other, error) in [
            (app("1", "b", "b/"), AppsError::Twice("id")),
            (app("2", "a", "b/"), AppsError::Twice("key")),
            (app("2", "b", "a/"), AppsError::Twice("prefix")),
        ] {
            assert_eq!(Apps::new([app("1", "a", "a/"), other]).err(), Some(error));
        }
        let numbered = |at: usize| app(&at.to_string(), &at.to_string(), &format!("{at}/"));
        let many = |count| Apps::new((0..count).map(numbered)).err();
        assert_eq!((many(APPS_MAX), many(APPS_MAX + 1)), (None, Some(AppsError::TooMany)));
    }

    #[test]
    fn connections_have_names_of_their_server_and_application() {
        let apps = |seed| {
            let list = [app("1", "a", "shop/"), app("2", "b", "mall/")];
            Apps::new(list).unwrap().named_by(&Tagger::from_seed([seed; 16]))
        };
        let (here, other) = (apps(1), apps(2));
        let (shop, _) = here.with_key("a").unwrap();
        let (mall, _) = here.with_key("b").unwrap();
        let connection = ConnectionName::numbered(7);
        let socket = here.socket(shop, connection);
        assert_eq!(here.connection(shop, socket), connection);
        assert_ne!(socket.number, 7, "nobody foresees the next one");
        assert_ne!(other.socket(shop, connection), socket);
        assert_ne!(other.connection(shop, socket), connection, "of another server");
        let elsewhere = connection.on(NodeTag::numbered(9));
        let socket = here.socket(shop, elsewhere);
        assert_eq!(socket.node, 9);
        assert_eq!(apps(1).connection(shop, socket), elsewhere, "all nodes know it");
        assert_ne!(here.socket(mall, connection), here.socket(shop, connection));
    }

    #[test]
    fn each_key_of_an_application_is_found() {
        let shop = app("1", "a", "shop/").with_key("older", &[7; 16], false).unwrap();
        let apps = Apps::new([shop, app("2", "b", "mall/")]).unwrap();
        let found = |key| apps.with_key(key).map(|(own, key)| (own.app().id(), key.is_enabled()));
        assert_eq!((found("a"), found("older")), (Some(("1", true)), Some(("1", false))));
        assert_eq!((found("b"), found("c")), (Some(("2", true)), None));
    }

    #[test]
    fn pages_of_listed_origins_use_an_application() {
        let listen = "192.0.2.1".parse().unwrap();
        let policy = OriginPolicy { listen, origins: &[], hosts: &[], is_same_port_only: false };
        let of = |origins: &[&str]| {
            let origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
            ClientApp::new(AppSettings { origins, ..AppSettings::from(app("1", "a", "a/")) })
        };
        let listed = of(&["https://shop.example", "https://*.shop.example"]);
        for (origin, is_allowed) in [
            (None, true),
            (Some("https://shop.example"), true),
            (Some("https://a.shop.example"), true),
            (Some("http://shop.example"), false),
            (Some("https://shop.example.evil.example"), false),
            (Some("null"), false),
        ] {
            assert_eq!(listed.allows_page(origin, policy), is_allowed, "{origin:?}");
            assert!(of(&[]).allows_page(origin, policy) && of(&["*"]).allows_page(origin, policy));
        }
    }
}
