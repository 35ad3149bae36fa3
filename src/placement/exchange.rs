//! Decides which neurons change sides when the text uses other neurons than expected, from decayed
//! counts alone. No clock is read, so the same text makes the same exchanges.

use std::ops::AddAssign;

/// Tokens from one decision to the next.
pub const EVERY: usize = 32;
/// Decay of a count at each decision: about the last 300 tokens count.
const DECAY: f32 = 0.9;
/// The expected shares weigh as much as this many counted tokens.
const PRIOR: f32 = 64.0;
/// Minimum difference in their shares of tokens for two neurons to change sides: larger than the
/// statistical noise of a few hundred tokens.
const CLEAR: f64 = 0.1;
/// Number of tokens within which an exchange must pay off.
const PAYS_WITHIN: f64 = 256.0;
/// The share of the time that exchanges may take.
const SHARE: f64 = 0.02;
/// Maximum number of neuron pairs exchanged at one decision.
const MOST: usize = 256;

/// Cost and benefit limits of exchanges, the same for all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Minimum difference in their shares of tokens for two neurons to change sides; `None` if
    /// exchanges never pay off.
    pub least: Option<f64>,
    /// Maximum number of neurons exchanged at one decision.
    pub most: usize,
}

impl Bounds {
    /// The limits if the CPU takes `saved` seconds longer than the device to compute a neuron, an
    /// exchange of two neurons takes `cost` seconds, and a token takes `token` seconds, if known.
    #[must_use]
    pub fn new(saved: f64, cost: f64, token: Option<f64>) -> Bounds {
        let pays = cost / (saved * PAYS_WITHIN);
        let least = (saved > 0.0 && pays < 1.0).then_some(pays.max(CLEAR));
        let time = token.map_or(f64::INFINITY, |token| SHARE * EVERY as f64 * token / cost);
        // Allows at least one exchange, because a decision without any would be useless.
        let most = if time < MOST as f64 { (time as usize).max(1) } else { MOST };
        Bounds { least, most }
    }
}

/// How often the neurons of a layer were used recently.
#[derive(Clone, Debug)]
pub struct Heat {
    counts: Vec<f32>,
}

impl Heat {
    /// Initialised with the expected shares of tokens.
    #[must_use]
    pub fn new(expected: impl Iterator<Item = f32>) -> Heat {
        Heat { counts: expected.map(|share| PRIOR * share).collect() }
    }

    /// Counts `n` more tokens that used `neuron`.
    pub fn add(&mut self, neuron: u32, n: f32) {
        if let Some(count) = self.counts.get_mut(neuron as usize) {
            *count += n;
        }
    }

    fn unit(&self, neurons: &[u32]) -> f32 {
        let sum: f32 = neurons.iter().filter_map(|&n| self.counts.get(n as usize)).sum();
        sum / neurons.len().max(1) as f32
    }
}

/// The number of tokens that the counts of all layers represent.
#[derive(Clone, Copy, Debug)]
pub struct Weight(f32);

impl Default for Weight {
    fn default() -> Weight {
        Weight(PRIOR)
    }
}

impl AddAssign<usize> for Weight {
    fn add_assign(&mut self, tokens: usize) {
        self.0 += tokens as f32;
    }
}

impl Weight {
    /// Decays the counts.
    pub fn decay<'a>(&mut self, layers: impl Iterator<Item = &'a mut Heat>) {
        self.0 *= DECAY;
        layers.flat_map(|heat| &mut heat.counts).for_each(|count| *count *= DECAY);
    }
}

/// Two units of neurons that change sides, by their index on each side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swap {
    /// The layer.
    pub layer: usize,
    /// Index on the device.
    pub hot: usize,
    /// Index on the CPU.
    pub cold: usize,
    /// Difference in their shares of tokens.
    pub gain: f32,
}

/// How often the neurons of a layer were active.
#[derive(Clone, Copy, Debug)]
pub struct LayerHeat<'a> {
    /// The layer.
    pub layer: usize,
    /// Its counts.
    pub heat: &'a Heat,
    /// The tokens that were counted.
    pub weight: Weight,
}

