//! Names as texts that other stores accept as keys, NATS buckets for instance.

/// The text for a name: letters, digits, `-` and `_` stay, any other byte is `=` and two
/// hexadecimal digits.
pub fn encode(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(byte.into());
        } else {
            token.push_str(&format!("={byte:02X}"));
        }
    }
    token
}

/// The name that was encoded; `None` if none was.
pub fn decode(token: &str) -> Option<String> {
    let mut parts = token.split('=');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_is_what_its_key_says(name in "\\PC{1,20}") {
            let key = encode(&name);
            let is_key = |char: char| char.is_ascii_alphanumeric() || "-_=".contains(char);
            prop_assert!(key.chars().all(is_key), "{}", key);
            prop_assert_eq!(decode(&key), Some(name));
        }
    }

    #[test]
    fn what_names_nobody_is_no_key() {
        for bad in ["", "=4", "a=zz", "=FF"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
