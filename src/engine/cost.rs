//! What the planner asks about sizes, answered by the devices themselves.

use hal::format::Format;
use hal::op::MatMul;
use hal::{Bytes, HostRows, KV_BLOCK, PackDesc, Plan as Answer, TensorDesc};

use crate::placement::{Costs, DeviceIndex, Neurons};

use super::build::Plan;
use super::lane::ScratchShape;

impl Plan<'_> {
    fn whole(&self, device: DeviceIndex, rows: &HostRows) -> Bytes {
        let mapped = matches!(rows.source(), hal::Source::Mapped(_));
        self.devices[device].pack_size(&PackDesc::whole(rows.desc()), mapped)
    }

    fn f32(&self, rows: usize, cols: usize) -> TensorDesc {
        TensorDesc::new(rows, cols, Format::F32)
    }

    fn can_multiply(&self, device: DeviceIndex, w: &HostRows, n_tokens: usize) -> bool {
        let w = w.desc();
        let (x, y) = (self.f32(n_tokens, w.n_cols), self.f32(n_tokens, w.n_rows));
        let op: hal::OpDesc = MatMul { w, x, bias: None, y }.into();
        matches!(self.devices[device].plan(&op), Answer::Yes { .. })
    }
}

impl Costs for Plan<'_> {
    fn fixed(&self, device: DeviceIndex) -> Bytes {
        let shape = ScratchShape::new(self.model, self.options);
        let on = &self.devices[device];
        let mode = self.mode;
        let hyper = &self.model.hyper;
        // The block's own workspace stands for the largest: it holds partial sums of all slices.
        let workspace = self.model.layers.first().map_or(Bytes(0), |layer| {
            match on.plan(&mode.desc(&layer.ffn, hyper.n_ff, self.options.n_ubatch)) {
                Answer::Yes { workspace, .. } => workspace,
                Answer::No(_) => Bytes(0),
            }
        });
        shape.size(on, &self.options.ladder()) + workspace
    }

    fn layer(&self, device: DeviceIndex, layer: usize) -> Bytes {
        let weights = &self.model.layers[layer];
        let linears = [&weights.q, &weights.k, &weights.v, &weights.o];
        let linear: Bytes = linears
            .iter()
            .flat_map(|(w, bias)| [Some(w), bias.as_ref()])
            .flatten()
            .map(|rows| self.whole(device, rows))
            .sum();
        let norms =
            self.whole(device, &weights.norms.attn) + self.whole(device, &weights.norms.ffn);
        let hyper = &self.model.hyper;
        let rows = self.options.n_blocks() * KV_BLOCK;
        let cache = TensorDesc::new(rows, hyper.n_kv(), self.options.kv_format);
        let on = &self.devices[device];
        let cache = on.alloc_size(&cache);
        linear + norms + cache + cache + on.alloc_size(&self.f32(1, hyper.n_rot / 2))
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
        let shape = ScratchShape::new(self.model, self.options);
        self.whole(device, &self.model.output)
            + self.whole(device, &self.model.output_norm)
            + shape.head_size(&self.devices[device])
    }

    fn can_run(&self, device: DeviceIndex, layer: usize, n: usize) -> bool {
        let weights = &self.model.layers[layer];
        let n_ubatch = self.options.n_ubatch;
        let ffn = self.mode.desc(&weights.ffn, n, n_ubatch);
        let attention = [&weights.q, &weights.k, &weights.v, &weights.o];
        let hand_off = self.devices[device].info().hand_off || n == self.model.hyper.n_ff;
        hand_off
            && matches!(self.devices[device].plan(&ffn), Answer::Yes { .. })
            && attention.iter().all(|(w, _)| self.can_multiply(device, w, n_ubatch))
    }

    fn can_run_head(&self, device: DeviceIndex) -> bool {
        self.can_multiply(device, &self.model.output, self.options.max_out())
    }
}
