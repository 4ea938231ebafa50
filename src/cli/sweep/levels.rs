//! Levels as they are typed: `1,2,4,8`, `1..64` (doubling), `10..50+10`.

/// Levels that one flag may list.
const MAX_LEVELS: usize = 1_000;
const SHAPE: &str = "expected numbers above 0, as in 1,2,4 or 1..64 (doubling) or 10..50+10 (by steps)";

/// The levels as typed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LevelList {
    /// Ascending, each once.
    pub(super) list: Vec<f64>,
    /// The highest number of all, which a range that doubles need not meet: no level is above.
    pub(super) highest: f64,
}

/// Reads rates.
pub(super) fn rates(text: &str) -> Result<LevelList, String> {
    let (mut levels, mut most) = (Vec::new(), 0.0_f64);
    for part in text.split(',') {
        let Some((first, rest)) = part.split_once("..") else {
            let level = number(part)?;
            levels.push(level);
            most = most.max(level);
            continue;
        };
        let (last, step) = match rest.split_once('+') {
            Some((last, step)) => (number(last)?, Some(number(step)?)),
            None => (number(rest)?, None),
        };
        let first = number(first)?;
        if last < first {
            return Err(format!("the range {part} ends before it begins"));
        }
        most = most.max(last);
        // From the number of the step and not from a sum, so that no error adds up.
        let of = |at: usize| step.map_or_else(|| first * 2_f64.powf(at as f64), |step| first + step * at as f64);
        levels.extend((0..=MAX_LEVELS).map(of).take_while(|level| *level <= last * (1.0 + 1e-9)));
    }
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    if levels.len() > MAX_LEVELS {
        Err(format!("expected {MAX_LEVELS} levels at most"))
    } else {
        Ok(LevelList { list: levels, highest: most })
    }
}

/// Reads numbers of slots.
pub(super) fn slots(text: &str) -> Result<LevelList, String> {
    let levels = rates(text)?;
    let whole = |level: &f64| level.fract() == 0.0 && *level <= f64::from(u32::MAX);
    if levels.list.iter().all(whole) { Ok(levels) } else { Err("expected whole numbers, as in 1,2,4".to_owned()) }
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| SHAPE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_lists_ranges_that_double_and_ranges_in_steps() {
        let levels = |text: &str| rates(text).map(|levels| levels.list);
        assert_eq!(levels("4,1,2,1"), Ok(vec![1.0, 2.0, 4.0]));
        assert_eq!(levels("0.5..5"), Ok(vec![0.5, 1.0, 2.0, 4.0]));
        assert_eq!(levels("0.1..0.3+0.1,9"), Ok(vec![0.1, 0.2, 0.1 + 0.1 * 2.0, 9.0]));
        assert_eq!(slots("1..9"), Ok(LevelList { list: vec![1.0, 2.0, 4.0, 8.0], highest: 9.0 }));
        for wrong in ["", "0", "-1", "a", "1..", "1..4+0", "inf", "1,,2"] {
            assert_eq!(levels(wrong), Err(SHAPE.to_owned()), "{wrong}");
        }
        assert!(levels("4..1").unwrap_err().contains("4..1 ends before"));
        assert!(levels("1..9000+1").unwrap_err().contains("1000 levels"));
        assert!(slots("1.5").is_err());
    }
}
