//! The summary of one reply, for people: what was counted, by whom, and why.

use super::InspectedReply;
use super::screen::escape;
use crate::inspect::first_token_rules::PEERS;
use crate::inspect::inspection::{InspectedEvent, Inspection, InspectionTimes};
use crate::measure::record::UnreadReason;
use crate::measure::time::Gap;
use crate::stats::samples::percentile;

/// The lines of the summary: what, and how much.
pub(super) fn lines(reply: &InspectedReply<'_>) -> Vec<(&'static str, String)> {
    let inspection = reply.inspection;
    let counts = format!(
        "{} ({} with text, {} that prove a token), {} comment{}",
        inspection.events,
        inspection.token_events,
        inspection.evidence_events,
        inspection.comments,
        if inspection.comments == 1 { "" } else { "s" }
    );
    let mut lines = vec![("dialect", inspection.dialect.unwrap_or("none: plain HTTP").to_owned()), ("events", counts)];
    lines.extend(firsts(reply));
    lines.extend(inspection.times.as_ref().map(pace).unwrap_or_default());
    lines.extend(tokens(inspection));
    if let Some(error) = &inspection.error {
        let message = error.message.as_deref().map_or("no message".to_owned(), escape);
        let class = error.kind.as_deref().map_or(String::new(), |kind| format!(", type {}", escape(kind)));
        let code = error.code.as_ref().map_or(String::new(), |code| format!(", code {}", escape(&code.to_string())));
        lines.push(("error", format!("event {}: {message}{class}{code}", error.event)));
    }
    lines.extend(differing_tools(reply).map(|others| ("other tools", others)));
    lines.push(("complete", complete(reply).to_owned()));
    lines
}

/// The first and the last token, and what makes them that.
fn firsts(reply: &InspectedReply<'_>) -> Vec<(&'static str, String)> {
    let inspection = reply.inspection;
    let when = |seconds: Option<f64>| seconds.map_or(String::new(), |seconds| format!(", after {}", length(seconds)));
    let times = inspection.times.as_ref();
    let first = |event: Option<u64>, seconds: Option<f64>| {
        let Some(event) = event else { return "none: no event has such text".to_owned() };
        let seen = usize::try_from(event).ok().and_then(|at| reply.events.get(at));
        let proof = seen.and_then(|seen: &InspectedEvent| seen.proof.as_deref()).unwrap_or_default();
        format!("event {event}{}: {proof}", when(seconds))
    };
    let mut lines = Vec::new();
    if inspection.first_evidence_event != inspection.first_token_event {
        let line = first(inspection.first_evidence_event, times.and_then(|times| times.ttft_evidence));
        lines.push(("first proof", line));
    }
    lines.push(("first token", first(inspection.first_token_event, times.and_then(|times| times.ttft))));
    if inspection.first_output_event != inspection.first_token_event {
        lines.push(("first output", first(inspection.first_output_event, times.and_then(|times| times.ttfo))));
    }
    let last = inspection.last_token_event.map_or("none".to_owned(), |event| format!("event {event}"));
    lines.push(("last token", last + &when(times.and_then(|times| times.last_token))));
    lines
}

/// How the tokens came, where that is known.
fn pace(times: &InspectionTimes) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if !times.gaps.is_empty() {
        lines.push(("gaps", spread(&times.gaps)));
        if times.itl != times.gaps {
            lines.push(("per token", spread(&times.itl)));
        }
    }
    let tpot = times.tpot.map_or("not known: fewer than two tokens, or all in one event".to_owned(), length);
    lines.push(("TPOT", tpot));
    let body = times.first_byte.map_or(String::new(), |seconds| format!(", the body after {}", length(seconds)));
    let (end, headers) = (length(times.end), length(times.headers));
    lines.push(("end", format!("after {end}; the headers came after {headers}{body}")));
    lines
}

fn spread(lengths: &[f64]) -> String {
    let mut sorted = lengths.to_vec();
    sorted.sort_by(f64::total_cmp);
    let nth = |rank: u64| sorted[rank as usize];
    let of = |percent: f64| length(percentile(sorted.len() as u64, percent, nth).unwrap_or_default());
    format!("{}: median {}, p99 {}, longest {}", sorted.len(), of(50.0), of(99.0), of(100.0))
}

