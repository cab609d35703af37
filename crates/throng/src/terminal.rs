//! Colours for people who look at a terminal.

use std::fmt::{self, Display};
use std::hash::Hasher;
use std::io::{self, IsTerminal, Write};

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
    /// One of the sixteen colours, by its code.
    Code(u8),
}

/// Blue.
pub const BLUE: Ink = Ink::Code(34);
/// Cyan.
pub const CYAN: Ink = Ink::Code(36);
/// Green.
pub const GREEN: Ink = Ink::Code(32);
/// Yellow.
pub const YELLOW: Ink = Ink::Code(33);
/// Magenta.
pub const MAGENTA: Ink = Ink::Code(35);
/// Red.
pub const RED: Ink = Ink::Code(31);

/// Those that names are told apart by: readable on black and on white.
const NAME_INKS: [Ink; 6] = [CYAN, GREEN, MAGENTA, BLUE, YELLOW, RED];

impl Paint {
    /// In colour if `stream` is a terminal and nobody has asked for none.
    pub fn on(stream: &impl IsTerminal) -> Paint {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { is_coloured: stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb }
    }

    /// Never in colour.
    #[cfg(test)]
    pub fn plain() -> Paint {
        Paint { is_coloured: false }
    }

    /// Always in colour.
    #[cfg(test)]
    pub fn always() -> Paint {
        Paint { is_coloured: true }
    }

    /// Whether colours are written.
    pub fn is_coloured(self) -> bool {
        self.is_coloured
    }

    /// `text` in `ink`.
    pub fn ink<T: Display>(self, ink: Ink, text: T) -> Inked<T> {
        Inked { ink: self.is_coloured.then_some(ink), text }
    }

    /// `name` in a colour of its own, the same at every start.
    pub fn name<T: Display + AsRef<str>>(self, name: T) -> Inked<T> {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        hasher.write(name.as_ref().as_bytes());
        let ink = NAME_INKS[(hasher.finish() % NAME_INKS.len() as u64) as usize];
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

/// Text that is written in colour.
#[derive(Debug)]
pub struct Inked<T> {
    ink: Option<Ink>,
    text: T,
}

impl<T: Display> Display for Inked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self.ink {
            None => return self.text.fmt(f),
            Some(Ink::Bold) => 1,
            Some(Ink::Dim) => 2,
            Some(Ink::Code(code)) => code,
        };
        write!(f, "\x1b[{code}m")?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}

/// Says on stderr, in one sentence, what went wrong.
pub fn complain(sentence: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{} {sentence}", paint.ink(RED, "throng:"));
}

/// Says something on stderr that is not part of the output.
pub fn remark(sentence: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{}", paint.ink(Ink::Dim, format_args!("throng: {sentence}")));
}

/// Whoever read the output has seen enough: that is no error.
pub fn ignore_closed_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Text of a stranger for a terminal: what would move the cursor or change colours is escaped.
pub fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        // Beside control characters also those that turn the direction of writing around.
        let is_harmful = (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_harmful {
            safe.extend(letter.escape_unicode());
        } else {
            safe.push(letter);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_steer_the_terminal() {
        assert_eq!(harmless("a\x1b[31mb\tc\nd"), "a\\u{1b}[31mb\tc\nd");
        assert_eq!(harmless("gr\u{202e}ün"), "gr\\u{202e}ün");
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        assert_eq!(Paint::plain().name("news").to_string(), "news");
        assert_eq!(Paint::always().ink(Ink::Bold, "a").to_string(), "\x1b[1ma\x1b[0m");
        let painted = Paint::always().name("news").to_string();
        assert_eq!(painted, Paint::always().name("news").to_string());
        assert!(painted.ends_with("mnews\x1b[0m"));
    }
}
