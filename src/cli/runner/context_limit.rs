//! Requests that are longer than the servers' context, before they are sent. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::replay::server::info::ServerInfo;

/// Fields of the servers' pages that limit prompt and output together.
const LIMIT_FIELDS: [&str; 4] = ["max_model_len", "n_ctx", "context_length", "max_total_tokens"];

/// Counts of requests by their prompt and output tokens together.
#[derive(Clone, Debug, Default)]
pub(super) struct ContextDemand(BTreeMap<u64, u64>);

impl ContextDemand {
    pub(super) fn add(&mut self, tokens: u64) {
        *self.0.entry(tokens).or_default() += 1;
    }

    /// A warning if the smallest context of the servers is too small for some.
    pub(super) fn warning(&self, servers: &[ServerInfo]) -> Option<String> {
        let limit = servers.iter().filter_map(context).min()?;
        let (all, longest) = (self.0.values().sum::<u64>(), self.0.keys().next_back()?);
        let over: u64 = self.0.range(limit + 1..).map(|(_, count)| count).sum();
        (over > 0).then(|| {
            format!(
                "warning: {over} of {all} requests ask for more than the server's context of {limit} tokens, the longest for \
                 {longest}; the server will reject or cut them; use shorter lengths, or clip them with :max="
            )
        })
    }
}

/// The context of a server: the smallest of the limits that it reports.
fn context(server: &ServerInfo) -> Option<u64> {
    let fields = server.values().flat_map(|page| LIMIT_FIELDS.iter().filter_map(|field| page.get(*field)));
    fields.filter_map(Value::as_u64).filter(|limit| *limit > 0).min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_beyond_the_context_are_counted_with_the_longest() {
        let mut demand = ContextDemand::default();
        [100, 4_096, 4_097, 5_200, 4_097].into_iter().for_each(|tokens| demand.add(tokens));
        let server = |page: Value| ServerInfo::from([("/v1/models", page.as_object().cloned().unwrap())]);
        let limited = server(json!({"id": "m", "max_model_len": 4_096}));
        let warning = demand.warning(&[server(json!({"n_ctx": 8_192})), limited]).unwrap();
        assert!(
            warning.starts_with("warning: 3 of 5 requests ask for more than the server's context of 4096 tokens"),
            "{warning}"
        );
        assert!(warning.contains("the longest for 5200"), "{warning}");
        assert_eq!(demand.warning(&[server(json!({"max_model_len": 5_200}))]), None);
        assert_eq!(demand.warning(&[server(json!({"id": "m"}))]), None, "an unknown context limits nothing");
    }
}
