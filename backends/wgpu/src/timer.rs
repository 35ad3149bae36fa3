//! Records when each part of a run begins and ends: by the device's timestamps if it has them,
//! otherwise by when the host sees the end of a segment.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hal::{Clock, PartTime, Result, Times};

use crate::copies::{request_mapping, wait_for_mapping};
use crate::gpu::Gpu;

/// Maximum number of timestamps of a run: wgpu's limit for a query set. Later parts are not timed.
const MAX_TIMESTAMPS: u32 = wgpu::QUERY_SET_MAX_QUERIES;
const TIMESTAMP_BYTES: u64 = MAX_TIMESTAMPS as u64 * wgpu::QUERY_SIZE as u64;

/// Memory for the timestamps of one run, reused by later runs.
#[derive(Debug)]
pub(crate) struct Timestamps {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
}

impl Timestamps {
    /// Allocates the memory; `None` if the device has no timestamps.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn new(gpu: &Gpu) -> Result<Option<Timestamps>> {
        if !gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(None);
        }
        let set = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: MAX_TIMESTAMPS,
        });
        let resolved = gpu.query_resolve("times", TIMESTAMP_BYTES)?;
        Ok(Some(Timestamps { set, resolved, readback: gpu.readback("times", TIMESTAMP_BYTES)? }))
    }
}

#[derive(Debug)]
struct SubmittedSegment {
    parts: Range<usize>,
    /// Indices of the segment's passes with timestamps.
    passes: Range<usize>,
    /// When the segment was submitted.
    at: Instant,
    /// When the host saw the end of the segment.
    seen: Arc<OnceLock<Instant>>,
}

/// Measures when the parts of one run begin and end.
#[derive(Debug)]
pub(crate) struct Timer {
    cuts: Box<[usize]>,
    stamps: Option<Timestamps>,
    /// The part of each pass with timestamps.
    passes: Vec<usize>,
    segments: Vec<SubmittedSegment>,
}

impl Timer {
    pub(crate) fn new(cuts: &[usize], stamps: Option<Timestamps>) -> Timer {
        Timer { cuts: cuts.into(), stamps, passes: Vec::new(), segments: Vec::new() }
    }

    /// The part that an op belongs to.
    pub(crate) fn part(&self, op: usize) -> usize {
        self.cuts.partition_point(|cut| *cut <= op)
    }

    pub(crate) fn n_passes(&self) -> usize {
        self.passes.len()
    }

