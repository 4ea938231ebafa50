//! AIPerf's `dag_jsonl`: a conversation per line, whose turns start conversations of sub-agents. Only lengths are read.
//!
//! By default a turn holds the messages that it adds; in conversations with `context_mode` of
//! `message_array_with_responses` it holds the whole prompt. A conversation that a turn of another one starts is that
//! one's sub-agent. A fork also inherits the prompt so far, which is counted as a loss.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, RawJson, StringOrNumber};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::api_body::set_request;
use super::{
    ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, nanos, rows_of_lines, stream,
};
use crate::trace_file::header::{TraceHeader, TurnContent};
use crate::trace_file::row::TraceEntry;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "dag_jsonl",
    aliases: &["dag"],
    about: "AIPerf dag_jsonl: JSON Lines of conversations and their sub-agents (only lengths are read)",
    time_unit: "milliseconds between turns",
    detected_by: "rows with `turns` of `messages`",
    keys: &["session_id", "turns"],
    detect: |source| {
        let InputSource::Stream(stream) = source else { return false };
        has_keys(source, &["session_id", "turns"], &[]) && stream.sample_lines().next().is_some_and(has_messages)
    },
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: false,
    delta_fields: None,
};

/// Mode of conversations whose turns are whole prompts.
const WHOLE_PROMPTS: &str = "message_array_with_responses";

row!(Conversation {
    session_id: StringOrNumber,
    turns: Vec<NestedRow<Turn>>,
    pre_session_spawns: RawJson,
    context_mode: String,
    orchestrator: IgnoredAny,
});
row!(Turn {
    messages: RawJson,
    model: String,
    max_tokens: u64,
    tools: RawJson,
    delay: LenientNumber,
    extra: IgnoredAny,
    spawns: RawJson,
    forks: RawJson,
});

/// A start of sub-agents: the name of a conversation, or an object with such names.
#[derive(Deserialize)]
#[serde(untagged)]
enum SubAgentLink {
    Name(String),
    Fork { child: String },
    Spawn { children: Vec<String> },
}

/// Names of the conversations that a field starts.
fn sub_agents(field: &str, links: Option<&RawJson>) -> Result<Vec<String>, TraceProblem> {
    let Some(links) = links else { return Ok(Vec::new()) };
    let links: Vec<SubAgentLink> = serde_json::from_slice(links.bytes())
        .map_err(|_| TraceProblem::in_field(field, "expected a list of names of conversations"))?;
    let names = links.into_iter().flat_map(|link| match link {
        SubAgentLink::Name(name) | SubAgentLink::Fork { child: name } => vec![name],
        SubAgentLink::Spawn { children } => children,
    });
    Ok(names.collect())
}

/// The conversations that start others.
struct SubAgentParents {
    parents: SessionTable<String>,
    seen: SessionTable<()>,
    losses: ConversionLosses,
}

impl SubAgentParents {
    fn new(losses: &ConversionLosses) -> Self {
        Self { parents: SessionTable::new(losses), seen: SessionTable::new(losses), losses: losses.clone() }
    }

    fn add(&mut self, parent: &str, children: Vec<String>) {
        for child in children {
            if self.seen.get(&child).is_some() {
                self.losses.count("sub-agents that stand before the conversation that starts them, without a parent");
            } else {
                self.parents.insert(&child, parent.to_owned());
            }
        }
    }

    fn parent_of(&mut self, session: &str) -> Option<String> {
        self.seen.insert(session, ());
        self.parents.get(session).cloned()
    }
}

/// True if the first turn of a conversation has messages.
fn has_messages(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Turns {
        turns: Vec<BTreeMap<String, IgnoredAny>>,
    }
    let turns = serde_json::from_slice(line).map(|Turns { turns }| turns);
    turns.is_ok_and(|turns| turns.first().is_some_and(|turn| turn.contains_key("messages")))
}

fn content(conversation: &Conversation) -> TurnContent {
    if conversation.context_mode.as_deref() == Some(WHOLE_PROMPTS) { TurnContent::Full } else { TurnContent::Delta }
}

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let first = stream.sample_lines().next().and_then(|line| parse(line, &ConversionLosses::default()).ok());
    let turns = first.as_ref().map_or(TurnContent::Delta, content);
    let header = TraceHeader { turns, ..TraceHeader::new(FORMAT.name) };
    let counted = losses.clone();
    let mut parents = SubAgentParents::new(&losses);
    let entries = rows_of_lines(stream.lines(), move |line, pending| {
        let conversation: Conversation = parse(line, &counted)?;
        if content(&conversation) != turns {
            counted.count("conversations of another context_mode than the first, left out");
            return Ok(());
        }
        let session = conversation.session_id.map(|StringOrNumber(session)| session);
        let session = session.ok_or_else(|| TraceProblem::missing("session_id"))?;
        let parent = parents.parent_of(&session);
        parents.add(&session, sub_agents("pre_session_spawns", conversation.pre_session_spawns.as_ref())?);
        let mut at = 0_u64;
        for (number, NestedRow(turn)) in (0..).zip(conversation.turns.unwrap_or_default()) {
            let field = |problem| TraceProblem { field: Some("turns.messages".to_owned()), ..problem };
            let messages = turn.messages.ok_or_else(|| TraceProblem::missing("turns.messages"))?;
            let mut body = [b"{\"messages\":", messages.bytes()].concat();
            if let Some(tools) = &turn.tools {
                body.extend_from_slice(b",\"tools\":");
                body.extend_from_slice(tools.bytes());
            }
            body.push(b'}');
            let mut entry = TraceEntry::default();
            set_request(&mut entry, &body, None).map_err(field)?;
            let think = turn.delay.map(|delay| nanos("turns.delay", delay, 1e6)).transpose()?;
            at = at.saturating_add(think.unwrap_or(0));
            entry.at = at;
            entry.think = think.filter(|_| number > 0);
            parents.add(&session, sub_agents("turns.spawns", turn.spawns.as_ref())?);
            let forks = sub_agents("turns.forks", turn.forks.as_ref())?;
            counted.add("forks, whose prompts lack what they inherit", forks.len() as u64);
            parents.add(&session, forks);
            entry.parent = parent.clone();
            entry.session = Some(session.clone());
            entry.turn = Some(number);
            entry.model = turn.model;
            entry.params.max_tokens = turn.max_tokens;
            pending.push_back(entry);
        }
        counted.count("sessions without a time, which begin at 0");
        Ok(())
    });
    Ok(Trace { header, entries, losses })
}
