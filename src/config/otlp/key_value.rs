//! Lists of `key=value`, percent-decoded.

/// Parses `key1=value1,key2=value2`. The error is the number of the first invalid entry, from 1.
pub(super) fn parse_pairs(text: &str) -> Result<Vec<(String, String)>, usize> {
    let entries = text.split(',').enumerate().filter(|(_, entry)| !entry.trim().is_empty());
    let pair = |(at, entry): (usize, &str)| {
        let (key, value) = entry.split_once('=').ok_or(at + 1)?;
        let (key, value) = (percent_decode(key.trim()).ok_or(at + 1)?, percent_decode(value.trim()).ok_or(at + 1)?);
        if key.is_empty() { Err(at + 1) } else { Ok((key, value)) }
    };
    entries.map(pair).collect()
}

/// Decodes percent-encoding; `None` if it is invalid.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_percent_decoded() {
        let expected = [("a", "1"), ("b c", "x,y=z"), ("é", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(parse_pairs("a=1, b%20c = x%2Cy%3dz ,%C3%A9="), Ok(expected.to_vec()));
        assert_eq!(
            parse_pairs("Authorization=Basic dXNlcjpwYXNz=="),
            Ok(vec![("Authorization".to_owned(), "Basic dXNlcjpwYXNz==".to_owned())])
        );
    }

    #[test]
    fn a_broken_entry_is_named_by_its_number() {
        for (text, at) in [("a", 1), ("a=1,=2", 2), ("a=1,,b=%4", 3), ("a=%zz", 1), ("a=%ff", 1), ("a=%", 1)] {
            assert_eq!(parse_pairs(text), Err(at), "{text}");
        }
    }
}
