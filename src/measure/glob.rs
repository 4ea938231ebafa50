//! Patterns with stars.

/// Matches `text` against a pattern in which `*` stands for any run of characters.
pub fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text, fits) in [
            ("llama", "llama", true),
            ("llama", "llama-2", false),
            ("llama*", "llama-2", true),
            ("*/chat/*", "/v1/chat/completions", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
            ("ab*ab", "ab", false),
            ("gpt-4", "gpt-4", true),
            ("gpt-*", "gpt-4", true),
            ("*-4", "gpt-4", true),
            ("g*t*4", "gpt-4", true),
            ("*", "gpt-4", true),
            ("gpt", "gpt-4", false),
            ("*5", "gpt-4", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
