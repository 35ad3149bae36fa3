//! Decides which neurons swap devices when the text uses different neurons than expected. The
//! decisions depend only on decayed counts, never on a clock, so the same text gives the same
//! swaps.

use std::ops::AddAssign;

/// Number of tokens between two decisions.
pub const DECISION_INTERVAL: usize = 32;
/// Factor on every count at each decision. With it, the counts represent about the last 150 tokens:
/// with more, exchanges come too late for texts that change their subject every few hundred tokens;
/// with fewer, counts are noise.
const DECAY: f32 = 0.8;
/// Number of counted tokens that the expected shares stand for.
const PRIOR_TOKENS: f32 = 64.0;
/// Minimum gain of a swap ([`Swap::gain`]): above the statistical noise of 150 tokens.
const MIN_GAIN: f64 = 0.1;
/// Largest minimum gain that [`Balance`] asks for: only a text that has long changed for good has it.
const MOST_CAUTIOUS_GAIN: f64 = 0.8;
/// The share of all uses that exchanges may have moved to the CPU before they become more cautious.
const MAX_LOSS: f64 = 0.01;
/// Number of tokens within which a swap must pay off.
const PAYBACK_TOKENS: f64 = 256.0;
/// Maximum share of the decode time that swaps may take.
const MAX_TIME_SHARE: f64 = 0.02;
/// Maximum number of swaps at one decision.
const MAX_SWAPS: usize = 256;

/// Limits of the swaps of a layer, from their cost and benefit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Minimum gain of a swap ([`Swap::gain`]); `None` if swaps never pay off.
    pub min_gain: Option<f64>,
    /// Maximum number of swaps at one decision.
    pub max_swaps: usize,
    /// The number of swaps at each decision that the share of time for them allows; below 1, several
    /// decisions allow one.
    pub per_decision: f64,
}

impl Bounds {
    /// The limits for these times in seconds: `saved` is how much longer the CPU takes than the
    /// device to compute a unit of neurons, `cost` is the time to swap two units, and `token` is
    /// the time of a token, if known.
    #[must_use]
    pub fn new(saved: f64, cost: f64, token: Option<f64>) -> Bounds {
        let pays = cost / (saved * PAYBACK_TOKENS);
        let min_gain = (saved > 0.0 && pays < 1.0).then_some(pays.max(MIN_GAIN));
        let time = token.map_or(f64::INFINITY, |token| {
            MAX_TIME_SHARE * DECISION_INTERVAL as f64 * token / cost
        });
        let max_swaps = if time < MAX_SWAPS as f64 { (time as usize).max(1) } else { MAX_SWAPS };
        Bounds { min_gain, max_swaps, per_decision: time }
    }

    /// The limits with a minimum gain that is larger by `caution`.
    #[must_use]
    pub fn with_caution(self, caution: f64) -> Bounds {
        let raised = |gain: f64| (gain * caution).min(MOST_CAUTIOUS_GAIN).max(gain);
        Bounds { min_gain: self.min_gain.map(raised), ..self }
    }
}

/// What exchanges have gained so far, in uses of neurons on the device, compared with the placement
/// that the model was loaded with. A text can change its subject so that each exchange comes too
/// late; exchanges that lose become rarer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    gained: f64,
    uses: f64,
    caution: f64,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance { gained: 0.0, uses: 0.0, caution: 1.0 }
    }
}

impl Balance {
    /// Counts `uses` of neurons: those that were on the device if `now`, and would have been there
    /// without any exchange if `before`.
    pub fn add(&mut self, uses: f32, now: bool, before: bool) {
        let uses = f64::from(uses);
        self.uses += uses;
        self.gained += uses * f64::from(i8::from(now) - i8::from(before));
    }

    /// The factor on the minimum gain at this decision: twice the last one after a loss, half of it
    /// after a gain.
    pub fn caution(&mut self) -> f64 {
        let (loss, most) = (MAX_LOSS * self.uses, MOST_CAUTIOUS_GAIN / MIN_GAIN);
        if self.gained < -loss {
            self.caution = (2.0 * self.caution).min(most);
        } else if self.gained > loss {
            self.caution = (self.caution / 2.0).max(1.0);
        }
        self.caution
    }
}

/// The swaps that the limits allow and that were not made yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowance(f64);

impl Allowance {
    /// The number of swaps that a decision may make, if each one may make `per_decision`.
    pub fn next(&mut self, per_decision: f64) -> usize {
        self.0 = (self.0 + per_decision).min(per_decision.max(1.0));
        self.0 as usize
    }

