//! Colours for people who look at a terminal, decided as in all of Throng's programs: a terminal,
//! no `NO_COLOR`, and not a dumb one.

use std::fmt::{self, Display};
use std::hash::Hasher;
use std::io::IsTerminal;

/// Writes in colour, or not at all so.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    is_coloured: bool,
}

/// A colour or a weight of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Stands out.
    Bold,
    /// Stands back.
    Dim,
    /// Told apart from the other colours, as are those below.
    Red,
    /// …
    Green,
    /// …
    Yellow,
    /// …
    Blue,
    /// …
    Magenta,
    /// …
    Cyan,
}

impl Ink {
    /// As it should be.
    pub const GOOD: Ink = Ink::Green;
    /// Makes figures doubtful, or better changed.
    pub const DOUBT: Ink = Ink::Yellow;
    /// Went wrong, or does not do.
    pub const BAD: Ink = Ink::Red;

    /// Those that names are told apart by: readable on black and on white.
    const NAMES: [Ink; 6] = [Ink::Cyan, Ink::Green, Ink::Magenta, Ink::Blue, Ink::Yellow, Ink::Red];

    fn code(self) -> u8 {
        match self {
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Red => 31,
            Ink::Green => 32,
            Ink::Yellow => 33,
            Ink::Blue => 34,
            Ink::Magenta => 35,
            Ink::Cyan => 36,
        }
    }
}

impl Paint {
    /// In colour if `stream` is a terminal unless `NO_COLOR` is set.
    pub fn on(stream: &impl IsTerminal) -> Paint {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { is_coloured: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb }
    }

    /// Never in colour.
    pub fn plain() -> Paint {
        Paint { is_coloured: false }
    }

    /// Always in colour.
    pub fn always() -> Paint {
        Paint { is_coloured: true }
    }

    /// `text` in `ink`.
    pub fn ink<T: Display>(self, ink: Ink, text: T) -> Inked<T> {
        Inked { ink: self.is_coloured.then_some(ink), text }
    }

    /// Whether colours are written.
    pub fn is_coloured(self) -> bool {
        self.is_coloured
    }

    /// `name` in a colour of its own, the same at every start.
    pub fn name<T: Display + AsRef<str>>(self, name: T) -> Inked<T> {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        hasher.write(name.as_ref().as_bytes());
        let ink = Ink::NAMES[(hasher.finish() % Ink::NAMES.len() as u64) as usize];
        self.ink(ink, name)
    }
}

/// A hash that is the same in every process, unlike that of the standard library.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Text that is written in colour. A width given to it is the width of the text alone.
#[derive(Debug)]
pub struct Inked<T> {
    ink: Option<Ink>,
    text: T,
}

impl<T: Display> Display for Inked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ink) = self.ink else { return self.text.fmt(f) };
        write!(f, "\x1b[{}m", ink.code())?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}

/// Text of a stranger for one line of a terminal: what would move the cursor, change colours or
/// turn the direction of writing around is escaped.
pub fn harmless(text: &str) -> String {
    escaped(text, |letter| letter.is_control())
}

/// [`harmless`] for text of several lines: line breaks and tabs stay.
pub fn harmless_lines(text: &str) -> String {
    escaped(text, |letter| letter.is_control() && letter != '\n' && letter != '\t')
}

fn escaped(text: &str, is_steering: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        let is_turning = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_steering(letter) || is_turning {
            safe.extend(letter.escape_default());
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// The columns that a text takes, without its colours; every letter counts as one.
pub fn width(text: &str) -> usize {
    let mut is_escaped = false;
    let mut columns = 0;
    for letter in text.chars() {
        match letter {
            '\x1b' => is_escaped = true,
            'm' if is_escaped => is_escaped = false,
            _ if is_escaped => {}
            _ => columns += 1,
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_only_where_it_is_wanted() {
        assert_eq!(Paint::plain().ink(Ink::BAD, "a").to_string(), "a");
        let painted = Paint::always().ink(Ink::Bold, "a").to_string();
        assert_eq!(painted, "\x1b[1ma\x1b[0m");
        assert_eq!(width(&painted), 1);
        assert_eq!(format!("{:>3}", Paint::plain().ink(Ink::BAD, "a")), "  a");
    }

    #[test]
    fn strangers_do_not_steer_the_terminal() {
        assert_eq!(harmless("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
        assert_eq!(harmless("gr\u{202e}ün"), "gr\\u{202e}ün");
        assert_eq!(harmless_lines("a\x1b[31mb\tc\nd"), "a\\u{1b}[31mb\tc\nd");
        assert_eq!(harmless_lines("gr\u{202e}ün"), "gr\\u{202e}ün");
    }

    #[test]
    fn a_name_keeps_its_colour() {
        assert_eq!(Paint::plain().name("news").to_string(), "news");
        let painted = Paint::always().name("news").to_string();
        assert_eq!(painted, Paint::always().name("news").to_string());
        assert!(painted.ends_with("mnews\x1b[0m"));
    }
}
