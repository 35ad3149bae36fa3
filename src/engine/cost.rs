//! What the planner asks about sizes, answered by the devices themselves.

use hal::format::Format;
use hal::op::{Add, Attention, Gather, MatMul, Merge, Norm, Post, Rope, StoreKv};
use hal::{
    Batch, Bytes, HostRows, KV_BLOCK, KvCache, OpDesc, PackDesc, Plan as Answer, TensorDesc,
};

use crate::placement::{Costs, DeviceIndex, Neurons};

use super::build::Plan;
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

    fn multiply(&self, w: &HostRows, bias: Option<&HostRows>, n_tokens: usize) -> OpDesc {
        let (w, bias) = (w.desc(), bias.map(HostRows::desc));
        let (x, y) = (self.f32(n_tokens, w.n_cols), self.f32(n_tokens, w.n_rows));
        MatMul { w, x, bias, y }.into()
    }

    fn norm(&self, n_tokens: usize) -> OpDesc {
        let hyper = &self.model.hyper;
        let x = self.f32(n_tokens, hyper.n_embd);
        let weight = Some(self.f32(1, hyper.n_embd));
        let kind = self.model.spec.norm;
        Norm { x, weight, bias: None, y: x, kind, eps: hyper.eps, width: hyper.n_embd }.into()
    }

    /// The layer's predictor, if it is used, for the largest step.
    fn predict(&self, layer: usize, split: bool) -> Option<OpDesc> {
        let (weights, threshold) = self.mode.predictor(&self.model.layers[layer].ffn)?;
        let (n, hyper) = (self.options.n_ubatch, &self.model.hyper);
        let list = || list_desc(hyper.n_ff, n);
        let x = self.f32(n, hyper.n_embd);
        Some(Predictor::desc(weights).op(x, list(), split.then(list), threshold).into())
    }

    fn batch(&self) -> Batch<TensorDesc> {
        let shape = self.scratch().batch;
        Batch { words: TensorDesc::new(1, shape.n_words(), Format::U32), shape }
    }

    fn cache(&self) -> KvCache<TensorDesc> {
        let rows = self.options.n_blocks() * KV_BLOCK;
        let half = |format: &Format| TensorDesc::new(rows, self.model.hyper.n_kv(), *format);
        self.options.kv_formats.map(&mut { half })
    }

    /// The ops of a layer besides its neurons, as `record.rs` records them, for the largest step.
    fn layer_ops(&self, layer: usize, split: bool) -> Vec<OpDesc> {
        let (weights, hyper) = (&self.model.layers[layer], &self.model.hyper);
        let n = self.options.n_ubatch;
        let (batch, cache) = (self.batch(), self.cache());
        let (x, q, k) =
            (self.f32(n, hyper.n_embd), self.f32(n, hyper.n_q()), self.f32(n, hyper.n_kv()));
        let rope = |x| Rope {
            freqs: self.f32(1, hyper.n_rot / 2),
            batch: batch.clone(),
            x,
            d_head: hyper.d_head,
            n_rot: hyper.n_rot,
            pairing: self.model.spec.pairing,
            scale: self.model.rope.scale,
        };
        let attention = Attention {
            q,
            cache,
            batch: batch.clone(),
            sinks: None,
            y: q,
            n_head: hyper.n_head,
            n_head_kv: hyper.n_head_kv,
            scale: 1.0,
            window: hyper.window,
            softcap: 0.0,
        };
        let linears = [&weights.q, &weights.k, &weights.v, &weights.o];
        let mut ops: Vec<OpDesc> =
            linears.map(|(w, bias)| self.multiply(w, bias.as_ref(), n)).into();
        ops.extend([self.norm(n), rope(q).into(), rope(k).into(), attention.into()]);
        ops.push(StoreKv { k, v: k, batch: batch.clone(), cache }.into());
        ops.push(Add { a: x, x }.into());
        let list = || list_desc(hyper.n_ff, n);
        let predict = self.predict(layer, split);
        let rows = predict.is_some().then(list);
        ops.extend(predict);
        if split {
            ops.push(Post { x, batch: batch.clone(), rows, mailbox: 0 }.into());
            ops.push(Merge { batch, y: x, mailbox: 0 }.into());
        }
        ops
    }
}

