//! Incremental UTF-8 validation, which fails at the first byte that no continuation can make valid.

/// The state at the end of the text so far.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Utf8 {
    /// The first bytes of an incomplete character.
    begun: [u8; 3],
    begun_len: u8,
}

/// The text is not UTF-8, whatever follows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotUtf8;

impl Utf8 {
    /// Validates the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), NotUtf8> {
        let piece = self.end_begun(piece)?;
        let Err(error) = simdutf8::compat::from_utf8(piece) else { return Ok(()) };
        if error.error_len().is_some() {
            return Err(NotUtf8);
        }
        self.begin(&piece[error.valid_up_to()..]);
        Ok(())
    }

    /// True if the text may end here.
    pub(super) fn is_complete(&self) -> bool {
        self.begun_len == 0
    }

    /// Completes the character that an earlier piece began. Returns the rest of `piece`.
    fn end_begun<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], NotUtf8> {
        let begun_len = usize::from(self.begun_len);
        if begun_len == 0 {
            return Ok(piece);
        }
        let mut character = [0; 4];
        character[..begun_len].copy_from_slice(&self.begun[..begun_len]);
        for (taken, &byte) in piece.iter().enumerate() {
            // In bounds: a valid beginning of four bytes is a complete character.
            let len = begun_len + taken + 1;
            character[len - 1] = byte;
            match std::str::from_utf8(&character[..len]) {
                Ok(_) => {
                    self.begun_len = 0;
                    return Ok(&piece[taken + 1..]);
                }
                Err(error) if error.error_len().is_some() => return Err(NotUtf8),
                Err(_) => {}
            }
        }
        self.begin(&character[..begun_len + piece.len()]);
        Ok(&[])
    }

    /// Keeps the valid beginning of a character, at most three bytes.
    fn begin(&mut self, bytes: &[u8]) {
        self.begun[..bytes.len()].copy_from_slice(bytes);
        self.begun_len = bytes.len() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The index of the byte that fails when the bytes arrive one by one.
    fn refused_at(bytes: &[u8]) -> Option<usize> {
        let mut utf8 = Utf8::default();
        (0..bytes.len()).find(|&at| utf8.push(&bytes[at..=at]).is_err())
    }

    #[test]
    fn fails_at_the_first_invalid_byte() {
        assert_eq!(refused_at("κόσμε 𝄞 \u{10ffff}\0".as_bytes()), None);
        assert_eq!(refused_at(b"a\x80"), Some(1));
        assert_eq!(refused_at(b"\xc0"), Some(0));
        assert_eq!(refused_at(b"\xe0\x9f"), Some(1));
        assert_eq!(refused_at(b"\xed\xa0\x80"), Some(1));
        assert_eq!(refused_at(b"\xf4\x90\x80\x80"), Some(1));
        assert_eq!(refused_at(b"\xf0\x9d\x84a"), Some(3));
        assert_eq!(refused_at(b"\xf5"), Some(0));
    }

    #[test]
    fn an_unfinished_character_is_not_complete() {
        let mut utf8 = Utf8::default();
        for byte in &"𝄞".as_bytes()[..3] {
            utf8.push(&[*byte]).unwrap();
            assert!(!utf8.is_complete());
        }
        utf8.push(&"𝄞a".as_bytes()[3..]).unwrap();
        assert!(utf8.is_complete());
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(
            text in "\\PC{0,20}",
            noise in proptest::collection::vec(any::<u8>(), 0..4),
            at in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, noise);
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut utf8 = Utf8::default();
            let is_valid =
                utf8.push(head).is_ok() && utf8.push(tail).is_ok() && utf8.is_complete();
            prop_assert_eq!(is_valid, std::str::from_utf8(&bytes).is_ok());
        }
    }
}
