//! The lines of the file of revocations.
//!
//! The first line is [`HEADER`]. Each other line is one revocation and ends with a check, eight
//! hexadecimal digits of the SHA-256 of what stands before it:
//!
//! ```text
//! throng revocations 1
//! token 1800000000 5d41402abc4b2a76b9719d911017c592 8246b122
//! user 1800000001 "ann" a1e22f4a
//! lift-user 1800000009 "ann" 5a2f3c11
//! ```
//!
//! The numbers are the moments of the revocations, or when they were lifted; a token is the start
//! of the SHA-256 of its `jti`, a user is a JSON string.

use ring::digest::{SHA256, digest};

use super::{Revocation, Subject};
use crate::token::TokenId;

/// The first line, with its newline.
pub(super) const HEADER: &str = "throng revocations 1\n";

/// The beginning of the first line of every version.
const MARK: &[u8] = b"throng revocations ";

/// Prefix of a line's kind that takes a revocation back.
const LIFT: &str = "lift-";

/// The digits of the check at the end of each line.
const CHECK_BYTES: usize = 8;

/// One line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Revoked(Revocation),
    /// It is not revoked any more, from this moment on.
    Lifted(Subject, u32),
}

/// The contents of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub records: Vec<Record>,
    /// How many bytes are good. The rest is the end of a write that a crash cut off.
    pub good_bytes: usize,
}

/// A line within the file that is damaged, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged(pub usize);

/// Appends the line of a revocation.
pub(super) fn write(out: &mut String, revocation: &Revocation) {
    write_line(out, "", &revocation.subject(), revocation.moment_s());
}

/// Appends the line that takes a revocation back.
pub(super) fn write_lifted(out: &mut String, subject: &Subject, at_s: u32) {
    write_line(out, LIFT, subject, at_s);
}

fn write_line(out: &mut String, prefix: &str, subject: &Subject, moment_s: u32) {
    let body = match subject {
        Subject::Token(id) => format!("{prefix}token {moment_s} {id} "),
        Subject::User(user) => {
            format!("{prefix}user {moment_s} {} ", serde_json::Value::from(&**user))
        }
    };
    out.push_str(&body);
    out.push_str(&check(&body));
    out.push('\n');
}

/// Reads a file. Damage that only the end of the file shows is what a crash during the last write
/// leaves, and nothing of it was acknowledged; damage before a good line is not.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, Damaged> {
    let mut contents = Contents { records: Vec::new(), good_bytes: 0 };
    if bytes.len() < HEADER.len() && HEADER.as_bytes().starts_with(bytes) {
        return Ok(contents);
    }
    let body = bytes.strip_prefix(HEADER.as_bytes()).ok_or(Damaged(1))?;
    contents.good_bytes = HEADER.len();
    let mut damaged = None;
    for (number, line) in body.split_inclusive(|&byte| byte == b'\n').enumerate() {
        match (parse(line), damaged) {
            (Some(record), None) => {
                contents.records.push(record);
                contents.good_bytes += line.len();
            }
            (Some(_), Some(damaged)) => return Err(damaged),
            (None, _) => damaged = damaged.or(Some(Damaged(number + 2))),
        }
    }
    Ok(contents)
}

fn parse(line: &[u8]) -> Option<Record> {
    let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (body, digits) = line.split_at_checked(line.len().checked_sub(CHECK_BYTES)?)?;
    if check(body) != digits {
        return None;
    }
    let (kind, rest) = body.strip_suffix(' ')?.split_once(' ')?;
    let (moment, name) = rest.split_once(' ')?;
    let moment_s = moment.parse().ok()?;
    let subject = match kind.strip_prefix(LIFT).unwrap_or(kind) {
        "token" => Subject::Token(TokenId::from_digits(name)?),
        "user" => Subject::User(serde_json::from_str::<String>(name).ok()?.into()),
        _ => return None,
    };
    if kind.starts_with(LIFT) {
        Some(Record::Lifted(subject, moment_s))
    } else {
        Some(Record::Revoked(Revocation::of(subject, moment_s)))
    }
}

