//! Settings of the engine that a node requests in its first message.

use std::time::Duration;

use ddp_doctor_diagnosis::Config;
use ddp_doctor_diagnosis::input::provenance::Provenance;
use ddp_doctor_diagnosis::timing::{TimeScale, Timing};
use ddp_doctor_proto::v1;

/// Factor of all durations; 1 if it is absent or out of range.
#[must_use]
pub fn time_scale(hello: &v1::Hello) -> TimeScale {
    hello.time_scale.and_then(TimeScale::new).unwrap_or_default()
}

/// `Hello.stall_after_s` for the user's limit: in seconds, rounded up. 0 selects the default.
#[must_use]
pub fn stall_after_s(stall_after: Option<Duration>) -> u32 {
    let seconds = stall_after.map_or(0.0, |limit| limit.as_secs_f64().ceil());
    // The conversion saturates.
    seconds as u32
}

/// Settings of the engine. A stall limit set by the user is not scaled.
#[must_use]
pub fn config(hello: &v1::Hello) -> Config {
    let mut config = Config::with_timing(Timing::default().scaled(time_scale(hello)));
    if hello.stall_after_s > 0 {
        config.stall_after = Duration::from_secs(u64::from(hello.stall_after_s));
    }
    if hello.attached {
        config.provenance = Provenance::Attached;
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(stall_after_s: u32, time_scale: Option<f64>) -> v1::Hello {
        v1::Hello { stall_after_s, time_scale, ..v1::Hello::default() }
    }

    #[test]
    fn absent_settings_are_the_defaults() {
        let config = config(&hello(0, None));
        assert_eq!(config.stall_after, Duration::from_secs(60));
        assert_eq!(config.timing, Timing::default());
    }

    #[test]
    fn explicit_stall_limit_is_not_scaled() {
        let scaled = Timing::default().scaled(TimeScale::new(0.1).unwrap());
        let default = config(&hello(0, Some(0.1)));
        assert_eq!(default.stall_after, Duration::from_secs(6));
        assert_eq!(default.timing, scaled);
        let stall_after = config(&hello(20, Some(0.1)));
        assert_eq!(stall_after.stall_after, Duration::from_secs(20));
        assert_eq!(stall_after.timing, scaled);
    }

    #[test]
    fn stall_limit_is_rounded_up_to_seconds() {
        let stall_after = |seconds| stall_after_s(Some(Duration::from_secs_f64(seconds)));
        assert_eq!([stall_after(0.5), stall_after(2.0), stall_after(1e12)], [1, 2, u32::MAX]);
        assert_eq!(stall_after_s(None), 0);
    }

    #[test]
    fn scale_out_of_range_is_ignored() {
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300] {
            assert_eq!(time_scale(&hello(0, Some(factor))), TimeScale::default());
        }
    }
}
