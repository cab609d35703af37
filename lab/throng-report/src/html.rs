//! HTML elements. Every function escapes the text it is given.

use std::fmt::Write as _;

/// Escapes text for HTML elements and attributes. Control characters become U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            control if control.is_control() && control != '\n' => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// A table whose first column holds the row headings.
pub fn table<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<table><thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(heading.as_ref()));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = match column {
                0 => write!(html, "<th scope=\"row\">{cell}</th>"),
                _ => write!(html, "<td>{cell}</td>"),
            };
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    html
}

/// A [`table`] that scrolls sideways on narrow pages; empty without rows.
pub fn scrolling_table<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let first = headings.first().map_or("", |heading| heading.as_ref());
    let label = format!("Table: {first}");
    format!("<div {}>{}</div>\n", scroll_attributes("scroll", &label), table(headings, rows))
}

/// Attributes of an element that scrolls sideways; `tabindex` makes the keyboard scroll it too.
pub fn scroll_attributes(class: &str, label: &str) -> String {
    let label = escaped(label);
    format!("class=\"{class}\" tabindex=\"0\" role=\"group\" aria-label=\"{label}\"")
}

/// A table of two columns: names and values.
pub fn key_values<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut html = String::from("<table class=\"words\"><tbody>");
    for (name, value) in rows {
        let (name, value) = (escaped(name), escaped(&value));
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>");
    }
    html.push_str("</tbody></table>\n");
    html
}

/// A paragraph in small type.
pub fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", escaped(text))
}

/// The verdict over a run: what failed, or `success` if nothing did.
pub fn verdict(faults: Option<&str>, success: &str) -> String {
    let (class, text) = faults.map_or(("good", success), |faults| ("bad", faults));
    format!("<p class=\"verdict {class}\">{}</p>", escaped(text))
}

/// A box of warnings, for the top of a page or section; empty without any.
pub fn warnings(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"warnings\"><strong>Warnings</strong><ul>");
    for warning in warnings {
        let _ = write!(html, "<li>{}</li>", escaped(warning));
    }
    html.push_str("</ul></div>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_escaped() {
        assert_eq!(
            escaped("<img src='x' onerror=\"a\">&\0"),
            "&lt;img src=&#39;x&#39; onerror=&quot;a&quot;&gt;&amp;\u{fffd}"
        );
        let evil = "<i>".to_owned();
        for html in [
            table(&[&evil], &[vec![evil.clone(), evil.clone()]]),
            scrolling_table(&[&evil], &[vec![evil.clone()]]),
            key_values([(evil.as_str(), evil.clone())]),
            warnings(std::slice::from_ref(&evil)),
            verdict(Some(&evil), ""),
            note(&evil),
        ] {
            assert!(html.contains("&lt;i&gt;") && !html.contains("<i>"), "{html}");
        }
    }

    #[test]
    fn nothing_to_show_is_no_element() {
        assert_eq!(scrolling_table(&["a"], &[]), "");
        assert_eq!(warnings(&[]), "");
    }
}