    /// Where the next pass writes its timestamps; `None` if the device has no timestamps or the run
    /// has used [`MAX_TIMESTAMPS`].
    pub(crate) fn pass(&mut self, part: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let stamps = self.stamps.as_ref()?;
        let first = 2 * self.passes.len() as u32;
        if first + 2 > MAX_TIMESTAMPS {
            return None;
        }
        self.passes.push(part);
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &stamps.set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Records the submission of a segment that runs `ops` and whose first timed pass is `first`.
    pub(crate) fn submitted(&mut self, gpu: &Gpu, ops: Range<usize>, first: usize, at: Instant) {
        let seen = Arc::new(OnceLock::new());
        let recorded = Arc::clone(&seen);
        gpu.queue.on_submitted_work_done(move || {
            // The callback runs once.
            let _ = recorded.set(Instant::now());
        });
        let parts =
            if ops.is_empty() { 0..0 } else { self.part(ops.start)..self.part(ops.end - 1) + 1 };
        self.segments.push(SubmittedSegment { parts, passes: first..self.passes.len(), at, seen });
    }

    /// The times of all parts, once the run is over, and the timestamp memory.
    ///
    /// # Errors
    /// A lost device, [`hal::Error::Driver`].
    pub(crate) fn times(&mut self, gpu: &Gpu) -> Result<(Times, Option<Timestamps>)> {
        let Some(stamps) = self.stamps.take() else {
            return Ok((self.observed_times(), None));
        };
        let n = 2 * self.passes.len() as u32;
        if n == 0 {
            return Ok((Times::none(), Some(stamps)));
        }
        let mut encoder = gpu.encoder("times");
        encoder.resolve_query_set(&stamps.set, 0..n, &stamps.resolved, 0);
        let size = u64::from(n) * u64::from(wgpu::QUERY_SIZE);
        encoder.copy_buffer_to_buffer(&stamps.resolved, 0, &stamps.readback, 0, size);
        let submission = gpu.submit(Some(encoder.finish()));
        let request = request_mapping(&stamps.readback);
        let view = wait_for_mapping(gpu, &stamps.readback, &submission, &request)?;
        let period = f64::from(gpu.queue.get_timestamp_period());
        let words = view[..size as usize].chunks_exact(8);
        let ticks: Vec<u64> = words
            .map(|word| u64::from_le_bytes(word.try_into().expect("the chunk has 8 bytes")))
            .collect();
        drop(view);
        stamps.readback.unmap();
        let first = ticks[0];
        let since = |tick: u64| tick.wrapping_sub(first).cast_signed() as f64 * period * 1e-9;
        let passes: Vec<[f64; 2]> =
            ticks.chunks_exact(2).map(|pair| [since(pair[0]), since(pair[1])]).collect();
        Ok((Times { clock: Clock::Device, parts: self.to_host_clock(&passes) }, Some(stamps)))
    }

    /// Converts the device's seconds, which have an arbitrary origin, to the host's clock. No
    /// segment ran before its submission or after the host saw its end, which bounds the offset
    /// between the clocks; this function uses the middle of that range.
    fn to_host_clock(&self, passes: &[[f64; 2]]) -> Vec<PartTime> {
        let Some(base) = self.segments.first().map(|segment| segment.at) else {
            return Vec::new();
        };
        let host = |at: Instant| at.duration_since(base).as_secs_f64();
        let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
        for segment in &self.segments {
            let Some(timed) = passes.get(segment.passes.clone()).filter(|p| !p.is_empty()) else {
                continue;
            };
            least = least.max(host(segment.at) - timed[0][0]);
            if let Some(seen) = segment.seen.get() {
                most = most.min(host(*seen) - timed[timed.len() - 1][1]);
            }
        }
        let offset = if most.is_finite() { least.midpoint(most) } else { least };
        if !offset.is_finite() {
            return Vec::new();
        }
        let now = Instant::now();
        let mut last = base;
        let mut at = |seconds: f64| {
            let after =
                Duration::try_from_secs_f64((seconds + offset).max(0.0)).unwrap_or_default();
            last = (base + after).clamp(last, now);
            last
        };
        let mut times: Vec<PartTime> = Vec::new();
        for (&part, pass) in self.passes.iter().zip(passes) {
            let (begin, end) = (at(pass[0]), at(pass[1]));
            match times.last_mut().filter(|time| time.parts.start == part) {
                Some(time) => time.end = end,
                None => times.push(PartTime { parts: part..part + 1, begin, end }),
            }
        }
        times
    }

    /// Times of the segments without timestamps: from submission until the host saw the end.
    fn observed_times(&self) -> Times {
        let mut times: Vec<PartTime> = Vec::new();
        for segment in self.segments.iter().filter(|segment| !segment.parts.is_empty()) {
            let last = times.last().map(|time| (time.end, time.parts.end));
            let (after, listed) = last.unwrap_or((segment.at, 0));
            let begin = segment.at.max(after);
            let end = segment.seen.get().copied().unwrap_or_else(Instant::now).max(begin);
            // If a segment continues a part, that part is in the list already.
            let parts = segment.parts.start.max(listed)..segment.parts.end;
            match times.last_mut() {
                Some(last) if parts.is_empty() => last.end = end,
                Some(_) | None => times.push(PartTime { parts, begin, end }),
            }
        }
        Times { clock: Clock::Observed, parts: times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(
        parts: Range<usize>,
        passes: Range<usize>,
        at: Instant,
        seen: u64,
    ) -> SubmittedSegment {
        let lock = OnceLock::new();
        lock.set(at + Duration::from_millis(seen)).unwrap();
        SubmittedSegment { parts, passes, at, seen: Arc::new(lock) }
    }

    /// Two segments were submitted at 0 ms and 10 ms, and the host saw their ends 6 ms and 7 ms
    /// later. The device measured 3 ms for each, and 9 ms between their beginnings. So the first
    /// began at 1 ms or later, because the second cannot begin before 10 ms, and at 3 ms or
    /// earlier, because the host saw its end at 6 ms.
    #[test]
    fn device_times_are_converted_to_the_hosts_clock() {
        let base = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let second = base + Duration::from_millis(10);
        let timer = Timer {
            cuts: [2, 4].into(),
            stamps: None,
            passes: vec![0, 1, 2],
            segments: vec![submitted(0..2, 0..2, base, 6), submitted(2..3, 2..3, second, 7)],
        };
        let passes = [[0.0, 0.001], [0.001, 0.003], [0.009, 0.012]];
        let times = timer.to_host_clock(&passes);
        let found: Vec<_> = times
            .iter()
            .map(|time| {
                let ms = |at: Instant| (at.duration_since(base).as_secs_f64() * 1e4).round() / 10.0;
                (time.parts.clone(), ms(time.begin), ms(time.end))
            })
            .collect();
        assert_eq!(found, [(0..1, 2.0, 3.0), (1..2, 3.0, 5.0), (2..3, 11.0, 14.0)]);
        let observed = timer.observed_times();
        assert_eq!(observed.clock, Clock::Observed);
        assert_eq!(observed.parts[0].parts, 0..2);
        assert_eq!(observed.parts[1].begin, second);
    }
}
