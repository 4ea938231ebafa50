//! Routers: which replica gets a request.

use std::str::FromStr;

use crate::stats::hash::combine;

/// A rule that chooses the replica of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// One replica after the other.
    RoundRobin,
    /// The replica with the fewest requests in flight.
    LeastLoaded,
    /// All requests of a session to one replica, by rendezvous hashing; without a session as `LeastLoaded`.
    Session,
    /// The replica whose cache holds the longest prefix of the prompt, unless it is overloaded.
    Prefix,
    /// Prompts of at least this many tokens to the second half of the replicas, all others to the first half.
    Length(u32),
    /// The first replicas compute prompts, the others decode.
    Pools {
        /// Replicas that compute prompts.
        prefill: u32,
        /// Replicas that decode.
        decode: u32,
    },
}

/// Imbalance above which `prefix` ignores caches: the difference and the ratio of requests in flight that SGLang's
/// cache-aware router documents as `balance_abs_threshold` and `balance_rel_threshold`.
const MAX_IMBALANCE: (usize, f64) = (32, 1.5);

impl FromStr for Router {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            "a router is round-robin, least-loaded, session, prefix, length:TOKENS or pools:prefill=N,decode=N"
                .to_owned()
        };
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("round-robin", None) => Ok(Self::RoundRobin),
            ("least-loaded", None) => Ok(Self::LeastLoaded),
            ("session", None) => Ok(Self::Session),
            ("prefix", None) => Ok(Self::Prefix),
            ("length", Some(tokens)) => tokens.parse().map(Self::Length).map_err(|_| unknown()),
            ("pools", Some(pools)) => {
                let count = |name: &str| {
                    let found = pools.split(',').find_map(|pool| pool.split_once('=').filter(|(key, _)| *key == name));
                    found.and_then(|(_, count)| count.parse::<u32>().ok()).filter(|count| *count > 0)
                };
                let (prefill, decode) = (count("prefill"), count("decode"));
                let (Some(prefill), Some(decode)) = (prefill, decode) else { return Err(unknown()) };
                Ok(Self::Pools { prefill, decode })
            }
            _ => Err(unknown()),
        }
    }
}

/// A replica that can take the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Its position among all replicas of the fleet.
    pub(super) index: usize,
    pub(super) in_flight: usize,
    /// Prompt tokens that its cache holds.
    pub(super) cached: u32,
}

/// What a router knows of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteKey {
    pub(super) prompt_tokens: u32,
    pub(super) session: Option<u64>,
    /// The prompt is computed already.
    pub(super) transferred: bool,
}

impl Router {
    /// Number of replicas that the router fixes.
    pub fn replicas(self) -> Option<u32> {
        match self {
            Self::Pools { prefill, decode } => Some(prefill + decode),
            _ => None,
        }
    }

    /// Whether the choice needs the requests in flight or the caches.
    pub(super) fn needs_load(self) -> bool {
        !matches!(self, Self::RoundRobin)
    }

