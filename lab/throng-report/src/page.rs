//! Self-contained HTML pages: they load nothing, run no script, and can be mailed and printed.
//!
//! # Invariants
//!
//! - The Content-Security-Policy forbids scripts and outside assets.
//! - Bodies are HTML: their authors [escape](crate::html::escaped) text from outside.

use crate::chart::Figure;
use crate::html::escaped;

const STYLE: &str = include_str!("page.css");

/// A complete document around `body`; `command` is the one that made it.
pub fn document(title: &str, body: &str, command: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body>\n<main>\n{body}</main>\n\
         <footer>Made by {} {}.</footer>\n</body></html>\n",
        escaped(title),
        escaped(command),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Appends a section with its non-empty `parts`; nothing if all are empty.
pub fn section(body: &mut String, title: &str, parts: impl IntoIterator<Item = String>) {
    let content: String = parts.into_iter().collect();
    if !content.is_empty() {
        body.push_str(&format!("<section><h2>{}</h2>\n{content}</section>\n", escaped(title)));
    }
}

/// A chart as HTML; empty without one.
pub fn rendered(figure: Option<Figure>) -> String {
    figure.as_ref().map_or_else(String::new, Figure::render)
}

/// Two charts side by side where the page is wide enough.
pub fn pair(one: Option<Figure>, other: Option<Figure>) -> String {
    let both: String = [one, other].iter().flatten().map(Figure::render).collect();
    if both.is_empty() { both } else { format!("<div class=\"pair\">{both}</div>") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_sections_and_missing_charts_are_left_out() {
        let mut body = String::new();
        section(&mut body, "Nothing", [String::new(), rendered(None), pair(None, None)]);
        assert_eq!(body, "");
        section(&mut body, "<a>", ["b".to_owned()]);
        assert_eq!(body, "<section><h2>&lt;a&gt;</h2>\nb</section>\n");
    }
}