impl Costs for Plan<'_> {
    fn fixed(&self, device: DeviceIndex) -> Bytes {
        let shape = self.scratch();
        let on = &self.devices[device];
        let mode = self.mode;
        let hyper = &self.model.hyper;
        // The block's own workspace stands for the largest: it holds partial sums of all slices. A predictor of
        // large rank may need more.
        let workspace = self.model.layers.iter().enumerate().take(1).flat_map(|(index, layer)| {
            let ffn = mode.desc(&layer.ffn, hyper.n_ff, self.options.n_ubatch);
            [Some(ffn), self.predict(index, self.devices.len() > 1)].into_iter().flatten()
        });
        let workspace = workspace.map(|op| match on.plan(&op) {
            Answer::Yes { workspace, .. } => workspace,
            Answer::No(_) => Bytes(0),
        });
        let workspace = workspace.max().unwrap_or_default();
        shape.size(on, &self.options.ladder()) + workspace
    }

    fn layer(&self, device: DeviceIndex, layer: usize) -> Bytes {
        let weights = &self.model.layers[layer];
        let linears = [&weights.q, &weights.k, &weights.v, &weights.o];
        let linear: Bytes = linears
            .iter()
            .flat_map(|(w, bias)| [Some(w), bias.as_ref()])
            .flatten()
            .map(|rows| self.whole_size(device, rows))
            .sum();
        let norms = self.whole_size(device, &weights.norms.attn)
            + self.whole_size(device, &weights.norms.ffn);
        let on = &self.devices[device];
        let cache = self.cache().map(&mut |half| on.alloc_size(half));
        let predictor = self.mode.predictor(&weights.ffn).map_or(Bytes(0), |(predictor, _)| {
            let slots = TensorDesc::new(1, self.model.hyper.n_ff, Format::U32);
            self.whole_size(device, &predictor.fc1)
                + self.whole_size(device, &predictor.fc2)
                + on.pack_size(&PackDesc::whole(slots), false)
        });
        linear
            + norms
            + predictor
            + cache.k
            + cache.v
            + on.alloc_size(&self.f32(1, self.model.hyper.n_rot / 2))
    }

    fn neurons(&self, device: DeviceIndex, layer: usize, n: usize) -> Bytes {
        let all = n == self.model.hyper.n_ff;
        let neurons = match all {
            true => Neurons::All,
            false => Neurons::List((0..n as u32).collect()),
        };
        self.mode.size(&self.devices[device], &self.model.layers[layer].ffn, &neurons)
    }

    fn hand_off(&self, _device: DeviceIndex) -> Bytes {
        self.mailbox_shape().bytes()
    }

    fn head(&self, device: DeviceIndex) -> Bytes {
        let shape = self.scratch();
        self.whole_size(device, &self.model.output)
            + self.whole_size(device, &self.model.output_norm)
            + shape.head_size(&self.devices[device])
    }

    fn can_run(&self, device: DeviceIndex, layer: usize, n: usize) -> bool {
        let split = n < self.model.hyper.n_ff;
        let ffn = self.mode.desc(&self.model.layers[layer].ffn, n, self.options.n_ubatch);
        (self.devices[device].info().hand_off || !split)
            && self.can_all(device, self.layer_ops(layer, split).into_iter().chain([ffn]))
    }

    fn can_run_head(&self, device: DeviceIndex) -> bool {
        let n = self.options.max_out();
        let [x, y] = [self.options.n_ubatch, n].map(|n| self.f32(n, self.model.hyper.n_embd));
        let gather = Gather { x, batch: self.batch(), y };
        self.can_all(
            device,
            [gather.into(), self.norm(n), self.multiply(&self.model.output, None, n)],
        )
    }
}
