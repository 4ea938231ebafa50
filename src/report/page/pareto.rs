//! Speed of a user against the throughput of all, for each level of a sweep.

use super::chart::{Chart, ChartKind, ChartUnit, Column};

/// One level.
#[derive(Clone, Debug)]
pub(in crate::report) struct ParetoPoint {
    /// Name.
    pub(in crate::report) name: String,
    /// Output tokens per second, of all or of a GPU.
    pub(in crate::report) throughput: f64,
    /// Output tokens per second of the median user.
    pub(in crate::report) speed: f64,
    /// No other level is better in both.
    pub(in crate::report) is_front: bool,
    /// The most requests per second for their latency.
    pub(in crate::report) is_knee: bool,
    /// Neither saturated nor invalid.
    pub(in crate::report) is_sound: bool,
}

/// Draws the levels; `None` unless there are two. With a number of GPUs, the throughput is that of one.
pub(in crate::report) fn chart(levels: &[ParetoPoint], gpus: Option<f64>) -> Option<Chart> {
    if levels.len() < 2 {
        return None;
    }
    let (label, of) = match gpus {
        Some(gpus) => ("output tokens/s per GPU", format!(" of one of {gpus} GPUs")),
        None => ("output tokens/s", ", as the number of GPUs is unknown,".to_owned()),
    };
    let flag = |of: fn(&ParetoPoint) -> bool| levels.iter().map(move |level| f64::from(u8::from(of(level))));
    let columns = vec![
        Column::new(label, ChartUnit::Number, levels.iter().map(|level| level.throughput / gpus.unwrap_or(1.0))),
        Column::new("tokens/s per user", ChartUnit::Number, levels.iter().map(|level| level.speed)),
        Column::new("on the front", ChartUnit::Number, flag(|level| level.is_front)),
        Column::new("knee", ChartUnit::Number, flag(|level| level.is_knee)),
        Column::new("neither saturated nor invalid", ChartUnit::Number, flag(|level| level.is_sound)),
    ];
    let front: Vec<&str> = levels.iter().filter(|level| level.is_front).map(|level| &*level.name).collect();
    let summary = format!(
        "Speed of the median user against the throughput{of} for each level. On the front: {}.",
        if front.is_empty() { "none".to_owned() } else { front.join(", ") }
    );
    let names = levels.iter().map(|level| level.name.clone()).collect();
    Some(
        Chart::new(ChartKind::Pareto, "Tokens/s per user against throughput", summary, columns)
            .row_names("level", names)
            .x(label, ChartUnit::Number, false)
            .y(ChartUnit::Number, false)
            .full_width(),
    )
}
