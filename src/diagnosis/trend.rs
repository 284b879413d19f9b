//! Trends that a few odd values do not disturb.
//!
//! The slope is the median of the slopes between all pairs of points: H. Theil, "A rank-invariant method
//! of linear and polynomial regression analysis" (1950); P. K. Sen, "Estimates of the regression
//! coefficient based on Kendall's tau" (1968), which also gives the confidence interval by the ranks of
//! those slopes. Up to 29 % of the points may be anything. Whether there is a trend at all is Mann's and
//! Kendall's test (H. B. Mann, "Nonparametric tests against trend", 1945), with Kendall's correction for
//! values that are equal.
//!
//! That test takes points for independent, and memory is not: what was allocated stays. So a trend has to
//! be steady as well, see [`Trend::is_steady`].

/// Standard deviations of the two-sided 95 % interval.
const WITHIN: f64 = 1.96;
/// How far the values may fall back on their way, as a share of what they rise by.
const FALLS_BACK: f64 = 0.2;
/// The least slope of each third of the points, as a share of that of all …
const EACH_THIRD: f64 = 0.4;
/// … and of the last one: what fills by less and less (a cache of samples that are drawn at random) is on
/// its way to rest.
const LAST_THIRD: f64 = 0.6;

/// How values change with the steps at which they were seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Change per step.
    pub slope: f64,
    /// With 95 % confidence, at least so much …
    pub low: f64,
    /// … and at most so much.
    pub high: f64,
    /// The farthest that a value is from the line.
    pub scatter: f64,
    /// How far the number of pairs that rise is from what chance would make it, in standard deviations.
    pub z: f64,
}

impl Trend {
    /// The trend of points in ascending order of their steps; `None`: there are too few for one.
    ///
    /// Takes a time that is quadratic in their number.
    #[must_use]
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
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
        let z = match deviation > 0.0 {
            true => (rises.abs() - 1).max(0) as f64 / deviation * rises.signum() as f64,
            false => 0.0,
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

    /// Whether these points, of which it is the trend, rise all the way: hardly fall back, and in each
    /// third of them as they do on the whole. What comes to rest (a cache that is full, a program that is
    /// warm) does not, nor what jumps once, nor what goes up and down.
    #[must_use]
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

/// The middle one of values in order.
fn median(values: &[f64]) -> f64 {
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[half - 1], values[half])
    } else {
        values[half]
    }
}

/// How far the points are, at most, from the line of this slope that has half of them below it.
fn scatter(points: &[(f64, f64)], slope: f64) -> f64 {
    let mut above: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    above.sort_unstable_by(f64::total_cmp);
    let middle = median(&above);
    let ends = above.first().into_iter().chain(above.last());
    ends.map(|it| (it - middle).abs()).fold(0.0, f64::max)
}

/// Variance of the number of pairs that rise less those that fall, if there is no trend.
fn variance(points: &[(f64, f64)]) -> f64 {
    let term = |n: usize| (n * n.saturating_sub(1) * (2 * n + 5)) as f64;
    let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    values.sort_unstable_by(f64::total_cmp);
    let equal: f64 = values
        .chunk_by(|a, b| a.total_cmp(b).is_eq())
        .map(|equal| term(equal.len()))
        .sum();
    (term(points.len()) - equal) / 18.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(n: u32, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let x = (0..n).map(f64::from);
        x.map(|x| (x, value(x))).collect()
    }

    /// Always the same, in 0 … 1.
    fn noise(x: f64) -> f64 {
        ((x * 12.9898).sin() * 43_758.545_3).rem_euclid(1.0)
    }

    #[test]
    fn a_line_is_its_own_trend() {
        let line = points(20, |x| 3.0f64.mul_add(x, 7.0));
        let trend = Trend::of(&line).unwrap();
        assert_eq!((trend.slope, trend.low, trend.high), (3.0, 3.0, 3.0));
        assert!(trend.z > 6.0 && trend.is_steady(&line), "{trend:?}");
    }

    #[test]
    fn odd_values_do_not_disturb_it() {
        let mut line = points(20, |x| 3.0f64.mul_add(x, 2.0 * noise(x)));
        for at in [3, 8, 12, 17] {
            line[at].1 = 1e6 * noise(at as f64);
        }
        let trend = Trend::of(&line).unwrap();
        assert!((trend.slope - 3.0).abs() < 0.3, "{trend:?}");
        assert!(trend.low < 3.0 && trend.high > 3.0, "{trend:?}");
    }

    #[test]
    fn the_interval_has_what_is_true_nearly_always() {
        let mut inside = 0;
        for seed in 0..200 {
            let seed = f64::from(seed) * 100.0;
            let line = points(24, |x| 20.0f64.mul_add(x, 90.0 * noise(x + seed)));
            let trend = Trend::of(&line).unwrap();
            inside += i32::from(trend.low <= 20.0 && 20.0 <= trend.high);
        }
        assert!(inside >= 180, "{inside} of 200");
    }

    #[test]
    fn what_is_no_steady_rise_is_none() {
        let none: [(&str, Vec<(f64, f64)>); 6] = [
            ("nothing changes", points(30, |_| 5.0)),
            ("a sawtooth", points(30, |x| 100.0 * (x % 10.0))),
            (
                "a rising sawtooth",
                points(30, |x| 100.0f64.mul_add(x % 10.0, 9.0 * x)),
            ),
            (
                "it comes to rest",
                points(30, |x| 1000.0 * (1.0 - (-x / 5.0).exp())),
            ),
            (
                "it jumps once",
                points(30, |x| if x < 15.0 { 1.0 } else { 900.0 }),
            ),
            ("it is full", points(30, |x| 50.0 * x.min(12.0))),
        ];
        for (what, points) in none {
            let trend = Trend::of(&points).unwrap();
            assert!(!trend.is_steady(&points), "{what}: {trend:?}");
        }
        assert_eq!(Trend::of(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(Trend::of(&[(1.0, 1.0); 9]), None);
    }

    #[test]
    fn noise_is_hardly_ever_a_trend() {
        let significant = (0..500).filter(|seed| {
            let noise = points(16, |x| noise(f64::from(*seed).mul_add(100.0, x)));
            Trend::of(&noise).unwrap().z.abs() > 3.3
        });
        assert!(significant.count() <= 3);
    }
}
