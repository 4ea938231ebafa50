//! Configured routes, which map path patterns to dialects and take precedence over the table.

use std::fmt;
use std::str::FromStr;

use super::{Dialect, TABLE, for_path, named};
use crate::measure::glob::glob;

/// A path pattern and its dialect, written `/custom/*=openai.chat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// A path in which `*` matches any run of characters.
    pattern: String,
    dialect: &'static Dialect,
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("expected a path and its dialect, as in `/custom/*=openai.chat`, found `{}`", shown(text));
        let (pattern, name) = text.rsplit_once('=').ok_or_else(form)?;
        let (pattern, name) = (pattern.trim(), name.trim());
        if !pattern.starts_with(['/', '*']) || pattern.contains('?') {
            return Err(form());
        }
        let dialect = named(name).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|dialect| dialect.name).collect();
            format!("unknown dialect `{}`; expected one of {}", shown(name), known.join(", "))
        })?;
        Ok(Self { pattern: pattern.to_owned(), dialect })
    }
}

/// The user's text, shortened for an error message.
fn shown(text: &str) -> String {
    text.chars().take(60).collect::<String>().escape_debug().to_string()
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.dialect.name)
    }
}

/// The configured routes; the first match wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Creates the list; order is precedence.
    pub fn new(routes: Vec<Route>) -> Self {
        Self(routes)
    }

    /// Iterates over the routes in order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }

    /// Returns the dialect of a request path (without query): from a route, else from the path's end.
    pub fn dialect(&self, path: &str) -> Option<&'static Dialect> {
        let route = self.0.iter().find(|route| glob(&route.pattern, path));
        route.map(|route| route.dialect).or_else(|| for_path(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_route_that_fits_goes_before_the_path() {
        let routes = ["/custom/*=gemini", "*/chat/completions=anthropic.messages", "/custom/x=openai.chat"];
        let routes = Routes::new(routes.map(|text| text.parse().unwrap()).to_vec());
        let name = |path| routes.dialect(path).map(|dialect| dialect.name);
        assert_eq!(name("/custom/x"), Some("gemini"));
        assert_eq!(name("/v1/chat/completions"), Some("anthropic.messages"));
        assert_eq!((name("/v1/completions"), name("/custom")), (Some("openai.completions"), None));
        assert_eq!(routes.iter().map(ToString::to_string).next().as_deref(), Some("/custom/*=gemini"));
    }

    #[test]
    fn what_is_no_route_is_told_with_the_remedy() {
        let error = |text: &str| text.parse::<Route>().unwrap_err();
        assert_eq!(error("/a"), "expected a path and its dialect, as in `/custom/*=openai.chat`, found `/a`");
        assert!(error("v1=openai.chat").starts_with("expected a path"));
        assert!(error("/a?b=openai.chat").starts_with("expected a path"));
        assert!(error("/a=openai").starts_with("unknown dialect `openai`; expected one of openai.chat, openai.comp"));
    }
}
