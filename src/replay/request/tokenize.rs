//! Queries the servers' `/tokenize` for words of one token each.
//!
//! All servers use this path, but the request and response formats differ, so the formats are tried in turn. All
//! servers are queried in parallel, in a few requests of some kilobytes and within a few seconds. A server that is
//! slow, sends too much, or sends an unknown format counts as one without `/tokenize`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use http::StatusCode;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::replay::sender::target::{TargetConnector, TargetUrl};
use crate::replay::server::http_fetch::{FetchError, FetchRequest, fetch};
use crate::trace::vocabulary::{SingleTokenWords, Vocabulary, single_token_probe};

/// Timeout of all requests to one server.
const TOKENIZE_TIMEOUT: Gap = Gap::from_millis(5_000);
/// Response size limit: TGI sends about 60 bytes per token, for a thousand tokens.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
const TOKENIZE_PATH: &str = "/tokenize";

/// A server to query.
#[derive(Clone)]
pub struct TokenizeEndpoint {
    /// Server URL.
    pub target: TargetUrl,
    /// Model name in the requests.
    pub model: Option<String>,
    /// Additional header lines, as (name, value). They may hold credentials: never log or store them.
    pub fields: Vec<(String, String)>,
}

/// The text's key in each format: vLLM and SGLang, llama.cpp, TGI. Servers ignore unknown keys, so one request disables
/// special tokens in every format at once.
const TEXT_KEYS: [&str; 3] = ["prompt", "content", "inputs"];

/// Only the ids and their order matter.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenizeResponse {
    /// vLLM, SGLang, llama.cpp.
    Object { tokens: Vec<Token> },
    /// TGI.
    List(Vec<Token>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Id(u64),
    Object { id: u64 },
}

/// The words of one token each, per server in order. `None` if the server does not tokenize for us; an inner error if
/// too few words are left for prompts.
///
/// # Errors
/// The system cannot create a runtime.
pub fn fetch_single_token_words(
    servers: Vec<TokenizeEndpoint>,
    tls: Option<Arc<ClientConfig>>,
    connect_timeout: Gap,
) -> io::Result<Vec<Option<Result<Vocabulary, String>>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(async {
        let mut asking = JoinSet::new();
        let number = servers.len();
        for (at, endpoint) in servers.into_iter().enumerate() {
            let tls = tls.clone().filter(|_| endpoint.target.tls);
            let connector = TargetConnector::new(endpoint.target.clone(), tls, connect_timeout);
            asking.spawn_local(async move {
                (at, Clock::Monotonic.timeout(TOKENIZE_TIMEOUT, endpoint.single_token_words(&connector)).await)
            });
        }
        let answers = asking.join_all().await.into_iter().collect::<BTreeMap<_, _>>();
        Ok((0..number).map(|at| answers.get(&at).cloned().flatten().flatten()).collect())
    })
}

impl TokenizeEndpoint {
    async fn single_token_words(&self, connector: &TargetConnector) -> Option<Result<Vocabulary, String>> {
        let drill = single_token_probe();
        for text in TEXT_KEYS {
            match self.token_ids(connector, text, &drill).await {
                Ok(ids) => {
                    let Some(drilled) = SingleTokenWords::from_probe(&ids) else { continue };
                    let sample = self.token_ids(connector, text, &drilled.sample_text()).await.ok()?;
                    return Some(drilled.verify(&sample));
                }
                // The server has no `/tokenize`, or denies access to it.
                Err(FetchError::Status(
                    StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN,
                )) => return None,
                Err(FetchError::Connect(_)) => return None,
                Err(_) => {}
            }
        }
        None
    }

    async fn token_ids(&self, connector: &TargetConnector, text_key: &str, text: &str) -> Result<Vec<u64>, FetchError> {
        let mut body = Map::new();
        body.extend(self.model.clone().map(|model| ("model".to_owned(), Value::from(model))));
        body.insert(text_key.to_owned(), text.into());
        for key in ["add_special_tokens", "add_special"] {
            body.insert(key.to_owned(), false.into());
        }
        let question = FetchRequest {
            target: &self.target,
            path: &format!("{}{TOKENIZE_PATH}", self.target.base),
            accept: "application/json",
            fields: &self.fields,
            body: Some(json!(body).to_string().into()),
        };
        Ok(parse_token_ids(&fetch(connector, question, MAX_RESPONSE_BYTES).await?))
    }
}

/// The token ids in order; empty if the format is unknown.
fn parse_token_ids(answer: &[u8]) -> Vec<u64> {
    let tokens = match serde_json::from_slice(answer) {
        Ok(TokenizeResponse::Object { tokens } | TokenizeResponse::List(tokens)) => tokens,
        Err(_) => Vec::new(),
    };
    tokens.into_iter().map(|(Token::Id(id) | Token::Object { id })| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_the_answer_of_every_server() {
        for answer in [
            r#"{"count":2,"max_model_len":4096,"tokens":[5,60000],"token_strs":null}"#,
            r#"{"tokens":[5,60000]}"#,
            r#"{"tokens":[{"id":5,"piece":" the"},{"id":60000,"piece":[195]}]}"#,
            r#"[{"id":5,"text":" the","start":0,"stop":4},{"id":60000,"text":" and","start":4,"stop":8}]"#,
        ] {
            assert_eq!(parse_token_ids(answer.as_bytes()), [5, 60_000], "{answer}");
        }
        for nonsense in ["", "{}", "[", "[[5]]", r#"{"tokens":"5"}"#, r#"{"tokens":[-5]}"#, r#"{"tokens":[5.5]}"#] {
            assert!(parse_token_ids(nonsense.as_bytes()).is_empty(), "{nonsense}");
        }
    }
}
