//! Segments: consecutive layers with one home, whole or cut into legs at streamed layers.

use std::ops::Range;

use hal::{Op, Program, Recorder, Tensor};

use placement::{DeviceIndex, Placement};

use super::{BucketPrograms, Leg, PagedLeg, Recording, Segment, StreamedLayers, view};
use crate::error::Result;
use crate::load::lane::Lane;
use crate::ops::scratch::Scratch;
use crate::paging::Stop;
use crate::timeline::Work;

/// Consecutive layers with one home.
struct LayerRun {
    device: DeviceIndex,
    layers: Range<usize>,
    /// Whether the embedding comes before the layers.
    embeds: bool,
}

/// A program being recorded, with the work of each of its timed spans.
struct TimedRecorder {
    recorder: Recorder,
    works: Vec<Work>,
}

impl TimedRecorder {
    fn new(lane: &Lane, label: &str) -> TimedRecorder {
        TimedRecorder { recorder: lane.device.record(label), works: Vec::new() }
    }

    /// Starts the next timed span.
    fn begin(&mut self, work: Work) {
        if !self.works.is_empty() {
            self.recorder.begin_part();
        }
        self.works.push(work);
    }

    fn push(&mut self, ops: impl IntoIterator<Item = Op<Tensor>>) -> Result<()> {
        Ok(ops.into_iter().try_for_each(|op| self.recorder.push(op))?)
    }

    fn finish(self) -> Result<(Program, Vec<Work>)> {
        Ok((self.recorder.finish()?, self.works))
    }
}

/// The segments of `placement`: the first one begins at the embedding and may have no layers.
fn layer_runs(placement: &Placement) -> Vec<LayerRun> {
    let mut runs = vec![LayerRun { device: placement.embed, layers: 0..0, embeds: true }];
    for (index, layer) in placement.layers.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.device == layer.home => run.layers.end = index + 1,
            _ => {
                runs.push(LayerRun { device: layer.home, layers: index..index + 1, embeds: false });
            }
        }
    }
    runs
}

