//! Forecasts a placement: bytes on each device, and time of each layer.

use hal::Bytes;

use super::estimate::{Choice, LayerSplit, LayerTime};
use super::facts::{LayerSizes, PlacementPolicy, Task};
use super::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement, Share};

/// Bytes on one device, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Batch, scratch, staging.
    pub scratch: Bytes,
    /// Norms, mixers, routers, shared experts and predictors.
    pub frames: Bytes,
    /// Keys and values, and recurrent state.
    pub cache: Bytes,
    /// Neurons.
    pub neurons: Bytes,
    /// Hand-offs.
    pub hand_offs: Bytes,
    /// The embedding and the head.
    pub embed_and_head: Bytes,
    /// The embedding's share of `embed_and_head`.
    pub embed: Bytes,
}

impl DeviceBytes {
    /// Total bytes on the device.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.scratch
            + self.frames
            + self.cache
            + self.neurons
            + self.hand_offs
            + self.embed_and_head
    }
}

/// Forecast of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerForecast {
    /// Bytes on the home device except for neurons and cache.
    pub frame: Bytes,
    /// Bytes of the KV cache or recurrent state on the home device.
    pub cache: Bytes,
    /// Bytes of neurons on the home device; 0 if that is the CPU, whose sizes are not planned.
    pub neurons: Bytes,
    /// Number of neurons of the layer.
    pub n_ff: usize,
    /// Number of neurons on the home device.
    pub n_home: usize,
    /// Share of the neurons used by a token that are on devices other than the CPU.
    pub off_cpu: f64,
    /// Estimated time of the layer.
    pub time: LayerTime,
}

/// Breakdown of the time of a generated token, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeParts {
    /// Layers and head on the CPU, and for split layers the CPU's time beyond the device's.
    pub cpu: f64,
    /// Layers and head on all devices other than the CPU.
    pub devices: f64,
    /// Hand-offs, and moves of the residual between devices.
    pub hand_offs: f64,
    /// Waiting for weights on disk; 0 unless [`Forecast::with_disk`] added it.
    pub disk: f64,
}

/// A placement with its predicted performance.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The placement.
    pub placement: Placement,
    /// Seconds of a generated token.
    pub seconds: f64,
    /// Breakdown of that time.
    pub parts: TimeParts,
    /// Layers in order.
    pub layers: Vec<LayerForecast>,
    /// Devices in order; the CPU's entry is empty.
    pub devices: Vec<DeviceBytes>,
    /// For each device, the fewest bytes with which it can hold a layer; `None` if it can hold
    /// none.
    pub least: Vec<Option<Bytes>>,
    /// For each device, messages about layers, embedding or head that it cannot run, with the
    /// reasons.
    pub refused: Vec<Vec<String>>,
    /// Share of the neurons used by a token that are on devices other than the CPU.
    pub off_cpu: f64,
    /// Tokens of the prompt that `prompt` is estimated for: the largest prefill step.
    pub n_prompt: usize,
    /// Seconds of the prefill of that prompt; `None` if the prefill speed of a device is unknown.
    pub prompt: Option<f64>,
    /// For each device, the number of tokens in a step from which neurons on the CPU are streamed
    /// to it; `None` if they are not streamed.
    pub stream_from: Vec<Option<usize>>,
}

