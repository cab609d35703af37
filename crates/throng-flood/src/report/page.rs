//! A page without outside assets: it can be mailed, printed, and kept.
//!
//! # Invariants
//!
//! - A page runs no script and asks nothing of the network, and says so to the browser.
//! - Bodies are HTML already: whoever makes one has [escaped](super::chart::figure::escaped) every
//!   text that comes from outside.

use super::chart::figure::{Figure, escaped, table};

const STYLE: &str = include_str!("page.css");

/// A whole document around a body; `maker` is the command that made it.
pub fn document(title: &str, body: &str, maker: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body>\n<main>\n{body}</main>\n\
         <footer>Made by {} {}.</footer>\n</body></html>\n",
        escaped(title),
        escaped(maker),
        env!("CARGO_PKG_VERSION"),
    )
}

/// A section; nothing if it has nothing to show.
pub fn section(body: &mut String, title: &str, figures: Vec<String>, parts: &[String]) {
    if figures.iter().chain(parts).all(String::is_empty) {
        return;
    }
    body.push_str(&format!("<section><h2>{}</h2>\n", escaped(title)));
    for part in figures.iter().chain(parts) {
        body.push_str(part);
    }
    body.push_str("</section>\n");
}

/// Two charts beside each other, where there is room.
pub fn pair(one: Option<Figure>, other: Option<Figure>) -> String {
    let both: String = [one, other].iter().flatten().map(Figure::render).collect();
    if both.is_empty() { both } else { format!("<div class=\"pair\">{both}</div>") }
}

/// Sentences that must be seen before any figure.
pub fn warned(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"warnings\"><strong>Doubtful</strong><ul>");
    for warning in warnings {
        html.push_str(&format!("<li>{}</li>", escaped(warning)));
    }
    html.push_str("</ul></div>\n");
    html
}

/// A table that is moved sideways where the page is narrow.
pub fn scrolled<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let first = headings.first().map_or("", |heading| heading.as_ref());
    let label = format!("Table: {}", escaped(first));
    format!("<div {}>{}</div>\n", scrolls("scroll", &label), table(headings, rows))
}

/// Attributes of an element that is moved sideways, with the keyboard too.
pub fn scrolls(class: &str, label: &str) -> String {
    format!("class=\"{class}\" tabindex=\"0\" role=\"group\" aria-label=\"{label}\"")
}

/// Names and values, two columns of words.
pub fn words<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut html = String::from("<table class=\"words\"><tbody>");
    for (name, value) in rows {
        let (name, value) = (escaped(name), escaped(&value));
        html.push_str(&format!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>"));
    }
    html.push_str("</tbody></table>\n");
    html
}
