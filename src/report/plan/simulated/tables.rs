//! Named lines and tables of a simulated plan, shared by the formats for people. The first row of a table is its header.

use super::{Extrapolation, SimulatedPlan};
use crate::report::ascii_plot::{format_percent, with_thousands};
use crate::report::plan::tables::{cost_text, summary_text, traffic_text, while_down};
use crate::trace_file::header::SIMULATED;

impl SimulatedPlan {
    /// First line of every format.
    pub(super) fn banner(&self) -> String {
        format!("{SIMULATED}. {}", self.twin.held_out)
    }

    /// Named lines. A line without a name continues the previous one.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("plan", summary_text(&self.fleet, self.traffic.is_constant))];
        lines.extend(self.interval().map(|text| ("", text)));
        let slos = if self.slos.is_empty() { String::new() } else { format!(" of {}", self.slos.join("; ")) };
        lines.push(("SLO", format!("{}{slos}", self.goals)));
        lines.push(("twin", self.twin.path.clone()));
        lines.push(("traffic", traffic_text(&self.traffic)));
        lines.extend(self.traffic.mix.map(|mix| ("mix", mix.to_string())));
        let constant = Some(&self.constant_fleet);
        lines.extend(cost_text(&self.fleet, constant, self.dollars_per_million_good_tokens).map(|text| ("cost", text)));
        lines.extend(self.misses().map(|text| ("misses", text)));
        lines
    }

    /// The plan if the server differs from its twin by the held-out error.
    fn interval(&self) -> Option<String> {
        let end = |peak: Option<u64>, mean: Option<f64>| {
            peak.zip(mean).map(|(peak, mean)| format!("{} ({mean:.2} on average)", with_thousands(peak)))
        };
        let faster = end(self.peak_if_faster, self.mean_if_faster)?;
        let slower = end(self.peak_if_slower, self.mean_if_slower);
        let slower = slower.unwrap_or_else(|| "no number of replicas".to_owned());
        let range = if faster == slower { "the same".to_owned() } else { format!("{faster} to {slower}") };
        Some(format!("{range} with the twin's error on held-out rows"))
    }

    fn misses(&self) -> Option<String> {
        let share = format_percent(self.miss_share?);
        let interval = match (self.miss_share_if_faster, self.miss_share_if_slower) {
            (Some(low), Some(high)) => format!(" ({} to {})", format_percent(low), format_percent(high)),
            _ => String::new(),
        };
        Some(format!("{share}{interval} of requests{}", while_down(&self.reserves)))
    }

    /// Fleets of a constant size.
    pub(super) fn size_rows(&self) -> Vec<Vec<String>> {
        let head = ["replicas all the time", "windows that keep the goals"].map(str::to_owned).to_vec();
        let rows = self
            .sizes
            .iter()
            .map(|of| vec![with_thousands(of.replicas.into()), format!("{} of {}", of.kept_windows, of.windows)]);
        std::iter::once(head).chain(rows).collect()
    }

    /// Where the twin extrapolates; only the header if nowhere.
    pub(super) fn extrapolation_rows(&self) -> Vec<Vec<String>> {
        let head = ["extrapolates", "largest", "fitted up to", "windows", "from", "to"].map(str::to_owned).to_vec();
        let row = |of: &Extrapolation| {
            let (digits, unit) = match of.quantity {
                "batch" => (0, "in flight per replica"),
                "context" => (0, "tokens"),
                _ => (2, "requests/s per replica"),
            };
            vec![
                of.quantity.to_owned(),
                format!("{:.digits$} {unit}", of.largest),
                format!("{:.digits$}", of.fitted),
                format!("{} of {}", of.windows, self.over_time.len()),
                format!("{:.0} s", of.from_s),
                format!("{:.0} s", of.to_s),
            ]
        };
        std::iter::once(head).chain(self.extrapolations.iter().map(row)).collect()
    }
}
