//! Where the next page of a list begins, as text that clients pass back.

use std::hash::{BuildHasher as _, RandomState};

use throng_core::ListPlace;

use super::answer::ApiError;

const TAG_DIGITS: usize = 8;

/// Writes and reads cursors. A place means nothing to another process, so a cursor begins with a
/// tag of this one.
#[derive(Debug)]
pub(crate) struct Cursors {
    tag: u32,
}

impl Cursors {
    pub(crate) fn random() -> Cursors {
        Cursors { tag: RandomState::new().hash_one(0) as u32 }
    }

    pub(crate) fn text(&self, place: ListPlace) -> String {
        format!("{:0TAG_DIGITS$x}{:x}", self.tag, place.0)
    }

    /// The place that a client has passed back.
    pub(crate) fn place(&self, text: &str) -> Result<ListPlace, ApiError> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts = text.split_at_checked(TAG_DIGITS).filter(|_| digits(text));
        let read = |(tag, place)| {
            let tag = u32::from_str_radix(tag, 16).ok()?;
            Some((tag, ListPlace(u64::from_str_radix(place, 16).ok()?)))
        };
        match parts.and_then(read) {
            Some((tag, place)) if tag == self.tag => Ok(place),
            Some(_) => Err(ApiError::parameter(
                "`after` is of a page from before the server was restarted; begin the list again",
            )),
            None => Err(not_of_a_page()),
        }
    }
}

/// The error about a text that is no cursor.
pub(crate) fn not_of_a_page() -> ApiError {
    ApiError::parameter("`after` is the `after` of the page before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_by_its_own_process_only() {
        let (cursors, others) = (Cursors { tag: 7 }, Cursors { tag: 8 });
        for place in [0, 1, 5 << 32, u64::MAX].map(ListPlace) {
            let text = cursors.text(place);
            assert_eq!(cursors.place(&text).unwrap(), place);
            let refused = others.place(&text).unwrap_err();
            assert!(refused.error.message.contains("restarted"), "{}", refused.error.message);
        }
        for bad in [
            "",
            "7",
            "00000007",
            "0000000g1",
            "00000007-1",
            "000000071ffffffffffffffff",
            "0000000é1",
            "+00000071",
        ] {
            let refused = cursors.place(bad).unwrap_err();
            assert!(refused.error.message.contains("the page before"), "{bad}");
        }
    }
}
