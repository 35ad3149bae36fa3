//! Dates as text.

use serve::timestamp;
use std::time::SystemTime;

/// The time in UTC, such as `2026-03-01T12:34:56Z`.
pub(crate) fn iso_8601(time: SystemTime) -> String {
    let time = timestamp(time);
    let seconds = time.split('.').next().unwrap_or(&time);
    format!("{seconds}Z")
}

/// The date in UTC, such as `2026-03-01`.
pub(crate) fn today() -> String {
    timestamp(SystemTime::now()).chars().take_while(|c| *c != 'T').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn dates_follow_iso_8601() {
        let at = |seconds| iso_8601(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(1_772_366_096), "2026-03-01T11:54:56Z");
        assert_eq!(today().len(), 10);
    }
}
