//! Flags for the body of every request: sampling parameters, and any other field.

use serde_json::Value;

use crate::replay::request::template::OwnFields;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct BodyArgs {
    /// Sample with this temperature [default: the trace's, or the server's]
    #[arg(long, value_name = "T", value_parser = not_negative, help_heading = "Requests")]
    temperature: Option<f64>,

    /// Sample from the tokens of this probability mass [default: the server's]
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Requests")]
    top_p: Option<f64>,

    /// Sample from this number of tokens [default: the server's]
    #[arg(long, value_name = "K", help_heading = "Requests")]
    top_k: Option<u32>,

    /// Add a field to the body of every request, e.g. 'repetition_penalty=1.1'; may be repeated
    ///
    /// The value is JSON, or a word. It replaces the field that the command would send, and run.json records it.
    #[arg(long = "body", value_name = "KEY=JSON", value_parser = field, help_heading = "Requests")]
    body: Vec<(String, Value)>,
}

impl BodyArgs {
    /// The fields of every request.
    pub(super) fn own_fields(&self) -> OwnFields {
        OwnFields::new(self.temperature, self.top_p, self.top_k, self.body.iter().cloned().collect())
    }

    /// The fields as `run.json` has them.
    pub(super) fn recorded(&self) -> Value {
        let OwnFields { mut sampling, body } = self.own_fields();
        sampling.extend(body);
        Value::Object(sampling)
    }

    /// Describes the sampling; `None` without any of these flags.
    pub(in crate::cli) fn describe(&self) -> Option<String> {
        let Value::Object(fields) = self.recorded() else { return None };
        let list: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
        (!list.is_empty()).then(|| list.join(", "))
    }
}

fn not_negative(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or("expected a number from 0 on")
}

fn probability(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1.0).ok_or("expected a number above 0, up to 1")
}

fn field(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=JSON, as in min_p=0.1")?;
    let key = key.trim();
    if key.is_empty() {
        return Err("expected a key before the `=`, as in min_p=0.1".to_owned());
    }
    if OwnFields::is_reserved(key) {
        return Err(format!("expected another field: the command writes `{key}` itself"));
    }
    let is_json = value.trim_start().starts_with(['{', '[', '"']);
    let read = serde_json::from_str(value);
    match read {
        Ok(value) => Ok((key.to_owned(), value)),
        Err(_) if is_json => Err(format!("expected JSON for `{key}`")),
        Err(_) => Ok((key.to_owned(), value.trim().into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_json_or_a_word_and_never_the_prompt() {
        assert_eq!(field("min_p=0.1"), Ok(("min_p".to_owned(), json!(0.1))));
        assert_eq!(field("stop=[\"a\"]"), Ok(("stop".to_owned(), json!(["a"]))));
        assert_eq!(field("lora=adapter-1"), Ok(("lora".to_owned(), json!("adapter-1"))));
        assert!(field("stop=[a").unwrap_err().contains("expected JSON for `stop`"));
        assert!(field("messages=[]").unwrap_err().contains("writes `messages` itself"));
        assert!(field("x").is_err() && field("=1").is_err());
        assert!(not_negative("-1").is_err() && probability("0").is_err() && probability("1").is_ok());
    }
}