impl Recording<'_> {
    pub(super) fn segments(
        &self,
        placement: &Placement,
        streamed: &[StreamedLayers],
    ) -> Result<Vec<Segment>> {
        let runs = layer_runs(placement).into_iter().enumerate();
        runs.map(|(number, run)| self.segment(number, &run, streamed)).collect()
    }

    fn segment(
        &self,
        number: usize,
        run: &LayerRun,
        streamed: &[StreamedLayers],
    ) -> Result<Segment> {
        let lane = self.loaded.lane(run.device);
        let layers = &self.loaded.layers;
        let handed = run.layers.clone().filter(|&i| layers[i].mailbox.is_some()).collect();
        if run.layers.clone().any(|index| self.loaded.stops(index).any()) {
            return self.paged_segment(run);
        }
        let streamed = streamed.iter().find(|to| run.layers.clone().any(|i| to.has(i)));
        let via = streamed.map_or(run.device, |to| to.device);
        let n_whole = streamed
            .map_or(self.buckets.len(), |to| self.buckets.partition_point(|&n| n < to.from));
        let mut legs = Vec::new();
        for (bucket, &n) in self.buckets.iter().enumerate().skip(n_whole).rev() {
            let Some(streamed) = streamed else { break };
            legs.push((n, self.legs(run, streamed, bucket)?));
        }
        let mut works = Vec::new();
        let programs = self.record_buckets(&self.buckets[..n_whole], |bucket, n| {
            let mut timed = TimedRecorder::new(lane, &format!("segment {number} x {n}"));
            let scratch = view(&lane.scratch, n);
            if run.embeds {
                timed.begin(Work::Embedding);
                self.embed(&mut timed.recorder, lane, &scratch)?;
            }
            for index in run.layers.clone() {
                self.layer(&mut timed, lane, bucket, &scratch, index)?;
            }
            let (program, spans) = timed.finish()?;
            works = spans;
            Ok(program)
        })?;
        Ok(Segment { device: run.device, handed, works, programs, legs, via, paged: Vec::new() })
    }

    /// Records a segment of the CPU whose weights are partly on disk, the largest token count
    /// first, as in [`Recording::record_buckets`].
    fn paged_segment(&self, run: &LayerRun) -> Result<Segment> {
        let mut paged = Vec::new();
        for (bucket, &n) in self.buckets.iter().enumerate().rev() {
            paged.push((n, self.paged_legs(run, bucket)?));
        }
        paged.reverse();
        Ok(Segment {
            device: run.device,
            handed: Vec::new(),
            works: Vec::new(),
            programs: BucketPrograms::default(),
            legs: Vec::new(),
            via: run.device,
            paged,
        })
    }

    /// Records a segment for a token count. It is cut at the stop of each layer.
    fn paged_legs(&self, run: &LayerRun, bucket: usize) -> Result<Vec<PagedLeg>> {
        let n = self.buckets[bucket];
        let lane = self.loaded.lane(run.device);
        let scratch = view(&lane.scratch, n);
        let mut timed = TimedRecorder::new(lane, &format!("leg {} x {n}", run.layers.start));
        let (mut legs, mut before) = (Vec::new(), None);
        if run.embeds {
            timed.begin(Work::Embedding);
            self.embed(&mut timed.recorder, lane, &scratch)?;
        }
        let mut cut = |timed: &mut TimedRecorder, index: usize, stop: Stop| -> Result<()> {
            let next = TimedRecorder::new(lane, &format!("leg {index} x {n}"));
            let ended = std::mem::replace(timed, next);
            let before = before.replace((index, stop));
            if !ended.works.is_empty() {
                let (program, works) = ended.finish()?;
                legs.push(PagedLeg { before, program, works });
            }
            Ok(())
        };
        for index in run.layers.clone() {
            let stops = self.loaded.stops(index);
            if stops.layer {
                cut(&mut timed, index, Stop::Layer)?;
            }
            let Some(inside) = stops.inside else {
                self.layer(&mut timed, lane, bucket, &scratch, index)?;
                continue;
            };
            let ops = self.layer_ops(lane, bucket, &scratch, index, None);
            timed.begin(Work::Attention(index));
            timed.push(ops.before_neurons())?;
            timed.push(self.guess(lane, bucket, &scratch, index))?;
            let mut rest = ops.ops_after_attention();
            if inside == Stop::Predictor {
                let after = rest.iter().position(|op| matches!(op, Op::Predict(_)));
                timed.push(rest.drain(..after.map_or(0, |at| at + 1)))?;
            }
            cut(&mut timed, index, inside)?;
            timed.begin(Work::Neurons(index));
            timed.push(rest)?;
        }
        let (program, works) = timed.finish()?;
        legs.push(PagedLeg { before, program, works });
        Ok(legs)
    }

    /// Records a segment for a token count at which weights are streamed. It is cut in each
    /// streamed layer, before the ops that follow the feed-forward block.
    fn legs(&self, run: &LayerRun, streamed: &StreamedLayers, bucket: usize) -> Result<Vec<Leg>> {
        let n = self.buckets[bucket];
        let lane = self.loaded.lane(run.device);
        let scratch = view(&lane.scratch, n);
        let begin = |number: usize| TimedRecorder::new(lane, &format!("leg {number} x {n}"));
        let (mut timed, mut handed) = (begin(run.layers.start), Vec::new());
        let mut legs = Vec::new();
        if run.embeds {
            timed.begin(Work::Embedding);
            self.embed(&mut timed.recorder, lane, &scratch)?;
        }
        for index in run.layers.clone() {
            if !streamed.has(index) {
                handed.extend(self.loaded.layers[index].mailbox.is_some().then_some(index));
                self.layer(&mut timed, lane, bucket, &scratch, index)?;
                continue;
            }
            let mut ops = self.layer_ops(lane, bucket, &scratch, index, None);
            if streamed.is_whole(index) {
                ops.own = None;
            }
            timed.begin(Work::Attention(index));
            timed.push(ops.before_neurons())?;
            timed.begin(Work::Neurons(index));
            timed.push(ops.neurons_alone())?;
            let (program, works) = std::mem::replace(&mut timed, begin(index + 1)).finish()?;
            let handed = std::mem::take(&mut handed);
            legs.push(Leg { program, handed, works, then: Some(index) });
            timed.begin(Work::Merge(index));
            timed.push(ops.after_neurons())?;
        }
        let (program, works) = timed.finish()?;
        legs.push(Leg { program, handed, works, then: None });
        Ok(legs)
    }

    /// Guesses which experts or neurons the layer after `index` will use, unless `y` is in use or
    /// the layer's router or predictor may be on disk.
    fn guess(
        &self,
        lane: &Lane,
        bucket: usize,
        scratch: &Scratch<Tensor>,
        index: usize,
    ) -> Vec<Op<Tensor>> {
        let next = index + 1;
        let stops = self.loaded.stops(next);
        if self.model.layers[index].frame.parallel || !stops.is_guessed {
            return Vec::new();
        }
        let ops = || self.layer_ops(lane, bucket, scratch, next, None);
        let guess = match stops.inside {
            Some(Stop::Router) => {
                let weights = self.loaded.guess.as_ref();
                let weights = weights.map(|weights| weights.rows(0..self.buckets[bucket]));
                weights.map(|weights| ops().guess_experts(&weights))
            }
            Some(Stop::Predictor) => {
                let list = lane.lists.as_ref().and_then(|lists| lists.guessed(bucket));
                list.map(|list| ops().guess_neurons(list))
            }
            Some(Stop::Layer) | None => None,
        };
        guess.unwrap_or_default()
    }

    fn layer(
        &self,
        timed: &mut TimedRecorder,
        lane: &Lane,
        bucket: usize,
        scratch: &Scratch<Tensor>,
        index: usize,
    ) -> Result<()> {
        let mailbox = self.loaded.layers[index].mailbox.as_ref();
        let mailbox = mailbox.map(|mailbox| timed.recorder.mailbox(mailbox)).transpose()?;
        let ops = self.layer_ops(lane, bucket, scratch, index, mailbox);
        if ops.facts.ffn.is_none() {
            let all = ops.all_ops();
            if !all.is_empty() {
                timed.begin(Work::Attention(index));
            }
            return timed.push(all);
        }
        timed.begin(Work::Attention(index));
        timed.push(ops.before_neurons())?;
        // The home device posts the hand-off before it computes its resident neurons, so that the
        // other devices can start at the same time.
        if mailbox.is_none() {
            timed.begin(Work::Neurons(index));
        }
        for op in ops.ops_after_attention() {
            if matches!(op, Op::Merge(_)) {
                timed.begin(Work::Merge(index));
            }
            let posted = matches!(op, Op::Post(_));
            timed.push([op])?;
            if posted {
                timed.begin(Work::Neurons(index));
            }
        }
        Ok(())
    }
}
