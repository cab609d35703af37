//! The attributes of a message: facts beside its body, each a number and some bytes.
//!
//! They travel as one block, which journals, frozen state and other nodes carry unread. A program
//! keeps the attributes that it does not know, so a newer one adds some without a new format.
//!
//! A block is a sequence of entries in ascending order of their numbers: the number (2 bytes), the
//! length of the value (2 bytes), both little-endian, and the value. It is never empty: a message
//! without attributes has no block.

use throng_wire::Labels;
use throng_wire::envelope::Facts;
use throng_wire::labels::{StateKey, are_tags, check_event, check_state_key};

use crate::connection_name::ConnectionName;
use crate::read_marker::{MarkerKey, ReadMarker, UnreadNotice};

/// The attributes that have a meaning. A number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Attribute {
    /// The name of the event, in UTF-8.
    Event = 1,
    /// Short texts and numbers by name.
    Tags = 2,
    /// The publisher, in UTF-8, as the channel's rule shows it.
    From = 3,
    /// The key whose newest message this is, in UTF-8.
    Key = 4,
    /// The message removes its key.
    Tombstone = 5,
    /// The message is a notice that earlier ones are erased: an [`Erasure`].
    Erased = 6,
    /// The message takes the place of an earlier one, which is erased: that one's offset, of 8
    /// bytes, little-endian.
    Replaces = 7,
    /// The message is the notice that the channel ends with it; of a record: the channel has ended.
    End = 8,
    /// The publisher's number of the message.
    Producer = 9,
    /// The message is a notice that a read marker has moved: an [`UnreadNotice`].
    Unread = 10,
    /// Of a record: the [properties](crate::Creation) with which the channel was created.
    Created = 11,
}

impl Attribute {
    /// The attributes that are texts.
    const TEXTS: [Attribute; 3] = [Attribute::Event, Attribute::From, Attribute::Key];
}

/// The messages that a notice is about: all of its log with these offsets, both included.
///
/// As a value: both offsets, or one if they are the same, of 8 bytes each, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erasure {
    pub first: u64,
    pub last: u64,
}

impl Erasure {
    /// One message.
    pub fn of(offset: u64) -> Erasure {
        Erasure { first: offset, last: offset }
    }

    /// All messages of a log up to this offset.
    pub fn up_to(last: u64) -> Erasure {
        Erasure { first: 0, last }
    }

    /// True if it is about one message.
    pub fn is_single(self) -> bool {
        self.first == self.last
    }

    fn read(value: &[u8]) -> Option<Erasure> {
        let (first, rest) = value.split_first_chunk()?;
        let last = if rest.is_empty() { first } else { rest.try_into().ok()? };
        Some(Erasure { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last) })
    }

    fn write(self) -> Vec<u8> {
        let mut value = self.first.to_le_bytes().to_vec();
        if !self.is_single() {
            value.extend_from_slice(&self.last.to_le_bytes());
        }
        value
    }
}

/// The maximum size of a block: a tenth of what a message of a small installation may have. Every
/// program that reads blocks has this limit, so it is above all limits of publishers.
pub(crate) const ATTRIBUTES_BYTES_MAX: usize = 16 << 10;

/// The maximum number of attributes of a message: many more than there are, few to look through.
pub(crate) const ATTRIBUTES_MAX: usize = 64;

/// Bytes before each value.
const ENTRY_BYTES: usize = 4;

/// Bytes that are no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the attributes of a message")]
pub struct MalformedAttributes;

/// The attributes of a message, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes(Box<[u8]>);

impl Attributes {
    /// Reads a block from elsewhere.
    ///
    /// # Errors
    ///
    /// It is none, or beyond the limits.
    pub fn read(block: &[u8]) -> Result<Attributes, MalformedAttributes> {
        Attributes::check(block)?;
        Ok(Attributes(block.into()))
    }

    /// The attributes with these numbers and values, in ascending order of the numbers.
    ///
    /// # Errors
    ///
    /// They are beyond the limits, in another order, or a text is not UTF-8.
    pub fn of(values: &[(u16, &[u8])]) -> Result<Attributes, MalformedAttributes> {
        let mut block = Vec::new();
        for (number, value) in values {
            let length = u16::try_from(value.len()).map_err(|_| MalformedAttributes)?;
            block.extend_from_slice(&number.to_le_bytes());
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(value);
        }
        Attributes::read(&block)
    }

    /// The attributes of a message with which the server removes a key.
    pub(crate) fn tombstone(key: &str) -> Option<Attributes> {
        let key = StateKey { name: key.into(), is_removed: true };
        Attributes::of_publication(&Labels { key: Some(key), ..Labels::default() }, None)
    }

