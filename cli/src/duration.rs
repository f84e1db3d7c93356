//! Durations as people write them: `500ms`, `30s`, `1m 30s`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The shortest lease that can be renewed in time over a network.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest lease that any node allows.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often nodes may be asked.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// How long to wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitLimit {
    Forever,
    AtMost(Duration),
}

/// Any duration except zero.
pub fn span(text: &str) -> Result<Duration, String> {
    match parsed(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        span => Ok(span),
    }
}

/// How often the nodes are asked by what shows them live.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = parsed(text)?;
    if !INTERVALS.contains(&interval) {
        return Err("it must be between 100ms and 10s".to_owned());
    }
    Ok(interval)
}

/// The length of a lease.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = parsed(text)?;
    if lease < SHORTEST_LEASE {
        return Err(
            "a lease this short ends before it can be renewed: use 100ms or more".to_owned(),
        );
    }
    if lease > LONGEST_LEASE {
        return Err("no node grants a lease of more than 7 days".to_owned());
    }
    Ok(lease)
}

/// A time to wait: seconds as in flock(1), a duration, or `forever`.
pub fn wait_limit(text: &str) -> Result<WaitLimit, String> {
    if text == "forever" {
        return Ok(WaitLimit::Forever);
    }
    let wait = seconds(text).map_or_else(|| parsed(text), Ok);
    wait.map(WaitLimit::AtMost)
        .map_err(|hint| format!("{hint}; or a number of seconds, or forever"))
}

/// A plain number, perhaps with a fraction.
fn seconds(text: &str) -> Option<Duration> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let number = text.chars().all(digits).then(|| text.parse().ok())??;
    Duration::try_from_secs_f64(number).ok()
}

fn parsed(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|_| "write a number with a unit: 500ms, 30s, 5m, 1h".to_owned())
}

/// For people: only as exact as it matters.
pub fn shown(span: Duration) -> String {
    let millis = span.as_millis();
    let whole = Duration::from_secs(span.as_secs());
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..10_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        10_000..60_000 => format!("{} s", millis / 1_000),
        _ => humantime::format_duration(whole).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_longer_than_nothing_and_not_longer_than_nodes_allow() {
        for wrong in ["0", "0s", "1ms", "8d", "30", "-1s", "soon", ""] {
            assert!(lease(wrong).is_err(), "{wrong:?} was accepted");
        }
        assert_eq!(lease("1m 30s"), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn a_wait_is_given_in_seconds_with_a_unit_or_as_forever() {
        let at_most = |millis| Ok(WaitLimit::AtMost(Duration::from_millis(millis)));
        assert_eq!(wait_limit("0"), at_most(0));
        assert_eq!(wait_limit("2s"), at_most(2_000));
        assert_eq!(wait_limit("10"), at_most(10_000));
        assert_eq!(wait_limit("0.5"), at_most(500));
        assert_eq!(wait_limit("forever"), Ok(WaitLimit::Forever));
        for wrong in [
            "never",
            "inf",
            "NaN",
            "-1",
            "1e3",
            "",
            ".",
            "1.2.3",
            "99999999999999999999999",
        ] {
            assert!(wait_limit(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn people_see_no_more_digits_than_matter() {
        assert_eq!(shown(Duration::from_micros(12_300)), "12 ms");
        assert_eq!(shown(Duration::from_millis(2_349)), "2.3 s");
        assert_eq!(shown(Duration::from_millis(28_900)), "28 s");
        assert_eq!(shown(Duration::from_millis(61_900)), "1m 1s");
    }
}
