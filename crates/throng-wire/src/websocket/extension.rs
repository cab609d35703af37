//! The negotiation of `permessage-deflate` (RFC 7692, section 7.1; the header: RFC 6455, section
//! 9.1).
//!
//! The first offer that the server can meet is accepted, always without context takeover in either
//! direction. A server may demand it of a client that has not offered it (section 7.1.1.2). The
//! server compresses with the largest window, for all clients at once: it declines an offer with a
//! smaller one (`server_max_window_bits` below 15). It accepts any window of a client.

/// The name of the extension.
const NAME: &[u8] = b"permessage-deflate";

/// The bits of the largest window, with which the server compresses.
const WINDOW_BITS: u8 = 15;
/// The bits of the smallest one.
const WINDOW_BITS_MIN: u8 = 8;

/// An accepted offer of `permessage-deflate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// True if the offer names the server's window, which the answer must name, too.
    names_window: bool,
}

impl Deflate {
    /// The value of `Sec-WebSocket-Extensions` that accepts the offer.
    pub fn answer(self) -> &'static str {
        if self.names_window {
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
             server_max_window_bits=15"
        } else {
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
        }
    }
}

/// A header that is no list of extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedOffer;

/// The offer to accept among the values of all headers `Sec-WebSocket-Extensions` of a request;
/// `None` if there is none.
pub fn negotiate<'v>(
    values: impl Iterator<Item = &'v [u8]>,
) -> Result<Option<Deflate>, MalformedOffer> {
    let mut accepted = None;
    for value in values {
        let mut input = Input(value);
        loop {
            // Elements of a list may be empty (RFC 9110, section 5.6.1.2).
            input.skip_space();
            if !input.is_at_end_of_element() {
                let offer = input.extension()?;
                accepted = accepted.or(offer);
            }
            if input.is_empty() {
                break;
            }
            if !input.take(b',') {
                return Err(MalformedOffer);
            }
        }
    }
    Ok(accepted)
}

/// The rest of a header's value.
struct Input<'v>(&'v [u8]);

/// The value of a parameter.
enum Value<'v> {
    /// It has none.
    Missing,
    /// A token, also one in quotes.
    Token(&'v [u8]),
}

impl<'v> Input<'v> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_at_end_of_element(&self) -> bool {
        matches!(self.0.first(), None | Some(b','))
    }

    fn skip_space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn take(&mut self, byte: u8) -> bool {
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn token(&mut self) -> Result<&'v [u8], MalformedOffer> {
        let end = self.0.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(self.0.len());
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        if token.is_empty() { Err(MalformedOffer) } else { Ok(token) }
    }

    /// A token in quotes. A backslash may stand before any byte (RFC 9110, section 5.6.4), but no
    /// parameter of ours needs one: the value is then an unknown one.
    fn quoted(&mut self) -> Result<&'v [u8], MalformedOffer> {
        let mut at = 0;
        loop {
            match self.0.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => return Err(MalformedOffer),
            }
        }
        let value = &self.0[..at];
        self.0 = &self.0[at + 1..];
        // A quoted value has to be a token, too (RFC 6455, section 9.1).
        let is_token =
            |value: &[u8]| value.iter().all(|&byte| is_token_byte(byte) || byte == b'\\');
        if !value.is_empty() && is_token(value) { Ok(value) } else { Err(MalformedOffer) }
    }

    /// One extension with its parameters, which ends before a comma or with the value. `None`
    /// unless it is an offer to accept.
    fn extension(&mut self) -> Result<Option<Deflate>, MalformedOffer> {
        let is_deflate = self.token()?.eq_ignore_ascii_case(NAME);
        let mut offer = Offer::default();
        let mut is_acceptable = is_deflate;
        loop {
            self.skip_space();
            if self.is_at_end_of_element() {
                let names_window = offer.server_max_window_bits;
                return Ok(is_acceptable.then_some(Deflate { names_window }));
            }
            if !self.take(b';') {
                return Err(MalformedOffer);
            }
            self.skip_space();
            let name = self.token()?;
            self.skip_space();
            let value = if self.take(b'=') {
                self.skip_space();
                Value::Token(if self.take(b'"') { self.quoted()? } else { self.token()? })
            } else {
                Value::Missing
            };
            is_acceptable = is_acceptable && offer.accepts(name, &value);
        }
    }
}

/// The parameters of an offer that have been read.
#[derive(Default)]
struct Offer {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: bool,
    client_max_window_bits: bool,
}

