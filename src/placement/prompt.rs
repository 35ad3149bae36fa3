//! The estimated prefill time, and the number of tokens from which the CPU's neurons are streamed
//! to a device.
//!
//! In prefill, arithmetic dominates, not reading: `n` tokens take `n * bytes / prompt` for the
//! weights they use. A split layer takes the longer of its two sides, and a hand-off. If its
//! absent neurons are streamed to its home, it takes `bytes / upload` plus the home's own time for
//! all neurons (of experts, all are uploaded and a token uses few; with a predictor, the
//! predictor's rows are uploaded too and scored again); overlap of copies with work is not
//! counted. The estimates are conservative: a placement that is estimated to be faster is faster.

use hal::Bytes;
use hal::op::MOST_COUNTED;

use super::estimate::{Choice, Spot};
use super::facts::Task;
use super::{CPU, DeviceIndex};

impl Task {
    /// Tokens of the prompts considered: the largest prefill step.
    pub(super) fn n_prompt(&self) -> usize {
        self.rungs.last().copied().unwrap_or(1)
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

    /// Seconds of `n` tokens in one layer at `spot`, whose absent neurons are streamed or computed
    /// by the CPU. `via` is the device they are streamed to: the home or, for a layer on the CPU,
    /// the device that computes all of its neurons.
    pub(super) fn prompt_layer(
        &self,
        layer: usize,
        spot: Spot,
        n: usize,
        via: Option<DeviceIndex>,
    ) -> f64 {
        let (speed, cpu) = (&self.devices[spot.home].speed, &self.devices[CPU].speed);
        let reads = &self.layers[layer].reads;
        let streamed = via.and_then(|to| self.streamed(layer, spot, n, to));
        let cut = self.cut(layer);
        let n_home = cut.neurons(spot.groups);
        let absent = (cut.n_ff - n_home) as f64;
        let tokens = n as f64;
        // A cached value is multiplied as often per token as a weight.
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

    /// Seconds to stream the neurons of a layer that are not on device `to` there, and to compute
    /// `n` tokens; `None` if they are not streamed.
    fn streamed(&self, layer: usize, spot: Spot, n: usize, to: DeviceIndex) -> Option<f64> {
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
        let n_pieces = (absent as f64 / stream.piece.max(1) as f64).ceil();
        // A chunk has the launch cost of a hand-off.
        let pieces = n_pieces * (speed.op + speed.hand_off);
        let brought = absent as f64 * reads.brought / speed.upload;
        let bytes = absent as f64 * reads.multiplied + n_pieces * reads.per_piece;
        Some(carried + brought + tokens * bytes / speed.prompt + pieces)
    }

    /// Seconds of a prompt of `n` tokens; `None` if a required speed is unknown.
    pub(super) fn prompt(&self, choice: &Choice, n: usize, from: &[Option<usize>]) -> Option<f64> {
        let split = |(i, spot): (usize, &Spot)| spot.groups < self.cut(i).n_groups();
        let homes = choice.layers.iter().map(|spot| spot.home);
        let others = choice.layers.iter().enumerate().any(split).then_some(CPU);
        if homes.chain(others).any(|device| self.devices[device].speed.prompt <= 0.0) {
            return None;
        }
        let layers = choice.layers.iter().enumerate();
        let streams: Vec<bool> =
            from.iter().map(|from| from.is_some_and(|from| n >= from)).collect();
        let layers =
            layers.map(|(i, spot)| self.prompt_layer(i, *spot, n, via(&streams, spot.home)));
        Some(layers.sum::<f64>() + self.head_time(choice.head) + self.carries(choice))
    }

    /// The number of tokens from which streaming absent neurons to each of the devices `there` is
    /// faster; `None` if it never is, or if nothing else is on the device.
    pub(super) fn stream_from(&self, choice: &Choice, there: &[DeviceIndex]) -> Vec<Option<usize>> {
        let streams: Vec<bool> = (0..self.devices.len()).map(|d| there.contains(&d)).collect();
        let layers: Vec<(usize, Spot)> = choice.layers.iter().copied().enumerate().collect();
        let of = |device: DeviceIndex| {
            let used = [choice.embed, choice.head].contains(&device)
                || layers.iter().any(|(_, spot)| spot.home == device);
            if !streams[device] || !used || !self.may_stream(device) {
                return None;
            }
            let through = |spot: Spot| via(&streams, spot.home).filter(|&to| to == device);
            let seconds = |n: usize, streamed: bool| -> f64 {
                let layers = layers.iter().filter(|(_, spot)| through(*spot).is_some());
                let to = |spot| through(spot).filter(|_| streamed);
                layers.map(|(i, spot)| self.prompt_layer(*i, *spot, n, to(*spot))).sum()
            };
            let long = self.rungs.iter().rev().take_while(|n| **n > MOST_COUNTED);
            long.copied().take_while(|&n| seconds(n, true) < seconds(n, false)).last()
        };
        (0..self.devices.len()).map(of).collect()
    }
}

/// The device that neurons of layers at `home` are streamed to, given the devices with streaming:
/// for layers on the CPU the first one.
pub(super) fn via(streams: &[bool], home: DeviceIndex) -> Option<DeviceIndex> {
    match home {
        CPU => streams.iter().position(|streams| *streams),
        home => Some(home).filter(|&home| streams[home]),
    }
}
