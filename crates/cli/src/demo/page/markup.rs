//! Text as it may stand in HTML and XML.

/// With the five characters that mean something there written as entities, and without control characters.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A sentence, escaped, with what stands between backquotes as code.
pub(super) fn prose(text: &str) -> String {
    let escaped = escape(text);
    let parts = escaped.split('`').enumerate();
    let part = |(index, part)| {
        if index % 2 == 0 {
            String::from(part)
        } else {
            format!("<code>{part}</code>")
        }
    };
    parts.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(
            escape("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(
            escape("&amp;"),
            "&amp;amp;",
            "escaping is not guessed to have been done"
        );
        assert_eq!(escape("a\0b\u{1b}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(escape("×, ä, 漢"), "×, ä, 漢");
        assert_eq!(
            prose("`<a>` and `b"),
            "<code>&lt;a&gt;</code> and <code>b</code>",
            "closed in any case"
        );
    }
}
