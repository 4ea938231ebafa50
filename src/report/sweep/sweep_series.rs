//! The series of a sweep by name: what the levels of one have that those of another do not.

use super::file::{CacheState, FlagValues};
use super::level_summary::{LevelSummary, series};

/// Levels that differ only in their load.
#[derive(Debug)]
pub(super) struct SweepSeries {
    /// Places of its levels, ascending by load.
    pub(super) places: Vec<usize>,
    /// Properties that not all series have; `None` if series differ only in their target.
    pub(super) name: Option<String>,
}

impl SweepSeries {
    /// The series of a plan with these flags; a level's own take their place.
    pub(super) fn all(levels: &[LevelSummary], flags: &FlagValues) -> Vec<Self> {
        let all = series(levels);
        let properties: Vec<Vec<String>> = all.iter().map(|places| properties(&levels[places[0]], flags)).collect();
        all.into_iter().zip(names(&properties)).map(|(places, name)| Self { places, name }).collect()
    }

    /// Name for a legend.
    pub(super) fn label(&self, levels: &[LevelSummary]) -> String {
        let first = &levels[self.places[0]];
        match (&*self.places, first.target, &self.name) {
            ([_], ..) => first.name(),
            (_, Some(target), Some(name)) => format!("{target}, {name}"),
            (_, Some(name), None) => name.to_owned(),
            (_, None, Some(name)) => name.clone(),
            (_, None, None) => "as planned".to_owned(),
        }
    }
}

/// The properties of each series that not all have.
fn names(properties: &[Vec<String>]) -> Vec<Option<String>> {
    let differs = |property: &&String| properties.iter().any(|of| !of.contains(property));
    let name = |of: &Vec<String>| {
        let own: Vec<&str> = of.iter().filter(differs).map(String::as_str).collect();
        (!own.is_empty()).then(|| own.join(", "))
    };
    properties.iter().map(name).collect()
}

/// Common properties of a series' levels, except their target.
fn properties(level: &LevelSummary, flags: &FlagValues) -> Vec<String> {
    let arrivals = if level.level.rate.is_some() { "open loop" } else { "closed loop" };
    let cache = match level.level.cache {
        CacheState::Cold => "cold cache",
        CacheState::Warm => "warm cache",
    };
    let own = &level.level.flags;
    let flag = |(flag, values): (&String, &Vec<String>)| format!("--{flag} {}", values.join(" ")).trim_end().to_owned();
    let flags = flags.iter().filter(|(flag, _)| !own.contains_key(*flag)).chain(own).map(flag);
    [arrivals.to_owned(), cache.to_owned()].into_iter().chain(flags).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_named_after_what_the_others_lack() {
        let of = |properties: &[&str]| properties.iter().map(|property| (*property).to_owned()).collect::<Vec<_>>();
        let three = [
            of(&["open loop", "cold cache", "--osl 128"]),
            of(&["open loop", "warm cache", "--osl 128"]),
            of(&["closed loop", "cold cache", "--osl 128"]),
        ];
        let named = |of: &[Vec<String>]| names(of).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
        assert_eq!(named(&three), ["open loop, cold cache", "open loop, warm cache", "closed loop, cold cache"]);
        assert_eq!(named(&three[..2]), ["cold cache", "warm cache"]);
        assert_eq!(named(&[of(&["open loop", "--chunked"]), of(&["open loop"])]), ["--chunked", ""]);
        assert_eq!(named(&three[..1]), [""]);
    }
}