    /// The attributes of a publication: the labels that its publisher gives, and the publisher, if
    /// the channel's rule shows it. `None` if it has none.
    pub fn of_publication(labels: &Labels, from: Option<&str>) -> Option<Attributes> {
        let key = labels.key.as_ref();
        let given = [
            (Attribute::Event, labels.event.as_deref()),
            (Attribute::Tags, labels.tags.as_deref()),
            (Attribute::From, from),
            (Attribute::Key, key.map(|key| &*key.name)),
            (Attribute::Tombstone, key.filter(|key| key.is_removed).map(|_| "")),
        ];
        let mut values: [(u16, &[u8]); 5] = [(0, b""); 5];
        let mut count = 0;
        for (attribute, text) in given {
            if let Some(text) = text {
                values[count] = (attribute as u16, text.as_bytes());
                count += 1;
            }
        }
        if count == 0 {
            return None;
        }
        let attributes = Attributes::of(&values[..count]);
        debug_assert!(attributes.is_ok(), "labels and names have lower limits");
        attributes.ok()
    }

    /// The attributes of a notice that messages are erased.
    pub(crate) fn of_erasure(erasure: Erasure) -> Attributes {
        let value = erasure.write();
        let attributes = Attributes::of(&[(Attribute::Erased as u16, &value)]);
        attributes.expect("one short value is within the limits")
    }

    /// The attributes of the notice that a channel ends.
    pub(crate) fn of_end() -> Attributes {
        let attributes = Attributes::of(&[(Attribute::End as u16, b"")]);
        attributes.expect("an empty value is within the limits")
    }

    /// The attributes of a notice that a read marker has moved.
    pub(crate) fn of_unread(of: &MarkerKey, marker: &ReadMarker) -> Attributes {
        let value = UnreadNotice::write(of, marker);
        let attributes = Attributes::of(&[(Attribute::Unread as u16, value.as_bytes())]);
        attributes.expect("one short value is within the limits")
    }

    /// The new place of a read marker, if the message is a notice of that.
    pub(crate) fn unread(&self) -> Option<UnreadNotice<'_>> {
        self.get(Attribute::Unread).and_then(UnreadNotice::read)
    }

    /// These attributes with another one, or without it. `None` if none are left.
    pub(crate) fn with(&self, attribute: Attribute, value: Option<&[u8]>) -> Option<Attributes> {
        let (mut values, mut rest) = (Vec::new(), &*self.0);
        while let Some((number, known, behind)) = entry(rest) {
            if number != attribute as u16 {
                values.push((number, known));
            }
            rest = behind;
        }
        values.extend(value.map(|value| (attribute as u16, value)));
        values.sort_unstable_by_key(|(number, _)| *number);
        Attributes::of(&values).ok()
    }

    /// These attributes, of a message that takes the place of the one with this offset.
    #[must_use]
    pub fn replacing(attributes: Option<Attributes>, offset: u64) -> Attributes {
        let own = Attributes::of(&[(Attribute::Replaces as u16, &offset.to_le_bytes())]);
        let own = own.expect("one short value is within the limits");
        let Some(attributes) = attributes else { return own };
        // No number of a publisher's own is beyond it.
        let all = Attributes::read(&[attributes.block(), own.block()].concat());
        debug_assert!(all.is_ok(), "labels and names have lower limits");
        all.unwrap_or(own)
    }

    /// The offset of the message in whose place this one is.
    pub fn replaces(&self) -> Option<u64> {
        let offset = self.get(Attribute::Replaces)?.try_into().ok()?;
        Some(u64::from_le_bytes(offset))
    }

    /// The messages that are erased, if the message is a notice of that.
    pub fn erasure(&self) -> Option<Erasure> {
        self.get(Attribute::Erased).and_then(Erasure::read)
    }

    /// The attributes as envelopes show them. Labels that no publisher can set, such as another
    /// program may have put into the stream of several nodes, are left out: they could pass for a
    /// notice, or break an envelope.
    pub fn facts(&self) -> Facts<'_> {
        let text = |attribute| self.get(attribute).and_then(|value| str::from_utf8(value).ok());
        Facts {
            event: text(Attribute::Event).filter(|event| check_event(event).is_ok()),
            tags: text(Attribute::Tags).filter(|tags| are_tags(tags)),
            from: text(Attribute::From),
            erased: None,
            replaces: None,
            key: self.key(),
            is_tombstone: self.removes_key(),
        }
    }

    /// The key of the channel's state that the message sets or removes.
    pub fn key(&self) -> Option<&str> {
        let key = str::from_utf8(self.get(Attribute::Key)?).ok();
        key.filter(|key| check_state_key(key).is_ok())
    }

    /// True if the message is the notice of an end, or removes a key.
    pub(crate) fn is_of_server(&self) -> bool {
        self.get(Attribute::End).is_some() || self.removes_key()
    }

    /// True if the message removes its key.
    pub fn removes_key(&self) -> bool {
        self.get(Attribute::Tombstone).is_some() && self.key().is_some()
    }

    /// The attributes of a block that has passed [`Attributes::check`].
    pub(crate) fn checked(block: &[u8]) -> Attributes {
        debug_assert_eq!(Attributes::check(block), Ok(()));
        Attributes(block.into())
    }

    /// Checks that this is a block.
    pub(crate) fn check(block: &[u8]) -> Result<(), MalformedAttributes> {
        if block.is_empty() || block.len() > ATTRIBUTES_BYTES_MAX {
            return Err(MalformedAttributes);
        }
        let (mut rest, mut last) = (block, None);
        for _ in 0..ATTRIBUTES_MAX {
            let Some((number, value, behind)) = entry(rest) else { break };
            let is_text = Attribute::TEXTS.iter().any(|text| *text as u16 == number);
            if last >= Some(number) || is_text && std::str::from_utf8(value).is_err() {
                return Err(MalformedAttributes);
            }
            (rest, last) = (behind, Some(number));
        }
        if rest.is_empty() { Ok(()) } else { Err(MalformedAttributes) }
    }

    /// The block.
    pub fn block(&self) -> &[u8] {
        &self.0
    }

    /// The weight that counts against limits, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        weight_bytes(self.0.len())
    }

    /// The value of an attribute.
    pub fn get(&self, attribute: Attribute) -> Option<&[u8]> {
        let mut rest = &*self.0;
        while let Some((number, value, behind)) = entry(rest) {
            if number == attribute as u16 {
                return Some(value);
            }
            rest = behind;
        }
        None
    }
}

