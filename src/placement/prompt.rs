//! Estimates the prefill time, and the number of tokens from which neurons on the CPU are streamed
//! to a device.
//!
//! In prefill, arithmetic takes longer than reading: `n` tokens take `n * bytes / prompt` seconds
//! for the weights they use. A split layer takes the longer of the times of its two devices, plus a
//! hand-off. If its absent neurons are streamed to its home, it takes `bytes / upload` plus the
//! time of the home for all neurons. All experts are uploaded, although a token uses few; the rows
//! of a predictor are uploaded too and computed again. Copies are assumed not to overlap with work,
//! so streaming is at least as fast as estimated.

use hal::Bytes;
use hal::op::MAX_COUNTED_TOKENS;

use super::estimate::{Choice, LayerSplit};
use super::facts::Task;
use super::{CPU, DeviceIndex};

impl Task {
    /// Number of tokens of the prompt whose time is estimated: those of the largest prefill step.
    pub(super) fn n_prompt(&self) -> usize {
        self.buckets.last().copied().unwrap_or(1)
    }

    /// Whether absent neurons can be streamed to a device, and all speeds for the decision are
    /// known.
    pub(super) fn may_stream(&self, device: DeviceIndex) -> bool {
        let (facts, cpu) = (&self.devices[device], &self.devices[CPU]);
        let known = facts.speed.upload > 0.0 && facts.speed.prompt > 0.0 && cpu.speed.prompt > 0.0;
        device != CPU && facts.stream.is_some() && known
    }

    /// A copy of the task with the memory for streaming reserved on these devices.
    pub(super) fn with_slots(&self, devices: &[DeviceIndex]) -> Task {
        let mut task = self.clone();
        for &device in devices {
            let facts = &mut task.devices[device];
            facts.fixed += facts.stream.map_or(Bytes(0), |stream| stream.bytes);
        }
        task
    }

    /// Prefill seconds of `n` tokens in one layer placed as in `spot`. Its absent neurons are
    /// streamed to the device `via`: the home or, for a layer on the CPU, the device that computes
    /// all of its neurons. Without `via`, the CPU computes them.
    pub(super) fn prompt_layer_time(
        &self,
        layer: usize,
        spot: LayerSplit,
        n: usize,
        via: Option<DeviceIndex>,
    ) -> f64 {
        let (speed, cpu) = (&self.devices[spot.home].speed, &self.devices[CPU].speed);
        let reads = &self.layers[layer].reads;
        let streamed = via.and_then(|to| self.stream_time(layer, spot, n, to));
        let cut = self.cut(layer);
        let n_home = cut.neurons(spot.groups);
        let absent = (cut.n_ff - n_home) as f64;
        let tokens = n as f64;
        // Attention multiplies each cached value once per token, as a matrix product does each
        // weight.
        let through = tokens * (reads.frame + reads.cache) / speed.prompt;
        let frame = through + reads.n_ops as f64 * speed.op;
        let own = tokens * n_home as f64 * reads.prompt / speed.prompt;
        match (absent > 0.0, streamed) {
            (false, None) => frame + own,
            (true, None) => {
                frame + own.max(tokens * absent * reads.prompt / cpu.prompt) + speed.hand_off
            }
            // For a layer on the CPU, all neurons are streamed.
            (false, Some(seconds)) => frame + seconds,
            (true, Some(seconds)) => frame + own + seconds,
        }
    }

