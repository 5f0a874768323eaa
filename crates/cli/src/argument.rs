//! How arguments are read, and what is said about those that are wrong.

use homenode::Size;

/// `--node`, where it may be given several times.
pub(crate) fn one_of_several_nodes(text: &str) -> Result<u16, String> {
    node(text).map_err(|problem| format!("{problem}; for several nodes give --node several times"))
}

/// A node's number.
pub(crate) fn node(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| "a node is one number, as `homenode topology` tells it".to_owned())
}

/// A size; the message names the units, and what to write instead of those of 1000.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    let problem = match text.parse::<Size>() {
        Ok(size) => return Ok(size),
        Err(problem) => problem,
    };
    // `1GB` is 10^9 bytes for some and 2^30 for others.
    let is_number_and_letter = |rest: &&str| {
        let number = rest.trim_end_matches(|one: char| one.is_ascii_alphabetic());
        number.len() + 1 == rest.len() && rest.parse::<Size>().is_ok()
    };
    match text.strip_suffix(['B', 'b']).filter(is_number_and_letter) {
        Some(rest) => Err(format!(
            "size `{text}` is ambiguous: units here are powers of 1024, such as 512M; write {rest}iB or {rest}"
        )),
        None => Err(format!(
            "{problem} (units: K, M, G, T, P or KiB, MiB, GiB, TiB, PiB; all of them powers of 1024)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_or_the_message_tells_how_to_write_them() {
        assert_eq!(size("2GiB"), Ok(Size::Bytes(2 << 30)));
        assert_eq!(size("25%"), Ok(Size::percent(25)));
        let message = size("1GB").unwrap_err();
        assert!(message.contains("`1GB`") && message.contains("1GiB or 1G"), "{message}");
        for text in ["", "5X", "12B", "1GiBB", "GB"] {
            let message = size(text).unwrap_err();
            assert!(message.contains("K, M, G, T") && message.contains("KiB"), "{message}");
        }
    }

    #[test]
    fn nodes_are_numbers() {
        assert_eq!(node("3"), Ok(3));
        assert_eq!(one_of_several_nodes("3"), Ok(3));
        for text in ["", "x", "-1", "0,1", "65536"] {
            assert!(
                one_of_several_nodes(text).unwrap_err().contains("several times"),
                "{text}"
            );
            assert!(!node(text).unwrap_err().contains("several times"), "{text}");
        }
    }
}
