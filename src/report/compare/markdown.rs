//! A comparison as Markdown, for a comment on a change.

use super::super::markdown::{bullet_list, pipe_table};
use super::Comparison;
use super::text::{differences, factors, figures, groups, lines};

/// Renders the comparison.
pub fn render(comparison: &Comparison) -> String {
    let mut text = bullet_list(lines(comparison));
    text += &pipe_table(&figures(comparison));
    if !comparison.workload.differences.is_empty() {
        text += &pipe_table(&differences(comparison));
    }
    if let Some(factors) = factors(comparison) {
        text += &pipe_table(&factors);
    }
    if let Some(groups) = groups(comparison) {
        text += &pipe_table(&groups);
    }
    text
}
