//! Which page of a history a client asks for, over HTTP or `throng.v1`.

/// The messages that a page begins or ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// It ends with the newest message.
    Newest,
    /// It ends with the message before this id.
    Before(String),
    /// It begins with the message after this id.
    After(String),
    /// It begins with the first message of this time or later, in milliseconds since 1970.
    SinceTime(u64),
}

/// A page of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRange {
    pub start: PageStart,
    /// True if its newest message comes first.
    pub is_newest_first: bool,
}

impl PageRange {
    /// The newest messages, oldest first.
    pub const NEWEST: PageRange = PageRange { start: PageStart::Newest, is_newest_first: false };

    /// The page of these fields or parameters.
    ///
    /// # Errors
    ///
    /// A sentence: more than one says where it is, or `order` is none.
    pub fn of(
        before: Option<String>,
        after: Option<String>,
        since_time: Option<u64>,
        order: Option<&str>,
    ) -> Result<PageRange, &'static str> {
        let start = match (before, after, since_time) {
            (None, None, None) => PageStart::Newest,
            (Some(id), None, None) => PageStart::Before(id),
            (None, Some(id), None) => PageStart::After(id),
            (None, None, Some(time_ms)) => PageStart::SinceTime(time_ms),
            _ => return Err("`before`, `after` and `since_time` exclude each other"),
        };
        let is_newest_first = match order {
            None | Some("oldest") => false,
            Some("newest") => true,
            Some(_) => return Err("`order` is `oldest` or `newest`: the message that comes first"),
        };
        Ok(PageRange { start, is_newest_first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::parse;

    #[test]
    fn commands_that_name_no_page_or_two_are_refused() {
        for fields in [
            r#""before":"b","after":"c""#,
            r#""after":"c","since_time":1"#,
            r#""order":"down""#,
            r#""since_time":-1"#,
            r#""since_time":9007199254740992"#,
            r#""limit":1001"#,
        ] {
            let text = format!(r#"{{"type":"history","channel":"a",{fields}}}"#);
            assert!(parse(&text).command.is_err(), "{text}");
        }
        for fields in [r#""history":1,"since_time":1"#, r#""since_time":"1""#] {
            let text = format!(r#"{{"type":"subscribe","channel":"a",{fields}}}"#);
            assert!(parse(&text).command.is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_begins_at_a_time() {
        let page = PageRange::of(None, None, Some(7), Some("newest"));
        let start = PageStart::SinceTime(7);
        assert_eq!(page, Ok(PageRange { start, is_newest_first: true }));
    }

    #[test]
    fn a_page_without_fields_is_the_newest() {
        assert_eq!(PageRange::of(None, None, None, None), Ok(PageRange::NEWEST));
        assert_eq!(PageRange::of(None, None, None, Some("oldest")), Ok(PageRange::NEWEST));
    }
}
