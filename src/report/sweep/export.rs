//! A sweep as CSV, with the five columns of a report, and as Markdown.

use super::super::csv::{context, field, summary};
use super::super::markdown::{bullet_list, escaped, pipe_table};
use super::super::text_layout::sentence;
use super::Sweep;
use super::decision;
use super::text::{lines, more_tables, table, warning_text};

/// Renders CSV. The scope is `context`, or `level=rate-4` or `level=rate-4;target=A`.
pub fn csv(sweep: &Sweep) -> String {
    let mut text = "scope,metric,unit,stat,value\n".to_owned();
    context(&mut text, &sweep.context);
    for point in &sweep.levels {
        let target = point.target.map_or(String::new(), |target| format!(";target={target}"));
        let scope = format!("level={}{target}", point.level.name);
        let mut line = |metric: &str, unit: &str, value: String| {
            text += &format!("{},{metric},{unit},level,{value}\n", field(&scope))
        };
        if let Some(rate) = point.level.rate {
            line("offered", "1/s", rate.to_string());
        }
        if let Some(slots) = point.level.concurrency {
            line("concurrency", "requests", slots.to_string());
        }
        if let Some(meets) = point.meets {
            line("meets SLO", "1", u8::from(meets).to_string());
        }
        if let Some(sure) = point.sure {
            line("sure", "1", u8::from(sure).to_string());
        }
        if let Some(growth) = point.growth {
            line("growth", "1/s", growth.per_second.to_string());
        }
        line("measured", "1", u8::from(!point.not_measured).to_string());
        line("valid", "1", u8::from(point.not_valid.is_empty()).to_string());
        line("front", "1", u8::from(point.front).to_string());
        line("knee", "1", u8::from(point.knee).to_string());
        summary(&mut text, &scope, &point.summary);
    }
    text
}

/// Renders Markdown, with the decision record of a matrix.
pub fn markdown(sweep: &Sweep) -> String {
    let mut text = bullet_list(sweep.context.lines()) + "\n" + &bullet_list(lines(sweep));
    text += &pipe_table(&table(sweep));
    text.extend(more_tables(sweep).iter().map(|table| pipe_table(table)));
    text.extend(decision::record(sweep));
    for doubt in &sweep.warnings {
        let message = escaped(&sentence(&warning_text(doubt)));
        text += &format!("\n> **Warning:** {message} *Advice:* {}.\n", escaped(doubt.warning.advice));
    }
    text
}
