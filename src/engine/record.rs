//! The step as programs: what the architecture says becomes ops, once, at load.

use std::ops::Range;

use hal::op::{
    Add, Attention, Gather, GetRows, MatMul, Merge, Norm, Post, Rope, SparseFfn, StoreKv,
};
use hal::{Batch, Program, Recorder, RowSet, Rows, Tensor};

use crate::model::PredictorInput;
use crate::placement::{DeviceIndex, Placement};

use super::Result;
use super::build::{Head, Layer, Linear, Plan, Remote};
use super::lane::{Lane, Scratch};

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

/// A run of layers with one home.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) device: DeviceIndex,
    /// Layer behind each mailbox of the programs, in order.
    pub(super) handed: Vec<usize>,
    pub(super) programs: Ladder,
}

/// What recording reads.
pub(super) struct Recording<'a> {
    pub(super) plan: Plan<'a>,
    pub(super) rungs: &'a [usize],
    pub(super) embed: &'a Tensor,
}

/// Where a layer of a program puts what is not scratch.
struct Place<'a> {
    batch: &'a Batch<Tensor>,
    active: Tensor,
    resident: Option<RowSet<Tensor>>,
    absent: Option<RowSet<Tensor>>,
}

fn lane(lanes: &[Option<Lane>], device: DeviceIndex) -> &Lane {
    lanes[device].as_ref().expect("a used device has a lane")
}

/// The first `n` rows of every scratch tensor.
fn view(scratch: &Scratch, n: usize) -> Scratch {
    let first = |tensor: &Tensor| tensor.rows(0..n);
    Scratch {
        x: first(&scratch.x),
        h: first(&scratch.h),
        q: first(&scratch.q),
        k: first(&scratch.k),
        v: first(&scratch.v),
        attention: first(&scratch.attention),
        y: first(&scratch.y),
        handed: first(&scratch.handed),
    }
}

impl Recording<'_> {
    /// Records from the largest rung down, so that the largest workspace is made first and shared.
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
            let programs = self.ladder(self.rungs, |rung, n| {
                let mut recorder = lane.device.record(&format!("segment {number} x {n}"));
                let scratch = view(&lane.scratch, n);
                if number == 0 {
                    recorder.push(GetRows {
                        table: self.embed.clone(),
                        batch: lane.batch.clone(),
                        y: scratch.x.clone(),
                        scale: 1.0,
                    })?;
                }
                for index in range.clone() {
                    let place = Place {
                        batch: &lane.batch,
                        active: lane.active[rung].rows(index..index + 1),
                        resident: lane.lists.as_ref().map(|lists| lists.resident(index, rung)),
                        absent: lane.lists.as_ref().and_then(|lists| lists.absent(rung)),
                    };
                    self.layer(&mut recorder, &layers[index], &scratch, place)?;
                }
                Ok(recorder.finish()?)
            })?;
            segments.push(Segment { device, handed, programs });
        }
        Ok(segments)
    }

    fn layer(
        &self,
        recorder: &mut Recorder,
        layer: &Layer,
        s: &Scratch,
        Place { batch, active, resident, absent }: Place<'_>,
    ) -> Result<()> {
        recorder.push(self.norm(&s.x, &layer.attn_norm, &s.h))?;
        self.attention(recorder, layer, s, batch)?;
        recorder.push(Add { a: s.y.clone(), x: s.x.clone() })?;
        recorder.push(self.norm(&s.x, &layer.ffn_norm, &s.h))?;
        let mailbox = match &layer.mailbox {
            Some(mailbox) => Some(recorder.mailbox(mailbox)?),
            None => None,
        };
        let (mut rows, mut absent) = (Rows::All, absent.filter(|_| mailbox.is_some()));
        match (&layer.predictor, resident) {
            (Some((predictor, threshold)), Some(resident)) => {
                let x = match self.plan.model.spec.predictor_input {
                    PredictorInput::Residual => s.x.clone(),
                };
                recorder.push(predictor.op(x, resident.clone(), absent.clone(), *threshold))?;
                rows = Rows::Active(resident);
            }
            (None, _) | (_, None) => absent = None,
        }
        if let Some(mailbox) = mailbox {
            recorder.push(Post { x: s.h.clone(), batch: batch.clone(), rows: absent, mailbox })?;
        }
        if let Some(own) = &layer.own {
            let ffn: SparseFfn<Tensor> =
                self.plan.mode.op(own, rows, s.h.clone(), s.y.clone(), active);
            recorder.push(ffn)?;
            recorder.push(Add { a: s.y.clone(), x: s.x.clone() })?;
        }
        if let Some(mailbox) = mailbox {
            recorder.push(Merge { batch: batch.clone(), y: s.x.clone(), mailbox })?;
        }
        Ok(())
    }

    /// From the normed `h` to the block's output in `y`.
    fn attention(
        &self,
        recorder: &mut Recorder,
        layer: &Layer,
        s: &Scratch,
        batch: &Batch<Tensor>,
    ) -> Result<()> {
        let model = self.plan.model;
        let hyper = &model.hyper;
        for (linear, out) in [(&layer.q, &s.q), (&layer.k, &s.k), (&layer.v, &s.v)] {
            recorder.push(matmul(linear, &s.h, out))?;
        }
        for x in [&s.q, &s.k] {
            recorder.push(Rope {
                freqs: layer.freqs.clone(),
                batch: batch.clone(),
                x: x.clone(),
                d_head: hyper.d_head,
                n_rot: hyper.n_rot,
                pairing: model.spec.pairing,
                scale: model.rope.scale,
            })?;
        }
        recorder.push(StoreKv {
            k: s.k.clone(),
            v: s.v.clone(),
            batch: batch.clone(),
            cache: layer.cache.clone(),
        })?;
        recorder.push(Attention {
            q: s.q.clone(),
            cache: layer.cache.clone(),
            batch: batch.clone(),
            sinks: None,
            y: s.attention.clone(),
            n_head: hyper.n_head,
            n_head_kv: hyper.n_head_kv,
            scale: 1.0 / (hyper.d_head as f32).sqrt(),
            window: hyper.window,
            softcap: 0.0,
        })?;
        recorder.push(matmul(&layer.o, &s.attention, &s.y))?;
        Ok(())
    }

    fn norm(&self, x: &Tensor, weight: &Tensor, y: &Tensor) -> Norm<Tensor> {
        let model = self.plan.model;
        Norm {
            x: x.clone(),
            weight: Some(weight.clone()),
            bias: None,
            y: y.clone(),
            kind: model.spec.norm,
            eps: model.hyper.eps,
            width: model.hyper.n_embd,
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
            let ffn: SparseFfn<Tensor> =
                self.plan.mode.op(&remote.ffn, rows, s.handed, s.y, active);
            recorder.push(ffn)?;
            Ok(recorder.finish()?)
        })
    }

    /// Chosen tokens, norm, logits; a ladder over the number of outputs.
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
            recorder.push(self.norm(&chosen, &head.norm, &normed))?;
            recorder.push(MatMul {
                w: head.output.clone(),
                x: normed,
                bias: None,
                y: s.logits.rows(0..n),
            })?;
            Ok(recorder.finish()?)
        })
    }
}

fn matmul(linear: &Linear, x: &Tensor, y: &Tensor) -> MatMul<Tensor> {
    MatMul { w: linear.w.clone(), x: x.clone(), bias: linear.bias.clone(), y: y.clone() }
}
