//! The page of `trace reuse --html`: a stacked bar for each group.

use std::collections::BTreeMap;

use crate::report::page::stack::{self, StackedGroups};
use crate::trace::reuse::{GROUP_KEYS, ReuseReport, ReuseSums};

/// Tokens of one part of a group; `None` if unknown.
type PartTokens = fn(&ReuseSums) -> Option<f64>;

/// Renders the page.
pub(super) fn render(name: &str, report: &ReuseReport) -> String {
    let all = BTreeMap::from([("all requests".to_owned(), report.all)]);
    let by = GROUP_KEYS.into_iter().filter_map(|key| Some((key, report.by.get(key)?)));
    let by = by.map(|(key, groups)| StackedGroups { title: format!("By {key}"), ..stacked(key, groups) });
    let groups = std::iter::once(stacked("traffic", &all)).chain(by);
    let caches = match report.cache_range() {
        None => "of unknown size: what survives routing may be lost to capacity".to_owned(),
        Some((least, most)) if least == most => format!("{least} blocks of {} tokens each", report.block_tokens),
        Some((least, most)) => format!("{least} to {most} blocks of {} tokens", report.block_tokens),
    };
    let requests = format!("{} with {} prompt tokens", report.all.requests, report.all.prompt_tokens);
    let lines = vec![("requests", requests), ("pods", report.pods.to_string()), ("caches", caches)];
    let heading = "Where prefix-cache hits are lost";
    let whole = "Share of prompt tokens that the workload offers for reuse (below zero is what engines reported beyond the \
                 prediction)";
    stack::render(&format!("Streamgauge trace reuse: {name}"), lines, (heading, whole), groups)
}

/// The parts of each group, as far as they are known: without the size of the caches, what survives routing stays whole.
fn stacked(key: &str, groups: &BTreeMap<String, ReuseSums>) -> StackedGroups {
    let parts: [(&str, PartTokens); 6] = [
        ("cached", |sums| Some(sums.cached_tokens? as f64)),
        ("predicted, not reported", |sums| {
            let unreported = sums.fitted_tokens?.saturating_sub(sums.fitted_where_reported.unwrap_or(0));
            (unreported > 0).then_some(unreported as f64)
        }),
        ("survives routing", |sums| sums.fitted_tokens.is_none().then_some(sums.routed_tokens as f64)),
        ("lost otherwise", |sums| Some(sums.lost_otherwise()? as f64)),
        ("lost to capacity", |sums| Some(sums.lost_to_capacity()? as f64)),
        ("lost by routing", |sums| Some(sums.lost_by_routing() as f64)),
    ];
    let share = |sums: &ReuseSums, tokens: f64| 100.0 * tokens / (sums.prompt_tokens.max(1) as f64);
    let column = |part: PartTokens| -> Vec<Option<f64>> {
        groups.values().map(|sums| part(sums).map(|tokens| share(sums, tokens))).collect()
    };
    let parts = parts.map(|(name, part)| (name, column(part))).into_iter();
    StackedGroups {
        title: "All requests".to_owned(),
        key: key.to_owned(),
        names: groups.keys().cloned().collect(),
        parts: parts.filter(|(_, values)| values.iter().any(Option::is_some)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_group_add_up_to_what_the_workload_offers() {
        let mut sums = ReuseSums::default();
        (sums.requests, sums.prompt_tokens, sums.offered_tokens, sums.routed_tokens) = (3, 200, 100, 80);
        let of = |sums: ReuseSums| stacked("pod", &BTreeMap::from([("a".to_owned(), sums)]));
        let shown = |groups: StackedGroups| -> Vec<(&str, f64)> {
            groups.parts.iter().map(|(name, values)| (*name, values[0].unwrap())).collect()
        };
        assert_eq!(shown(of(sums)), [("survives routing", 40.0), ("lost by routing", 10.0)], "of 200 tokens");
        (sums.fitted_tokens, sums.fitted_where_reported, sums.cached_tokens) = (Some(60), Some(50), Some(56));
        let known = shown(of(sums));
        let expected = [
            ("cached", 28.0),
            ("predicted, not reported", 5.0),
            ("lost otherwise", -3.0),
            ("lost to capacity", 10.0),
            ("lost by routing", 10.0),
        ];
        assert_eq!(known, expected);
        assert_eq!(known.iter().map(|(_, share)| share).sum::<f64>(), 50.0, "offered: 100 of 200 tokens");
    }
}
