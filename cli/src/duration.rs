//! Durations as people write them: `500ms`, `30s`, `1m 30s`.

use std::time::Duration;

/// The shortest lease that can be kept up over a network.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest lease that any node allows.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long to wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    Forever,
    AtMost(Duration),
}

/// Any time but none.
pub fn span(text: &str) -> Result<Duration, String> {
    match parsed(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        span => Ok(span),
    }
}

/// The length of a lease.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = parsed(text)?;
    if lease < SHORTEST_LEASE {
        return Err(
            "a lease this short is over before it is of use: give 100ms or more".to_owned(),
        );
    }
    if lease > LONGEST_LEASE {
        return Err(
            "no node gives a lease of more than 7 days: give less, it is renewed".to_owned(),
        );
    }
    Ok(lease)
}

/// A time to wait, `0` or `forever`.
pub fn patience(text: &str) -> Result<Patience, String> {
    match text {
        "forever" => Ok(Patience::Forever),
        _ => match parsed(text) {
            Ok(wait) => Ok(Patience::AtMost(wait)),
            Err(hint) => Err(format!("{hint}; or 0, or forever")),
        },
    }
}

fn parsed(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|_| "write a number with a unit: 500ms, 30s, 5m, 1h".to_owned())
}

/// For people: as exact as it matters.
pub fn shown(span: Duration) -> String {
    let millis = span.as_millis();
    let whole = Duration::from_secs(span.as_secs());
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..10_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        _ => humantime::format_duration(whole).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_neither_nothing_nor_longer_than_nodes_give() {
        for wrong in ["0", "0s", "1ms", "8d", "30", "-1s", "soon", ""] {
            assert!(lease(wrong).is_err(), "{wrong:?} was taken");
        }
        assert_eq!(lease("1m 30s"), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn one_may_wait_for_no_time_for_some_or_for_ever() {
        assert_eq!(patience("0"), Ok(Patience::AtMost(Duration::ZERO)));
        assert_eq!(patience("2s"), Ok(Patience::AtMost(Duration::from_secs(2))));
        assert_eq!(patience("forever"), Ok(Patience::Forever));
        assert!(patience("never").is_err());
    }

    #[test]
    fn people_see_no_more_digits_than_matter() {
        assert_eq!(shown(Duration::from_micros(12_300)), "12ms");
        assert_eq!(shown(Duration::from_millis(2_349)), "2.3s");
        assert_eq!(shown(Duration::from_millis(61_900)), "1m 1s");
    }
}
