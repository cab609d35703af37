//! `throng token show`: what is in a token, unverified.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use serde_json::Value;
use throng_access::token::decode;
use throng_units::paint::{Ink, Paint, sanitized, sanitized_lines};

use super::given::GivenToken;
use super::moment::moment;
use crate::access::now_s;
use crate::terminal;

const EXAMPLES: &str = "\
Nothing is verified: anyone can make such a token. Use `throng token check` to verify one.

Examples:
  throng token show eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl
  throng token new --user ann | throng token show";

/// Arguments of `throng token show`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    token: GivenToken,
}

pub(super) fn show(arguments: &Arguments) -> Result<()> {
    let token = arguments.token.read()?;
    let untrusted = decode(&token)?;
    let paint = Paint::on(&std::io::stdout());
    let text = describe(&untrusted.header, &untrusted.claims, now_s(), paint);
    terminal::print(&text)?;
    terminal::print_note("nothing here is verified; `throng token check` verifies a token");
    Ok(())
}

fn describe(header: &str, claims: &str, now_s: u64, paint: Paint) -> String {
    let mut text = String::new();
    for (label, part) in [("header", header), ("claims", claims)] {
        let _ = writeln!(text, "{}{}", paint.ink(Ink::Dim, format!("{label:<9}")), indented(part));
    }
    let claims: Value = serde_json::from_str(claims).unwrap_or_default();
    if let Some(user) = claims["sub"].as_str() {
        let _ = writeln!(text, "{}{}", paint.ink(Ink::Dim, "user     "), sanitized(user));
    }
    for (label, name) in [("issued", "iat"), ("valid", "nbf"), ("expires", "exp")] {
        let Some(at_s) = claims[name].as_f64().filter(|at_s| *at_s >= 0.0) else { continue };
        let moment = moment(at_s as u64, now_s);
        let _ = writeln!(text, "{}{moment}", paint.ink(Ink::Dim, format!("{label:<9}")));
    }
    text
}

/// JSON with an entry on each line, or text that is not JSON as it is; without control characters.
fn indented(part: &str) -> String {
    let pretty = serde_json::from_str::<Value>(part)
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| part.to_owned());
    sanitized_lines(&pretty).replace('\n', "\n         ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_the_user_are_shown_for_people() {
        let claims = r#"{"sub":"ann","exp":1800000060,"iat":1799999940.5}"#;
        let text = describe(r#"{"alg":"HS256"}"#, claims, 1_800_000_000, Paint::plain());
        let expected = "user     ann\n\
                        issued   2027-01-15 07:59 UTC, 60.0 s ago\n\
                        expires  2027-01-15 08:01 UTC, in 60.0 s\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(
            text.starts_with("header   {\n           \"alg\": \"HS256\"\n         }\n"),
            "{text}"
        );
    }

    #[test]
    fn a_hostile_token_cannot_write_to_the_terminal() {
        for claims in
            ["{\"sub\":\"\\u001b[31m\\u202e\"}", "\u{1b}[31m", "{\"a\":\"\u{202e}\"}", "[]"]
        {
            let text = describe("{}", claims, 0, Paint::plain());
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        }
    }
}
