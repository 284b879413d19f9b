//! Measured values as they are stated: coarse, so that a report does not change with every evaluation.

use std::time::Duration;

use crate::words;

/// "60 %": rounded to tens.
pub(crate) fn percent(share: f64) -> String {
    if share < 0.05 {
        return "less than 5 %".into();
    }
    format!("{:.0} %", (share * 10.0).round() * 10.0)
}

/// "150 ms": a duration rounded to one digit.
pub(crate) fn about(time: Duration) -> String {
    words::short_time(about_so_long(time))
}

/// A duration rounded to one digit.
pub(crate) fn about_so_long(time: Duration) -> Duration {
    const DIGITS: [f64; 8] = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0];
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1.0 {
        return Duration::ZERO;
    }
    let scale = 10_f64.powf(micros.log10().floor());
    let digit = micros / scale;
    let nearest = DIGITS.into_iter().min_by(|a, b| (a - digit).abs().total_cmp(&(b - digit).abs()));
    Duration::from_secs_f64(nearest.unwrap_or(1.0) * scale / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_coarse() {
        for (millis, expected) in [(95, 100), (132, 150), (170, 150), (620, 700), (0, 0)] {
            let time = about_so_long(Duration::from_millis(millis));
            assert_eq!(time.as_millis(), expected, "{millis}");
        }
        assert_eq!(percent(0.634), "60 %");
        assert_eq!(percent(0.03), "less than 5 %");
    }
}
