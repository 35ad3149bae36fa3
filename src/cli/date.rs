//! Dates as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time in UTC, such as `2026-03-01T12:34:56Z`.
pub(crate) fn iso_8601(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// The date in UTC, such as `2026-03-01`.
pub(crate) fn today() -> String {
    iso_8601(SystemTime::now()).chars().take_while(|c| *c != 'T').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_follow_iso_8601() {
        let at = |seconds| iso_8601(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_772_366_096), "2026-03-01T11:54:56Z");
        assert_eq!(today().len(), 10);
    }
}
