//! Properties that every plan must have, on random tasks; and some examples.

use proptest::prelude::*;

use super::*;
use hal::Bytes;

mod found;
mod hottest;
mod large;
mod rules;

/// Parameters of a random task.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    n_layer: usize,
    n_ff: usize,
    unit: usize,
    /// Neurons of each layer as a share of the largest, cycled over the layers; 0 for a layer
    /// without neurons.
    widths: Vec<f64>,
    /// Whether each layer must have the home of the layer before it, cycled over the layers.
    joined: Vec<bool>,
    /// Bytes of a layer's frame, its cache, one neuron, and the overhead of every share.
    sizes: [u64; 4],
    /// Allocations are multiples of this many bytes.
    granule: u64,
    /// Ratio of the uses of a neuron and of the neuron before it, cycled over the layers.
    falls: Vec<f64>,
    sparse: bool,
    /// For each device: its speed relative to the CPU, and the hand-off in microseconds.
    devices: Vec<(f64, f64)>,
    ends: u64,
    constraints: PlanConstraints,
    /// Ratio of the prefill speeds of a device and the CPU, divided by the ratio of their decode
    /// speeds; `None` if the prefill speeds are unknown.
    prompts: Option<f64>,
    /// Bytes of the slots for streaming, and upload speed in bytes per nanosecond.
    streams: Option<(u64, f64)>,
}

pub(super) fn recipes() -> impl Strategy<Value = Recipe> {
    let sizes = [0..50_000u64, 0..20_000, 1..500, 0..5_000];
    let devices = prop::collection::vec((0.2..40.0f64, 0.0..80.0f64), 1..3);
    let constraints = prop_oneof![
        4 => Just(PlanConstraints::default()),
        1 => Just(PlanConstraints { neurons_on_cpu: true, ..PlanConstraints::default() }),
        1 => Just(PlanConstraints { cache_on_cpu: true, ..PlanConstraints::default() }),
        1 => (0..9usize).prop_map(|n| PlanConstraints { whole_layers: Some(n), ..PlanConstraints::default() }),
    ];
    let falls = prop::collection::vec(0.5..1.0f64, 1..4);
    let widths = prop_oneof![
        2 => Just(vec![1.0]),
        1 => prop::collection::vec(prop_oneof![Just(0.0), 0.1..1.0f64], 1..4),
    ];
    let joined = prop_oneof![
        1 => Just(vec![false]),
        1 => prop::collection::vec(any::<bool>(), 2..9),
    ];
    let cut = (1..8usize, 1..5usize, 1..40usize, widths, joined);
    let rest = (prop::sample::select(vec![1u64, 256, 4096]), any::<bool>(), 0..80_000u64);
    let slots = (0..40_000u64, 0.01..20.0f64);
    let prompts = prop_oneof![
        1 => Just((None, None)),
        1 => (0.1..30.0f64).prop_map(|prompts| (Some(prompts), None)),
        1 => (0.1..30.0f64, slots).prop_map(|(prompts, slots)| (Some(prompts), Some(slots))),
    ];
    (cut, sizes, rest, falls, devices, constraints, prompts).prop_map(
        |(cut, sizes, (granule, sparse, ends), falls, devices, constraints, (prompts, streams))| {
            let (n_layer, unit, n_units, widths, joined) = cut;
            let n_ff = unit * n_units;
            Recipe {
                n_layer,
                n_ff,
                unit,
                widths,
                joined,
                sizes,
                granule,
                falls,
                sparse,
                devices,
                ends,
                constraints,
                prompts,
                streams,
            }
        },
    )
}

impl Recipe {
    /// How the neurons of a layer are divided: into whole units.
    fn cut(&self, layer: usize) -> Cut {
        let width = self.widths[layer % self.widths.len()];
        let n_units = ((self.n_ff / self.unit) as f64 * width) as usize;
        Cut::new(n_units * self.unit, self.unit)
    }

