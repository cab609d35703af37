//! Credentials in every place, and cookies of foreign pages.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::head::{self, Head, Limits, Parsed};
use crate::origin::OriginPolicy;
use crate::subscribe::{Route, route};

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

const COOKIE: Option<&str> = Some("session");

type Found = Result<Option<(String, Place)>, ErrorCode>;

fn with_head<R>(target: &str, headers: &[u8], then: impl FnOnce(&Head<'_>) -> R) -> R {
    let mut bytes = format!("GET {target} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    bytes.extend_from_slice(headers);
    bytes.extend_from_slice(b"\r\n");
    match head::parse(&bytes, Limits { max_head_bytes: 64 << 10 }) {
        Ok(Parsed::Complete { head, .. }) => then(&head),
        other => panic!("{target} gives {other:?}"),
    }
}

fn simplified(found: Result<Option<Credential<'_>>, ErrorResponse>) -> Found {
    let found = found.map_err(|error| error.code)?;
    Ok(found.map(|credential| (credential.text().to_owned(), credential.place())))
}

fn subscription(target: &str, headers: &str) -> Found {
    with_head(target, headers.as_bytes(), |head| {
        let Ok(Route::Subscribe(request)) = route(head) else { panic!("{target} {headers}") };
        simplified(of_subscription(head, &request, COOKIE))
    })
}

fn other(headers: &str) -> Found {
    with_head("/publish?token=q", headers.as_bytes(), |head| {
        simplified(of_request(|name| head.headers(name), COOKIE))
    })
}

fn found(text: &str, place: Place) -> Found {
    Ok(Some((text.to_owned(), place)))
}

#[test]
fn a_token_is_found_in_each_place() {
    let channel = "/channels/a";
    for headers in ["Authorization: Bearer a.b.c\r\n", "authorization:  bEARER   a.b.c \r\n"] {
        assert_eq!(subscription(channel, headers), found("a.b.c", Place::Header));
        assert_eq!(other(headers), found("a.b.c", Place::Header));
    }
    assert_eq!(subscription("/channels/a?token=a.b.c&_=1", ""), found("a.b.c", Place::Query));
    assert_eq!(subscription("/channels/a?tok%65n=a%2Eb", ""), found("a.b", Place::Query));
    let offered = format!("{UPGRADE}Sec-WebSocket-Protocol: throng.token.a.b.c,  throng.plain\r\n");
    assert_eq!(subscription(channel, &offered), found("a.b.c", Place::Subprotocol));
    let cookie = "Cookie: other=1; session=a.b.c;x=session=y\r\n";
    assert_eq!(subscription(channel, cookie), found("a.b.c", Place::Cookie));
    assert_eq!(other("Cookie: session=\"a.b\"\r\n"), found("a.b", Place::Cookie));
    assert_eq!(other("Cookie: x=1\r\nCookie: session=a\r\n"), found("a", Place::Cookie));
}

#[test]
fn a_token_counts_only_where_it_belongs() {
    let offered = "Sec-WebSocket-Protocol: throng.token.a\r\n";
    assert_eq!(subscription("/channels/a", offered), Ok(None), "no WebSocket");
    assert_eq!(other(""), Ok(None), "`?token=` without a subscription");
    let elsewhere = ["Authorization: Basic YTpi\r\n", "Authorization: Bearers a\r\n"];
    for headers in elsewhere.into_iter().chain([
        "Cookie: session=\r\n",
        "Cookie: Session=a\r\n",
        "Cookie: xsession=a\r\n",
        "Cookie: sessions=a; a session=b\r\n",
    ]) {
        assert_eq!(subscription("/channels/a", headers), Ok(None), "{headers}");
    }
    let cookie = "Cookie: session=a\r\n";
    let unnamed = with_head("/", cookie.as_bytes(), |head| {
        simplified(of_request(|name| head.headers(name), None))
    });
    assert_eq!(unnamed, Ok(None));
}

#[test]
fn two_different_credentials_are_refused_and_equal_ones_are_one() {
    let places = |token: &str| {
        [
            format!("Authorization: Bearer {token}\r\n"),
            format!("Sec-WebSocket-Protocol: throng.v1, throng.token.{token}\r\n"),
            format!("Cookie: session={token}\r\n"),
        ]
    };
    for (left, first) in places("a").iter().enumerate() {
        for (right, second) in places("b").iter().enumerate() {
            let headers = format!("{UPGRADE}{first}{second}");
            let expected = match (left, right) {
                (2, 2) => found("a", Place::Cookie),
                _ => Err(ErrorCode::BadRequest),
            };
            assert_eq!(subscription("/subscribe?channel=x", &headers), expected, "{headers}");
            let headers = format!("{UPGRADE}{first}{}", places("a")[right]);
            let place = [Place::Header, Place::Subprotocol, Place::Cookie][left.min(right)];
            assert_eq!(subscription("/channels/x", &headers), found("a", place), "{headers}");
        }
        let headers = format!("{UPGRADE}{first}");
        assert_eq!(subscription("/channels/x?token=b", &headers), Err(ErrorCode::BadRequest));
    }
    let header = "Authorization: Bearer a\r\nCookie: session=a; session=b\r\n";
    assert_eq!(other(header), Err(ErrorCode::BadRequest));
}

#[test]
fn two_different_credentials_are_named_by_their_places() {
    for (target, headers, places) in [
        ("/channels/a?token=a", "Authorization: Bearer b\r\n", "`Authorization` and `?token=`"),
        ("/channels/a?token=a", "Cookie: session=b\r\n", "`?token=` and `Cookie`"),
        (
            "/channels/a",
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            "in `Authorization`",
        ),
        (
            "/channels/a",
            "Sec-WebSocket-Protocol: throng.token.a\r\nAuthorization: Bearer b\r\n",
            "`Authorization` and `Sec-WebSocket-Protocol`",
        ),
    ] {
        with_head(target, format!("{UPGRADE}{headers}").as_bytes(), |head| {
            let Ok(Route::Subscribe(request)) = route(head) else { panic!("{target}") };
            let error = of_subscription(head, &request, COOKIE).expect_err("two credentials");
            assert!(error.to_string().ends_with(places), "{error}");
        });
    }
}

/// The texts of the cookies of a request that may have the token.
fn cookies(text: &str) -> Result<Vec<String>, ErrorCode> {
    with_head("/", format!("Cookie: {text}\r\n").as_bytes(), |head| {
        let found = of_request(|name| head.headers(name), COOKIE).map_err(|error| error.code)?;
        Ok(found.iter().flat_map(Credential::texts).map(str::to_owned).collect())
    })
}

#[test]
fn two_cookies_of_one_name_are_found_in_their_order() {
    assert_eq!(cookies("session=a; x=y; session=b"), Ok(vec!["a".into(), "b".into()]));
    let one = Ok(vec!["a".to_owned()]);
    assert_eq!(cookies("session=a; session=a; session=\"a\""), one);
    assert_eq!(cookies("session=; session=a; session=\u{e4}"), one);
    assert_eq!(cookies("session=a b; session=a"), one);
    assert_eq!(cookies("session=a; session=b; session=a").map(|texts| texts.len()), Ok(2));
    assert_eq!(cookies("session=a; session=b; session=c"), Err(ErrorCode::InvalidToken));
}

#[test]
fn a_credential_without_a_scheme_is_named() {
    for (value, word) in [("throng_key_x", "KEY"), (" eyJhbGciOiJub25lIn0.e30. ", "TOKEN")] {
        let error = check_scheme([value.as_bytes()].into_iter()).expect_err("no scheme");
        assert!(error.to_string().contains(&format!("Bearer {word}`")), "{error}");
    }
    for value in ["Basic YTpi", "JWT eyJhbGciOiJub25lIn0.e30.", "secret", ""] {
        assert_eq!(check_scheme([value.as_bytes()].into_iter()), Ok(()), "{value}");
    }
}

#[test]
fn what_no_token_can_be_is_refused() {
    let long = "x".repeat(TOKEN_BYTES_MAX + 1);
    let longest = &long[1..];
    let invalid = Err(ErrorCode::InvalidToken);
    assert_eq!(other(&format!("Authorization: Bearer {longest}\r\n")), {
        found(longest, Place::Header)
    });
    for headers in [
        format!("Authorization: Bearer {long}\r\n"),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer a b\r\n".to_owned(),
        "Authorization: Bearer ä\r\n".to_owned(),
        format!("Cookie: session={long}\r\n"),
    ] {
        assert_eq!(other(&headers), invalid, "{headers}");
    }
    for target in ["/channels/a?token=", "/channels/a?token", "/channels/a?token=a+b"] {
        assert_eq!(subscription(target, ""), invalid, "{target}");
    }
    assert_eq!(subscription("/channels/a?token=%zz", ""), invalid);
    let empty = format!("{UPGRADE}Sec-WebSocket-Protocol: throng.token., throng.v1\r\n");
    assert_eq!(subscription("/channels/a", &empty), invalid);
    let not_utf8 = with_head("/", b"Authorization: Bearer a\xff\r\n", |head| {
        simplified(of_request(|name| head.headers(name), COOKIE))
    });
    assert_eq!(not_utf8, invalid);
}

#[test]
fn nothing_shows_a_token() {
    let token = Token::new("s3cret").expect("a token");
    assert_eq!((format!("{token:?}").as_str(), token.text()), ("Token(..)", "s3cret"));
    let headers = b"Authorization: Bearer s3cret\r\nCookie: session=s3cret\r\n";
    with_head("/", headers, |head| {
        let found = of_request(|name| head.headers(name), COOKIE).expect("one credential");
        let shown = format!("{found:?}");
        assert_eq!(shown, "Some(Credential { place: Header, .. })");
    });
    for bad in ["s3cret,", "s3cret ä", ""] {
        if let Err(error) = Token::new(bad) {
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}

/// True if a cookie counts at a server that lists `https://app.example`, `null` and `*`.
fn counts(origin: Option<&str>, fetch_site: Option<&str>, is_read: bool) -> bool {
    let origins = ["https://app.example", "null", "*"].map(String::from);
    let policy = OriginPolicy {
        listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
        origins: &origins,
        hosts: &[],
        is_same_port_only: false,
    };
    let fetch_site = fetch_site.map(str::as_bytes);
    let checked = check_cookie(&policy, CookieRequest { origin, fetch_site, is_read });
    if let Err(error) = &checked {
        assert_eq!(error.code, ErrorCode::OriginRefused);
    }
    checked.is_ok()
}

#[test]
fn writes_and_websockets_with_a_cookie_need_a_listed_origin() {
    for fetch_site in [None, Some("same-origin"), Some("same-site"), Some("none")] {
        assert!(counts(Some("https://app.example"), fetch_site, false));
        assert!(counts(Some("https://APP.example:443"), fetch_site, false));
        for origin in ["https://evil.example", "http://app.example", "null", "*", ""] {
            assert!(!counts(Some(origin), fetch_site, false), "{origin}");
        }
        assert!(!counts(None, fetch_site, false));
    }
}

#[test]
fn reads_with_a_cookie_may_come_from_the_server_s_own_pages() {
    for site in ["cross-site", "same-site", "other", ""] {
        assert!(!counts(None, Some(site), true), "{site}");
        assert!(!counts(Some("https://evil.example"), Some(site), true), "{site}");
        assert!(counts(Some("https://app.example"), Some(site), true), "{site}");
    }
    let own = "https://push.example";
    assert!(counts(None, None, true) && counts(None, Some("none"), true));
    assert!(counts(None, Some("same-origin"), true));
    assert!(counts(Some(own), Some("same-origin"), true));
    assert!(!counts(Some(own), None, true) && !counts(Some(own), Some("none"), true));
}

proptest! {
    #[test]
    fn arbitrary_headers_do_not_panic(
        query in "(token=[$-~]{0,4}&){0,3}",
        headers in "((Authorization|Cookie|Sec-WebSocket-Protocol): \
            ?(Bearer |session=|throng\\.token\\.|[; ,])?[ -~é]{0,9}\r\n){0,4}",
    ) {
        let target = format!("/channels/a?{query}");
        with_head(&target, headers.as_bytes(), |head| {
            if let Ok(Route::Subscribe(request)) = route(head)
                && let Ok(Some(credential)) = of_subscription(head, &request, COOKIE)
            {
                assert!(credential.text().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        });
    }
}
