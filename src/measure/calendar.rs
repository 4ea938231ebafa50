//! Dates of wall-clock times, without a clock.

const DAY_SECONDS: u64 = 86_400;

/// Formats nanoseconds since 1970 in UTC, in whole seconds: `2026-11-24T07:17:35Z`.
pub fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (year, month, day) = date_from_days(seconds / DAY_SECONDS);
    let of_day = seconds % DAY_SECONDS;
    let (hours, minutes, seconds) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

/// The hour of nanoseconds since 1970 in UTC: `2026-11-24T07Z`.
pub fn utc_hour(unix_ns: u64) -> String {
    utc(unix_ns)[..13].to_owned() + "Z"
}

/// Formats nanoseconds since 1970 as `20261121T101500Z`, for file names, which sort by time.
pub fn moment(unix_ns: u64) -> String {
    utc(unix_ns).replace(['-', ':'], "")
}

/// Parses the format of [`moment`]; returns nanoseconds since 1970.
pub fn of_moment(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let part = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = &text.get(range)?;
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
    };
    let (year, month, day) = (part(0..4)?, part(4..6)?, part(6..8)?);
    let (hour, minute, second) = (part(9..11)?, part(11..13)?, part(13..15)?);
    let is_time = year >= 1970 && (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60;
    let days = (is_time && day > 0).then(|| days_from_date(year, month, day))?;
    // A day that its month does not have is a day of the next.
    let is_date = date_from_days(days) == (year, month, day);
    let seconds = days * DAY_SECONDS + hour * 3_600 + minute * 60 + second;
    is_date.then(|| seconds.checked_mul(1_000_000_000)).flatten()
}

/// Days from 1970-01-01 to a Gregorian date (years counted from March, in eras of 400 years).
pub const fn days_from_date(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a day number counted from 1970-01-01.
pub const fn date_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc_and_days_convert_both_ways() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(1_795_504_655_267_820_721), "2026-11-24T07:17:35Z");
        assert_eq!(utc(1_709_208_000_000_000_000), "2024-02-29T12:00:00Z", "a leap day");
        let unix_ns = 1_709_208_000_000_000_000;
        assert_eq!((moment(unix_ns), of_moment("20240229T120000Z")), ("20240229T120000Z".to_owned(), Some(unix_ns)));
        for wrong in
            ["20230229T120000Z", "20241301T000000Z", "20240229T240000Z", "2024022\u{e9}T12000Z", "99990101T000000Z", ""]
        {
            assert_eq!(of_moment(wrong), None, "{wrong}");
        }
        for days in (0..400_000).step_by(97) {
            let (year, month, day) = date_from_days(days);
            assert_eq!(days_from_date(year, month, day), days);
        }
    }
}