impl Offer {
    /// True if an offer with this parameter can be accepted: it is known, not repeated, has a valid
    /// value (section 7), and is one that the server can meet.
    fn accepts(&mut self, name: &[u8], value: &Value<'_>) -> bool {
        let (seen, is_valid) = match (name, value) {
            (b"server_no_context_takeover", Value::Missing) => {
                (&mut self.server_no_context_takeover, true)
            }
            (b"client_no_context_takeover", Value::Missing) => {
                (&mut self.client_no_context_takeover, true)
            }
            (b"server_max_window_bits", Value::Token(bits)) => {
                (&mut self.server_max_window_bits, window_bits(bits) == Some(WINDOW_BITS))
            }
            (b"client_max_window_bits", Value::Missing) => (&mut self.client_max_window_bits, true),
            (b"client_max_window_bits", Value::Token(bits)) => {
                (&mut self.client_max_window_bits, window_bits(bits).is_some())
            }
            _ => return false,
        };
        !std::mem::replace(seen, true) && is_valid
    }
}

/// A number from 8 to 15 without leading zeros (section 7.1.2).
fn window_bits(text: &[u8]) -> Option<u8> {
    (WINDOW_BITS_MIN..=WINDOW_BITS).find(|bits| bits.to_string().as_bytes() == text)
}

/// The characters of a token (RFC 9110, section 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANSWER: &str =
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    const WITH_WINDOW: &str = "permessage-deflate; server_no_context_takeover; \
        client_no_context_takeover; server_max_window_bits=15";

    fn answer(values: &[&str]) -> Result<Option<&'static str>, MalformedOffer> {
        let offer = negotiate(values.iter().map(|value| value.as_bytes()))?;
        Ok(offer.map(Deflate::answer))
    }

    #[test]
    fn offers_are_accepted_without_context_takeover() {
        for (value, expected) in [
            ("permessage-deflate", ANSWER),
            // Chromium's and Firefox's.
            ("permessage-deflate; client_max_window_bits", ANSWER),
            ("permessage-deflate;client_max_window_bits=\"10\"", ANSWER),
            ("Permessage-Deflate ; client_no_context_takeover", ANSWER),
            ("permessage-deflate; server_no_context_takeover; client_max_window_bits=8", ANSWER),
            ("permessage-deflate; server_max_window_bits=15", WITH_WINDOW),
            ("permessage-deflate; server_max_window_bits = \"15\"", WITH_WINDOW),
            // The first that can be met, in the order of preference.
            ("permessage-deflate; server_max_window_bits=9, permessage-deflate", ANSWER),
            ("foo; a=\"b\", , permessage-deflate; client_max_window_bits", ANSWER),
            ("permessage-deflate; x, permessage-deflate; server_max_window_bits=15", WITH_WINDOW),
        ] {
            assert_eq!(answer(&[value]), Ok(Some(expected)), "{value}");
        }
        assert_eq!(answer(&["foo", "permessage-deflate"]), Ok(Some(ANSWER)));
    }

    #[test]
    fn offers_that_cannot_be_met_are_declined() {
        for value in [
            "",
            " , ",
            "x-webkit-deflate-frame",
            "permessage-deflate-2",
            "permessage-deflate; unknown",
            "permessage-deflate; unknown=3",
            "permessage-deflate; Server_No_Context_Takeover",
            "permessage-deflate; server_no_context_takeover=true",
            "permessage-deflate; client_no_context_takeover=1",
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=14",
            "permessage-deflate; server_max_window_bits=16",
            "permessage-deflate; server_max_window_bits=015",
            "permessage-deflate; server_max_window_bits=15; server_max_window_bits=15",
            "permessage-deflate; client_max_window_bits=7",
            "permessage-deflate; client_max_window_bits=16",
            "permessage-deflate; client_max_window_bits=08",
            "permessage-deflate; client_max_window_bits; client_max_window_bits=10",
            "permessage-deflate; client_max_window_bits=\"1\\0\"",
            "foo; a=permessage-deflate",
        ] {
            assert_eq!(answer(&[value]), Ok(None), "{value}");
        }
        assert_eq!(answer(&[]), Ok(None));
    }

    #[test]
    fn what_is_no_list_of_extensions_is_malformed() {
        for value in [
            ";",
            "permessage-deflate;",
            "permessage-deflate; =5",
            "permessage-deflate; client_max_window_bits=",
            "permessage-deflate; client_max_window_bits=\"",
            "permessage-deflate; client_max_window_bits=\"\"",
            "permessage-deflate; client_max_window_bits=\"1 0\"",
            "permessage-deflate; client_max_window_bits=\"10",
            "permessage-deflate; client_max_window_bits=\"10\\",
            "permessage-deflate client_max_window_bits",
            "permessage-deflate, \"foo\"",
            "foo/bar",
        ] {
            assert_eq!(answer(&[value]), Err(MalformedOffer), "{value}");
        }
        assert_eq!(answer(&["permessage-deflate", "\u{e9}"]), Err(MalformedOffer));
    }

    proptest! {
        #[test]
        fn any_value_is_answered(
            value in "((permessage-deflate|;|,|=|\"|\\\\|[a-z_]{1,30}|15| )){0,12}",
        ) {
            let _ = answer(&[&value]);
        }
    }
}