/// The first entry of a block, and what is behind it.
fn entry(block: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let ([n0, n1, l0, l1], rest) = block.split_first_chunk::<ENTRY_BYTES>()?;
    let (number, length) = (u16::from_le_bytes([*n0, *n1]), u16::from_le_bytes([*l0, *l1]));
    let (value, behind) = rest.split_at_checked(usize::from(length))?;
    Some((number, value, behind))
}

/// The rare parts of a message: an excluded connection, attributes, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extras(Place);

/// The one that is usual among them takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Excluded(ConnectionName),
    Elsewhere(Option<Box<WithAttributes>>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct WithAttributes {
    excluded: Option<ConnectionName>,
    attributes: Attributes,
}

/// Every message has this field, so it must cost nothing without attributes.
const _: () = assert!(size_of::<Extras>() == size_of::<Option<ConnectionName>>());

/// Bytes that attributes take besides their block.
const OVERHEAD_BYTES: usize = size_of::<WithAttributes>() + 2 * size_of::<usize>();

impl Extras {
    /// No extras, as most messages have.
    pub const NONE: Extras = Extras(Place::Elsewhere(None));

    /// The connection that does not get the message, and the message's attributes.
    pub fn new(excluded: Option<ConnectionName>, attributes: Option<Attributes>) -> Extras {
        Extras(match (excluded, attributes) {
            (Some(excluded), None) => Place::Excluded(excluded),
            (excluded, attributes) => Place::Elsewhere(
                attributes.map(|attributes| Box::new(WithAttributes { excluded, attributes })),
            ),
        })
    }

    /// The connection that does not get the message.
    pub fn excluded(&self) -> Option<ConnectionName> {
        match &self.0 {
            Place::Excluded(excluded) => Some(*excluded),
            Place::Elsewhere(extras) => extras.as_ref()?.excluded,
        }
    }

    /// The attributes of the message.
    pub fn attributes(&self) -> Option<&Attributes> {
        match &self.0 {
            Place::Excluded(_) => None,
            Place::Elsewhere(extras) => extras.as_ref().map(|extras| &extras.attributes),
        }
    }

    /// The weight that counts against limits, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.attributes().map_or(0, Attributes::weight_bytes)
    }
}