impl Forecast {
    pub(super) fn new(task: &Task, choice: &Choice, stream_from: Vec<Option<usize>>) -> Forecast {
        let mut devices = vec![DeviceBytes::default(); task.devices.len()];
        let mut parts =
            TimeParts { hand_offs: task.residual_moves(choice), ..TimeParts::default() };
        let (mut layers, mut placed) = (Vec::new(), Vec::new());
        let (mut used, mut off_cpu) = (0.0, 0.0);
        for (i, spot) in choice.layers.iter().enumerate() {
            let (facts, time) = (&task.layers[i], task.layer_time(i, *spot));
            let cut = &facts.cut;
            let (n_home, is_cpu) = (cut.neurons(spot.groups), spot.home == CPU);
            let split = n_home < cut.n_ff;
            let here = if is_cpu { 0.0 } else { facts.mass[spot.groups] };
            (used, off_cpu) = (used + facts.n_used(), off_cpu + here);
            let mut layer = LayerForecast {
                frame: Bytes(0),
                cache: Bytes(0),
                neurons: Bytes(0),
                n_ff: cut.n_ff,
                n_home,
                off_cpu: share(here, facts.n_used()),
                time,
            };
            parts.hand_offs += time.hand_off;
            if is_cpu {
                parts.cpu += time.frame + time.home;
            } else {
                parts.devices += time.frame + time.home;
                parts.cpu += (time.cpu - time.home).max(0.0);
                let sizes = &task.devices[spot.home].layers[i];
                (layer.frame, layer.cache) = (sizes.frame, sizes.cache);
                layer.neurons =
                    if split { sizes.shares[spot.groups] } else { sizes.whole.unwrap_or_default() };
                let on = &mut devices[spot.home];
                on.frames += layer.frame;
                on.cache += layer.cache;
                on.neurons += layer.neurons;
                if split {
                    let facts = &task.devices[spot.home];
                    let first = on.hand_offs == Bytes(0);
                    on.hand_offs += facts.hand_off;
                    on.hand_offs += if first { facts.hand_offs } else { Bytes(0) };
                }
            }
            layers.push(layer);
            placed.push(placement(task, i, spot.home, spot.groups));
        }
        let head = task.head_time(choice.head);
        if choice.head == CPU {
            parts.cpu += head
        } else {
            parts.devices += head
        }
        for (device, facts) in task.devices.iter().enumerate().skip(1) {
            let on = &mut devices[device];
            on.embed = facts.embed.filter(|_| choice.embed == device).unwrap_or_default();
            on.embed_and_head += on.embed;
            on.embed_and_head += facts.head.filter(|_| choice.head == device).unwrap_or_default();
            if choice.embed == device && choice.head == device {
                on.embed_and_head = on.embed_and_head - facts.shared;
            }
            if on.total() > Bytes(0) {
                on.scratch = facts.fixed;
            }
        }
        let n_prompt = task.n_prompt();
        Forecast {
            placement: Placement { embed: choice.embed, head: choice.head, layers: placed },
            seconds: task.seconds(choice),
            parts,
            layers,
            devices,
            least: (0..task.devices.len()).map(|device| min_layer_bytes(task, device)).collect(),
            refused: task.devices.iter().map(|facts| facts.refused.clone()).collect(),
            off_cpu: share(off_cpu, used),
            n_prompt,
            prompt: task.prompt_time(choice, n_prompt, &stream_from),
            stream_from,
        }
    }

    /// The forecast for a placement that was planned from the same sizes and uses, with the speeds
    /// of `task`. `None` if the neurons on the home device of some layer are not whole groups of
    /// its most used neurons.
    #[must_use]
    pub fn for_placement(task: &Task, placement: &Placement) -> Option<Forecast> {
        let spot = |(i, layer): (usize, &LayerPlacement)| {
            let (home, facts) = (layer.home, task.layers.get(i)?);
            if !layer.is_split() {
                return Some(LayerSplit { home, groups: facts.cut.n_groups() });
            }
            let here = layer.shares.iter().find(|share| share.device == home);
            let list = match here.map(|share| &share.neurons) {
                Some(Neurons::List(list)) => &list[..],
                Some(Neurons::All) => return None,
                None => &[],
            };
            let groups = list.len().div_ceil(facts.cut.group);
            (facts.first_groups(groups) == list).then_some(LayerSplit { home, groups })
        };
        let layers: Option<Vec<LayerSplit>> =
            placement.layers.iter().enumerate().map(spot).collect();
        let layers = layers.filter(|layers| layers.len() == task.layers.len())?;
        let choice = Choice { embed: placement.embed, head: placement.head, layers };
        Some(Forecast::new(task, &choice, vec![None; task.devices.len()]))
    }

