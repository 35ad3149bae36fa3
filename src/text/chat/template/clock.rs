//! The date, for templates that pass it to the model.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A point in time (UTC), split into fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    year: i64,
    /// Month, from 0.
    month: usize,
    /// Day of the month, from 1.
    day: u32,
    /// Day of the week; 0 is Sunday.
    weekday: usize,
    /// Days since the first of January.
    day_of_year: u32,
    /// Seconds since midnight.
    second: u32,
}

impl Clock {
    pub(super) fn new(now: SystemTime) -> Clock {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // Limit the year, so that the sums below cannot overflow.
        let days = i64::try_from(seconds / 86_400).unwrap_or(0).min(3_000_000);
        let (year, month, day) = date(days);
        Clock {
            year,
            month,
            day,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            day_of_year: u32::try_from(days - days_before(year, 0, 1)).unwrap_or(0),
            second: u32::try_from(seconds % 86_400).unwrap_or(0),
        }
    }

    /// The time in the format of C's `strftime`; unknown specifiers are copied.
    pub(super) fn strftime(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = rest.next();
            let unpadded = code == Some('-');
            if unpadded {
                code = rest.next();
            }
            match code.and_then(|code| self.field(code)) {
                Some(text) if unpadded => {
                    let shorter = text.trim_start_matches(['0', ' ']);
                    out.push_str(if shorter.is_empty() { "0" } else { shorter });
                }
                Some(text) => out.push_str(&text),
                None => {
                    out.push('%');
                    out.extend(unpadded.then_some('-'));
                    out.extend(code);
                }
            }
        }
        out
    }

    fn field(&self, code: char) -> Option<String> {
        let Clock { year, month, day, weekday, day_of_year, second } = *self;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let hour_of_12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        Some(match code {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{:02}", month + 1),
            'B' => MONTHS[month].to_owned(),
            'b' | 'h' => MONTHS[month][..3].to_owned(),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", day_of_year + 1),
            'A' => DAYS[weekday].to_owned(),
            'a' => DAYS[weekday][..3].to_owned(),
            'w' => weekday.to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", second % 60),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'F' => self.strftime("%Y-%m-%d"),
            'T' => self.strftime("%H:%M:%S"),
            'D' => self.strftime("%m/%d/%y"),
            'R' => self.strftime("%H:%M"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Year, month from 0 and day from 1 of a number of days since the beginning of 1970.
fn date(days: i64) -> (i64, usize, u32) {
    // Start with a lower bound of the year.
    let mut year = 1970 + days / 366;
    while days_before(year + 1, 0, 1) <= days {
        year += 1;
    }
    let month = (0..12).rev().find(|&month| days_before(year, month, 1) <= days).unwrap_or(0);
    let day = days - days_before(year, month, 1) + 1;
    (year, month, u32::try_from(day).unwrap_or(1))
}

/// Days from the beginning of 1970 to a date; `month` counts from 0, `day` from 1.
fn days_before(year: i64, month: usize, day: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap_days = |y: i64| y / 4 - y / 100 + y / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    years + lengths[..month].iter().sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        Clock::new(UNIX_EPOCH + Duration::from_secs(seconds)).strftime(format)
    }

    #[test]
    fn dates_are_formatted() {
        assert_eq!(at(0, "%Y-%m-%d %A %j"), "1970-01-01 Thursday 001");
        assert_eq!(at(951_782_400, "%d %b %Y"), "29 Feb 2000");
        assert_eq!(at(1_722_006_245, "%F %T %a %I %p %y"), "2024-07-26 15:04:05 Fri 03 PM 24");
        assert_eq!(at(4_107_542_399, "%Y-%m-%d"), "2100-02-28");
        assert_eq!(at(4_107_542_400, "%Y-%m-%d %-d %-m"), "2100-03-01 1 3");
        assert_eq!(at(1 << 60, "%M").len(), 2);
    }

    #[test]
    fn unknown_specifiers_stay() {
        assert_eq!(at(0, "%% %Q %-Q %"), "% %Q %-Q %");
        assert_eq!(at(0, "%-H %e é"), "0  1 é");
    }
}
