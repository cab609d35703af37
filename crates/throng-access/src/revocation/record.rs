//! The lines of the file of revocations.
//!
//! The first line is [`HEADER`]. Each other line is one revocation and ends with a check, eight
//! hexadecimal digits of the SHA-256 of what stands before it:
//!
//! ```text
//! throng revocations 1
//! token 1800000000 5d41402abc4b2a76b9719d911017c592 8246b122
//! user 1800000001 "ann" a1e22f4a
//! ```
//!
//! The numbers are the moments of the revocations; a token is the start of the SHA-256 of its
//! `jti`, a user is a JSON string.

use ring::digest::{SHA256, digest};

use super::Revocation;
use crate::token::TokenId;

/// The first line, with its newline.
pub(super) const HEADER: &str = "throng revocations 1\n";

/// The digits of the check at the end of each line.
const CHECK_BYTES: usize = 8;

/// What a file contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub revocations: Vec<Revocation>,
    /// How many bytes are good. What follows is the end of a write that a crash cut off.
    pub good_bytes: usize,
}

/// A line within the file that is damaged, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged(pub usize);

/// Appends the line of a revocation.
pub(super) fn write(out: &mut String, revocation: &Revocation) {
    let body = match revocation {
        Revocation::Token { id, at_s } => {
            let digits: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("token {at_s} {digits} ")
        }
        Revocation::User { user, before_s } => {
            format!("user {before_s} {} ", serde_json::Value::from(&**user))
        }
    };
    out.push_str(&body);
    out.push_str(&check(&body));
    out.push('\n');
}

/// Reads a file. Damage that only the end of the file shows is what a crash during the last write
/// leaves, and nothing of it was acknowledged; damage before a good line is not.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, Damaged> {
    let mut contents = Contents { revocations: Vec::new(), good_bytes: 0 };
    if bytes.len() < HEADER.len() && HEADER.as_bytes().starts_with(bytes) {
        return Ok(contents);
    }
    let body = bytes.strip_prefix(HEADER.as_bytes()).ok_or(Damaged(1))?;
    contents.good_bytes = HEADER.len();
    let mut damaged = None;
    for (number, line) in body.split_inclusive(|&byte| byte == b'\n').enumerate() {
        match (parse(line), damaged) {
            (Some(revocation), None) => {
                contents.revocations.push(revocation);
                contents.good_bytes += line.len();
            }
            (Some(_), Some(damaged)) => return Err(damaged),
            (None, _) => damaged = damaged.or(Some(Damaged(number + 2))),
        }
    }
    Ok(contents)
}

fn parse(line: &[u8]) -> Option<Revocation> {
    let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (body, digits) = line.split_at_checked(line.len().checked_sub(CHECK_BYTES)?)?;
    if check(body) != digits {
        return None;
    }
    let (kind, rest) = body.strip_suffix(' ')?.split_once(' ')?;
    let (moment, name) = rest.split_once(' ')?;
    let moment_s = moment.parse().ok()?;
    match kind {
        "token" => {
            let mut id = [0; 16];
            if name.len() != 2 * id.len() || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            for (at, byte) in id.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&name[2 * at..2 * at + 2], 16).ok()?;
            }
            Some(Revocation::Token { id: TokenId(id), at_s: moment_s })
        }
        "user" => {
            let user: String = serde_json::from_str(name).ok()?;
            Some(Revocation::User { user: user.into(), before_s: moment_s })
        }
        _ => None,
    }
}

fn check(body: &str) -> String {
    let hash = digest(&SHA256, body.as_bytes());
    hash.as_ref()[..CHECK_BYTES / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(revocations: &[Revocation]) -> String {
        let mut file = HEADER.to_owned();
        for revocation in revocations {
            write(&mut file, revocation);
        }
        file
    }

    fn any_revocation() -> impl Strategy<Value = Revocation> {
        prop_oneof![
            ("\\PC{0,8}", any::<u32>())
                .prop_map(|(id, at_s)| Revocation::Token { id: TokenId::of(&id), at_s }),
            ("\\PC{1,8}", any::<u32>())
                .prop_map(|(user, before_s)| Revocation::User { user: user.into(), before_s }),
        ]
    }

    #[test]
    fn a_line_is_as_documented() {
        let user = Revocation::User { user: "a \"b\"".into(), before_s: 1_800_000_001 };
        let token = Revocation::Token { id: TokenId::of("t1"), at_s: 7 };
        // The checks and the hash by Python's `hashlib`.
        let expected = "throng revocations 1\n\
            user 1800000001 \"a \\\"b\\\"\" 1419baa8\n\
            token 7 628b49d96dcde97a430dd4f597705899 15397a60\n";
        assert_eq!(file(&[user, token]), expected);
    }

    #[test]
    fn an_empty_file_is_good() {
        for start in 0..HEADER.len() {
            let contents = read(&HEADER.as_bytes()[..start]).unwrap();
            assert_eq!(contents, Contents { revocations: vec![], good_bytes: 0 });
        }
        assert_eq!(read(HEADER.as_bytes()).unwrap().good_bytes, HEADER.len());
        assert_eq!(read(b"something else\n"), Err(Damaged(1)));
        assert_eq!(read(b"throng revocations 2\n"), Err(Damaged(1)));
    }

    #[test]
    fn damage_before_a_good_line_is_reported() {
        let users = ["ann", "bob", "cleo"];
        let all = users.map(|user| Revocation::User { user: user.into(), before_s: 1 });
        let damaged = file(&all).replace("bob", "eve");
        assert_eq!(read(damaged.as_bytes()), Err(Damaged(3)));
        let damaged = file(&all).replace("cleo", "eve");
        let contents = read(damaged.as_bytes()).unwrap();
        assert_eq!(contents.revocations, all[..2]);
        assert_eq!(contents.good_bytes, file(&all[..2]).len());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec(any_revocation(), 0..10)) {
            let file = file(&all);
            let contents = read(file.as_bytes()).unwrap();
            prop_assert_eq!(contents.good_bytes, file.len());
            prop_assert_eq!(contents.revocations, all);
        }

        /// A crash cuts off anywhere, and may leave zeros where data should be.
        #[test]
        fn a_torn_end_loses_only_what_was_torn(
            all in prop::collection::vec(any_revocation(), 1..6),
            cut in any::<prop::sample::Index>(), zeros in 0..50_usize,
        ) {
            let file = file(&all);
            let cut = cut.index(file.len() + 1);
            let torn = [&file.as_bytes()[..cut], &vec![0; zeros]].concat();
            let whole: usize = (0..=all.len()).rev()
                .find(|&count| self::file(&all[..count]).len() <= cut).unwrap_or(0);
            if cut >= HEADER.len() || zeros == 0 {
                let contents = read(&torn).unwrap();
                prop_assert_eq!(&contents.revocations, &all[..whole]);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read(&[HEADER.as_bytes(), &bytes].concat());
        }
    }
}
