//! Segments: consecutive layers with one home, whole or cut into legs at streamed layers.

use std::ops::Range;

use hal::{Op, Program, Recorder, Tensor};

use placement::{DeviceIndex, Placement};

use super::{Leg, Recording, Segment, StreamedLayers, view};
use crate::error::Result;
use crate::load::lane::Lane;
use crate::ops::scratch::Scratch;
use crate::timeline::Work;

/// Consecutive layers with one home.
struct Home {
    device: DeviceIndex,
    layers: Range<usize>,
    /// Whether the embedding comes before the layers.
    embeds: bool,
}

/// A program being recorded, with the work of each of its timed spans.
struct Timed {
    recorder: Recorder,
    works: Vec<Work>,
}

impl Timed {
    fn new(lane: &Lane, label: &str) -> Timed {
        Timed { recorder: lane.device.record(label), works: Vec::new() }
    }

    /// Starts the next timed span.
    fn begin(&mut self, work: Work) {
        if !self.works.is_empty() {
            self.recorder.part();
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
fn homes(placement: &Placement) -> Vec<Home> {
    let mut homes = vec![Home { device: placement.embed, layers: 0..0, embeds: true }];
    for (index, layer) in placement.layers.iter().enumerate() {
        match homes.last_mut() {
            Some(home) if home.device == layer.home => home.layers.end = index + 1,
            _ => {
                homes.push(Home { device: layer.home, layers: index..index + 1, embeds: false });
            }
        }
    }
    homes
}

impl Recording<'_> {
    pub(super) fn segments(
        &self,
        placement: &Placement,
        streamed: &[StreamedLayers],
    ) -> Result<Vec<Segment>> {
        let homes = homes(placement).into_iter().enumerate();
        homes.map(|(number, home)| self.segment(number, &home, streamed)).collect()
    }

    fn segment(&self, number: usize, home: &Home, streamed: &[StreamedLayers]) -> Result<Segment> {
        let lane = self.loaded.lane(home.device);
        let layers = &self.loaded.layers;
        let handed = home.layers.clone().filter(|&i| layers[i].mailbox.is_some()).collect();
        let streamed = streamed.iter().find(|to| home.layers.clone().any(|i| to.has(i)));
        let via = streamed.map_or(home.device, |to| to.device);
        let n_whole =
            streamed.map_or(self.rungs.len(), |to| self.rungs.partition_point(|&n| n < to.from));
        let mut legs = Vec::new();
        for (rung, &n) in self.rungs.iter().enumerate().skip(n_whole).rev() {
            let Some(streamed) = streamed else { break };
            legs.push((n, self.legs(home, streamed, rung)?));
        }
        let mut works = Vec::new();
        let programs = self.ladder(&self.rungs[..n_whole], |rung, n| {
            let mut timed = Timed::new(lane, &format!("segment {number} x {n}"));
            let scratch = view(&lane.scratch, n);
            if home.embeds {
                timed.begin(Work::Embedding);
                self.embed(&mut timed.recorder, lane, &scratch)?;
            }
            for index in home.layers.clone() {
                self.layer(&mut timed, lane, rung, &scratch, index)?;
            }
            let (program, spans) = timed.finish()?;
            works = spans;
            Ok(program)
        })?;
        Ok(Segment { device: home.device, handed, works, programs, legs, via })
    }

    /// A segment for a rung that streams: cut after each layer whose weights are streamed.
    fn legs(&self, home: &Home, streamed: &StreamedLayers, rung: usize) -> Result<Vec<Leg>> {
        let n = self.rungs[rung];
        let lane = self.loaded.lane(home.device);
        let scratch = view(&lane.scratch, n);
        let begin = |number: usize| Timed::new(lane, &format!("leg {number} x {n}"));
        let (mut timed, mut handed) = (begin(home.layers.start), Vec::new());
        let mut legs = Vec::new();
        if home.embeds {
            timed.begin(Work::Embedding);
            self.embed(&mut timed.recorder, lane, &scratch)?;
        }
        for index in home.layers.clone() {
            if !streamed.has(index) {
                handed.extend(self.loaded.layers[index].mailbox.is_some().then_some(index));
                self.layer(&mut timed, lane, rung, &scratch, index)?;
                continue;
            }
            let mut ops = self.layer_ops(lane, rung, &scratch, index, None);
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

    fn layer(
        &self,
        timed: &mut Timed,
        lane: &Lane,
        rung: usize,
        scratch: &Scratch<Tensor>,
        index: usize,
    ) -> Result<()> {
        let mailbox = self.loaded.layers[index].mailbox.as_ref();
        let mailbox = mailbox.map(|mailbox| timed.recorder.mailbox(mailbox)).transpose()?;
        let ops = self.layer_ops(lane, rung, scratch, index, mailbox);
        if ops.facts.ffn.is_none() {
            let all = ops.list();
            if !all.is_empty() {
                timed.begin(Work::Attention(index));
            }
            return timed.push(all);
        }
        timed.begin(Work::Attention(index));
        timed.push(ops.before_neurons())?;
        // The resident neurons start after the hand-off was posted, so that the other side can
        // start too.
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
