//! When the parts of a run ran, by events of the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::{Clock, PartTime, Result, Times};

use crate::driver::Driver;
use crate::program::{Segment, Step};
use crate::stream::Stream;

/// Times one run.
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
    given: usize,
    /// Submitted waits, of all segments.
    n_waits: usize,
}

/// How much of a segment was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// Nothing more: an answer is missing.
    Nothing,
    /// All launches up to a missing answer.
    Some,
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
            given: 0,
            n_waits: 0,
        }
    }

    /// The part that an op belongs to.
    fn part(&self, op: usize) -> usize {
        self.cuts.partition_point(|cut| *cut <= op)
    }

    /// Submits a segment launch by launch, as far as answers have arrived: a device queues only
    /// a few hundred launches and then blocks the submitting thread, which has to answer.
    pub(crate) fn give(
        &mut self,
        segment: &Segment<D>,
        stream: &Stream<D>,
        n_answered: usize,
    ) -> Result<Given> {
        let open = |timer: &Timer<D>, step: &Step<D>| step.waits && timer.n_waits >= n_answered;
        if segment.launches.get(self.given).is_some_and(|step| open(self, step)) {
            return Ok(Given::Nothing);
        }
        let now = Instant::now();
        if self.began.is_none() {
            self.began = Some((now, stream.mark(true)?));
        }
        self.last = Some((now, self.marks.len()));
        while let rest @ [first, ..] = &segment.launches[self.given..] {
            if open(self, first) {
                return Ok(Given::Some);
            }
            if first.waits {
                // A part that begins with a wait begins when the answer arrives.
                stream.launch(&first.ready)?;
                self.given += 1;
                self.n_waits += 1;
                continue;
            }
            let part = self.part(first.op);
            let same = |step: &&Step<D>| !step.waits && self.part(step.op) == part;
            let n = rest.iter().take_while(same).count();
            let begin = stream.mark(true)?;
            rest[..n].iter().try_for_each(|step| stream.launch(&step.ready))?;
            let end = stream.mark(true)?;
            self.marks.push((part, begin, end));
            self.given += n;
        }
        self.given = 0;
        Ok(Given::Whole)
    }

    /// The times of all parts, once the run is over.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn times(self, driver: &Arc<D>) -> Result<Times> {
        let seen = Instant::now();
        let (Some((given, base)), Some((last, before))) = (self.began, self.last) else {
            return Ok(Times::none());
        };
        let mut spans = Vec::with_capacity(self.marks.len());
        for (part, begin, end) in &self.marks {
            driver.wait(end)?;
            spans.push((*part, driver.seconds(&base, begin)?, driver.seconds(&base, end)?));
        }
        Ok(Times { clock: Clock::Device, parts: placed(given, last, before, seen, &spans) })
    }
}

/// Converts the device's seconds to the host's clock: nothing ran before its submission, or after
/// the host noticed the end. Uses the middle of the allowed range.
fn placed(
    given: Instant,
    last: Instant,
    before: usize,
    seen: Instant,
    spans: &[(usize, f64, f64)],
) -> Vec<PartTime> {
    let host = |at: Instant| at.duration_since(given).as_secs_f64();
    let mut least: f64 = 0.0;
    if let Some((_, begin, _)) = spans.get(before) {
        least = least.max(host(last) - begin);
    }
    let most = spans.last().map_or(least, |(_, _, end)| host(seen) - end);
    let offset = least.midpoint(most.max(least));
    let mut after = given;
    let mut at = |seconds: f64| {
        let passed = Duration::try_from_secs_f64((seconds + offset).max(0.0)).unwrap_or_default();
        after = (given + passed).clamp(after, seen);
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
    /// before the first: so the device's clock begins at least 1 ms after the host's. The end at
    /// 12 ms was seen at 15: so at most 3 ms.
    #[test]
    fn a_device_clock_is_brought_to_the_hosts() {
        let given = Instant::now();
        let ms = |n: u64| given + Duration::from_millis(n);
        let spans = [(0, 0.0, 0.001), (1, 0.001, 0.003), (1, 0.003, 0.004), (2, 0.009, 0.012)];
        let times = placed(given, ms(10), 3, ms(15), &spans);
        let found: Vec<_> = times
            .iter()
            .map(|time| {
                let ms = |at: Instant| (at.duration_since(given).as_secs_f64() * 1e3).round();
                (time.parts.clone(), ms(time.begin), ms(time.end))
            })
            .collect();
        assert_eq!(found, [(0..1, 2.0, 3.0), (1..2, 3.0, 6.0), (2..3, 11.0, 14.0)]);
    }
}