/// The weight of a block of this many bytes.
pub(crate) fn weight_bytes(block_bytes: usize) -> usize {
    block_bytes + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_one_message_or_a_range() {
        for erasure in [Erasure::of(17), Erasure::up_to(17), Erasure { first: 3, last: u64::MAX }] {
            let notice = Attributes::of_erasure(erasure);
            assert_eq!(notice.erasure(), Some(erasure));
            let value = notice.get(Attribute::Erased).map(<[u8]>::len);
            assert_eq!(value, Some(if erasure.is_single() { 8 } else { 16 }));
        }
        for value in [&b""[..], b"1234567", b"123456789", &[0; 24]] {
            let other = Attributes::of(&[(Attribute::Erased as u16, value)]).unwrap();
            assert_eq!(other.erasure(), None, "{value:?}");
        }
    }

    #[test]
    fn a_message_may_replace_one() {
        let labels = Labels { event: Some("price".into()), ..Labels::default() };
        for own in [None, Attributes::of_publication(&labels, Some("ann"))] {
            let replacing = Attributes::replacing(own.clone(), 17);
            assert_eq!((replacing.replaces(), replacing.erasure()), (Some(17), None));
            let before = own.as_ref().map(Attributes::facts).unwrap_or_default();
            assert_eq!(replacing.facts(), before);
        }
    }

    #[test]
    fn attributes_come_out_as_they_went_in_with_unknown_ones() {
        let values: [(u16, &[u8]); 3] = [(1, b"price"), (4, b""), (9_999, b"\xff")];
        let attributes = Attributes::of(&values).expect("they are in order");
        assert_eq!(attributes.get(Attribute::Event), Some(&b"price"[..]));
        assert_eq!(attributes.get(Attribute::Key), Some(&b""[..]));
        assert_eq!(attributes.get(Attribute::From), None);
        let block = attributes.block();
        assert_eq!(Attributes::read(block).as_ref(), Ok(&attributes));
        assert_eq!(block[block.len() - 5..], [0x0f, 0x27, 1, 0, 0xff]);
        // Some of its parts are whole entries.
        let whole = [9, 13];
        for end in 0..block.len() {
            let part = Attributes::read(&block[..end]);
            assert_eq!(part.is_ok(), whole.contains(&end), "cut at {end}");
        }
    }

    #[test]
    fn attributes_beyond_a_limit_or_out_of_order_are_refused() {
        let of = |values: &[(u16, &[u8])]| Attributes::of(values).is_ok();
        let many: Vec<(u16, &[u8])> = (100..=164).map(|number| (number, &b""[..])).collect();
        assert!(of(&many[1..]) && !of(&many));
        let long = vec![0; ATTRIBUTES_BYTES_MAX];
        assert!(of(&[(2, &long[ENTRY_BYTES..])]) && !of(&[(2, &long)]));
        assert!(!of(&[(2, &vec![0; 1 << 16])]) && !of(&[]));
        assert!(!of(&[(2, b""), (1, b"")]) && !of(&[(2, b""), (2, b"")]));
        assert!(of(&[(2, b"\xff")]) && !of(&[(4, b"\xff")]));
    }

    #[test]
    fn a_publication_has_what_its_publisher_gives_and_the_publisher() {
        let labels = |event: Option<&str>, tags: Option<&str>| Labels {
            event: event.map(Into::into),
            tags: tags.map(Into::into),
            key: None,
        };
        assert_eq!(Attributes::of_publication(&Labels::default(), None), None);
        for (event, tags, from) in [
            (Some("price"), Some(r#"{"n":2}"#), Some("ann")),
            (None, Some(r#"{"n":2}"#), None),
            (Some("price"), None, Some("ann")),
            (None, None, Some("ann")),
        ] {
            let attributes = Attributes::of_publication(&labels(event, tags), from).unwrap();
            assert_eq!(attributes.facts(), Facts { event, tags, from, ..Facts::default() });
        }
        let forged = Attributes::of(&[(1, b"gap"), (2, b"{]"), (3, b"ann")]).unwrap();
        assert_eq!(forged.facts(), Facts { from: Some("ann"), ..Facts::default() });
    }

    #[test]
    fn a_key_is_set_or_removed() {
        for is_removed in [false, true] {
            let key = Some(StateKey { name: "ann".into(), is_removed });
            let labels = Labels { key, ..Labels::default() };
            let attributes = Attributes::of_publication(&labels, None).unwrap();
            assert_eq!((attributes.key(), attributes.removes_key()), (Some("ann"), is_removed));
            if is_removed {
                assert_eq!(Attributes::tombstone("ann"), Some(attributes));
            }
        }
        // Of another program.
        let malformed = Attributes::of(&[(4, b""), (5, b"")]).unwrap();
        assert_eq!((malformed.key(), malformed.removes_key()), (None, false));
    }

    #[test]
    fn extras_have_both_one_or_none() {
        let excluded = Some(ConnectionName::numbered(7));
        let attributes = Attributes::of(&[(4, b"k")]).ok();
        for excluded in [None, excluded] {
            for attributes in [None, attributes.clone()] {
                let extras = Extras::new(excluded, attributes.clone());
                assert_eq!(
                    (extras.excluded(), extras.attributes().cloned()),
                    (excluded, attributes)
                );
            }
        }
        assert_eq!(Extras::new(None, None), Extras::NONE);
        assert_eq!(
            (Extras::NONE.weight_bytes(), Extras::new(excluded, None).weight_bytes()),
            (0, 0)
        );
    }
}
