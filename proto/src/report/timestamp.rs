//! Points in time.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since the Unix epoch, in JSON as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The current time of the system clock.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(since.map_or(0, |d| d.as_nanos() as u64))
    }

    /// The time `duration` later.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// The time `duration` earlier.
    #[must_use]
    pub const fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_nanos() as u64))
    }

    /// Duration since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Display for Timestamp {
    /// Formats as RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let (year, month, day) = civil_from_days((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let millis = self.0 / 1_000_000 % 1000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl std::str::FromStr for Timestamp {
    type Err = String;

    /// Parses the format of `Display`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a time as 2026-01-31T12:00:00.000Z: {text:?}");
        let number = |range: std::ops::Range<usize>| {
            text.get(range).and_then(|digits| digits.parse::<u64>().ok()).ok_or_else(wrong)
        };
        if text.len() != 24 || !text.ends_with('Z') {
            return Err(wrong());
        }
        let signed_days =
            days_from_civil(number(0..4)? as i64, number(5..7)? as i64, number(8..10)? as i64);
        // No field has more than four digits: none of these overflows.
        let days = u64::try_from(signed_days).ok().ok_or_else(wrong)?;
        let seconds = days * 86_400 + number(11..13)? * 3600 + number(14..16)? * 60;
        let millis = (seconds + number(17..19)?) * 1000 + number(20..23)?;
        // 64 bits reach to the year 2554.
        millis.checked_mul(1_000_000).map(Self).ok_or_else(wrong)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Algorithm: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// The inverse of [`civil_from_days`], from the same source.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_format_as_rfc_3339_and_parse_back() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999_000_000, "2000-02-28T23:59:59.999Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(ns).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ns)));
        }
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert!("2024-02-29T00:00:00.0000".parse::<Timestamp>().is_err());
        let last = Timestamp(u64::MAX).to_string();
        assert_eq!(last.parse::<Timestamp>().unwrap().to_string(), last);
        for never in
            ["9999-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "0000-01-01T00:00:00.000Z"]
        {
            assert!(never.parse::<Timestamp>().is_err(), "{never}");
        }
    }
}