    pub(super) fn task(&self, budgets: &[u64]) -> Task {
        let round = |n: u64| Bytes(n.div_ceil(self.granule) * self.granule);
        let [frame, cache, neuron, overhead] = self.sizes;
        let layers = (0..self.n_layer).map(|layer| {
            let fall = self.falls[layer % self.falls.len()];
            let cut = self.cut(layer);
            let uses: Vec<f32> = (0..cut.n_ff).map(|n| fall.powi(n as i32) as f32).collect();
            let (tested, used) = if self.sparse { (0.3, 0.7) } else { (1.0, 0.0) };
            let reads = LayerReads {
                frame: frame as f64,
                cache: cache as f64,
                tested: tested * neuron as f64,
                used: used * neuron as f64,
                prompt: neuron as f64,
                streams: self.streams.map(|_| StreamReads {
                    uploaded: neuron as f64,
                    multiplied: neuron as f64,
                    per_chunk: 0.0,
                    carried: self.sparse.then_some(1000.0),
                }),
                n_ops: 10,
            };
            let mut facts = LayerFacts::new(reads, Uses::Each(&uses), &cut);
            facts.shares_home = layer > 0 && self.joined[layer % self.joined.len()];
            facts
        });
        let sizes = |layer| {
            let cut = self.cut(layer);
            LayerSizes {
                frame: round(frame),
                cache: round(cache),
                shares: (0..cut.n_groups())
                    .map(|k| match k {
                        0 => Bytes(0),
                        k => round(overhead + cut.neurons(k) as u64 * neuron),
                    })
                    .collect(),
                whole: Some(match cut.n_ff {
                    0 => Bytes(0),
                    n_ff => round(overhead + n_ff as u64 * neuron),
                }),
            }
        };
        let device = |(budget, speed)| DeviceFacts {
            budget: Bytes(budget),
            fixed: Bytes(3000),
            hand_offs: Bytes(500),
            hand_off: Bytes(700),
            embed: Some(round(self.ends)),
            head: Some(round(self.ends)),
            shared: Bytes(self.ends / 2),
            layers: (0..self.n_layer).map(sizes).collect(),
            speed,
            stream: self
                .streams
                .map(|(bytes, _)| StreamFacts { bytes: Bytes(bytes), chunk_neurons: 8 }),
            refused: Vec::new(),
        };
        let upload = self.streams.map_or(0.0, |(_, upload)| upload);
        let prompt = self.prompts.map_or(0.0, |_| 5e9);
        let cpu = Speed { dense: 1e9, sparse: 0.9e9, prompt, ..Speed::default() };
        let speeds = self.devices.iter().map(|(factor, microseconds)| Speed {
            dense: factor * 1e9,
            sparse: factor * 0.7e9,
            hand_off: microseconds * 1e-6,
            op: 1e-6,
            refill: 0.0,
            prompt: self.prompts.map_or(0.0, |prompts| factor * prompts * 5e9),
            upload: upload * 1e9,
        });
        let others = budgets.iter().copied().zip(speeds).map(device);
        Task {
            layers: layers.collect(),
            devices: [device((0, cpu))].into_iter().chain(others).collect(),
            head: self.ends as f64,
            buckets: (0..10).map(|i| 1 << i).collect(),
            constraints: self.constraints,
        }
    }

    /// A budget larger than the whole model, in bytes.
    pub(super) fn ample_budget(&self) -> u64 {
        let per_layer = self.sizes[..2].iter().sum::<u64>() + self.sizes[3] + 3 * 4096;
        let neurons = self.n_ff as u64 * self.sizes[2];
        2 * (self.n_layer as u64 * (per_layer + neurons + 5000) + 2 * self.ends + 20_000)
    }
}

fn check(task: &Task) -> Forecast {
    let forecast = plan(task);
    let placement = &forecast.placement;
    let cuts: Vec<Cut> = task.layers.iter().map(|layer| layer.cut).collect();
    placement.check(&cuts, &[], task.devices.len()).unwrap();
    for (pair, facts) in placement.layers.windows(2).zip(&task.layers[1..]) {
        assert!(!facts.shares_home || pair[0].home == pair[1].home, "{placement:?}");
    }
    for (facts, bytes) in task.devices.iter().zip(&forecast.devices) {
        assert!(bytes.total() <= facts.budget, "{} of {}", bytes.total(), facts.budget);
    }
    let TimeParts { cpu, devices, hand_offs, disk } = forecast.parts;
    assert_eq!(disk, 0.0);
    assert!(forecast.seconds <= (cpu + devices + hand_offs) * (1.0 + 1e-9));
    assert!((0.0..=1.0 + 1e-9).contains(&forecast.off_cpu));
    if forecast.stream_from.iter().all(Option::is_none) {
        assert_eq!(Forecast::for_placement(task, placement).as_ref(), Some(&forecast));
    }
    forecast
}

