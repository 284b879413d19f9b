//! Trends that are robust against outliers.
//!
//! The slope is the median of the slopes between all pairs of points: H. Theil, "A rank-invariant
//! method of linear and polynomial regression analysis" (1950); P. K. Sen, "Estimates of the
//! regression coefficient based on Kendall's tau" (1968), which also gives the confidence interval
//! by the ranks of those slopes. Up to 29 % of the points may be outliers. The significance is that
//! of the Mann-Kendall test (H. B. Mann, "Nonparametric tests against trend", 1945), with Kendall's
//! correction for ties.
//!
//! The test assumes independent points. Memory is cumulative, so a trend must also be steady: see
//! [`Trend::is_steady`].

/// Standard deviations of the two-sided 95 % interval.
const WITHIN: f64 = 1.96;
/// Maximum decrease of the values on their way, relative to the total rise.
const FALLS_BACK: f64 = 0.2;
/// Minimum slope of each third of the points, relative to the overall slope …
const EACH_THIRD: f64 = 0.4;
/// … and of the last third: growth that slows down (such as a cache of randomly drawn samples)
/// comes to an end.
const LAST_THIRD: f64 = 0.6;

/// How values change with steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Change per step.
    pub slope: f64,
    /// Lower bound of the slope with 95 % confidence.
    pub low: f64,
    /// Upper bound of the slope with 95 % confidence.
    pub high: f64,
    /// Maximum distance of a value from the line.
    pub scatter: f64,
    /// Number of rising less falling pairs, in standard deviations from the number without a trend.
    pub z: f64,
}

impl Trend {
    /// The trend of points in ascending order of steps; `None`: too few points.
    ///
    /// Takes time quadratic in the number of points.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len();
        let mut slopes = Vec::with_capacity(n * n / 2);
        let mut rises = 0_i64;
        for (i, (x, y)) in points.iter().enumerate() {
            for (later, value) in &points[i + 1..] {
                if later > x {
                    slopes.push((value - y) / (later - x));
                    rises += (value > y) as i64 - (value < y) as i64;
                }
            }
        }
        if n < 3 || slopes.is_empty() {
            return None;
        }
        slopes.sort_unstable_by(f64::total_cmp);
        let deviation = variance(points).sqrt();
        let half = WITHIN * deviation / 2.0;
        let middle = slopes.len() as f64 / 2.0;
        let rank = |at: f64| slopes[(at.max(0.0) as usize).min(slopes.len() - 1)];
        let z = if deviation > 0.0 {
            (rises.abs() - 1).max(0) as f64 / deviation * rises.signum() as f64
        } else {
            0.0
        };
        let slope = median(&slopes);
        Some(Self {
            slope,
            low: rank(middle - half - 1.0),
            high: rank(middle + half),
            scatter: scatter(points, slope),
            z,
        })
    }

    /// Whether these points, of which it is the trend, rise all the way: they hardly fall back, and
    /// each third of them rises about as fast as all of them. Values that level off (a full cache,
    /// a warm program), jump once, or go up and down do not.
    pub fn is_steady(&self, points: &[(f64, f64)]) -> bool {
        let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) else {
            return false;
        };
        let rise = last - first;
        let mut most = *first;
        let mut fall = 0.0_f64;
        for (_, value) in points {
            most = most.max(*value);
            fall = fall.max(most - value);
        }
        let third = points.len() / 3;
        let rises = |part: &[(f64, f64)], share: f64| {
            let (Some((x, y)), Some((later, value))) = (part.first(), part.last()) else {
                return false;
            };
            later > x && (value - y) / (later - x) >= share * self.slope
        };
        third > 0
            && rise > 0.0
            && fall <= FALLS_BACK * rise
            && rises(&points[..=third], EACH_THIRD)
            && rises(&points[third..=2 * third], EACH_THIRD)
            && rises(&points[2 * third..], LAST_THIRD)
    }
}

