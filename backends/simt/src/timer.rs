//! Measures when each part of a run begins and ends, by events on the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::{Clock, PartTime, Result, Times};

use crate::driver::Driver;
use crate::program::{ProgramLaunch, Segment};
use crate::stream::Stream;

#[derive(Debug)]
pub(crate) struct Timer<D: Driver> {
    cuts: Box<[usize]>,
    /// The part, and the events around its launches, waits excluded.
    marks: Vec<(usize, D::Event, D::Event)>,
    /// When the first segment was submitted, and an event before it.
    began: Option<(Instant, D::Event)>,
    /// When the last launch was submitted, and the number of marks before it.
    last: Option<(Instant, usize)>,
    /// Launches of the segment that were submitted.
    n_submitted: usize,
    /// Number of waits submitted so far, in all segments.
    n_waits: usize,
}

/// How much of a segment was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmittedPart {
    /// Nothing, because an answer is missing.
    Nothing,
    /// All launches up to a missing answer.
    Partly,
    /// All remaining launches.
    Whole,
}

impl<D: Driver> Timer<D> {
    pub(crate) fn new(cuts: &[usize]) -> Timer<D> {
        Timer {
            cuts: cuts.into(),
            marks: Vec::new(),
            began: None,
            last: None,
            n_submitted: 0,
            n_waits: 0,
        }
    }

    fn part(&self, op: usize) -> usize {
        self.cuts.partition_point(|cut| *cut <= op)
    }

    /// Submits the launches of a segment, up to the first wait whose answer is missing: a device
    /// queues only a few hundred launches and then blocks this thread, which has to answer.
    pub(crate) fn submit(
        &mut self,
        segment: &Segment<D>,
        stream: &Stream<D>,
        n_answered: usize,
    ) -> Result<SubmittedPart> {
        let is_blocked = |timer: &Timer<D>, launch: &ProgramLaunch<D>| {
            launch.waits && timer.n_waits >= n_answered
        };
        if segment.launches.get(self.n_submitted).is_some_and(|launch| is_blocked(self, launch)) {
            return Ok(SubmittedPart::Nothing);
        }
        let now = Instant::now();
        if self.began.is_none() {
            self.began = Some((now, stream.mark(true)?));
        }
        self.last = Some((now, self.marks.len()));
        while let rest @ [first, ..] = &segment.launches[self.n_submitted..] {
            if is_blocked(self, first) {
                return Ok(SubmittedPart::Partly);
            }
            if first.waits {
                // Waits are not timed: a part that starts with a wait begins when the answer
                // arrives.
                stream.launch(&first.loaded)?;
                self.n_submitted += 1;
                self.n_waits += 1;
                continue;
            }
            let part = self.part(first.op);
            let same = |launch: &&ProgramLaunch<D>| !launch.waits && self.part(launch.op) == part;
            let n = rest.iter().take_while(same).count();
            let begin = stream.mark(true)?;
            rest[..n].iter().try_for_each(|launch| stream.launch(&launch.loaded))?;
            let end = stream.mark(true)?;
            self.marks.push((part, begin, end));
            self.n_submitted += n;
        }
        self.n_submitted = 0;
        Ok(SubmittedPart::Whole)
    }

    /// The times of all parts, once the run is over.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn times(self, driver: &Arc<D>) -> Result<Times> {
        let seen = Instant::now();
        let (Some((submitted, base)), Some((last, before))) = (self.began, self.last) else {
            return Ok(Times::none());
        };
        let mut spans = Vec::with_capacity(self.marks.len());
        for (part, begin, end) in &self.marks {
            driver.wait(end)?;
            spans.push((*part, driver.seconds(&base, begin)?, driver.seconds(&base, end)?));
        }
        Ok(Times {
            clock: Clock::Device,
            parts: to_host_clock(submitted, last, before, seen, &spans),
        })
    }
}

/// Converts the device's seconds to the host's clock. No launch ran before its submission or after
/// the host saw the end, which bounds the offset of the clocks. The result uses the middle of the
/// bounds.
fn to_host_clock(
    submitted: Instant,
    last: Instant,
    before: usize,
    seen: Instant,
    spans: &[(usize, f64, f64)],
) -> Vec<PartTime> {
    let host = |at: Instant| at.duration_since(submitted).as_secs_f64();
    let mut min_offset: f64 = 0.0;
    if let Some((_, begin, _)) = spans.get(before) {
        min_offset = min_offset.max(host(last) - begin);
    }
    let max_offset = spans.last().map_or(min_offset, |(_, _, end)| host(seen) - end);
    let offset = min_offset.midpoint(max_offset.max(min_offset));
    let mut after = submitted;
    let mut at = |seconds: f64| {
        let passed = Duration::try_from_secs_f64((seconds + offset).max(0.0)).unwrap_or_default();
        after = (submitted + passed).clamp(after, seen);
        after
    };
    let mut times: Vec<PartTime> = Vec::new();
    for &(part, begin, end) in spans {
        let (begin, end) = (at(begin), at(end));
        match times.last_mut().filter(|time| time.parts.start == part) {
            Some(time) => time.end = end,
            None => times.push(PartTime { parts: part..part + 1, begin, end }),
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second segment was submitted 10 ms after the first and began 9 ms after the event
    /// before the first, so the device's clock starts at least 1 ms after the host's. The last
    /// launch ended at 12 ms of the device's clock, and the host saw that at 15 ms of its own
    /// clock, so the device's clock starts at most 3 ms after the host's.
    #[test]
    fn device_times_are_converted_to_the_hosts_clock() {
        let submitted = Instant::now();
        let ms = |n: u64| submitted + Duration::from_millis(n);
        let spans = [(0, 0.0, 0.001), (1, 0.001, 0.003), (1, 0.003, 0.004), (2, 0.009, 0.012)];
        let times = to_host_clock(submitted, ms(10), 3, ms(15), &spans);
        let found: Vec<_> = times
            .iter()
            .map(|time| {
                let ms = |at: Instant| (at.duration_since(submitted).as_secs_f64() * 1e3).round();
                (time.parts.clone(), ms(time.begin), ms(time.end))
            })
            .collect();
        assert_eq!(found, [(0..1, 2.0, 3.0), (1..2, 3.0, 6.0), (2..3, 11.0, 14.0)]);
    }
}