    /// Counts swaps that were made.
    pub fn spend(&mut self, swaps: usize) {
        self.0 = (self.0 - swaps as f64).max(0.0);
    }
}

/// How often the neurons of a layer were used recently.
#[derive(Clone, Debug)]
pub struct Heat {
    counts: Vec<f32>,
}

impl Heat {
    /// Starts with the expected share of tokens that use each neuron.
    #[must_use]
    pub fn new(expected: impl Iterator<Item = f32>) -> Heat {
        Heat { counts: expected.map(|share| PRIOR_TOKENS * share).collect() }
    }

    /// Counts `n` more tokens that used `neuron`.
    pub fn add(&mut self, neuron: u32, n: f32) {
        if let Some(count) = self.counts.get_mut(neuron as usize) {
            *count += n;
        }
    }

    fn mean_count(&self, neurons: &[u32]) -> f32 {
        let sum: f32 = neurons.iter().filter_map(|&n| self.counts.get(n as usize)).sum();
        sum / neurons.len().max(1) as f32
    }
}

/// The number of tokens that the counts of all layers represent.
#[derive(Clone, Copy, Debug)]
pub struct CountedTokens(f32);

impl Default for CountedTokens {
    fn default() -> CountedTokens {
        CountedTokens(PRIOR_TOKENS)
    }
}

impl AddAssign<usize> for CountedTokens {
    fn add_assign(&mut self, tokens: usize) {
        self.0 += tokens as f32;
    }
}

impl CountedTokens {
    /// Decays the counts of `layers`, and the number of tokens that they represent.
    pub fn decay<'a>(&mut self, layers: impl Iterator<Item = &'a mut Heat>) {
        self.0 *= DECAY;
        layers.flat_map(|heat| &mut heat.counts).for_each(|count| *count *= DECAY);
    }
}

/// A unit of neurons on the device and a unit on the CPU that swap places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swap {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the unit among the units on the device.
    pub hot: usize,
    /// Index of the unit among the units on the CPU.
    pub cold: usize,
    /// Share of tokens that use the CPU's unit, minus the share that use the device's unit.
    pub gain: f32,
}

/// The counts of one layer, as input of [`swaps`].
#[derive(Clone, Copy, Debug)]
pub struct LayerHeat<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// How often each neuron of the layer was used.
    pub heat: &'a Heat,
    /// The number of tokens that the counts represent.
    pub counted: CountedTokens,
}

/// The best swaps of a layer, in units of `unit` neurons. `[device, cpu]` are the neurons of the
/// layer on the device and on the CPU, in the order of their slots.
#[must_use]
pub fn swaps(
    LayerHeat { layer, heat, counted }: LayerHeat<'_>,
    [device, cpu]: [&[u32]; 2],
    unit: usize,
    bounds: &Bounds,
) -> Vec<Swap> {
    let Some(min_gain) = bounds.min_gain else { return Vec::new() };
    // Pairs the least used units on the device with the most used units on the CPU. Ties are
    // ordered by index, so that the result is deterministic.
    let ranked = |side: &[u32], sign: f32| {
        let shares = side.chunks(unit).map(|neurons| heat.mean_count(neurons) / counted.0);
        let mut all: Vec<(f32, usize)> = shares.zip(0..).collect();
        let order = |a: &(f32, usize), b: &(f32, usize)| {
            (sign * a.0).total_cmp(&(sign * b.0)).then(a.1.cmp(&b.1))
        };
        if all.len() > bounds.max_swaps {
            all.select_nth_unstable_by(bounds.max_swaps - 1, order);
            all.truncate(bounds.max_swaps);
        }
        all.sort_by(order);
        all
    };
    let pairs = ranked(device, 1.0).into_iter().zip(ranked(cpu, -1.0));
    let swap = |((hot_share, hot), (cold_share, cold)): ((f32, usize), (f32, usize))| Swap {
        layer,
        hot,
        cold,
        gain: cold_share - hot_share,
    };
    pairs.map(swap).take_while(|swap| f64::from(swap.gain) >= min_gain).collect()
}

