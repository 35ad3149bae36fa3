//! What the planner asks about sizes, answered by the devices themselves.

use std::convert::Infallible;

use hal::format::Format;
use hal::op::{Gather, MatMul, SoftCap};
use hal::{
    Batch, Bytes, HostRows, KV_BLOCK, KvCache, OpDesc, PackDesc, Plan as Answer, TensorDesc,
};

use crate::placement::{Costs, DeviceIndex, Neurons};

use super::build::Plan;
use super::layer::{LayerOps, norm};
use super::predict::{Predictor, list_desc};

impl Plan<'_> {
    fn whole_size(&self, device: DeviceIndex, rows: &HostRows) -> Bytes {
        let mapped = matches!(rows.source(), hal::Source::Mapped(_));
        self.devices[device].pack_size(&PackDesc::whole(rows.desc()), mapped)
    }

    fn f32(&self, rows: usize, cols: usize) -> TensorDesc {
        TensorDesc::new(rows, cols, Format::F32)
    }

    fn can_all(&self, device: DeviceIndex, ops: impl IntoIterator<Item = OpDesc>) -> bool {
        let on = &self.devices[device];
        ops.into_iter().all(|op| matches!(on.plan(&op), Answer::Yes { .. }))
    }

    fn batch(&self) -> Batch<TensorDesc> {
        let shape = self.scratch().batch;
        Batch { words: TensorDesc::new(1, shape.n_words(), Format::U32), shape }
    }

    /// The cache of one layer.
    pub(super) fn cache_shape(&self) -> KvCache<TensorDesc> {
        let (hyper, formats) = (&self.model.hyper, self.options.kv_formats);
        let rows = self.options.n_blocks() * KV_BLOCK;
        KvCache {
            k: TensorDesc::new(rows, hyper.n_kv(), formats.k),
            v: TensorDesc::new(rows, hyper.n_value(), formats.v),
        }
    }

    /// The ops of a layer with `n` of its neurons, for the largest step; with a hand-off if those are not all.
    fn layer_ops(&self, layer: usize, n: usize) -> Vec<OpDesc> {
        let (weights, hyper) = (&self.model.layers[layer], &self.model.hyper);
        let n_tokens = self.options.n_ubatch;
        let split = n < hyper.n_ff;
        let list = || list_desc(hyper.n_ff, n_tokens);
        let chosen = self.mode.chosen(self.model, self.options, layer);
        let predictor = chosen.map(Predictor::desc);
        let freqs = self.f32(1, hyper.n_rot / 2);
        let ops = LayerOps {
            model: self.model,
            mode: self.mode,
            facts: weights,
            frame: &weights.frame.map(&mut HostRows::desc),
            freqs: weights.rope.as_ref().map(|_| &freqs),
            cache: &self.cache_shape(),
            predictor: predictor.as_ref(),
            own: Some(&self.mode.shape(&weights.ffn, n)),
            scratch: &self.scratch().body,
            batch: &self.batch(),
            active: self.f32(1, n_tokens),
            resident: Some(list()),
            absent: split.then(list),
            mailbox: split.then_some(0),
        };
        ops.list()
    }
}

impl Costs for Plan<'_> {
    fn fixed(&self, device: DeviceIndex) -> Bytes {
        let shape = self.scratch();
        let on = &self.devices[device];
        // A predictor of large rank in a later layer may need more.
        let first = self.layer_ops(0, self.model.hyper.n_ff);
        let workspace = first.into_iter().map(|op| match on.plan(&op) {
            Answer::Yes { workspace, .. } => workspace,
            Answer::No(_) => Bytes(0),
        });
        let workspace = workspace.max().unwrap_or_default();
        shape.size(on, &self.options.ladder()) + workspace
    }

    fn layer(&self, device: DeviceIndex, layer: usize) -> Bytes {
        let weights = &self.model.layers[layer];
        let mut frame = Bytes(0);
        weights.frame.each(&mut |_, rows| frame += self.whole_size(device, rows));
        let on = &self.devices[device];
        let cache = self.cache_shape().map(&mut |half| on.alloc_size(half));
        let chosen = self.mode.chosen(self.model, self.options, layer);
        let predictor = chosen.map_or(Bytes(0), |chosen| {
            let vector = |format| {
                let desc = TensorDesc::new(1, self.model.hyper.n_ff, format);
                on.pack_size(&PackDesc::whole(desc), false)
            };
            self.whole_size(device, chosen.fc1)
                + self.whole_size(device, chosen.fc2)
                + vector(Format::U32)
                + chosen.bias.map_or(Bytes(0), |_| vector(Format::F32))
        });
        let freqs = self.f32(1, self.model.hyper.n_rot / 2);
        let freqs = weights.rope.as_ref().map_or(Bytes(0), |_| on.alloc_size(&freqs));
        frame + predictor + cache.k + cache.v + freqs
    }

    fn neurons(&self, device: DeviceIndex, layer: usize, n: usize) -> Bytes {
        let all = n == self.model.hyper.n_ff;
        let neurons = match all {
            true => Neurons::All,
            false => Neurons::List((0..n as u32).collect()),
        };
        self.mode.size(&self.devices[device], &self.model.layers[layer].ffn, &neurons, n)
    }

    fn hand_off(&self, _device: DeviceIndex) -> Bytes {
        self.mailbox_shape().bytes()
    }

    fn head(&self, device: DeviceIndex) -> Bytes {
        let shape = self.scratch();
        self.whole_size(device, &self.model.output)
            + self.whole_size(device, &self.model.output_norm.w)
            + shape.head_size(&self.devices[device])
    }

    fn can_run(&self, device: DeviceIndex, layer: usize, n: usize) -> bool {
        let split = n < self.model.hyper.n_ff;
        (self.devices[device].info().hand_off || !split)
            && self.can_all(device, self.layer_ops(layer, n))
    }

    fn can_run_head(&self, device: DeviceIndex) -> bool {
        let (model, n) = (self.model, self.options.max_out());
        let [x, y] = [self.options.n_ubatch, n].map(|n| self.f32(n, model.hyper.n_embd));
        let by = model.output_norm.try_map("", &mut |_, rows| Ok::<_, Infallible>(rows.desc()));
        let Ok(by) = by;
        let (w, logits) = (model.output.desc(), self.f32(n, model.n_vocab()));
        let mut ops = vec![
            Gather { x, batch: self.batch(), y }.into(),
            norm(model, &y, &by, &y),
            MatMul { w, x: y, bias: None, y: logits }.into(),
        ];
        let cap = model.hyper.logit_softcap;
        if cap > 0.0 {
            ops.push(SoftCap { x: logits, cap }.into());
        }
        self.can_all(device, ops)
    }
}
