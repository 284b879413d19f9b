//! Times in lines.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

/// Month, day of the month, and nanoseconds of the day.
pub(super) type Day = (i64, i64, u64);

/// What the year of lines follows from that state none.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Year {
    /// A time that the text states in full: the nearest year.
    Near(Timestamp),
    /// When the file was written: the latest year before. Files may be copied later.
    Before(Timestamp),
}

impl Year {
    /// The time of a date without its year.
    pub(super) fn complete(self, month: i64, date: i64, of_day: u64) -> Option<Timestamp> {
        /// The time zone of the lines is unknown.
        const ZONE: Duration = Duration::from_secs(26 * 3600);
        let (Self::Near(known) | Self::Before(known)) = self;
        let year: i64 = known.to_string().get(..4)?.parse().ok()?;
        let years = [year + 1, year, year - 1].into_iter();
        let mut times = years.filter_map(|year| moment(year, month, date, of_day));
        match self {
            Self::Near(known) => times.min_by_key(|at| at.0.abs_diff(known.0)),
            Self::Before(known) => times.find(|at| *at <= known.plus(ZONE)),
        }
    }
}

/// The same date and time of day in the year that is nearest to `known`.
pub(in super::super) fn in_year_of(at: Timestamp, known: Timestamp) -> Option<Timestamp> {
    // "2026-07-02T13:20:08.410Z"
    let text = at.to_string();
    let (month, date) = (text.get(5..7)?.parse().ok()?, text.get(8..10)?.parse().ok()?);
    Year::Near(known).complete(month, date, at.0 % 86_400_000_000_000)
}

/// "2026-01-31 12:00:00,123 " and its relatives.
pub(super) fn stamp(text: &str) -> Option<(Timestamp, &str)> {
    let inner = text.strip_prefix('[').unwrap_or(text);
    let day = inner.get(..10)?;
    let mut parts = day.split('-');
    let (year, month, date) = (parts.next()?, parts.next()?, parts.next()?);
    let is_date = year.len() == 4 && month.len() == 2 && date.len() == 2;
    let between = inner.as_bytes().get(10).copied();
    if !is_date || !matches!(between, Some(b' ' | b'T' | b'_')) {
        return None;
    }
    let (of_day, rest) = clock(inner.get(11..)?)?;
    let at = moment(year.parse().ok()?, month.parse().ok()?, date.parse().ok()?, of_day)?;
    let (ahead, rest) = offset(rest).unwrap_or((0, rest));
    let at = Timestamp(at.0.saturating_add_signed(-ahead));
    let unbracketed = rest.strip_prefix(']').unwrap_or(rest);
    // One separator: the indentation of a frame follows it.
    let rest = unbracketed.strip_prefix(' ').unwrap_or(unbracketed);
    Some((at, rest.strip_prefix("| ").unwrap_or(rest)))
}

/// Nanoseconds by which a time with this time zone, "Z", "+01:00" or "+0100", is ahead of UTC, and
/// what follows.
fn offset(text: &str) -> Option<(i64, &str)> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Some((0, rest));
    }
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let minutes_at = if text.get(3..4)? == ":" { 4 } else { 3 };
    let part = |at: usize, most: i64| -> Option<i64> {
        let digits = text.get(at..at + 2)?;
        let is_number = digits.bytes().all(|it| it.is_ascii_digit());
        digits.parse().ok().filter(|it| is_number && *it <= most)
    };
    let minutes = part(1, 14)? * 60 + part(minutes_at, 59)?;
    let rest = &text[minutes_at + 2..];
    let ends = !rest.starts_with(|it: char| it.is_ascii_alphanumeric());
    ends.then_some((sign * minutes * 60_000_000_000, rest))
}

/// The time in "E1206 18:44:12.715298746 ", which begins a line of PyTorch's C++ or launcher.
pub(super) fn glog(text: &str) -> Option<Day> {
    let inner = text.strip_prefix('[').unwrap_or(text).strip_prefix(['E', 'W', 'I', 'F'])?;
    let (day, rest) = inner.split_once(' ')?;
    // The month has no leading zero in some versions.
    if !matches!(day.len(), 3 | 4) {
        return None;
    }
    let (month, date) = day.split_at_checked(day.len() - 2)?;
    let (of_day, _) = clock(rest)?;
    Some((month.parse().ok()?, date.parse().ok()?, of_day))
}

/// The time in the report of torchrun: "2025-05-21_15:43:03".
pub(in super::super) fn report_time(text: &str) -> Option<Timestamp> {
    stamp(text.trim()).map(|(at, _)| at)
}

/// The time in "[Fri Nov 14 13:47:52 2025] ", which begins a line of `dmesg -T`.
pub(in super::super) fn kernel_time(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (inner, _) = text.strip_prefix('[')?.split_once(']')?;
    let mut parts = inner.split_ascii_whitespace().skip(1);
    let month = parts.next().and_then(|it| MONTHS.iter().position(|month| *month == it))? + 1;
    let date = parts.next()?.parse().ok()?;
    let (of_day, _) = clock(parts.next()?)?;
    moment(parts.next()?.parse().ok()?, i64::try_from(month).ok()?, date, of_day)
}

/// Nanoseconds of "18:44:12.715", and what follows.
pub(super) fn clock(text: &str) -> Option<(u64, &str)> {
    let part = |at: usize| -> Option<u64> { text.get(at..at + 2)?.parse().ok() };
    let colons = [2, 5].iter().all(|&at| text.as_bytes().get(at) == Some(&b':'));
    let (hour, minute, second) = (part(0)?, part(3)?, part(6)?);
    if !colons || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = &text[8..];
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let shown = &fraction[..digits.min(9)];
        let unit = 10_u64.pow(9 - shown.len() as u32);
        nanos = shown.parse::<u64>().unwrap_or(0) * unit;
        rest = &fraction[digits..];
    }
    Some((((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos, rest))
}

/// A time from a date of the Gregorian calendar and the nanoseconds of the day.
fn moment(year: i64, month: i64, date: i64, of_day: u64) -> Option<Timestamp> {
    let plausible =
        (1990..=2200).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&date);
    if !plausible {
        return None;
    }
    let days = days_from_civil(year, month, date);
    Some(Timestamp(u64::try_from(days).ok()? * 86_400_000_000_000 + of_day))
}

/// Days since 1970-01-01.
const fn days_from_civil(year: i64, month: i64, date: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + date - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}
