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
    /// Number of the workload: levels that send the same requests have one front.
    pub(in crate::report) workload: usize,
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
        Column::new("workload", ChartUnit::Number, levels.iter().map(|level| level.workload as f64)),
    ];
    let front: Vec<&str> = levels.iter().filter(|level| level.is_front).map(|level| &*level.name).collect();
    let summary = format!(
        "Speed of the median user against the throughput{of} for each level. On the front: {}.{}",
        if front.is_empty() { "none".to_owned() } else { front.join(", ") },
        match levels.iter().all(|level| level.workload == levels[0].workload) {
            true => "",
            false => " A front is of levels that send the same requests.",
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_different_requests_share_no_front() {
        let point = |name: &str, speed: f64, workload: usize| ParetoPoint {
            name: name.to_owned(),
            throughput: 100.0 - speed,
            speed,
            is_front: workload == 0,
            is_knee: false,
            is_sound: true,
            workload,
        };
        let drawn = |levels: &[ParetoPoint]| {
            let mut page = String::new();
            chart(levels, None).unwrap().write(&mut page, 1);
            page
        };
        let two = drawn(&[point("a", 90.0, 0), point("b", 80.0, 0), point("long", 20.0, 1)]);
        assert!(two.contains("[1,1,0],[0,0,0],[1,1,1],[0,0,1]]"), "front, knee, soundness and workload: {two}");
        assert!(two.contains("On the front: a, b. A front is of levels that send the same requests."), "{two}");
        assert!(!drawn(&[point("a", 90.0, 0), point("b", 80.0, 0)]).contains("A front is"));
    }
}
