//! Headers by which agents name their session and its parent.

/// How one kind of client names the sessions of agents.
struct AgentHeaders {
    /// Header of the session, which `capture_session` names.
    session: &'static str,
    /// Header of a sub-agent. Its value is the session then, and `session` is the job.
    agent: Option<&'static str>,
    /// Header of the parent.
    parent: &'static str,
}

/// Dynamo's clients and AIPerf, OpenCode, Codex, Claude Code.
static CLIENTS: [AgentHeaders; 5] = [
    AgentHeaders { session: "x-dynamo-session-id", agent: None, parent: "x-dynamo-parent-session-id" },
    AgentHeaders { session: "x-session-id", agent: None, parent: "x-parent-session-id" },
    AgentHeaders { session: "x-session-affinity", agent: None, parent: "x-parent-session-id" },
    AgentHeaders { session: "thread-id", agent: None, parent: "x-codex-parent-thread-id" },
    AgentHeaders {
        session: "x-claude-code-session-id",
        agent: Some("x-claude-code-agent-id"),
        parent: "x-claude-code-parent-agent-id",
    },
];

/// The session's name in the header `session`, and its parent's name if the client is known and names one.
pub(super) fn session_and_parent<'h>(
    session: &str,
    header: impl Fn(&str) -> Option<&'h [u8]>,
) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    // An empty value names no session.
    let value = |name: &str| header(name).filter(|value| !value.is_empty());
    let named = value(session);
    let Some(client) = CLIENTS.iter().find(|client| client.session.eq_ignore_ascii_case(session)) else {
        return (named.map(<[u8]>::to_vec), None);
    };
    let (agent, parent) = (client.agent.and_then(value), value(client.parent));
    let (own, parent) = match agent {
        // The first generation of sub-agents names no parent: it is the session.
        Some(agent) => (Some(agent), parent.or(named)),
        None => (named, parent),
    };
    let parent = parent.filter(|parent| own.is_some_and(|own| own != *parent));
    (own.map(<[u8]>::to_vec), parent.map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(session: &str, headers: &[(&str, &'static str)]) -> (Option<String>, Option<String>) {
        let header = |name: &str| {
            headers.iter().find(|(of, _)| *of == name).map(|(_, value): &(&str, &'static str)| value.as_bytes())
        };
        let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
        let (own, parent) = session_and_parent(session, header);
        (text(own), text(parent))
    }

    fn some(own: &str, parent: Option<&str>) -> (Option<String>, Option<String>) {
        (Some(own.to_owned()), parent.map(str::to_owned))
    }

    #[test]
    fn a_known_client_names_the_parent_in_its_own_header() {
        for (session, parent) in [
            ("x-dynamo-session-id", "x-dynamo-parent-session-id"),
            ("x-session-id", "x-parent-session-id"),
            ("x-session-affinity", "x-parent-session-id"),
            ("thread-id", "x-codex-parent-thread-id"),
        ] {
            assert_eq!(named(session, &[(session, "b"), (parent, "a")]), some("b", Some("a")), "{session}");
            assert_eq!(named(session, &[(session, "a"), (parent, "")]), some("a", None), "{session}");
            assert_eq!(named(session, &[(session, "a"), (parent, "a")]), some("a", None), "{session}");
            assert_eq!(named(session, &[(parent, "a")]), (None, None), "{session}");
        }
    }

    #[test]
    fn a_sub_agent_of_claude_code_is_a_session_below_the_agent_or_the_job() {
        let (session, agent, parent) =
            ("x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id");
        assert_eq!(named(session, &[(session, "job")]), some("job", None));
        assert_eq!(named(session, &[(session, "job"), (agent, "1")]), some("1", Some("job")));
        assert_eq!(named(session, &[(session, "job"), (agent, "2"), (parent, "1")]), some("2", Some("1")));
    }

    #[test]
    fn an_unknown_header_names_no_parent() {
        assert_eq!(named("x-mine", &[("x-mine", "s"), ("x-parent-session-id", "a")]), some("s", None));
        assert_eq!(named("x-mine", &[("x-mine", "")]), (None, None));
    }
}