    /// Seconds to stream the neurons of a layer that are not on device `to` to that device, and to
    /// compute them for `n` tokens; `None` if they are not streamed.
    fn stream_time(
        &self,
        layer: usize,
        spot: LayerSplit,
        n: usize,
        to: DeviceIndex,
    ) -> Option<f64> {
        let (facts, reads) = (&self.devices[to], self.layers[layer].reads.streams?);
        let (stream, speed) = (facts.stream?, &facts.speed);
        let cut = self.cut(layer);
        let (n_home, tokens) = (cut.neurons(spot.groups), n as f64);
        let (absent, carried) = match spot.home {
            // A layer without neurons has nothing to stream.
            _ if cut.n_ff == 0 => return None,
            CPU if n_home == cut.n_ff => {
                let bytes = tokens * reads.carried?;
                (cut.n_ff, bytes / speed.upload + 2.0 * speed.hand_off)
            }
            home if home == to && n_home < cut.n_ff => (cut.n_ff - n_home, 0.0),
            _ => return None,
        };
        let n_chunks = (absent as f64 / stream.chunk_neurons.max(1) as f64).ceil();
        // Launching a chunk costs an op and a hand-off.
        let launches = n_chunks * (speed.op + speed.hand_off);
        let uploaded = absent as f64 * reads.uploaded / speed.upload;
        let bytes = absent as f64 * reads.multiplied + n_chunks * reads.per_chunk;
        Some(carried + uploaded + tokens * bytes / speed.prompt + launches)
    }

    /// Seconds of a prompt of `n` tokens; `None` if a required speed is unknown.
    pub(super) fn prompt_time(
        &self,
        choice: &Choice,
        n: usize,
        from: &[Option<usize>],
    ) -> Option<f64> {
        let split = |(i, spot): (usize, &LayerSplit)| spot.groups < self.cut(i).n_groups();
        let homes = choice.layers.iter().map(|spot| spot.home);
        let others = choice.layers.iter().enumerate().any(split).then_some(CPU);
        if homes.chain(others).any(|device| self.devices[device].speed.prompt <= 0.0) {
            return None;
        }
        let layers = choice.layers.iter().enumerate();
        let streams: Vec<bool> =
            from.iter().map(|from| from.is_some_and(|from| n >= from)).collect();
        let layers = layers.map(|(i, spot)| {
            self.prompt_layer_time(i, *spot, n, stream_target(&streams, spot.home))
        });
        Some(layers.sum::<f64>() + self.head_time(choice.head) + self.residual_moves(choice))
    }

    /// For each device, the number of tokens in a step from which streaming absent neurons to it is
    /// faster. `None` if streaming is never faster or not possible ([`Task::may_stream`]), if
    /// `targets` does not list the device, or if `choice` places nothing on it.
    pub(super) fn stream_from(
        &self,
        choice: &Choice,
        targets: &[DeviceIndex],
    ) -> Vec<Option<usize>> {
        let streams: Vec<bool> = (0..self.devices.len()).map(|d| targets.contains(&d)).collect();
        let layers: Vec<(usize, LayerSplit)> = choice.layers.iter().copied().enumerate().collect();
        let of = |device: DeviceIndex| {
            let used = [choice.embed, choice.head].contains(&device)
                || layers.iter().any(|(_, spot)| spot.home == device);
            if !streams[device] || !used || !self.may_stream(device) {
                return None;
            }
            let through =
                |spot: LayerSplit| stream_target(&streams, spot.home).filter(|&to| to == device);
            let seconds = |n: usize, streamed: bool| -> f64 {
                let layers = layers.iter().filter(|(_, spot)| through(*spot).is_some());
                let to = |spot| through(spot).filter(|_| streamed);
                layers.map(|(i, spot)| self.prompt_layer_time(*i, *spot, n, to(*spot))).sum()
            };
            let long = self.buckets.iter().rev().take_while(|n| **n > MAX_COUNTED_TOKENS);
            long.copied().take_while(|&n| seconds(n, true) < seconds(n, false)).last()
        };
        (0..self.devices.len()).map(of).collect()
    }
}

/// The device that the neurons of a layer with this `home` are streamed to: the home or, for a
/// layer on the CPU, the first device with streaming. `streams[d]` is whether weights are streamed
/// to device `d`.
pub(super) fn stream_target(streams: &[bool], home: DeviceIndex) -> Option<DeviceIndex> {
    match home {
        CPU => streams.iter().position(|streams| *streams),
        home => Some(home).filter(|&home| streams[home]),
    }
}