/// The median of sorted values.
fn median(values: &[f64]) -> f64 {
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[half - 1], values[half])
    } else {
        values[half]
    }
}

/// Maximum distance of the points from the line of this slope through their median.
fn scatter(points: &[(f64, f64)], slope: f64) -> f64 {
    let mut above: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    above.sort_unstable_by(f64::total_cmp);
    let middle = median(&above);
    let ends = above.first().into_iter().chain(above.last());
    ends.map(|it| (it - middle).abs()).fold(0.0, f64::max)
}

/// Variance of the number of rising less falling pairs without a trend.
fn variance(points: &[(f64, f64)]) -> f64 {
    let term = |n: usize| (n * n.saturating_sub(1) * (2 * n + 5)) as f64;
    let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    values.sort_unstable_by(f64::total_cmp);
    let equal: f64 =
        values.chunk_by(|a, b| a.total_cmp(b).is_eq()).map(|equal| term(equal.len())).sum();
    (term(points.len()) - equal) / 18.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(n: u32, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let x = (0..n).map(f64::from);
        x.map(|x| (x, value(x))).collect()
    }

    /// Deterministic noise from 0 to 1.
    fn noise(x: f64) -> f64 {
        ((x * 12.9898).sin() * 43_758.545_3).rem_euclid(1.0)
    }

    #[test]
    fn line_is_its_own_trend() {
        let line = points(20, |x| 3.0f64.mul_add(x, 7.0));
        let trend = Trend::fit(&line).unwrap();
        assert_eq!((trend.slope, trend.low, trend.high), (3.0, 3.0, 3.0));
        assert!(trend.z > 6.0 && trend.is_steady(&line), "{trend:?}");
    }

    #[test]
    fn outliers_do_not_change_the_trend() {
        let mut line = points(20, |x| 3.0f64.mul_add(x, 2.0 * noise(x)));
        for at in [3, 8, 12, 17] {
            line[at].1 = 1e6 * noise(at as f64);
        }
        let trend = Trend::fit(&line).unwrap();
        assert!((trend.slope - 3.0).abs() < 0.3, "{trend:?}");
        assert!(trend.low < 3.0 && trend.high > 3.0, "{trend:?}");
    }

    #[test]
    fn interval_nearly_always_contains_the_slope() {
        let mut inside = 0;
        for seed in 0..200 {
            let seed = f64::from(seed) * 100.0;
            let line = points(24, |x| 20.0f64.mul_add(x, 90.0 * noise(x + seed)));
            let trend = Trend::fit(&line).unwrap();
            inside += i32::from(trend.low <= 20.0 && 20.0 <= trend.high);
        }
        assert!(inside >= 180, "{inside} of 200");
    }

    #[test]
    fn unsteady_values_are_no_steady_rise() {
        let none: [(&str, Vec<(f64, f64)>); 6] = [
            ("nothing changes", points(30, |_| 5.0)),
            ("a sawtooth", points(30, |x| 100.0 * (x % 10.0))),
            ("a rising sawtooth", points(30, |x| 100.0f64.mul_add(x % 10.0, 9.0 * x))),
            ("it comes to rest", points(30, |x| 1000.0 * (1.0 - (-x / 5.0).exp()))),
            ("it jumps once", points(30, |x| if x < 15.0 { 1.0 } else { 900.0 })),
            ("it is full", points(30, |x| 50.0 * x.min(12.0))),
        ];
        for (what, points) in none {
            let trend = Trend::fit(&points).unwrap();
            assert!(!trend.is_steady(&points), "{what}: {trend:?}");
        }
        assert_eq!(Trend::fit(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(Trend::fit(&[(1.0, 1.0); 9]), None);
    }

    #[test]
    fn noise_is_rarely_a_trend() {
        let significant = (0..500).filter(|seed| {
            let noise = points(16, |x| noise(f64::from(*seed).mul_add(100.0, x)));
            Trend::fit(&noise).unwrap().z.abs() > 3.3
        });
        assert!(significant.count() <= 3);
    }
}
