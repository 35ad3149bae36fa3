//! Inputs of the planner: sizes as the devices report them, and bytes read per token.

use std::convert::Infallible;
use std::sync::Arc;

use hal::format::{Format, TransposedLayout};
use hal::op::{Gather, MAX_COUNTED_TOKENS, MatMul, SoftCap, UnionCounts, Window};
use hal::{Batch, Bytes, Device, HostRows, KvRows, OpDesc, PackDesc, TensorDesc};

use model::{Attention, AttentionSizes, Ffn, Model, Sparse};
use placement::{
    CPU, Cut, DeviceFacts, DeviceIndex, Forecast, LayerFacts, LayerReads, LayerSizes, Neurons,
    Placement, StreamReads, Task, Uses, plan,
};

use super::Sizing;
use super::exchange::ExchangeUnit;
use super::scratch::counts_union;
use crate::ops::embed::Embedding;
use crate::ops::layer::LayerOps;
use crate::ops::low_rank_hyper::output_norm;
use crate::ops::memory;
use crate::ops::predict::{Predictor, list_desc};
use crate::options::{EngineOptions, Streaming};

/// Maximum number of tokens that are assumed in the context when the time of a token is estimated.
const ASSUMED_PAST: usize = 1024;

/// Plans the placement of `model` and estimates its speed. Loads nothing; the first of `devices`
/// is the CPU.
#[must_use]
pub fn forecast(model: &Model, devices: &[Device], options: &EngineOptions) -> Forecast {
    plan(&task(model, devices, options))
}

/// The planner's input for [`forecast`].
#[must_use]
pub fn task(model: &Model, devices: &[Device], options: &EngineOptions) -> Task {
    let sizing = Sizing::new(model, devices, options);
    let budgets: Vec<Bytes> = devices.iter().map(free_budget).collect();
    sizing.task(&budgets)
}

/// The free bytes of a device's budget. Other engines may have allocated the rest.
pub(crate) fn free_budget(device: &Device) -> Bytes {
    match device.ledger().budget() {
        Bytes::MAX => Bytes::MAX,
        budget => budget - device.ledger().used(),
    }
}

/// Number of tokens that are assumed in the context when the time of a token is estimated.
#[must_use]
pub fn assumed_past(options: &EngineOptions) -> usize {
    (options.n_ctx / 2).min(ASSUMED_PAST)
}

fn bytes(desc: TensorDesc) -> f64 {
    desc.bytes().map_or(0.0, |bytes| bytes.0 as f64)
}

fn size(rows: &HostRows) -> f64 {
    bytes(rows.desc())
}

