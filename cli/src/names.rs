//! How names and texts of others are shown: a key or a label may contain any bytes. Every view
//! uses these functions, so nothing that others have written moves the cursor or hides text.

/// The longest name that lists show in full, in characters.
const LONGEST_SHOWN: usize = 120;

/// A text of others, on one line. Control characters and characters that are invisible or change
/// the direction of their neighbours are shown as escapes.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else if is_deceptive(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Zero-width characters, marks and overrides of the direction, separators of lines, tags and
/// variation selectors.
fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// A key need not be UTF-8: other bytes are shown as `\\xff`, so that different keys look
/// different.
pub fn key_text(key: &[u8]) -> String {
    key.utf8_chunks()
        .flat_map(|chunk| {
            let bytes = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
            std::iter::once(chunk.valid().to_owned()).chain(bytes)
        })
        .collect()
}

/// A key as lists show it: on one line, and not longer than a line.
pub fn shown_key(key: &[u8]) -> String {
    // A character has at most four bytes: what is cut off here is not shown anyway.
    let start = &key[..key.len().min(4 * (LONGEST_SHOWN + 1))];
    shortened(printable(&key_text(start)), key.len())
}

/// A text of others as lists show it.
pub fn shown_text(text: &str) -> String {
    shortened(printable(text), text.len())
}

fn shortened(text: String, bytes: usize) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        None => text,
        Some((end, _)) => format!("{}… ({bytes} bytes)", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_text_are_distinguishable() {
        assert_eq!(key_text("schlüssel".as_bytes()), "schlüssel");
        assert_eq!(key_text(b"a\xffb\xfe"), "a\\xffb\\xfe");
    }

    #[test]
    fn names_of_others_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("\u{9b}2J"), "\\u{9b}2J");
    }

    #[test]
    fn names_of_others_cannot_turn_the_text_around_or_hide_it() {
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(
            printable("a\u{200b}\u{2066}\u{feff}"),
            "a\\u{200b}\\u{2066}\\u{feff}"
        );
        assert_eq!(printable("שלום عالم 漢字"), "שלום عالم 漢字");
    }

    #[test]
    fn a_long_key_is_cut_and_its_length_is_shown() {
        assert_eq!(shown_key(&[b'a'; 120]), "a".repeat(120));
        let long = shown_key(&vec![b'a'; 1 << 20]);
        assert_eq!(long, format!("{}… (1048576 bytes)", "a".repeat(120)));
        assert!(shown_key(&[0xff; 500]).ends_with("… (500 bytes)"));
    }
}
