//! Where tokens are shown, and where they are not.

use super::*;
use crate::plan::file::parse;
use crate::plan::{Plan, SecretFile, TokenOptions};
use crate::template::TemplateValues;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A file of its own that is removed at the end.
struct File(tempfile::TempPath);

impl File {
    fn new(text: &str) -> File {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        File(file.into_temp_path())
    }

    fn loaded(&self) -> Option<SecretFile> {
        Some(self.0.to_str()?.parse().expect("a file"))
    }
}

fn options(url: &str, tokens: TokenOptions) -> Options {
    let mut options = Options { tokens, ..Options::default() };
    options.target.url = Some(url.to_owned());
    options
}

fn literal(token: &str) -> TokenOptions {
    TokenOptions { template: Some(token.to_owned()), ..TokenOptions::default() }
}

fn plan(options: Options) -> Plan {
    options.into_plan().unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn refusal(options: Options) -> String {
    let errors = options.into_plan().map(|plan| panic!("{plan:?}")).unwrap_err();
    format!("{}: {}", errors[0].key, errors[0].message)
}

fn rendered(template: &Template, client: usize) -> String {
    template.rendered(&TemplateValues { client, ..TemplateValues::default() })
}

#[test]
fn a_token_is_shown_in_its_place_and_by_publishers() {
    let shown_in = |place, url: &str| {
        plan(options(url, TokenOptions { place: Some(place), ..literal("t{i}") }))
    };
    let by_header = shown_in(TokenPlace::Header, "http://h:1");
    assert_eq!(rendered(&by_header.target.headers[0].1, 3), "Bearer t3");
    let publish = by_header.target.publish.expect("publishes");
    let PublishBy::Http { headers, .. } = publish.by else { panic!("by frames") };
    assert_eq!(
        (headers[0].0.as_str(), rendered(&headers[0].1, 0).as_str()),
        (AUTHORIZATION, "Bearer t0")
    );
    let by_query = shown_in(TokenPlace::Query, "http://h:1/channels/a");
    assert_eq!(rendered(&by_query.target.url, 3), "http://h:1/channels/a?token=t3");
    let behind = shown_in(TokenPlace::Query, "http://h:1/channels/a?b");
    assert_eq!(rendered(&behind.target.url, 3), "http://h:1/channels/a?b&token=t3");
    let by_protocol = shown_in(TokenPlace::Subprotocol, "http://h:1");
    let offered = by_protocol.target.subprotocol.expect("a sub-protocol");
    assert_eq!(rendered(&offered, 3), "throng.plain, throng.token.t3");
}

#[test]
fn a_server_key_is_for_publishers_only() {
    let file = File::new("throng_key_secret\n");
    let mut options = options("http://h:1", TokenOptions::default());
    options.publish.token_file = file.loaded();
    let target = plan(options.clone()).target;
    assert!(target.headers.is_empty());
    let PublishBy::Http { headers, .. } = target.publish.expect("publishes").by else { panic!() };
    assert_eq!(rendered(&headers[0].1, 0), "Bearer throng_key_secret");
    let empty = File::new("\n");
    options.publish.token_file = empty.loaded();
    assert!(refusal(options).starts_with("publish.token-file: the first line"));
}

/// Everything that a report or the terminal shows of a plan.
#[test]
fn no_token_or_secret_is_shown() {
    let secret = File::new(SECRET);
    let signed = TokenOptions { secret_file: secret.loaded(), ..TokenOptions::default() };
    let key = File::new("throng_key_secret");
    for place in [TokenPlace::Header, TokenPlace::Query, TokenPlace::Subprotocol] {
        for tokens in [literal("ey.secret.token"), signed.clone()] {
            let mut options = options("http://h:1", TokenOptions { place: Some(place), ..tokens });
            options.publish.token_file = key.loaded();
            let plan = plan(options).without_secrets();
            let json = serde_json::to_string(&plan).expect("JSON");
            for shown in [json, plan.toml(), format!("{plan:?}")] {
                for hidden in ["secret.token", "throng_key", SECRET, "eyJ"] {
                    assert!(!shown.contains(hidden), "{hidden}: {shown}");
                }
            }
        }
    }
}

#[test]
fn a_shown_plan_signs_the_same_tokens() {
    let secret = File::new(SECRET);
    let tokens = TokenOptions { secret_file: secret.loaded(), ..TokenOptions::default() };
    let first = plan(options("http://h:1", tokens));
    let (again, _) =
        parse("p.toml".as_ref(), first.toml()).unwrap_or_else(|error| panic!("{error:?}"));
    let again = plan(again);
    assert_eq!(again.toml(), first.toml());
    let token = |plan: &Plan| rendered(&plan.target.headers[0].1, 5);
    assert_eq!(token(&again).split('.').count(), 3);
    assert_eq!(token(&again).split('.').next(), token(&first).split('.').next());
}

#[test]
fn errors_name_their_option() {
    let secret = File::new(SECRET);
    let signed = || TokenOptions { secret_file: secret.loaded(), ..TokenOptions::default() };
    let text = |text: &str| Some(text.to_owned());
    for (tokens, expected) in [
        (TokenOptions { template: text("t"), ..signed() }, "tokens: tokens come from one source"),
        (TokenOptions { claims: text("[]"), ..signed() }, "tokens.claims: is an object"),
        (TokenOptions { user: text("{me}"), ..signed() }, "tokens.user: there is nothing to fill"),
        (
            TokenOptions { key_file: secret.loaded(), ..TokenOptions::default() },
            "tokens.key-file: the file holds no",
        ),
        (
            TokenOptions { user: text("u"), ..TokenOptions::default() },
            "tokens.user: there are no tokens",
        ),
        (
            TokenOptions { lifetime: Some("500ms".parse().unwrap()), ..signed() },
            "tokens.lifetime: must be",
        ),
    ] {
        let refusal = refusal(options("http://h:1", tokens));
        assert!(refusal.starts_with(expected), "{expected}: {refusal}");
    }
    let mut sse =
        options("http://h:1", TokenOptions { place: Some(TokenPlace::Subprotocol), ..signed() });
    sse.target.transport = Some(Transport::Sse);
    assert!(refusal(sse).starts_with("tokens.in: a sub-protocol is for"));
    let mut twice = options("http://h:1", signed());
    twice.target.headers = Some(vec!["Authorization: x".parse().unwrap()]);
    assert!(refusal(twice).starts_with("tokens.in: the header Authorization is set"));
}