impl Sizing<'_> {
    /// The placement within `budgets`; stores its forecast in `forecast`. With the CPU alone,
    /// everything is on the CPU, and `forecast` becomes `None`.
    pub(crate) fn place(&self, budgets: &[Bytes], forecast: &mut Option<Forecast>) -> Placement {
        if budgets.iter().skip(1).all(|budget| *budget == Bytes(0)) {
            *forecast = None;
            return Placement::all_on(CPU, self.model.hyper.n_layer);
        }
        forecast.insert(plan(&self.task(budgets))).placement.clone()
    }

    /// Estimated seconds of a token in a placement that was not planned here; `None` if the planner
    /// cannot estimate it.
    pub(crate) fn seconds_of(&self, placement: &Placement) -> Option<f64> {
        let task = self.task(&vec![Bytes::MAX; self.devices.len()]);
        Some(Forecast::for_placement(&task, placement)?.seconds)
    }

    /// The planner's input for `budgets`.
    pub(crate) fn task(&self, budgets: &[Bytes]) -> Task {
        let placing = &self.options.placing;
        let cuts = self.planned_cuts();
        let density = if self.mode.is_sparse() { placing.density } else { 1.0 };
        let shares_home = self.shares_home();
        let layer = |(index, cut): (usize, &Cut)| {
            let uses = match placing.uses.as_ref().and_then(|uses| uses.get(index)) {
                Some(list) if list.len() == cut.n_ff => Uses::Each(list),
                Some(_) | None => Uses::Uniform(density * self.share_used(index)),
            };
            let mut facts = LayerFacts::new(self.reads(index), uses, cut);
            facts.shares_home = shares_home[index];
            facts
        };
        let speeds = |device| placing.speed(device);
        let mut task = Task {
            layers: cuts.iter().enumerate().map(layer).collect(),
            devices: budgets
                .iter()
                .enumerate()
                .map(|(device, &budget)| DeviceFacts {
                    speed: speeds(device),
                    ..self.device_facts(device, budget, &cuts)
                })
                .collect(),
            head: self.head_reads(),
            buckets: self.options.buckets(),
            constraints: placing.constraints,
        };
        task.follow(&placing.rules);
        task
    }

    /// How the planner may divide layers. With weights on disk only whole experts are divided: the
    /// CPU's part of other divided blocks would be a copy in memory, and the disk, which sets the
    /// speed, reads as many bytes less for a whole layer on a device.
    fn planned_cuts(&self) -> Vec<Cut> {
        let mut cuts = self.mode.cuts(self.model);
        if self.options.paging.is_some() {
            for (cut, layer) in cuts.iter_mut().zip(&self.model.layers) {
                let unit = layer.ffn.as_ref().and_then(|ffn| self.mode.exchange_unit(ffn));
                if !matches!(unit, Some(ExchangeUnit::Experts(_))) {
                    *cut = Cut::new(cut.n_ff, cut.n_ff);
                }
            }
        }
        cuts
    }

    /// For each layer, whether it must have the home of the layer before it. The owner of a shared
    /// KV cache, its readers and all layers between them have one home.
    fn shares_home(&self) -> Vec<bool> {
        let mut shares_home = vec![false; self.model.layers.len()];
        for (layer, weights) in self.model.layers.iter().enumerate() {
            if let Some(source) = weights.frame.mixer.kv_source() {
                shares_home[source + 1..=layer].fill(true);
            }
        }
        shares_home
    }

    fn head_reads(&self) -> f64 {
        self.head_rows().map(size).sum()
    }

    /// The weights of the head.
    pub(crate) fn head_rows(&self) -> impl Iterator<Item = &HostRows> {
        let Model { output, output_norm, output_bias, .. } = self.model;
        let norm = output_norm.iter().flat_map(|norm| [&norm.w].into_iter().chain(&norm.bias));
        norm.chain(output_bias).chain(output)
    }

    /// Share of a layer's experts that a token uses.
    pub(crate) fn share_used(&self, layer: usize) -> f64 {
        self.model.layers[layer].ffn.as_ref().map_or(1.0, Ffn::share_used)
    }

    /// Bytes of a layer's KV cache or recurrent state read per token.
    fn memory_reads(&self, layer: usize) -> f64 {
        let weights = &self.model.layers[layer];
        let memory = memory::of_layer(weights, self.options);
        let rows =
            |desc: &TensorDesc, n: usize| bytes(TensorDesc { n_rows: 1, ..*desc }) * n as f64;
        let past = assumed_past(self.options);
        let attention = weights.attention();
        let window = attention.and_then(|by| by.sizes.window).map_or(usize::MAX, Window::size);
        let sparse = attention.and_then(|by| by.sparse.as_ref());
        let selected = sparse.map_or(usize::MAX, Sparse::n_selected);
        // Of the indexer's keys, one for each block is read.
        let pool = sparse.map_or(1, |by| by.pool);
        let attended = past.min(window).min(selected);
        let blocks = attention.and_then(Attention::blocks);
        let attended = attended + blocks.map_or(0, |by| by.n_selected(past));
        let pool = blocks.map_or(pool, |by| by.ratio);
        let attended = memory.kv().into_iter().flat_map(KvRows::tensors).map(|k| rows(k, attended));
        let scored = memory.index.iter().map(|index| rows(&index.k, past / pool));
        // Values and gates of a block are read once for all its positions.
        let per_token = blocks.map_or(1.0, |by| (by.ratio as f64).recip());
        let states = memory.all_states().map(|state| rows(state, 1) * per_token);
        attended.chain(scored).chain(states).sum()
    }

    /// Bytes of a layer read per token.
    pub(crate) fn reads(&self, layer: usize) -> LayerReads {
        let (weights, hyper) = (&self.model.layers[layer], &self.model.hyper);
        let used = self.share_used(layer);
        let mut frame = 0.0;
        weights.frame.for_each(&mut |_, rows| frame += size(rows));
        let data = self.mode.predictor(self.model, self.options, layer);
        let lists = data.is_some();
        let (mut before, mut scores) = (0.0, 0.0);
        if let Some(data) = data {
            let slots = TensorDesc::new(1, weights.n_ff(), Format::U32);
            (before, scores) = (data.fc1.map_or(0.0, size), size(data.fc2));
            frame += before + scores + bytes(slots);
        }
        let cache = self.memory_reads(layer);
        let n_ops = self.layer_ops(layer, weights.n_ff(), 1).len();
        let Some(ffn) = &weights.ffn else {
            let none = 0.0;
            return LayerReads {
                frame,
                cache,
                tested: none,
                used: none,
                prompt: none,
                streams: None,
                n_ops,
            };
        };
        let n_ff = ffn.n_ff() as f64;
        let Ffn { gate, up, .. } = ffn;
        let matrices: f64 = ffn.matrices().map(|(_, rows)| size(rows)).sum();
        let (tested, if_used) = match self.mode.is_sparse() {
            // The gates of unused experts are not computed.
            false if ffn.experts.is_some() => (0.0, matrices),
            false => (matrices, 0.0),
            true => {
                let (test, carried) = match gate {
                    Some(gate) => (size(&gate.w), size(&up.w)),
                    None => (size(&up.w), 0.0),
                };
                let carried = carried + self.down_rows(ffn);
                if lists { (0.0, test + carried) } else { (test * used, carried) }
            }
        };
        LayerReads {
            frame,
            cache,
            tested: tested / n_ff,
            used: if_used / n_ff,
            prompt: matrices / n_ff * used,
            streams: self.can_stream(layer).then(|| StreamReads {
                carried: self
                    .can_stream_cpu_layer(layer)
                    .then(|| 4.0 * (2 * hyper.n_embd + self.model.max_experts()) as f64),
                uploaded: (matrices + scores) / n_ff,
                multiplied: (matrices * used + scores) / n_ff,
                per_chunk: before,
            }),
            n_ops,
        }
    }

    /// Bytes of down with one row per neuron. In a transposed matrix, this includes the scales that
    /// rows share.
    fn down_rows(&self, ffn: &Ffn) -> f64 {
        let down = ffn.down.w.desc();
        let n_expert = ffn.n_expert().unwrap_or(1);
        let (n_out, n_ff) = (down.n_rows / n_expert, down.n_cols * n_expert);
        if ffn.down_by_neuron || !self.options.repack {
            bytes(down)
        } else {
            TransposedLayout::new(down.format, n_ff, n_ff, n_out)
                .map_or(bytes(down), |layout| layout.n_bytes as f64)
        }
    }

    fn device_facts(&self, device: DeviceIndex, budget: Bytes, cuts: &[Cut]) -> DeviceFacts {
        let cpu = device == CPU;
        let layers = if cpu { Vec::new() } else { self.layer_sizes(device, cuts) };
        let tied = self.model.file.tensor("output.weight").is_none();
        let stream = if cpu { None } else { self.stream_facts(device) };
        let (slots, stream) = match self.options.streaming {
            Streaming::Measured => (Bytes(0), stream),
            Streaming::Forced { .. } => (stream.map_or(Bytes(0), |stream| stream.bytes), None),
            Streaming::Off => (Bytes(0), None),
        };
        // The size of the first mailbox includes memory that all mailboxes share.
        let mailboxes = |n| self.devices[device].mailboxes_size(self.mailbox_shape(), n);
        let hand_off = mailboxes(2) - mailboxes(1);
        DeviceFacts {
            budget,
            fixed: self.fixed_bytes(device) + slots,
            stream,
            hand_offs: mailboxes(1) - hand_off,
            hand_off,
            embed: self.refuses_embed(device).is_none().then(|| self.embed_size(device)),
            head: self.refuses_head(device).is_none().then(|| self.head_size(device)),
            shared: if tied { self.whole_size(device, &self.model.token_embd) } else { Bytes(0) },
            refused: if cpu { Vec::new() } else { self.refusal_notes(device, &layers) },
            layers,
            speed: self.options.placing.speed(device),
        }
    }

    fn layer_sizes(&self, device: DeviceIndex, cuts: &[Cut]) -> Vec<LayerSizes> {
        // Layers of the same shape have the same sizes, so devices are asked once per shape.
        let mut known: Vec<(Vec<TensorDesc>, Vec<Bytes>, Bytes)> = Vec::new();
        let mut sizes = Vec::new();
        for (index, (weights, cut)) in self.model.layers.iter().zip(cuts).enumerate() {
            let (frame, cache) = self.frame_size(device, index);
            let may_be_whole = self.refuses_layer(device, index, cut.n_ff).is_none();
            let Some(ffn) = &weights.ffn else {
                let whole = may_be_whole.then_some(Bytes(0));
                sizes.push(LayerSizes { frame, cache, shares: Arc::from([]), whole });
                continue;
            };
            let parts = ffn.matrices().map(|(_, rows)| rows).chain(ffn.biases());
            let shape: Vec<TensorDesc> = parts.map(HostRows::desc).collect();
            // Blocks with one shape are divided differently if one has a cut-off.
            let same = |(other, shares, _): &(Vec<TensorDesc>, Vec<Bytes>, Bytes)| {
                *other == shape && shares.len() == cut.n_groups()
            };
            let at = known.iter().position(same).unwrap_or_else(|| {
                let share = |k: usize| match k {
                    0 => Bytes(0),
                    k => self.neuron_bytes(device, ffn, cut.neurons(k)),
                };
                let shares = (0..cut.n_groups()).map(share).collect();
                known.push((shape, shares, self.neuron_bytes(device, ffn, cut.n_ff)));
                known.len() - 1
            });
            let (_, shares, whole) = &known[at];
            let n_shares = self.n_splits(device, index, cut);
            sizes.push(LayerSizes {
                frame,
                cache,
                shares: Arc::from(&shares[..n_shares]),
                whole: may_be_whole.then_some(*whole),
            });
        }
        sizes
    }

    /// Bytes of a matrix as stored. On the CPU this includes bytes read in place from the file.
    fn whole_size(&self, device: DeviceIndex, rows: &HostRows) -> Bytes {
        let mapped = matches!(rows.source(), hal::Source::Mapped(_));
        match self.devices[device].pack_size(&PackDesc::whole(rows.desc()), mapped) {
            Bytes(0) if device == CPU => rows.desc().bytes().unwrap_or_default(),
            size => size,
        }
    }

    pub(crate) fn f32(&self, rows: usize, cols: usize) -> TensorDesc {
        TensorDesc::new(rows, cols, Format::F32)
    }

    pub(crate) fn batch(&self) -> Batch<TensorDesc> {
        let shape = self.scratch().batch;
        Batch { words: TensorDesc::new(1, shape.n_words(), Format::U32), shape }
    }

    /// The ops of a layer with `n` of its neurons, for a step of `n_tokens`; with a hand-off if the
    /// other neurons are on another device.
    pub(crate) fn layer_ops(&self, layer: usize, n: usize, n_tokens: usize) -> Vec<OpDesc> {
        let weights = &self.model.layers[layer];
        let (shape, n_ff) = (self.scratch(), weights.n_ff());
        let split = n < n_ff;
        let list = || list_desc(self.model.max_n_ff(), n_tokens);
        let data = self.mode.predictor(self.model, self.options, layer);
        let predictor = data.map(Predictor::desc);
        let freqs = self.freqs(layer);
        let own = weights.ffn.as_ref().filter(|_| n > 0).map(|ffn| self.mode.shape(ffn, n));
        let frame = weights.frame.map(&mut HostRows::desc);
        let ops = LayerOps {
            model: self.model,
            mode: self.mode,
            index: layer,
            facts: weights,
            frame: &frame,
            freqs: freqs.as_ref(),
            memory: &memory::of_layer(weights, self.options),
            predictor: predictor.as_ref(),
            own: own.as_ref(),
            scratch: &shape.body.map(&mut |desc| TensorDesc { n_rows: n_tokens, ..*desc }),
            batch: &self.batch(),
            active: self.f32(1, n_tokens),
            hits: shape
                .hits
                .filter(|_| n_tokens <= MAX_COUNTED_TOKENS)
                .map(|hits| self.f32(1, hits.n_cols)),
            union: shape
                .union
                .filter(|_| counts_union(n_tokens))
                .map(|_| self.f32(1, UnionCounts::N)),
            resident: Some(list()),
            absent: split.then(list),
            mailbox: split.then_some(0),
        };
        ops.all_ops()
    }

    fn freqs(&self, layer: usize) -> Option<TensorDesc> {
        let by = self.model.layers[layer].attention()?;
        let &AttentionSizes { n_rot, .. } = &by.sizes;
        by.rope.as_ref().map(|_| self.f32(1, n_rot / 2))
    }

    /// Bytes that a device needs in addition to the weights: batch, scratch, staging.
    fn fixed_bytes(&self, device: DeviceIndex) -> Bytes {
        let on = &self.devices[device];
        let n_words = self.workspace(device).0.div_ceil(4) as usize;
        let workspace = TensorDesc::new(1, n_words, Format::U32);
        let workspace = if n_words > 0 { on.alloc_size(&workspace) } else { Bytes(0) };
        self.scratch().size(on, &self.options.buckets()) + workspace
    }

    /// Bytes of a layer except for neurons and cache, and bytes of its KV cache or recurrent state.
    pub(crate) fn frame_size(&self, device: DeviceIndex, layer: usize) -> (Bytes, Bytes) {
        let weights = &self.model.layers[layer];
        let mut frame = Bytes(0);
        weights.frame.for_each(&mut |_, rows| frame += self.whole_size(device, rows));
        let on = &self.devices[device];
        let memory = memory::of_layer(weights, self.options);
        let cache = memory.tensors().map(|desc| on.alloc_size(desc)).sum();
        let data = self.mode.predictor(self.model, self.options, layer);
        let predictor = data.map_or(Bytes(0), |data| {
            let vector = |format| {
                let desc = TensorDesc::new(1, weights.n_ff(), format);
                on.pack_size(&PackDesc::whole(desc), false)
            };
            data.fc1.map_or(Bytes(0), |fc1| self.whole_size(device, fc1))
                + self.whole_size(device, data.fc2)
                + vector(Format::U32)
                + data.bias.map_or(Bytes(0), |_| vector(Format::F32))
        });
        let freqs = self.freqs(layer).map(PackDesc::whole);
        let freqs = freqs.map_or(Bytes(0), |freqs| on.pack_size(&freqs, false));
        (frame + predictor + freqs, cache)
    }

    fn neuron_bytes(&self, device: DeviceIndex, ffn: &Ffn, n: usize) -> Bytes {
        let neurons =
            if n == ffn.n_ff() { Neurons::All } else { Neurons::List((0..n as u32).collect()) };
        self.mode.size(&self.devices[device], ffn, &neurons, n)
    }

    pub(crate) fn embed_ops(&self, n: usize) -> Vec<OpDesc> {
        let mut desc = |_: &'static str, rows: &HostRows| Ok::<_, Infallible>(rows.desc());
        let Ok(embedding) = Embedding::new(self.model, &mut desc);
        let scratch = self.scratch().body.map(&mut |desc| TensorDesc { n_rows: n, ..*desc });
        embedding.ops(self.model, &scratch, &self.batch())
    }

    pub(crate) fn embed_size(&self, device: DeviceIndex) -> Bytes {
        let mut bytes = Bytes(0);
        let mut add = |_: &'static str, rows: &HostRows| {
            bytes += self.whole_size(device, rows);
            Ok::<_, Infallible>(rows.desc())
        };
        let Ok(_) = Embedding::new(self.model, &mut add);
        bytes
    }

    pub(crate) fn head_size(&self, device: DeviceIndex) -> Bytes {
        self.head_rows().map(|rows| self.whole_size(device, rows)).sum::<Bytes>()
            + self.scratch().head_size(&self.devices[device])
    }

    pub(crate) fn head_ops(&self, n: usize) -> Vec<OpDesc> {
        let model = self.model;
        let [x, y] = [self.options.n_ubatch, n].map(|n| self.f32(n, model.hyper.n_embd));
        let by = model.output_norm.as_ref().map(|norm| {
            let Ok(by) = norm.try_map("", &mut |_, rows| Ok::<_, Infallible>(rows.desc()));
            by
        });
        let gather = Gather { x, batch: self.batch(), y };
        let mut ops = vec![gather.into(), output_norm(model, &y, by.as_ref(), &y)];
        let Some(output) = &model.output else { return ops };
        let (w, logits) = (output.desc(), self.f32(n, model.n_logits()));
        let bias = model.output_bias.as_ref().map(HostRows::desc);
        ops.push(MatMul { w, x: y, bias, y: logits }.into());
        let cap = model.hyper.logit_softcap;
        if cap > 0.0 {
            ops.push(SoftCap { x: logits, cap, hard: false }.into());
        }
        ops
    }
}
