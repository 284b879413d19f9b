//! Values as text, and as curves.

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::words::{brief, plain};

use crate::state::share;

/// Time of day: "12:03:44Z".
pub(super) fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    format!("{}Z", text.get(11..19).unwrap_or_default())
}

/// Formats a lateness in microseconds.
pub(super) fn late(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        _ => brief(us / 1000),
    }
}

/// Formats a number of bytes: "1.4 GiB".
pub(super) fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut value = value as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// A value with its unit; unknown units are shown unchanged.
pub(super) fn measured(value: u64, unit: &str) -> String {
    match unit {
        "B" => bytes(value),
        "‰" => format!("{} %", value / 10),
        other => format!("{value} {}", plain(other)),
    }
}

/// Draws values as a curve of at most `width` cells.
pub(super) fn curve(values: &[f32], width: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let cells = values.len().min(width);
    let highest = |of: &[f32]| of.iter().copied().fold(0.0, f32::max);
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = highest(values);
    // Variation below 2 % is drawn flat.
    let span = (high - low).max(high / 50.0).max(f32::MIN_POSITIVE);
    let step = |cell| {
        let value = highest(&values[share(values.len(), cells, cell)]);
        let at = (value - low) / span * (STEPS.len() - 1) as f32;
        STEPS[(at as usize).min(STEPS.len() - 1)]
    };
    (0..cells).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_fit_their_column() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_500_000_000, "1.4 GiB"),
            (150_000_000_000, "140 GiB"),
            (1_072_693_248, "1.0 GiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert!((0..64).all(|shift| bytes(1 << shift).len() <= 9));
    }

    #[test]
    fn curve_of_nearly_equal_values_is_flat() {
        assert_eq!(curve(&[1000.0, 1001.0, 1000.0], 8), "▁▁▁");
        assert_eq!(curve(&[0.0, 7.0], 8), "▁█");
        assert_eq!(curve(&[1.0, 2.0, 3.0, 4.0], 2).chars().count(), 2);
        assert_eq!(curve(&[0.0, f32::MAX], 2), "▁█");
        assert_eq!(curve(&[], 2), "");
    }
}
