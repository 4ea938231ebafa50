//! Real prompts from a file: ShareGPT JSON, OpenAI JSONL, or plain lines. Reads the file; the texts stay in memory.
//!
//! | form | prompt | output length |
//! |---|---|---|
//! | ShareGPT: a JSON array of `conversations[]` with `from` and `value` | the first turn, of a human | the reply after it |
//! | OpenAI JSONL: a line per request with `messages[]`, or with them in `body` (a batch file) | the contents of all messages, as one | `max_tokens` or `max_completion_tokens` |
//! | plain lines | the line | |
//!
//! # Privacy
//! The texts go to the target and nowhere else: records hold lengths, and errors quote nothing of the file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

/// Largest file: its texts are held in memory.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum prompts; later ones are not read.
const MAX_PROMPTS: usize = 1_000_000;
/// Longest text of one prompt.
const MAX_PROMPT_BYTES: usize = 8 << 20;

/// Counts the tokens of a text.
pub type CountTokens<'a> = &'a dyn Fn(&str) -> u64;

/// The prompts of a file.
#[derive(Clone)]
pub struct PromptFile {
    /// The texts, in the order of the file.
    pub texts: Arc<[String]>,
    /// Tokens of each prompt, and of its output.
    pub lengths: Arc<[(u32, u32)]>,
    /// The form of the file, for people.
    pub form: &'static str,
}

/// A prompt, and the length of its output if the file has it.
struct Prompt {
    text: String,
    output: Option<OutputLength>,
}

enum OutputLength {
    Tokens(u64),
    /// Counted like a prompt.
    Text(String),
}

impl PromptFile {
    /// Reads a file. Prompts without an output length get `default_output`.
    ///
    /// # Errors
    /// The file cannot be read, or has no prompt. The text quotes nothing of it.
    pub fn read(path: &Path, count: CountTokens<'_>, default_output: u64) -> Result<Self, String> {
        let shown = path.display();
        let bytes = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(format!("{shown}: the file has {bytes} bytes, {MAX_FILE_BYTES} at most; remedy: cut it"));
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
        let (prompts, form) = parse(&text).map_err(|error| format!("{shown}: {error}"))?;
        let (mut texts, mut lengths) = (Vec::new(), Vec::new());
        let short = |tokens: u64| u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
        for prompt in prompts.into_iter().filter(|prompt| !prompt.text.trim().is_empty()).take(MAX_PROMPTS) {
            if prompt.text.len() > MAX_PROMPT_BYTES {
                return Err(format!("{shown}: a prompt has more than {MAX_PROMPT_BYTES} bytes; remedy: remove it"));
            }
            let output = match &prompt.output {
                Some(OutputLength::Tokens(tokens)) => *tokens,
                Some(OutputLength::Text(text)) => count(text),
                None => default_output,
            };
            lengths.push((short(count(&prompt.text)), short(output)));
            texts.push(prompt.text);
        }
        if texts.is_empty() {
            return Err(format!("{shown}: there is no prompt; expected ShareGPT JSON, OpenAI JSONL, or lines of text"));
        }
        Ok(Self { texts: texts.into(), lengths: lengths.into(), form })
    }
}

fn parse(text: &str) -> Result<(Vec<Prompt>, &'static str), String> {
    if text.trim_start().starts_with('[') {
        let rows: Vec<Value> = serde_json::from_str(text)
            .map_err(|error| format!("no JSON array, at line {} column {}", error.line(), error.column()))?;
        return Ok((rows.iter().filter_map(sharegpt).collect(), "ShareGPT JSON"));
    }
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let is_json = lines().next().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
    if !is_json {
        let prompts = lines().map(|(_, line)| Prompt { text: line.to_owned(), output: None });
        return Ok((prompts.collect(), "lines of text"));
    }
    let mut prompts = Vec::new();
    for (number, line) in lines() {
        let row: Value = serde_json::from_str(line).map_err(|_| format!("line {} is no JSON", number + 1))?;
        let prompt = openai(&row).or_else(|| sharegpt(&row));
        prompts.push(prompt.ok_or_else(|| format!("line {} has no `messages`", number + 1))?);
    }
    Ok((prompts, "OpenAI JSONL"))
}

/// The first turn and the reply to it.
fn sharegpt(row: &Value) -> Option<Prompt> {
    let turns = row["conversations"].as_array()?;
    let is_human = |turn: &Value| matches!(turn["from"].as_str(), Some("human" | "user"));
    let first = turns.iter().position(is_human)?;
    let reply = turns.get(first + 1).and_then(|turn| turn["value"].as_str());
    let output = reply.map(|text| OutputLength::Text(text.to_owned()));
    Some(Prompt { text: turns[first]["value"].as_str()?.to_owned(), output })
}

fn openai(row: &Value) -> Option<Prompt> {
    let request = if row["body"].is_object() { &row["body"] } else { row };
    let messages = request["messages"].as_array()?;
    let content = |message: &Value| match &message["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        _ => None,
    };
    let text = messages.iter().filter_map(content).collect::<Vec<_>>().join("\n\n");
    let limit = ["max_tokens", "max_completion_tokens"].iter().find_map(|key| request[*key].as_u64());
    Some(Prompt { text, output: limit.map(OutputLength::Tokens) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<PromptFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts");
        fs::write(&path, content).unwrap();
        PromptFile::read(&path, &|text| text.split_whitespace().count() as u64, 9)
    }

    #[test]
    fn each_form_has_its_prompts_and_the_lengths_of_their_outputs() {
        let sharegpt = r#"[{"id": "1", "conversations": [{"from": "system", "value": "be kind"},
            {"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]}, {"conversations": []}]"#;
        let file = read(sharegpt).unwrap();
        assert_eq!(
            (&*file.texts, &*file.lengths, file.form),
            (&["a b c".to_owned()][..], &[(3, 2)][..], "ShareGPT JSON")
        );
        let openai = "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \
                      [{\"type\": \"text\", \"text\": \"b c\"}]}], \"max_tokens\": 7}\n\n\
                      {\"custom_id\": \"x\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"d\"}]}}\n";
        let file = read(openai).unwrap();
        assert_eq!(
            (&*file.texts, &*file.lengths),
            (&["a\n\nb c".to_owned(), "d".to_owned()][..], &[(3, 7), (1, 9)][..])
        );
        let file = read("one two\n\nthree\n").unwrap();
        assert_eq!((&*file.lengths, file.form), (&[(2, 9), (1, 9)][..], "lines of text"));
    }

    #[test]
    fn an_error_quotes_nothing_of_the_file() {
        for wrong in ["[{\"secret\"", "{\"messages\": []}\nsecret", "{\"secret\": 1}", "[]", "\n \n"] {
            let error = read(wrong).err().unwrap();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(read("{\"messages\": []}\n{x").err().unwrap().ends_with("line 2 is no JSON"));
    }
}
