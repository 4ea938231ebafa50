//! YAML errors with line numbers, for the configuration and for a sweep's matrix.

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

/// The error for a list or mapping in place of a text. YAML parses an unquoted SLO as a mapping.
pub(super) const ONE_VALUE: &str =
    "expected one value, found a list or a mapping; a text with a colon and a space in it needs quotes";

/// Parses `text`. If the YAML has another form, the error states that `expected` was required.
///
/// # Errors
/// The first problem, with its line. The text is not quoted, because a wrong file may hold anything.
pub(crate) fn read<T: DeserializeOwned>(text: &str, expected: &str) -> Result<T, (u64, String)> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        (line, describe_error(&error, expected))
    })
}

fn describe_error(error: &Error, expected: &str) -> String {
    match error {
        Error::DuplicateMappingKey { .. } => "this key is set a second time; keep one".to_owned(),
        Error::MultipleDocuments { .. } => "a second YAML document begins here; keep one".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => ONE_VALUE.to_owned(),
        Error::NullIntoString { .. } => "expected one value, found nothing; take the entry out".to_owned(),
        Error::Unexpected { .. } => format!("expected {expected}"),
        _ => {
            let words = error.without_snippet().to_string();
            words.split(" at line ").next().unwrap_or(&words).to_owned()
        }
    }
}