    /// Chooses among the candidates, which are in order of their index. `turn` counts the fleet's requests, and `fleet` is
    /// the number of its replicas.
    pub(super) fn choose(self, key: RouteKey, candidates: &[Candidate], turn: u64, fleet: usize) -> Option<usize> {
        let least = |candidates: &mut dyn Iterator<Item = &Candidate>| {
            candidates.min_by_key(|candidate| (candidate.in_flight, candidate.index)).map(|candidate| candidate.index)
        };
        match self {
            Self::RoundRobin => {
                let at = usize::try_from(turn % candidates.len().max(1) as u64).unwrap_or(0);
                candidates.get(at).map(|candidate| candidate.index)
            }
            Self::LeastLoaded => least(&mut candidates.iter()),
            Self::Session => match key.session {
                Some(session) => {
                    let score = |candidate: &&Candidate| combine(session, candidate.index as u64);
                    candidates.iter().max_by_key(score).map(|candidate| candidate.index)
                }
                None => least(&mut candidates.iter()),
            },
            Self::Prefix => {
                let loads = candidates.iter().map(|candidate| candidate.in_flight);
                let (fewest, most) = (loads.clone().min().unwrap_or(0), loads.max().unwrap_or(0));
                let (difference, ratio) = MAX_IMBALANCE;
                if most - fewest > difference && most as f64 > ratio * fewest as f64 {
                    return least(&mut candidates.iter());
                }
                let longest = candidates.iter().map(|candidate| candidate.cached).max()?;
                least(&mut candidates.iter().filter(|candidate| candidate.cached == longest))
            }
            Self::Length(tokens) => {
                let (half, long) = (fleet.div_ceil(2), key.prompt_tokens >= tokens);
                let fits = |candidate: &&Candidate| (candidate.index >= half) == long;
                least(&mut candidates.iter().filter(fits)).or_else(|| least(&mut candidates.iter()))
            }
            Self::Pools { prefill, .. } => {
                let prefill = usize::try_from(prefill).unwrap_or(usize::MAX);
                least(&mut candidates.iter().filter(|candidate| (candidate.index >= prefill) == key.transferred))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RouteKey = RouteKey { prompt_tokens: 100, session: None, transferred: false };

    fn candidates(loads: &[(usize, u32)]) -> Vec<Candidate> {
        let of = |(index, (in_flight, cached)): (usize, &(usize, u32))| Candidate {
            index,
            in_flight: *in_flight,
            cached: *cached,
        };
        loads.iter().enumerate().map(of).collect()
    }

    #[test]
    fn every_router_is_read_and_anything_else_refused() {
        for (text, router) in [
            ("round-robin", Router::RoundRobin),
            ("least-loaded", Router::LeastLoaded),
            ("session", Router::Session),
            ("prefix", Router::Prefix),
            ("length:2048", Router::Length(2_048)),
            ("pools:prefill=2,decode=4", Router::Pools { prefill: 2, decode: 4 }),
        ] {
            assert_eq!(text.parse(), Ok(router), "{text}");
        }
        for text in ["", "random", "length", "length:long", "pools:prefill=2", "pools:prefill=0,decode=1", "prefix:3"] {
            assert!(text.parse::<Router>().unwrap_err().contains("pools:prefill=N,decode=N"), "{text}");
        }
    }

    #[test]
    fn round_robin_takes_turns_and_least_loaded_the_emptiest() {
        let three = candidates(&[(5, 0), (1, 0), (1, 0)]);
        let turns: Vec<_> = (0..4).filter_map(|turn| Router::RoundRobin.choose(KEY, &three, turn, 3)).collect();
        assert_eq!(turns, [0, 1, 2, 0]);
        assert_eq!(Router::LeastLoaded.choose(KEY, &three, 0, 3), Some(1));
        assert_eq!(Router::LeastLoaded.choose(KEY, &[], 0, 3), None);
    }

    #[test]
    fn a_session_stays_and_moves_only_if_its_replica_is_gone() {
        let all = candidates(&[(0, 0); 5]);
        for session in 0..100 {
            let key = RouteKey { session: Some(session), ..KEY };
            let home = Router::Session.choose(key, &all, session, 5).unwrap();
            let without = |removed: usize| all.iter().filter(|one| one.index != removed).copied().collect::<Vec<_>>();
            let other = (home + 1) % 5;
            assert_eq!(Router::Session.choose(key, &without(other), 0, 5), Some(home));
            assert_ne!(Router::Session.choose(key, &without(home), 0, 5), Some(home));
        }
    }

    #[test]
    fn a_prefix_goes_to_its_cache_unless_that_replica_is_overloaded() {
        assert_eq!(Router::Prefix.choose(KEY, &candidates(&[(0, 16), (9, 64), (3, 64)]), 0, 3), Some(2));
        assert_eq!(Router::Prefix.choose(KEY, &candidates(&[(40, 64), (2, 0)]), 0, 2), Some(1));
        assert_eq!(Router::Prefix.choose(KEY, &candidates(&[(40, 64), (39, 0)]), 0, 2), Some(0));
    }

    #[test]
    fn lengths_and_pools_split_the_fleet() {
        let four = candidates(&[(3, 0), (2, 0), (1, 0), (0, 0)]);
        let key = |prompt_tokens, transferred| RouteKey { prompt_tokens, transferred, ..KEY };
        assert_eq!(Router::Length(100).choose(key(99, false), &four, 0, 4), Some(1));
        assert_eq!(Router::Length(100).choose(key(100, false), &four, 0, 4), Some(3));
        let pools = Router::Pools { prefill: 1, decode: 3 };
        assert_eq!(pools.choose(key(1, false), &four, 0, 4), Some(0));
        assert_eq!(pools.choose(key(1, true), &four, 0, 4), Some(3));
        assert_eq!(pools.choose(key(1, true), &four[..1], 0, 4), None, "no decoder is left");
    }
}
