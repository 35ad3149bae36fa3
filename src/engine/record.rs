//! Records a step as programs: the model's layers become ops, once, at load.

use std::ops::Range;

use hal::op::{AddPositions, Gather, GetRows, MatMul, SoftCap};
use hal::{Op, Program, Recorder, Rows, Tensor};

use placement::{DeviceIndex, Placement};

use super::Result;
use super::build::{Embedding, Head, Layer, Plan, Remote};
use super::ffn::{FfnPlace, FfnTensors};
use super::lane::{Lane, Scratch};
use super::layer::{LayerOps, norm, predictor_input};
use super::predict::{PieceLists, Predictor};
use super::stream::{Leg, Stream};
use super::timeline::Work;

/// The same step for several numbers of tokens, ascending.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    rungs: Vec<(usize, Program)>,
}

impl Ladder {
    /// The smallest program for at least `n` tokens.
    pub(super) fn at_least(&self, n: usize) -> Option<&Program> {
        self.rungs.iter().find(|(size, _)| *size >= n).map(|(_, program)| program)
    }

    pub(super) fn slow(&self) -> impl Iterator<Item = &String> {
        self.rungs.iter().flat_map(|(_, program)| program.slow())
    }
}

/// Consecutive layers with one home.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) device: DeviceIndex,
    /// The layer of each mailbox of the programs, in order.
    pub(super) handed: Vec<usize>,
    /// The work of each timed span of the programs.
    pub(super) works: Vec<Work>,
    pub(super) programs: Ladder,
    /// For the rungs that stream, which have no single program: their legs.
    pub(super) legs: Vec<(usize, Vec<Leg>)>,
    /// The device that weights are streamed to after these legs.
    pub(super) via: DeviceIndex,
}

/// Inputs of recording.
pub(super) struct Recording<'a> {
    pub(super) plan: Plan<'a>,
    pub(super) rungs: &'a [usize],
    pub(super) embed: &'a Embedding,
}

pub(super) fn lane(lanes: &[Option<Lane>], device: DeviceIndex) -> &Lane {
    lanes[device].as_ref().expect("a used device has a lane")
}

/// The first `n` rows of every scratch tensor.
pub(super) fn view(scratch: &Scratch<Tensor>, n: usize) -> Scratch<Tensor> {
    scratch.map(&mut |tensor| tensor.rows(0..n))
}

/// Starts the next timed span of a program.
fn part(recorder: &mut Recorder, works: &mut Vec<Work>, work: Work) {
    if !works.is_empty() {
        recorder.part();
    }
    works.push(work);
}