/// The best exchanges of a layer. `[device, cpu]` are its neurons on each side in the order of
/// their slots; units of `unit` neurons are exchanged together.
#[must_use]
pub fn swaps(
    LayerHeat { layer, heat, weight }: LayerHeat<'_>,
    [device, cpu]: [&[u32]; 2],
    unit: usize,
    bounds: &Bounds,
) -> Vec<Swap> {
    let Some(least) = bounds.least else { return Vec::new() };
    // The device's least used and the CPU's most used neurons; ties are ordered by index, so that
    // the result is deterministic.
    let ranked = |side: &[u32], sign: f32| {
        let shares = side.chunks(unit).map(|neurons| heat.unit(neurons) / weight.0);
        let mut all: Vec<(f32, usize)> = shares.zip(0..).collect();
        let order = |a: &(f32, usize), b: &(f32, usize)| {
            (sign * a.0).total_cmp(&(sign * b.0)).then(a.1.cmp(&b.1))
        };
        if all.len() > bounds.most {
            all.select_nth_unstable_by(bounds.most - 1, order);
            all.truncate(bounds.most);
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
    pairs.map(swap).take_while(|swap| f64::from(swap.gain) >= least).collect()
}

/// The same for a layer whose neurons change sides one by one within experts of `n_each` neurons,
/// which are adjacent on both sides: each expert keeps its number of neurons on a side.
#[must_use]
pub fn swaps_within(
    counted: LayerHeat<'_>,
    sides: [&[u32]; 2],
    n_each: usize,
    bounds: &Bounds,
) -> Vec<Swap> {
    let expert = |neuron: u32| neuron as usize / n_each.max(1);
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

/// The `most` best exchanges of all layers, by layer.
#[must_use]
pub fn best(mut all: Vec<Swap>, most: usize) -> Vec<Swap> {
    let place = |swap: &Swap| (swap.layer, swap.hot);
    all.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(place(a).cmp(&place(b))));
    all.truncate(most);
    all.sort_by_key(place);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const EAGER: Bounds = Bounds { least: Some(CLEAR), most: MOST };

    fn heat(shares: &[f32]) -> Heat {
        Heat::new(shares.iter().copied())
    }

    #[test]
    fn the_most_used_change_places_with_the_least_used_if_it_is_clear() {
        let heat = heat(&[0.9, 0.05, 0.5, 0.45, 0.5, 0.7, 0.1]);
        let at = LayerHeat { layer: 3, heat: &heat, weight: Weight::default() };
        let all = swaps(at, [&[0, 1, 2], &[6, 3, 4, 5]], 1, &EAGER);
        let places: Vec<_> = all.iter().map(|swap| (swap.layer, swap.hot, swap.cold)).collect();
        assert_eq!(places, [(3, 1, 3)], "0.5 for 0.5 gains nothing");
        assert!((all[0].gain - 0.65).abs() < 1e-6);
        let one = Bounds { most: 1, ..EAGER };
        assert_eq!(swaps(at, [&[0, 1, 2], &[6, 3, 4, 5]], 1, &one), all);
        assert!(swaps(at, [&[0, 2], &[6, 3, 4]], 1, &EAGER).is_empty());
        assert!(swaps(at, [&[], &[6, 3, 4]], 1, &EAGER).is_empty());
        assert!(swaps(at, [&[1], &[0]], 1, &Bounds { least: None, most: 9 }).is_empty());
    }

    #[test]
    fn units_go_by_the_mean_of_their_neurons() {
        let heat = heat(&[0.9, 0.0, 0.2, 0.2, 0.6, 0.6]);
        let all = swaps(
            LayerHeat { layer: 0, heat: &heat, weight: Weight::default() },
            [&[2, 3, 0, 1], &[4, 5]],
            2,
            &EAGER,
        );
        assert_eq!((all.len(), all[0].hot, all[0].cold), (1, 0, 0));
    }

    #[test]
    fn neurons_of_experts_change_places_with_their_own() {
        // Experts of 4: the first has neurons 0, 1 on the device and 2, 3 on the CPU, the second
        // has 4 on the device, the third 8, 9 on the CPU.
        let heat = heat(&[0.9, 0.1, 0.8, 0.2, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9]);
        let at = LayerHeat { layer: 0, heat: &heat, weight: Weight::default() };
        let sides: [&[u32]; 2] = [&[1, 0, 4], &[5, 7, 2, 3, 8, 9]];
        let all = swaps_within(at, sides, 4, &EAGER);
        let places: Vec<_> = all.iter().map(|swap| (swap.hot, swap.cold)).collect();
        assert_eq!(places, [(0, 2), (2, 0)]);
    }

    #[test]
    fn counts_of_long_ago_fade() {
        let mut heat = heat(&[0.5, 0.5]);
        let mut weight = Weight::default();
        for _ in 0..40 {
            heat.add(1, EVERY as f32);
            heat.add(7, 1.0);
            weight += EVERY;
            weight.decay(std::iter::once(&mut heat));
        }
        let all = swaps(LayerHeat { layer: 0, heat: &heat, weight }, [&[0], &[1]], 1, &EAGER);
        assert!(all[0].gain > 0.95 && all[0].gain <= 1.0, "{all:?}");
    }

    #[test]
    fn the_best_of_all_layers_are_taken() {
        let swap = |layer, hot, gain| Swap { layer, hot, cold: 0, gain };
        let all = vec![swap(1, 4, 0.3), swap(0, 2, 0.2), swap(0, 1, 0.3), swap(2, 0, 0.9)];
        assert_eq!(best(all, 3), [swap(0, 1, 0.3), swap(1, 4, 0.3), swap(2, 0, 0.9)]);
    }

    #[test]
    fn what_does_not_pay_is_left() {
        // A use saves 1 us, an exchange takes 10 us: a difference of a tenth pays off within 100
        // tokens.
        assert_eq!(Bounds::new(1e-6, 1e-5, None), Bounds { least: Some(CLEAR), most: MOST });
        let dear = Bounds::new(1e-6, 127e-6, Some(0.01));
        assert!((dear.least.unwrap() - 127.0 / 256.0).abs() < 1e-9);
        assert_eq!(dear.most, 50, "2 % of 320 ms");
        assert_eq!(Bounds::new(1e-6, 1.0, Some(0.01)), Bounds { least: None, most: 1 });
        assert_eq!(Bounds::new(0.0, 1e-6, None).least, None);
        assert_eq!(Bounds::new(-1.0, 1e-6, None).least, None);
    }
}