/// As [`swaps`], but single neurons swap places, and only within their expert, so that each expert
/// keeps its number of neurons on the device. Experts have `n_per_expert` neurons, which are
/// adjacent in both lists.
#[must_use]
pub fn swaps_within_experts(
    counted: LayerHeat<'_>,
    sides: [&[u32]; 2],
    n_per_expert: usize,
    bounds: &Bounds,
) -> Vec<Swap> {
    let expert = |neuron: u32| neuron as usize / n_per_expert.max(1);
    let runs = sides.map(|side| {
        let mut end = 0;
        let runs = side.chunk_by(|&a, &b| expert(a) == expert(b)).map(|run| {
            end += run.len();
            (expert(run[0]), end - run.len(), run)
        });
        runs.collect::<Vec<_>>()
    });
    let pairs = runs[0].iter().flat_map(|&(number, hot, device)| {
        let other = runs[1].iter().find(|(other, ..)| *other == number);
        other.map(|&(_, cold, cpu)| (hot, cold, [device, cpu]))
    });
    let within = pairs.flat_map(|(hot, cold, sides)| {
        let all = swaps(counted, sides, 1, bounds).into_iter();
        all.map(move |swap| Swap { hot: swap.hot + hot, cold: swap.cold + cold, ..swap })
    });
    within.collect()
}