    /// The forecast if a token takes `seconds` and the prompt `prompt` seconds, because they wait
    /// for weights on disk.
    #[must_use]
    pub fn with_disk(self, seconds: f64, prompt: Option<f64>) -> Forecast {
        let parts = TimeParts { disk: seconds - self.seconds, ..self.parts };
        Forecast { seconds, parts, prompt, ..self }
    }

    /// Prefill tokens per second; `None` if the duration of a prefill is not estimated.
    #[must_use]
    pub fn prompt_rate(&self) -> Option<f64> {
        self.prompt.map(|seconds| self.n_prompt as f64 / seconds)
    }

    /// Seconds of a prompt and the same number of generated tokens; `None` if the duration of a
    /// prefill is not estimated.
    #[must_use]
    pub fn prompt_and_reply_seconds(&self) -> Option<f64> {
        self.prompt.map(|prompt| prompt + self.n_prompt as f64 * self.seconds)
    }

    /// Generated tokens per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        1.0 / self.seconds
    }
}

/// The fewest bytes with which `device` can hold one layer, whole or split, within the user's
/// options. Layers that must have one home count as one layer. `None` if the device can hold no
/// layer.
fn min_layer_bytes(task: &Task, device: DeviceIndex) -> Option<Bytes> {
    let (facts, constraints) = (&task.devices[device], &task.constraints);
    let may_split = match constraints.policy {
        PlacementPolicy::Fastest => constraints.whole_layers.is_none(),
        PlacementPolicy::Fill => true,
        PlacementPolicy::Layers => false,
    };
    let layer = |sizes: &LayerSizes| {
        let whole = sizes.whole.filter(|_| !constraints.neurons_on_cpu);
        let split = sizes.shares.first().map(|share| *share + facts.hand_off);
        let split = split.filter(|_| may_split);
        // The memory that all hand-offs share is needed once.
        let split = split.map(|bytes| (bytes, facts.hand_offs));
        let least = whole.map(|bytes| (bytes, Bytes(0))).into_iter().chain(split);
        let (bytes, shared) = least.min_by_key(|(bytes, shared)| *bytes + *shared)?;
        Some((sizes.frame + sizes.cache + bytes, shared))
    };
    let group = |first: usize| {
        let mut sum = (Bytes(0), Bytes(0));
        for sizes in facts.layers.get(task.home_group(first))? {
            let (bytes, shared) = layer(sizes)?;
            sum = (sum.0 + bytes, sum.1.max(shared));
        }
        Some(sum.0 + sum.1)
    };
    let firsts = (0..facts.layers.len()).filter(|&layer| task.may_cut(layer));
    let least = firsts.filter_map(group).min().map(|bytes| facts.fixed + bytes);
    least.filter(|_| device != CPU && !constraints.cache_on_cpu)
}

fn share(part: f64, total: f64) -> f64 {
    if total > 0.0 { part / total } else { 0.0 }
}

fn placement(task: &Task, layer: usize, home: DeviceIndex, groups: usize) -> LayerPlacement {
    let (facts, cut) = (&task.layers[layer], task.cut(layer));
    let n_here = cut.neurons(groups);
    if n_here == cut.n_ff {
        return LayerPlacement::whole(home);
    }
    if n_here == 0 {
        return LayerPlacement { home, shares: vec![Share { device: CPU, neurons: Neurons::All }] };
    }
    let hot = facts.first_groups(groups);
    let mut is_hot = vec![false; cut.n_ff];
    hot.iter().for_each(|&neuron| is_hot[neuron as usize] = true);
    let cold: Vec<u32> = (0..).zip(&is_hot).filter(|(_, hot)| !**hot).map(|(n, _)| n).collect();
    let share = |device, list: Vec<u32>| Share { device, neurons: Neurons::List(list.into()) };
    LayerPlacement { home, shares: vec![share(home, hot), share(CPU, cold)] }
}
