//! The fewest replicas that keep the goals in each window. Pure.
//!
//! Fleets of a constant size are simulated, twice as large each time, until every window keeps its goals or more
//! replicas help none. Then the sizes between the largest that misses and the smallest that keeps are halved, for all
//! windows at once. A window that no fleet keeps needs the smallest fleet that misses no more than the largest.

use std::collections::BTreeMap;

use super::goals::TwinView;

/// Largest fleet that is simulated.
const MAX_REPLICAS: u32 = 1_024;
/// Doublings without fewer misses after which no further is tried.
const MAX_IDLE_DOUBLINGS: u32 = 2;
/// Least relative fall of the misses that counts.
const MIN_IMPROVEMENT: f64 = 0.01;

/// Result of a simulated size.
#[derive(Clone, Debug, Default)]
struct SizeResult {
    shortfalls: Vec<[f64; 3]>,
    /// Good requests that all windows lack.
    total: f64,
    refused: u64,
}

/// The search.
#[derive(Clone, Debug, Default)]
pub struct NeedSearch {
    known: BTreeMap<u32, SizeResult>,
    idle_doublings: u32,
}

impl NeedSearch {
    /// The sizes to simulate next; none at the end.
    pub fn next_sizes(&self) -> Vec<u32> {
        let Some((largest, result)) = self.known.last_key_value() else { return vec![1, 2] };
        let helps = result.refused > 0 || self.idle_doublings < MAX_IDLE_DOUBLINGS;
        if result.total > 0.0 && helps && *largest < MAX_REPLICAS {
            return vec![largest * 2];
        }
        let mut sizes: Vec<u32> = Vec::new();
        for window in 0..result.shortfalls.len() {
            for view in TwinView::ALL {
                let Some(keeps) = self.smallest(window, view) else { continue };
                let below = self.known.range(..keeps).next_back().map_or(0, |(size, _)| *size);
                if keeps - below > 1 {
                    sizes.push(below + (keeps - below) / 2);
                }
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Adds the result of a size.
    pub fn add(&mut self, size: u32, shortfalls: Vec<[f64; 3]>, refused: u64) {
        let total = shortfalls.iter().flatten().sum();
        if let Some((_, before)) = self.known.last_key_value().filter(|(largest, _)| size > **largest) {
            let improves = total < before.total * (1.0 - MIN_IMPROVEMENT) || before.refused > 0;
            self.idle_doublings = if improves { 0 } else { self.idle_doublings + 1 };
        }
        self.known.insert(size, SizeResult { shortfalls, total, refused });
    }

    /// Replicas of each window.
    pub fn needs(&self, view: TwinView) -> Vec<u64> {
        let Some((largest, last)) = self.known.last_key_value() else { return Vec::new() };
        let need = |window: usize| {
            let fewest = || {
                let least = last.shortfalls[window][view.index()];
                let misses_no_more = |(_, of): &(&u32, &SizeResult)| of.shortfalls[window][view.index()] <= least;
                self.known.iter().find(misses_no_more).map_or(*largest, |(size, _)| *size)
            };
            u64::from(self.smallest(window, view).unwrap_or_else(fewest))
        };
        (0..last.shortfalls.len()).map(need).collect()
    }

    /// True if any simulated fleet keeps the goals of a window.
    pub fn is_attainable(&self, window: usize, view: TwinView) -> bool {
        self.smallest(window, view).is_some()
    }

    /// Adds a replica to each window that misses its goals though a constant fleet keeps them: what earlier windows left
    /// behind is the cause. Returns whether there was one.
    pub fn raise(&self, needs: &mut [u64], shortfalls: &[[f64; 3]]) -> bool {
        let most = self.known.last_key_value().map_or(1, |(largest, _)| u64::from(*largest));
        let mut raised = false;
        for (window, need) in needs.iter_mut().enumerate() {
            let view = TwinView::Expected;
            if shortfalls[window][view.index()] > 0.0 && self.is_attainable(window, view) && *need < most {
                *need += 1;
                raised = true;
            }
        }
        raised
    }

    /// Sizes that were simulated: the windows that keep the goals as predicted, of all.
    pub fn sizes(&self) -> impl Iterator<Item = (u32, usize, usize)> {
        let keeps = |of: &SizeResult| of.shortfalls.iter().filter(|of| of[TwinView::Expected.index()] <= 0.0).count();
        self.known.iter().map(move |(size, of)| (*size, keeps(of), of.shortfalls.len()))
    }

    fn smallest(&self, window: usize, view: TwinView) -> Option<u32> {
        let keeps = |of: &SizeResult| of.shortfalls[window][view.index()] <= 0.0;
        self.known.iter().find(|(_, of)| keeps(of)).map(|(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where a window needs `needs[window]` replicas, one more if the server is slower, and one less if faster.
    fn search(needs: &[u32]) -> (NeedSearch, Vec<u32>) {
        let (mut search, mut simulated) = (NeedSearch::default(), Vec::new());
        loop {
            let sizes = search.next_sizes();
            if sizes.is_empty() {
                simulated.sort_unstable();
                return (search, simulated);
            }
            for size in sizes {
                let lacks = |need: u32| f64::from(need.saturating_sub(size));
                let shortfalls = needs.iter().map(|need| [lacks(need - 1), lacks(*need), lacks(need + 1)]);
                search.add(size, shortfalls.collect(), 0);
                simulated.push(size);
            }
        }
    }

    #[test]
    fn each_window_has_its_fewest_replicas_in_each_view() {
        let (search, simulated) = search(&[2, 11, 4]);
        assert_eq!(search.needs(TwinView::Expected), [2, 11, 4]);
        assert_eq!(search.needs(TwinView::Slower), [3, 12, 5]);
        assert_eq!(search.needs(TwinView::Faster), [1, 10, 3]);
        assert!(simulated.len() < 13 && simulated.contains(&16), "{simulated:?}");
    }

    #[test]
    fn a_window_that_no_fleet_keeps_ends_the_search_and_needs_no_fleet_that_misses_as_much() {
        let mut search = NeedSearch::default();
        for rounds in 0.. {
            assert!(rounds < 20, "no end");
            let sizes = search.next_sizes();
            if sizes.is_empty() {
                break;
            }
            for size in sizes {
                // One prompt is too long for the limit, whatever the fleet.
                let hopeless = if size >= 3 { 1.0 } else { 5.0 };
                let of = |need: u32| f64::from(need.saturating_sub(size));
                search.add(size, vec![[hopeless; 3], [of(2); 3]], 0);
            }
        }
        assert_eq!(search.needs(TwinView::Expected), [4, 2]);
        assert!(!search.is_attainable(0, TwinView::Expected) && search.is_attainable(1, TwinView::Expected));
        let mut needs = vec![4, 2];
        assert!(search.raise(&mut needs, &[[9.0; 3], [1.0; 3]]));
        assert_eq!(needs, [4, 3]);
        assert!(!search.raise(&mut needs, &[[9.0; 3], [0.0; 3]]));
    }

    #[test]
    fn a_fleet_that_turns_requests_away_is_doubled_though_none_is_good_yet() {
        let mut search = NeedSearch::default();
        for size in [1, 2, 4, 8] {
            search.add(size, vec![[50.0; 3]], 10);
            assert_eq!(search.next_sizes(), [size * 2]);
        }
        search.add(16, vec![[0.0; 3]], 0);
        assert_eq!(search.next_sizes(), [12]);
    }
}