fn length(seconds: f64) -> String {
    Gap::from_nanos((seconds * 1e9).round() as u64).to_string()
}

fn tokens(inspection: &Inspection) -> [(&'static str, String); 3] {
    let number = |count: Option<u64>| count.map_or("not reported".to_owned(), |count| count.to_string());
    let output = match (inspection.output_tokens, inspection.output_tokens_from) {
        (Some(tokens), Some(source)) => format!("{tokens}, by {}", counter_name(source)),
        _ => "not reported".to_owned(),
    };
    let of = |part: Option<u64>, name: &str| part.map_or(String::new(), |count| format!(", {count} of them {name}"));
    let finish = inspection.finish.iter();
    let finish: Vec<String> =
        finish.map(|finish| format!("choice {}: {} ({})", finish.choice, finish.reason, escape(&finish.raw))).collect();
    [
        ("output tokens", output + &of(inspection.reasoning_tokens, "reasoning")),
        ("input tokens", number(inspection.input_tokens) + &of(inspection.cached_tokens, "from a cache")),
        ("finish", if finish.is_empty() { "not reported".to_owned() } else { finish.join(", ") }),
    ]
}

/// The counter of the output tokens.
fn counter_name(source: &str) -> String {
    match source {
        "cumulative" => "the server's running counter".to_owned(),
        "ids" => "the lists of one entry per token".to_owned(),
        "chunks" => "the number of events, an estimate".to_owned(),
        // In the server's own word.
        report => format!("the server's {report} report"),
    }
}

/// The tools that take another event for the first token, unless they are explained anyway.
fn differing_tools(reply: &InspectedReply<'_>) -> Option<String> {
    if reply.inspection.peers_first.is_some() {
        return None;
    }
    let firsts = reply.inspection.clone().with_peer_rules(reply.events).peers_first?;
    let differs = |first: &Option<u64>| *first != reply.inspection.first_token_event;
    let places = PEERS.iter().filter_map(|peer| Some((peer.name, *firsts.get(peer.key).filter(|at| differs(at))?)));
    let places: Vec<String> = places
        .map(|(name, first)| first.map_or(format!("{name} none"), |event| format!("{name} event {event}")))
        .collect();
    (!places.is_empty()).then(|| format!("have another first token; --explain gives the reason: {}", places.join(", ")))
}

fn complete(reply: &InspectedReply<'_>) -> &'static str {
    let inspection = reply.inspection;
    match reply.unread {
        Some(UnreadReason::Coding) => {
            "no: the bytes do not follow the Content-Encoding; --content-encoding sets another"
        }
        Some(UnreadReason::TooLarge) => "no: an event is larger than 1 MiB, and nothing after it was read",
        Some(UnreadReason::Budget) => "no: understanding it costs more than its bytes allow, and the rest was not read",
        Some(UnreadReason::Malformed) => "no: the body is not framed as its content type requires, or not complete",
        None if inspection.dialect.is_none() => "not known: plain HTTP is not understood",
        None if inspection.events + inspection.comments == 0 && inspection.complete => {
            "not known: a body of this content type is not understood; --content-type sets another"
        }
        None if inspection.events + inspection.comments == 0 => {
            "no: there is no event in it; --content-type and --content-encoding set how to read it"
        }
        None if inspection.error.is_some() => "no: the server reported an error",
        None if reply.truncated => "no: the connection was closed before the body's end",
        None if inspection.complete && lacks_done(reply) => {
            "yes: every choice is finished; no [DONE] came, and none has to"
        }
        None if inspection.complete => "yes",
        None => "no: it ends without a finish reason for every choice and without an end mark",
    }
}

/// True if a stream that usually ends with `[DONE]` does not.
fn lacks_done(reply: &InspectedReply<'_>) -> bool {
    let usual = matches!(reply.inspection.dialect, Some("openai.chat" | "openai.completions"));
    usual && !reply.events.is_empty() && !reply.events.iter().any(|seen| seen.done)
}
