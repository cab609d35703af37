//! The receiving halves of connections with secrets of SHA-384, which have no compact form. Clients
//! rarely ask for such a suite.

use std::io;

use throng_tls::Incoming;

use crate::sys::key_pages::KeyPages;

/// The places of a page: 28 KiB.
const PAGE_PLACES: usize = 256;

/// A table of receiving halves, on pages that no core dump contains. They are freed when the last
/// half is taken.
#[derive(Debug, Default)]
pub(super) struct WholeHalves {
    pages: Vec<KeyPages<Option<Incoming>>>,
    /// The places that are free again.
    vacant: Vec<u32>,
    length: usize,
}

impl WholeHalves {
    /// Gives a half a place. Fails if there is no memory.
    pub(super) fn put(&mut self, half: Incoming) -> io::Result<u32> {
        let place = match self.vacant.pop() {
            Some(place) => place,
            None => {
                if self.length == self.pages.len() * PAGE_PLACES {
                    self.pages.push(KeyPages::new(PAGE_PLACES, || None)?);
                }
                self.length as u32
            }
        };
        *self.at(place) = Some(half);
        self.length += 1;
        Ok(place)
    }

    /// Moves a half out of its place.
    pub(super) fn take(&mut self, place: u32) -> Option<Incoming> {
        let half = self.at(place).take()?;
        self.length -= 1;
        self.vacant.push(place);
        if self.length == 0 {
            *self = WholeHalves::default();
        }
        Some(half)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Incoming> {
        self.at(place).as_mut()
    }

    fn at(&mut self, place: u32) -> &mut Option<Incoming> {
        let place = place as usize;
        &mut self.pages[place / PAGE_PLACES][place % PAGE_PLACES]
    }
}

#[cfg(test)]
mod tests {
    use throng_tls::{Established, Suite, testing};

    use super::*;

    #[test]
    fn places_are_used_again_and_freed_with_the_last() {
        let half = || {
            let (Established { incoming, .. }, _) = testing::connect(Suite::Tls13Aes256Gcm);
            incoming
        };
        let mut halves = WholeHalves::default();
        let places: Vec<u32> = (0..300).map(|_| halves.put(half()).unwrap()).collect();
        assert_eq!(places, (0..300).collect::<Vec<u32>>());
        assert!(halves.take(7).is_some() && halves.get_mut(7).is_none());
        assert!(halves.take(299).is_some());
        assert_eq!([halves.put(half()).unwrap(), halves.put(half()).unwrap()], [299, 7]);
        assert_eq!((halves.put(half()).unwrap(), halves.pages.len()), (300, 2));
        (0..=300).for_each(|place| drop(halves.take(place).unwrap()));
        assert!(halves.pages.is_empty() && halves.vacant.is_empty());
    }
}
