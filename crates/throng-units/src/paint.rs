//! Terminal colours, and escaping of untrusted text. Colours are on if the stream is a terminal,
//! `NO_COLOR` is unset and `TERM` is not `dumb`.

use std::fmt::{self, Display};
use std::hash::Hasher;
use std::io::IsTerminal;

/// Writes text with or without colour.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    is_coloured: bool,
}

/// A colour or font weight (SGR code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Emphasis, SGR 1.
    Bold,
    /// De-emphasis, SGR 2.
    Dim,
    /// Foreground colour 31.
    Red,
    /// Foreground colour 32.
    Green,
    /// Foreground colour 33.
    Yellow,
    /// Foreground colour 34.
    Blue,
    /// Foreground colour 35.
    Magenta,
    /// Foreground colour 36.
    Cyan,
}

impl Ink {
    /// A value that is as it should be.
    pub const GOOD: Ink = Ink::Green;
    /// Something that the user should look at.
    pub const WARNING: Ink = Ink::Yellow;
    /// An error or failed requirement.
    pub const BAD: Ink = Ink::Red;

    /// Colours for names: readable on black and on white.
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
    /// Coloured if `stream` is a terminal that wants colour (see the module).
    pub fn on(stream: &impl IsTerminal) -> Paint {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { is_coloured: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb }
    }

    /// Writes without colour, whatever the stream.
    pub fn plain() -> Paint {
        Paint { is_coloured: false }
    }

    /// Writes with colour, whatever the stream.
    pub fn always() -> Paint {
        Paint { is_coloured: true }
    }

    /// `text` in `ink`.
    pub fn ink<T: Display>(self, ink: Ink, text: T) -> Inked<T> {
        Inked { ink: self.is_coloured.then_some(ink), text }
    }

    /// True if colours are written.
    pub fn is_coloured(self) -> bool {
        self.is_coloured
    }

    /// `name` in a colour derived from its hash, the same in every process.
    pub fn name<T: Display + AsRef<str>>(self, name: T) -> Inked<T> {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        hasher.write(name.as_ref().as_bytes());
        let ink = Ink::NAMES[(hasher.finish() % Ink::NAMES.len() as u64) as usize];
        self.ink(ink, name)
    }
}

/// FNV-1a: the same in every process, unlike the standard library's hasher.
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

/// Text with its colour. A format width applies to the text without its escape codes.
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

/// Escapes untrusted text for one line of a terminal: control characters and characters that
/// change the writing direction.
pub fn sanitized(text: &str) -> String {
    escaped(text, |letter| letter.is_control())
}

/// [`sanitized`] for text of several lines: keeps line breaks and tabs.
pub fn sanitized_lines(text: &str) -> String {
    escaped(text, |letter| letter.is_control() && letter != '\n' && letter != '\t')
}

fn escaped(text: &str, is_control: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        let is_direction = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_control(letter) || is_direction {
            safe.extend(letter.escape_default());
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// The number of columns of a text without its escape codes; every `char` counts as one.
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
    fn colour_is_written_only_when_enabled() {
        assert_eq!(Paint::plain().ink(Ink::BAD, "a").to_string(), "a");
        let painted = Paint::always().ink(Ink::Bold, "a").to_string();
        assert_eq!(painted, "\x1b[1ma\x1b[0m");
        assert_eq!(width(&painted), 1);
        assert_eq!(format!("{:>3}", Paint::plain().ink(Ink::BAD, "a")), "  a");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(sanitized("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
        assert_eq!(sanitized("gr\u{202e}ün"), "gr\\u{202e}ün");
        assert_eq!(sanitized_lines("a\x1b[31mb\tc\nd"), "a\\u{1b}[31mb\tc\nd");
        assert_eq!(sanitized_lines("gr\u{202e}ün"), "gr\\u{202e}ün");
    }

    #[test]
    fn a_name_always_has_the_same_colour() {
        assert_eq!(Paint::plain().name("news").to_string(), "news");
        let painted = Paint::always().name("news").to_string();
        assert_eq!(painted, Paint::always().name("news").to_string());
        assert!(painted.ends_with("mnews\x1b[0m"));
    }
}