fn not_slower(a: f64, b: f64) -> bool {
    a <= b * (1.0 + 1e-9)
}

/// Decode seconds of a plain split by layers, as with `-ngl`: the last layers that fit are whole on
/// the first device after the CPU, with the head if it fits too.
fn plain_split_seconds(task: &Task) -> f64 {
    let device = &task.devices[1];
    let (mut left, mut choice) = (device.budget, task.on_cpu());
    let mut first = task.layers.len();
    let Some(room) = left.0.checked_sub(device.fixed.0) else { return task.seconds(&choice) };
    left = Bytes(room);
    for (layer, sizes) in device.layers.iter().enumerate().rev() {
        let bytes = sizes.frame + sizes.cache + sizes.whole.unwrap();
        if bytes > left {
            break;
        }
        left = left - bytes;
        first = layer;
        choice.layers[layer] = estimate::LayerSplit { home: 1, groups: task.cut(layer).n_groups() };
    }
    // Moves layers back that must have the same home as a layer that does not fit.
    while !task.may_cut(first) {
        choice.layers[first].home = CPU;
        let sizes = &device.layers[first];
        left += sizes.frame + sizes.cache + sizes.whole.unwrap();
        first += 1;
    }
    let without = task.seconds(&choice);
    if device.head.unwrap() <= left {
        choice.head = 1;
    }
    task.seconds(&choice).min(without)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_plan_is_complete_within_its_budget_and_deterministic(
        recipe in recipes(), shares in prop::array::uniform2(0.0..1.0f64),
    ) {
        let budgets = shares.map(|share| (share * recipe.ample_budget() as f64) as u64);
        let task = recipe.task(&budgets);
        prop_assert_eq!(check(&task), check(&task));
    }

    #[test]
    fn more_budget_is_never_worse(
        recipe in recipes(), n_steps in 2..12u64, first in 0.0..1.0f64, span in -3.0..0.0f64,
    ) {
        let constraints = PlanConstraints { whole_layers: None, ..recipe.constraints };
        let recipe = Recipe { constraints, ..recipe };
        // The budgets are far apart in some cases and close together in others. Half of
        // `ample_budget` is still more than the total size.
        let (all, span) = (0.5 * recipe.ample_budget() as f64, 10f64.powf(span));
        let share = |step| first * (1.0 - span) + span * step as f64 / n_steps as f64;
        let budgets = (0..=n_steps).map(|step| (all * share(step)) as u64);
        let plans: Vec<_> = budgets.map(|b| check(&recipe.task(&[b, b / 2]))).collect();
        for (i, more) in plans.iter().enumerate() {
            for less in &plans[..i] {
                let faster = more.prompt.zip(less.prompt).is_some_and(|(a, b)| not_slower(a, b));
                prop_assert!(
                    faster || not_slower(more.seconds, less.seconds),
                    "{} and {:?} after {} and {:?}", more.seconds, more.prompt, less.seconds, less.prompt
                );
            }
        }
    }

    #[test]
    fn no_plan_is_slower_than_a_plain_split_by_layers(
        recipe in recipes(), shares in prop::array::uniform2(0.0..1.0f64),
    ) {
        let constraints = PlanConstraints { whole_layers: None, ..recipe.constraints };
        let recipe = Recipe { constraints, ..recipe };
        let task = recipe.task(&shares.map(|share| (share * recipe.ample_budget() as f64) as u64));
        let (plan, whole) = (check(&task), plan_whole_layers(&task));
        prop_assert!(not_slower(plan.seconds, whole.seconds));
        prop_assert_eq!(plan.prompt.is_some(), recipe.prompts.is_some());
        if let (Some(prompt), Some(whole)) = (plan.prompt, whole.prompt) {
            prop_assert!(not_slower(prompt, whole), "prompts: {prompt} and {whole}");
        }
        let tokens = plan_for_decode(&task);
        prop_assert!(not_slower(tokens.seconds, plan.seconds));
        if recipe.constraints == PlanConstraints::default() {
            prop_assert!(not_slower(plan.seconds, task.seconds(&task.on_cpu())));
            prop_assert!(task.devices.len() > 2 || not_slower(plan.seconds, plain_split_seconds(&task)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn streaming_makes_prefill_faster_or_is_not_used(
        recipe in recipes(), share in 0.0..1.0f64, slots in (0..40_000u64, 0.01..20.0f64),
    ) {
        let prompts = recipe.prompts.or(Some(8.0));
        let recipe = Recipe { prompts, constraints: PlanConstraints::default(), streams: Some(slots), ..recipe };
        let budget = (share * recipe.ample_budget() as f64) as u64;
        let task = recipe.task(&[budget, budget / 2]);
        let with = check(&task);
        let without = plan(&Recipe { streams: None, ..recipe.clone() }.task(&[budget, budget / 2]));
        prop_assert!(with.prompt.unwrap() <= without.prompt.unwrap());
        prop_assert!(with.prompt_and_reply_seconds().unwrap() <= without.prompt_and_reply_seconds().unwrap());
        let streams = with.stream_from.iter().any(Option::is_some);
        prop_assert!(streams || with == without);
        prop_assert!(with.stream_from.iter().flatten().all(|&n| n > hal::op::MAX_COUNTED_TOKENS));
    }
}

/// Twelve layers, neurons whose use differs widely, and a device that is twenty times as fast as
/// the CPU.
fn usual() -> Recipe {
    Recipe {
        n_layer: 12,
        n_ff: 256,
        unit: 1,
        widths: vec![1.0],
        joined: vec![false],
        sizes: [20_000, 2_000, 300, 0],
        granule: 1,
        falls: vec![0.97],
        sparse: true,
        devices: vec![(20.0, 0.5)],
        ends: 30_000,
        constraints: PlanConstraints::default(),
        prompts: None,
        streams: None,
    }
}

/// Placing the head on the device pays off in decode but not in prefill.
#[test]
fn prefill_as_fast_as_with_whole_layers_costs_decode_time() {
    let task = Recipe { prompts: Some(8.0), ..usual() }.task(&[600_000]);
    let (plan, tokens, whole) = (check(&task), plan_for_decode(&task), plan_whole_layers(&task));
    let prompts = [&tokens, &whole, &plan].map(|forecast| forecast.prompt.unwrap());
    assert!(prompts.is_sorted_by(|a, b| a > b), "{prompts:?}");
    let seconds = [&tokens, &plan, &whole].map(|forecast| forecast.seconds);
    assert!(seconds.is_sorted_by(|a, b| a < b), "{seconds:?}");
    assert_eq!(n_whole(&tokens), 0);
    assert!(plan.placement.n_split() > 0 && n_whole(&plan) > 0);
}

fn n_whole(forecast: &Forecast) -> usize {
    let layers = forecast.placement.layers.iter();
    layers.filter(|layer| layer.home != CPU && !layer.is_split()).count()
}

#[test]
fn a_fast_hand_off_splits_many_layers_and_a_slow_one_few() {
    let half = 600_000;
    let quick = check(&usual().task(&[half]));
    assert_eq!(quick.placement.n_split(), 12);
    assert!(quick.off_cpu > 0.8, "the hot neurons are on the device: {}", quick.off_cpu);
    let slow = check(&Recipe { devices: vec![(20.0, 5000.0)], ..usual() }.task(&[half]));
    assert!(slow.placement.n_split() < 2, "{}", slow.placement.n_split());
    let none = check(&Recipe { devices: vec![(20.0, 1e9)], ..usual() }.task(&[half]));
    assert_eq!(none.placement, Placement::all_on(CPU, 12));
}

#[test]
fn a_device_that_fits_everything_gets_everything() {
    let task = usual().task(&[10_000_000]);
    assert_eq!(check(&task).placement, Placement::all_on(1, 12));
}

#[test]
fn the_most_used_neurons_are_on_the_device() {
    let forecast = check(&usual().task(&[600_000]));
    for layer in &forecast.placement.layers {
        let Neurons::List(hot) = &layer.shares[0].neurons else { panic!("{layer:?}") };
        assert!(hot.iter().copied().eq(0..hot.len() as u32), "lower ids are used more often");
    }
}

#[test]
fn a_device_slower_than_the_cpu_gets_no_whole_layer() {
    let task = Recipe { devices: vec![(0.5, 0.1)], ..usual() }.task(&[10_000_000]);
    let forecast = check(&task);
    assert!(not_slower(forecast.seconds, task.seconds(&task.on_cpu())));
    assert_eq!(n_whole(&forecast), 0);
}

#[test]
fn constraints_are_met_as_far_as_memory_allows() {
    let task = |constraints, budget| Recipe { constraints, ..usual() }.task(&[budget]);
    let layers = |n| PlanConstraints { whole_layers: Some(n), ..PlanConstraints::default() };
    let five = check(&task(layers(5), 10_000_000));
    assert_eq!((n_whole(&five), five.placement.n_split(), five.placement.head), (5, 0, CPU));
    assert!(five.placement.layers[7..].iter().all(|layer| layer.home == 1), "the last layers");
    let all = check(&task(layers(99), 10_000_000));
    assert_eq!((n_whole(&all), all.placement.head), (12, 1));
    let few = check(&task(layers(99), 400_000));
    assert!(n_whole(&few) > 1 && n_whole(&few) < 12 && few.placement.n_split() == 0);
    assert_eq!(check(&task(layers(0), 10_000_000)).placement, Placement::all_on(CPU, 12));
    let no_neurons = PlanConstraints { neurons_on_cpu: true, ..PlanConstraints::default() };
    let placed = check(&task(no_neurons, 10_000_000));
    assert_eq!((placed.off_cpu, placed.placement.n_split()), (0.0, 12));
    let cache = PlanConstraints { cache_on_cpu: true, ..PlanConstraints::default() };
    let placed = check(&task(cache, 10_000_000)).placement;
    assert!(placed.layers.iter().all(|layer| layer.home == CPU) && placed.head == 1);
}

#[test]
fn cpu_layers_are_streamed_next_to_requested_layers() {
    let constraints = PlanConstraints { whole_layers: Some(5), ..PlanConstraints::default() };
    let recipe = |streams| Recipe { constraints, streams, prompts: Some(8.0), ..usual() };
    let plain = plan(&recipe(None).task(&[10_000_000]));
    let with = plan(&recipe(Some((10_000, 10.0))).task(&[10_000_000]));
    assert_eq!((with.stream_from[0], with.placement == plain.placement), (None, true));
    assert!(with.stream_from[1].is_some() && with.prompt < plain.prompt, "{:?}", with.prompt);
    assert_eq!(with.devices[1].total(), plain.devices[1].total() + Bytes(10_000));
    // Slots displace no layer, and slow streaming is not used.
    let tight = plain.devices[1].total().0 + 9_999;
    assert_eq!(plan(&recipe(Some((10_000, 10.0))).task(&[tight])).stream_from, [None, None]);
    let slow = plan(&recipe(Some((10_000, 1e-6))).task(&[10_000_000]));
    assert_eq!(slow.stream_from, [None, None]);
}

#[test]
fn layers_that_a_device_cannot_run_stay_on_the_cpu() {
    let mut task = usual().task(&[10_000_000]);
    let sizes = &mut task.devices[1].layers;
    (sizes[3].whole, sizes[3].shares) = (None, [].into());
    sizes[7].whole = None;
    task.devices[1].head = None;
    let placement = check(&task).placement;
    assert_eq!((placement.layers[3].home, placement.head), (CPU, CPU));
    assert!(placement.layers[7].home == 1 && placement.layers[7].is_split());
    assert!([4, 5, 6, 8].iter().all(|&layer| placement.layers[layer] == LayerPlacement::whole(1)));
}

#[test]
fn devices_take_runs_of_layers_in_their_order() {
    let recipe = Recipe { devices: vec![(20.0, 0.5), (20.0, 0.5)], ..usual() };
    let forecast = check(&recipe.task(&[600_000, 600_000]));
    let homes: Vec<usize> = forecast.placement.layers.iter().map(|layer| layer.home).collect();
    assert!(homes.is_sorted() && homes.contains(&1) && homes.contains(&2), "{homes:?}");
    let one = check(&recipe.task(&[600_000, 0]));
    assert!(forecast.seconds < one.seconds);
}

#[test]
fn requested_layers_are_placed_even_on_a_slow_device() {
    for n in 0..=13 {
        let constraints = PlanConstraints { whole_layers: Some(n), ..PlanConstraints::default() };
        let recipe = Recipe { devices: vec![(0.1, 0.5)], constraints, ..usual() };
        let forecast = check(&recipe.task(&[recipe.ample_budget()]));
        let layers = forecast.placement.layers.iter().enumerate();
        let on_device: Vec<usize> = layers.filter(|(_, l)| l.home != CPU).map(|(i, _)| i).collect();
        assert_eq!(on_device, (12 - n.min(12)..12).collect::<Vec<_>>(), "-ngl {n}");
        assert_eq!(n_whole(&forecast), on_device.len(), "-ngl {n}");
    }
}