/// The first line of a file of another version.
pub(super) fn other_version(bytes: &[u8]) -> Option<&str> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let is_other = line.starts_with(MARK) && !HEADER.as_bytes().starts_with(line);
    std::str::from_utf8(line).ok().filter(|_| is_other)
}

fn check(body: &str) -> String {
    let hash = digest(&SHA256, body.as_bytes());
    hash.as_ref()[..CHECK_BYTES / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(records: &[Record]) -> String {
        let mut file = HEADER.to_owned();
        for record in records {
            match record {
                Record::Revoked(revocation) => write(&mut file, revocation),
                Record::Lifted(subject, at_s) => write_lifted(&mut file, subject, *at_s),
            }
        }
        file
    }

    fn revoked_user(user: &str, before_s: u32) -> Record {
        Record::Revoked(Revocation::User { user: user.into(), before_s })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let subject = prop_oneof![
            "\\PC{0,8}".prop_map(|id| Subject::Token(TokenId::of(&id))),
            "\\PC{1,8}".prop_map(|user| Subject::User(user.into())),
        ];
        (subject, any::<u32>(), any::<bool>()).prop_map(|(subject, moment_s, is_lifted)| {
            if is_lifted {
                Record::Lifted(subject, moment_s)
            } else {
                Record::Revoked(Revocation::of(subject, moment_s))
            }
        })
    }

    #[test]
    fn a_line_is_as_documented() {
        let user = revoked_user("a \"b\"", 1_800_000_001);
        let id = TokenId::of("t1");
        let token = Record::Revoked(Revocation::Token { id, at_s: 7 });
        let lifted = Record::Lifted(Subject::Token(id), 8);
        // The checks and the hash by Python's `hashlib`.
        let expected = "throng revocations 1\n\
            user 1800000001 \"a \\\"b\\\"\" 1419baa8\n\
            token 7 628b49d96dcde97a430dd4f597705899 15397a60\n\
            lift-token 8 628b49d96dcde97a430dd4f597705899 d1ed6f82\n";
        assert_eq!(file(&[user, token, lifted]), expected);
    }

    #[test]
    fn an_empty_file_is_good() {
        for start in 0..HEADER.len() {
            let contents = read(&HEADER.as_bytes()[..start]).unwrap();
            assert_eq!(contents, Contents { records: vec![], good_bytes: 0 });
        }
        assert_eq!(read(HEADER.as_bytes()).unwrap().good_bytes, HEADER.len());
        assert_eq!(read(b"something else\n"), Err(Damaged(1)));
        assert_eq!(read(b"throng revocations 2\n"), Err(Damaged(1)));
    }

    #[test]
    fn damage_before_a_good_line_is_reported() {
        let users = ["ann", "bob", "cleo"];
        let all = users.map(|user| revoked_user(user, 1));
        let damaged = file(&all).replace("bob", "eve");
        assert_eq!(read(damaged.as_bytes()), Err(Damaged(3)));
        let damaged = file(&all).replace("cleo", "eve");
        let contents = read(damaged.as_bytes()).unwrap();
        assert_eq!(contents.records, all[..2]);
        assert_eq!(contents.good_bytes, file(&all[..2]).len());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec(any_record(), 0..10)) {
            let file = file(&all);
            let contents = read(file.as_bytes()).unwrap();
            prop_assert_eq!(contents.good_bytes, file.len());
            prop_assert_eq!(contents.records, all);
        }

        /// A crash cuts off anywhere, and may leave zeros where data should be.
        #[test]
        fn a_torn_end_loses_only_what_was_torn(
            all in prop::collection::vec(any_record(), 1..6),
            cut in any::<prop::sample::Index>(), zeros in 0..50_usize,
        ) {
            let file = file(&all);
            let cut = cut.index(file.len() + 1);
            let torn = [&file.as_bytes()[..cut], &vec![0; zeros]].concat();
            let whole: usize = (0..=all.len()).rev()
                .find(|&count| self::file(&all[..count]).len() <= cut).unwrap_or(0);
            if cut >= HEADER.len() || zeros == 0 {
                let contents = read(&torn).unwrap();
                prop_assert_eq!(&contents.records, &all[..whole]);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read(&[HEADER.as_bytes(), &bytes].concat());
        }
    }
}
