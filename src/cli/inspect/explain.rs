//! The first token by the rules of other tools, for people.

use comfy_table::{Cell, Row};

use super::InspectedReply;
use super::screen::{InspectScreen, lines, table};
use crate::inspect::first_token_rules::{FirstTokenRule, PEERS};

/// One line per tool that speaks the dialect: its first token, why, and its rule.
pub(super) fn render(reply: &InspectedReply<'_>, screen: &InspectScreen) -> String {
    let dialect = reply.inspection.dialect.unwrap_or("plain HTTP");
    let timed = reply.inspection.times.is_some();
    let mut columns = vec!["tool", "first token", "because of", "its rule: the first event with"];
    if timed {
        columns.insert(2, "TTFT");
    }
    let mut table = table(&columns, screen);
    for (peer, rule) in PEERS.iter().filter_map(|peer| Some((peer, peer.rule(dialect)?))) {
        let first = rule.first(reply.events.iter().map(|seen| seen.facts));
        let at = first.and_then(|(event, _)| reply.events.get(usize::try_from(event).ok()?)).map(|seen| seen.at);
        let event = first.map_or("none".to_owned(), |(event, _)| format!("event {event}"));
        let why = first.map_or("no event has any", |(_, why)| why.words());
        let mut row = Row::new();
        row.add_cell(Cell::new(peer.name)).add_cell(Cell::new(event));
        if timed {
            let ttft = at.map(|at| at.since(Default::default()));
            row.add_cell(Cell::new(ttft.map_or(String::new(), |ttft| ttft.to_string())));
        }
        row.add_cell(Cell::new(why)).add_cell(Cell::new(describe_rule(rule)));
        table.add_row(row);
    }
    if table.row_count() == 0 {
        return format!("No other tool's rule for the first token of {dialect} streams is known.\n");
    }
    lines(table)
}

fn describe_rule(rule: FirstTokenRule) -> String {
    let words: Vec<&str> = rule.any.iter().map(|what| what.words()).collect();
    let only = rule.only.map_or(String::new(), |only| format!("; only events with {}", only.words()));
    match words.split_last() {
        Some((last, [])) => format!("{last}{only}"),
        Some((last, rest)) => format!("{} or {last}{only}", rest.join(", ")),
        None => only,
    }
}