impl Recording<'_> {
    /// Records from the largest rung down, so that the largest workspace is allocated first and
    /// shared.
    fn ladder(
        &self,
        rungs: &[usize],
        mut record: impl FnMut(usize, usize) -> Result<Program>,
    ) -> Result<Ladder> {
        let mut ladder = Ladder::default();
        for (index, &n) in rungs.iter().enumerate().rev() {
            ladder.rungs.push((n, record(index, n)?));
        }
        ladder.rungs.reverse();
        Ok(ladder)
    }

    pub(super) fn segments(
        &self,
        placement: &Placement,
        lanes: &[Option<Lane>],
        layers: &[Layer],
        streams: &[Option<Stream>],
    ) -> Result<Vec<Segment>> {
        let mut runs: Vec<(DeviceIndex, Range<usize>)> = vec![(placement.embed, 0..0)];
        for (index, layer) in placement.layers.iter().enumerate() {
            match runs.last_mut() {
                Some((device, range)) if *device == layer.home => range.end = index + 1,
                _ => runs.push((layer.home, index..index + 1)),
            }
        }
        let mut segments = Vec::new();
        for (number, (device, range)) in runs.into_iter().enumerate() {
            let lane = lane(lanes, device);
            let handed = range.clone().filter(|&i| layers[i].mailbox.is_some()).collect();
            let mut works = Vec::new();
            let mut all = streams.iter().flatten();
            let stream = all.find(|stream| range.clone().any(|i| stream.has(i)));
            let via = stream.map_or(device, Stream::device);
            let n_whole = stream.map_or(self.rungs.len(), |stream| {
                self.rungs.partition_point(|&n| n < stream.from)
            });
            let mut legs = Vec::new();
            for (rung, &n) in self.rungs.iter().enumerate().skip(n_whole).rev() {
                let Some(stream) = stream else { break };
                let first = number == 0;
                let cut = self.legs((lane, stream), rung, (range.clone(), first), layers)?;
                legs.push((n, cut));
            }
            let programs = self.ladder(&self.rungs[..n_whole], |rung, n| {
                let mut recorder = lane.device.record(&format!("segment {number} x {n}"));
                let scratch = view(&lane.scratch, n);
                works.clear();
                if number == 0 {
                    works.push(Work::Embedding);
                    self.embed(&mut recorder, lane, &scratch)?;
                }
                for index in range.clone() {
                    let to = (&mut recorder, &mut works);
                    self.layer(to, lane, rung, &scratch, (index, &layers[index]))?;
                }
                Ok(recorder.finish()?)
            })?;
            segments.push(Segment { device, handed, works, programs, legs, via });
        }
        Ok(segments)
    }

    /// A segment for a rung that streams: cut after each layer whose weights are streamed.
    fn legs(
        &self,
        (lane, stream): (&Lane, &Stream),
        rung: usize,
        (range, first): (Range<usize>, bool),
        layers: &[Layer],
    ) -> Result<Vec<Leg>> {
        let n = self.rungs[rung];
        let scratch = view(&lane.scratch, n);
        let begin = |number: usize| lane.device.record(&format!("leg {number} x {n}"));
        let (mut recorder, mut works, mut handed) = (begin(range.start), Vec::new(), Vec::new());
        let mut legs = Vec::new();
        if first {
            works.push(Work::Embedding);
            self.embed(&mut recorder, lane, &scratch)?;
        }
        for index in range {
            let layer = (index, &layers[index]);
            if !stream.has(index) {
                handed.extend(layer.1.mailbox.is_some().then_some(index));
                self.layer((&mut recorder, &mut works), lane, rung, &scratch, layer)?;
                continue;
            }
            let mut ops = self.layer_ops(lane, rung, &scratch, layer, None);
            if stream.is_afar(index) {
                ops.own = None;
            }
            part(&mut recorder, &mut works, Work::Attention(index));
            ops.before_neurons().into_iter().try_for_each(|op| recorder.push(op))?;
            part(&mut recorder, &mut works, Work::Neurons(index));
            ops.neurons_alone().into_iter().try_for_each(|op| recorder.push(op))?;
            let done = std::mem::replace(&mut recorder, begin(index + 1));
            let (works_done, handed) = (std::mem::take(&mut works), std::mem::take(&mut handed));
            let (program, then) = (done.finish()?, Some(index));
            legs.push(Leg { program, handed, works: works_done, then });
            part(&mut recorder, &mut works, Work::Merge(index));
            ops.after_neurons().into_iter().try_for_each(|op| recorder.push(op))?;
        }
        legs.push(Leg { program: recorder.finish()?, handed, works, then: None });
        Ok(legs)
    }

    /// The rungs of steps of `from` tokens and more.
    pub(super) fn rungs_from(&self, from: usize) -> &[usize] {
        &self.rungs[self.rungs.partition_point(|&n| n < from)..]
    }

    /// The program over a chunk streamed into the slots of `share`, for the rungs that stream:
    /// computes the chunk's part of the block's output and writes it to y or adds it. With a
    /// predictor, only the selected neurons are computed.
    pub(super) fn piece(
        &self,
        lane: &Lane,
        from: usize,
        share: &FfnTensors,
        listed: Option<(&Predictor<Tensor>, &PieceLists)>,
        adds: bool,
    ) -> Result<Ladder> {
        let rungs = self.rungs_from(from);
        let first = self.rungs.len() - rungs.len();
        let model = self.plan.model;
        let n_layer = model.hyper.n_layer;
        self.ladder(rungs, |rung, n| {
            let mut recorder = lane.device.record(&format!("piece x {n}"));
            let s = view(&lane.scratch, n);
            let mut rows = Rows::All;
            if let Some((predictor, lists)) = listed {
                let (x, set) = (predictor_input(model, predictor, &s).clone(), lists.set(rung));
                recorder.push(predictor.op(x, set.clone(), None))?;
                rows = Rows::Active(set);
            }
            let place = FfnPlace {
                x: s.h,
                weights: s.weights.filter(|_| share.groups.is_some()),
                y: s.y,
                active: lane.active[first + rung].rows(n_layer..n_layer + 1),
                hits: None,
                accumulate: adds,
            };
            recorder.push(self.plan.mode.op(share, rows, place))?;
            Ok(recorder.finish()?)
        })
    }

    pub(super) fn embed(
        &self,
        recorder: &mut Recorder,
        lane: &Lane,
        scratch: &Scratch<Tensor>,
    ) -> Result<()> {
        let model = self.plan.model;
        let scaled = model.spec.scaled_embedding;
        recorder.push(GetRows {
            table: self.embed.tokens.clone(),
            batch: lane.batch.clone(),
            y: scratch.x.clone(),
            scale: if scaled { (model.hyper.n_embd as f32).sqrt() } else { 1.0 },
        })?;
        if let Some((table, offset)) = &self.embed.positions {
            let (table, batch, x) = (table.clone(), lane.batch.clone(), scratch.x.clone());
            recorder.push(AddPositions { table, batch, x, offset: *offset })?;
        }
        Ok(())
    }

    fn layer(
        &self,
        (recorder, works): (&mut Recorder, &mut Vec<Work>),
        lane: &Lane,
        rung: usize,
        scratch: &Scratch<Tensor>,
        (index, layer): (usize, &Layer),
    ) -> Result<()> {
        let mailbox =
            layer.mailbox.as_ref().map(|mailbox| recorder.mailbox(mailbox)).transpose()?;
        let ops = self.layer_ops(lane, rung, scratch, (index, layer), mailbox);
        if ops.facts.ffn.is_none() {
            let all: Vec<_> = ops.list();
            if !all.is_empty() {
                part(recorder, works, Work::Attention(index));
            }
            return all.into_iter().try_for_each(|op| Ok(recorder.push(op)?));
        }
        part(recorder, works, Work::Attention(index));
        ops.before_neurons().into_iter().try_for_each(|op| recorder.push(op))?;
        // The resident neurons start after the hand-off was posted, so that the other side can
        // start too.
        if mailbox.is_none() {
            part(recorder, works, Work::Neurons(index));
        }
        for op in ops.ops_after_attention() {
            if matches!(op, Op::Merge(_)) {
                part(recorder, works, Work::Merge(index));
            }
            let posted = matches!(op, Op::Post(_));
            recorder.push(op)?;
            if posted {
                part(recorder, works, Work::Neurons(index));
            }
        }
        Ok(())
    }

    /// A layer's ops with the tensors of `lane`, over the rows of `scratch`.
    pub(super) fn layer_ops<'b>(
        &self,
        lane: &'b Lane,
        rung: usize,
        scratch: &'b Scratch<Tensor>,
        (index, layer): (usize, &'b Layer),
        mailbox: Option<usize>,
    ) -> LayerOps<'b, Tensor>
    where
        Self: 'b,
    {
        let lists = lane.lists.as_ref();
        LayerOps {
            model: self.plan.model,
            mode: self.plan.mode,
            facts: &self.plan.model.layers[index],
            frame: &layer.frame,
            freqs: layer.freqs.as_ref(),
            memory: &layer.memory,
            predictor: layer.predictor.as_ref(),
            own: layer.own.as_ref(),
            scratch,
            batch: &lane.batch,
            active: lane.active[rung].rows(index..index + 1),
            hits: lane.hits(index, self.rungs[rung]),
            resident: lists.map(|lists| lists.resident(index, rung)),
            absent: lists.filter(|_| !layer.remotes.is_empty()).and_then(|l| l.absent(rung)),
            mailbox,
        }
    }

    /// The other side of a hand-off: one share, from `handed` to `y`.
    pub(super) fn remote(
        &self,
        lanes: &[Option<Lane>],
        layer: usize,
        remote: &Remote,
        listed: bool,
    ) -> Result<Ladder> {
        let lane = lane(lanes, remote.device);
        let lists = lane.lists.as_ref().filter(|_| listed);
        self.ladder(self.rungs, |rung, n| {
            let mut recorder = lane.device.record(&format!("share of layer {layer} x {n}"));
            let s = view(&lane.scratch, n);
            let active = lane.active[rung].rows(layer..layer + 1);
            let rows = lists.map_or(Rows::All, |lists| Rows::Active(lists.resident(layer, rung)));
            let x = s.handed;
            let weights = s.weights.filter(|_| remote.ffn.groups.is_some());
            let hits = lane.hits(layer, n);
            let place = FfnPlace { x, weights, y: s.y, active, hits, accumulate: false };
            recorder.push(self.plan.mode.op(&remote.ffn, rows, place))?;
            Ok(recorder.finish()?)
        })
    }

    /// Selected tokens, norm, logits; a ladder over the number of outputs.
    pub(super) fn head(&self, lanes: &[Option<Lane>], head: &Head) -> Result<Ladder> {
        let lane = lane(lanes, head.device);
        let max_out = self.plan.options.max_out();
        let mut rungs: Vec<usize> = self.rungs.iter().copied().filter(|&n| n < max_out).collect();
        rungs.push(max_out);
        self.ladder(&rungs, |_, n| {
            let mut recorder = lane.device.record(&format!("head x {n}"));
            let s = &head.scratch;
            let (chosen, normed) = (s.chosen.rows(0..n), s.normed.rows(0..n));
            recorder.push(Gather {
                x: lane.scratch.x.clone(),
                batch: lane.batch.clone(),
                y: chosen.clone(),
            })?;
            recorder.push(norm(self.plan.model, &chosen, &head.norm, &normed))?;
            let (w, logits) = (head.output.clone(), s.logits.rows(0..n));
            recorder.push(MatMul { w, x: normed, bias: None, y: logits.clone() })?;
            let cap = self.plan.model.hyper.logit_softcap;
            if cap > 0.0 {
                recorder.push(SoftCap { x: logits, cap })?;
            }
            Ok(recorder.finish()?)
        })
    }
}