/// The `max_swaps` best swaps of all layers, sorted by layer.
#[must_use]
pub fn best_swaps(mut all: Vec<Swap>, max_swaps: usize) -> Vec<Swap> {
    let place = |swap: &Swap| (swap.layer, swap.hot);
    all.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(place(a).cmp(&place(b))));
    all.truncate(max_swaps);
    all.sort_by_key(place);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const EAGER: Bounds =
        Bounds { min_gain: Some(MIN_GAIN), max_swaps: MAX_SWAPS, per_decision: f64::INFINITY };

    fn heat(shares: &[f32]) -> Heat {
        Heat::new(shares.iter().copied())
    }

    #[test]
    fn the_most_used_neurons_swap_with_the_least_used_if_the_gain_is_clear() {
        let heat = heat(&[0.9, 0.05, 0.5, 0.45, 0.5, 0.7, 0.1]);
        let at = LayerHeat { layer: 3, heat: &heat, counted: CountedTokens::default() };
        let all = swaps(at, [&[0, 1, 2], &[6, 3, 4, 5]], 1, &EAGER);
        let places: Vec<_> = all.iter().map(|swap| (swap.layer, swap.hot, swap.cold)).collect();
        assert_eq!(places, [(3, 1, 3)], "swapping 0.5 for 0.5 gains nothing");
        assert!((all[0].gain - 0.65).abs() < 1e-6);
        let one = Bounds { max_swaps: 1, ..EAGER };
        assert_eq!(swaps(at, [&[0, 1, 2], &[6, 3, 4, 5]], 1, &one), all);
        assert!(swaps(at, [&[0, 2], &[6, 3, 4]], 1, &EAGER).is_empty());
        assert!(swaps(at, [&[], &[6, 3, 4]], 1, &EAGER).is_empty());
        assert!(swaps(at, [&[1], &[0]], 1, &Bounds { min_gain: None, ..EAGER }).is_empty());
    }

    #[test]
    fn units_are_ranked_by_the_mean_use_of_their_neurons() {
        let heat = heat(&[0.9, 0.0, 0.2, 0.2, 0.6, 0.6]);
        let all = swaps(
            LayerHeat { layer: 0, heat: &heat, counted: CountedTokens::default() },
            [&[2, 3, 0, 1], &[4, 5]],
            2,
            &EAGER,
        );
        assert_eq!((all.len(), all[0].hot, all[0].cold), (1, 0, 0));
    }

    #[test]
    fn neurons_swap_only_within_their_expert() {
        // Experts have 4 neurons each. Expert 0 has neurons 0 and 1 on the device, 2 and 3 on the
        // CPU; expert 1 has 4 on the device, 5 and 7 on the CPU; expert 2 has 8 and 9 on the CPU.
        let heat = heat(&[0.9, 0.1, 0.8, 0.2, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9]);
        let at = LayerHeat { layer: 0, heat: &heat, counted: CountedTokens::default() };
        let sides: [&[u32]; 2] = [&[1, 0, 4], &[5, 7, 2, 3, 8, 9]];
        let all = swaps_within_experts(at, sides, 4, &EAGER);
        let places: Vec<_> = all.iter().map(|swap| (swap.hot, swap.cold)).collect();
        assert_eq!(places, [(0, 2), (2, 0)]);
    }

    #[test]
    fn old_counts_decay() {
        let mut heat = heat(&[0.5, 0.5]);
        let mut counted = CountedTokens::default();
        for _ in 0..40 {
            heat.add(1, DECISION_INTERVAL as f32);
            heat.add(7, 1.0);
            counted += DECISION_INTERVAL;
            counted.decay(std::iter::once(&mut heat));
        }
        let all = swaps(LayerHeat { layer: 0, heat: &heat, counted }, [&[0], &[1]], 1, &EAGER);
        assert!(all[0].gain > 0.95 && all[0].gain <= 1.0, "{all:?}");
    }

    #[test]
    fn the_best_swaps_of_all_layers_are_selected() {
        let swap = |layer, hot, gain| Swap { layer, hot, cold: 0, gain };
        let all = vec![swap(1, 4, 0.3), swap(0, 2, 0.2), swap(0, 1, 0.3), swap(2, 0, 0.9)];
        assert_eq!(best_swaps(all, 3), [swap(0, 1, 0.3), swap(1, 4, 0.3), swap(2, 0, 0.9)]);
    }

    #[test]
    fn bounds_require_that_swaps_pay_off() {
        // The device saves 1 us per use of a neuron and a swap takes 10 us, so a difference of 0.1
        // in use pays off within 100 tokens.
        assert_eq!(Bounds::new(1e-6, 1e-5, None), EAGER);
        let expensive = Bounds::new(1e-6, 127e-6, Some(0.01));
        assert!((expensive.min_gain.unwrap() - 127.0 / 256.0).abs() < 1e-9);
        assert_eq!(expensive.max_swaps, 50, "2 % of 320 ms");
        let slow = Bounds::new(1e-6, 1.0, Some(0.01));
        assert_eq!((slow.min_gain, slow.max_swaps), (None, 1));
        assert!((slow.per_decision - 0.0064).abs() < 1e-9);
        assert_eq!(Bounds::new(0.0, 1e-6, None).min_gain, None);
        assert_eq!(Bounds::new(-1.0, 1e-6, None).min_gain, None);
    }

    #[test]
    fn swaps_that_take_long_wait_for_several_decisions() {
        let mut allowance = Allowance::default();
        let made: Vec<usize> = (0..7)
            .map(|_| {
                let n = allowance.next(0.4);
                allowance.spend(n);
                n
            })
            .collect();
        assert_eq!(made, [0, 0, 1, 0, 0, 1, 0], "0.4 a decision, and one is kept at most");
        let mut allowance = Allowance::default();
        assert_eq!((allowance.next(5.5), allowance.next(5.5)), (5, 5));
        assert_eq!(Allowance::default().next(f64::INFINITY), usize::MAX);
    }

    /// The share of uses that are on the device, with exchanges and without, of a text that changes
    /// between two subjects every `period` tokens. Each subject uses 4 of its 16 experts per token;
    /// the device has 8 of each at first.
    fn shares(period: usize, n_tokens: usize) -> (f64, f64) {
        let mut sides: [Vec<u32>; 2] =
            [(0..8).chain(16..24).collect(), (8..16).chain(24..32).collect()];
        let at_first = sides[0].clone();
        let mut heat = heat(&[0.125; 32]);
        let (mut counted, mut balance) = (CountedTokens::default(), Balance::default());
        let (mut state, mut on_device, mut without) = (1u64, 0.0, 0.0);
        for token in 0..n_tokens {
            for part in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let expert = (token / period % 2 * 16 + part * 4) as u32 + (state >> 62) as u32;
                let (now, before) = (sides[0].contains(&expert), at_first.contains(&expert));
                (on_device, without) = (on_device + f64::from(now), without + f64::from(before));
                heat.add(expert, 1.0);
                balance.add(1.0, now, before);
            }
            counted += 1;
            if (token + 1).is_multiple_of(DECISION_INTERVAL) {
                let bounds = EAGER.with_caution(balance.caution());
                let at = LayerHeat { layer: 0, heat: &heat, counted };
                for Swap { hot, cold, .. } in swaps(at, [&sides[0], &sides[1]], 1, &bounds) {
                    let [device, cpu] = &mut sides;
                    std::mem::swap(&mut device[hot], &mut cpu[cold]);
                }
                counted.decay(std::iter::once(&mut heat));
            }
        }
        let all = 4.0 * n_tokens as f64;
        (on_device / all, without / all)
    }

    #[test]
    fn no_change_of_subject_makes_exchanges_lose_much() {
        for period in (32..=1024).step_by(32) {
            let (with, without) = shares(period, 8192);
            assert!(
                with > 0.97 * without,
                "{period} tokens: {with} of the uses, {without} without"
            );
        }
        let (with, without) = shares(usize::MAX, 2048);
        assert!(with > 1.8 * without, "{with}, {without} without");
        let (with, without) = shares(512, 8192);
        assert!(with > 1.3 * without, "{with}, {without} without");
    }
}
