//! One clock for the client's rows and the service, so that "the handler ended 3 ms after the cancel" is a
//! difference of two readings and not of two clocks.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The clock of the service's replies, for whoever runs it in this process: microseconds since the process first asked.
/// Never goes back.
#[must_use]
pub fn now_us() -> u64 {
    // A process runs for less than 500,000 years.
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// From `from_us` to `to_us` in milliseconds; negative when `to_us` is earlier.
pub(crate) fn ms_between(from_us: u64, to_us: u64) -> f64 {
    let (sign, apart) = if to_us >= from_us { (1.0, to_us - from_us) } else { (-1.0, from_us - to_us) };
    sign * Duration::from_micros(apart).as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_a_sign() {
        assert_eq!(ms_between(1_000, 3_500), 2.5);
        assert_eq!(ms_between(3_500, 1_000), -2.5);
    }
}
