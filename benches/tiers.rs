//! Replays traces of which experts or neurons tokens use against cache policies: LRU, LFU, the
//! policy of the store, and Belady's optimum, which knows the future.
//!
//! `scripts/simulate_tiers` runs it. A trace is a text file: `trace 1`, the number of units of each
//! layer, and a line per token with the units it uses, layers separated by `;`. Without files, it
//! generates traces.
#![allow(clippy::print_stdout)] // the output of this program is a table

use std::collections::{BTreeSet, HashMap};
use std::fs;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::{Cache, CachePolicy};

/// Cache sizes in percent of all units.
const SIZES: [usize; 7] = [5, 10, 25, 40, 50, 75, 100];
/// Half-lives of the store's policy that are compared, in tokens.
const HALF_LIVES: [f64; 4] = [16.0, 64.0, 256.0, 1024.0];

/// For each token and layer, in order, the units it uses, numbered over all layers.
struct Trace {
    name: String,
    n_units: usize,
    n_layer: usize,
    uses: Vec<Vec<usize>>,
}

impl Trace {
    fn read(path: &str) -> Result<Trace, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let mut lines = text.lines();
        if lines.next() != Some("trace 1") {
            return Err(format!("{path} is not a trace of this version"));
        }
        let numbers = |text: &str| -> Result<Vec<usize>, String> {
            let words = text.split([' ', ',']).filter(|word| !word.is_empty());
            words.map(|word| word.parse().map_err(|_| format!("{path}: '{word}'"))).collect()
        };
        let sizes = numbers(lines.next().unwrap_or_default())?;
        let starts: Vec<usize> =
            sizes.iter().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        let mut uses = Vec::new();
        for line in lines {
            let layers: Vec<&str> = line.split(';').collect();
            if layers.len() != sizes.len() {
                return Err(format!("{path}: a token of {} layers", layers.len()));
            }
            for (layer, (start, size)) in layers.iter().zip(starts.iter().zip(&sizes)) {
                let units = numbers(layer)?;
                if units.iter().any(|unit| unit >= size) {
                    return Err(format!("{path}: a unit above {size}"));
                }
                uses.push(units.into_iter().map(|unit| start + unit).collect());
            }
        }
        let (n_units, n_layer) = (sizes.iter().sum(), sizes.len());
        Ok(Trace { name: path.to_owned(), n_units, n_layer, uses })
    }

    /// Experts with a fixed popularity (lognormal with `spread`), a drifting preference of the text
    /// (correlation 0.95 from token to token, half as strong), and noise per token.
    fn generate(n_expert: usize, n_used: usize, spread: f64, seed: u64) -> Trace {
        let (n_layer, n_tokens) = (24, 1500);
        let mut random = StdRng::seed_from_u64(seed);
        let mut normal = move || {
            let sum: f64 = (0..12).map(|_| random.random_range(0.0..1.0)).sum();
            sum - 6.0
        };
        let n_units = n_layer * n_expert;
        let popular: Vec<f64> = (0..n_units).map(|_| spread * normal()).collect();
        let mut drift: Vec<f64> = (0..n_units).map(|_| normal()).collect();
        let mut uses = Vec::new();
        for _ in 0..n_tokens {
            for layer in 0..n_layer {
                let mut scores = Vec::new();
                for unit in layer * n_expert..(layer + 1) * n_expert {
                    drift[unit] = 0.95 * drift[unit] + (1.0f64 - 0.95 * 0.95).sqrt() * normal();
                    scores.push((popular[unit] + 0.5 * spread * drift[unit] + normal(), unit));
                }
                scores.sort_by(|a, b| b.0.total_cmp(&a.0));
                uses.push(scores[..n_used].iter().map(|(_, unit)| *unit).collect());
            }
        }
        let name = format!("generated: {n_used} of {n_expert} experts, spread {spread}");
        Trace { name, n_units, n_layer, uses }
    }

    /// The share of a layer's experts that 90 % of all uses need, as published measurements state
    /// it, and how many of a token's units the token before used too.
    fn facts(&self) -> String {
        let mut counts = vec![0u64; self.n_units];
        self.uses.iter().flatten().for_each(|&unit| counts[unit] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total: u64 = counts.iter().sum();
        let mut sum = 0;
        let most = counts.iter().take_while(|count| {
            let before = sum;
            sum += **count;
            before < total * 9 / 10
        });
        let covering = most.count() as f64 / self.n_units as f64;
        let pairs = self.uses.iter().zip(self.uses.iter().skip(self.n_layer));
        let (mut again, mut all) = (0, 0);
        for (before, now) in pairs {
            again += now.iter().filter(|unit| before.contains(unit)).count();
            all += now.len();
        }
        let repeated = 100.0 * again as f64 / all.max(1) as f64;
        format!(
            "90 % of the uses need {:.0} % of the units; {repeated:.0} % of a token's units were used by the token before",
            100.0 * covering
        )
    }
}

/// A policy over units of equal size: `next` gets the units that a layer of a token needs and
/// returns how many were resident.
trait Policy {
    fn next(&mut self, step: usize, needed: &[usize]) -> usize;
}

/// Evicts the unit with the smallest key.
struct Keyed<F> {
    capacity: usize,
    keys: HashMap<usize, (u64, u64)>,
    order: BTreeSet<((u64, u64), usize)>,
    key: F,
}

impl<F: FnMut(usize, usize) -> (u64, u64)> Keyed<F> {
    fn new(capacity: usize, key: F) -> Keyed<F> {
        Keyed { capacity, keys: HashMap::new(), order: BTreeSet::new(), key }
    }
}

impl<F: FnMut(usize, usize) -> (u64, u64)> Policy for Keyed<F> {
    fn next(&mut self, step: usize, needed: &[usize]) -> usize {
        let mut hits = 0;
        for &unit in needed {
            let key = (self.key)(step, unit);
            if let Some(old) = self.keys.insert(unit, key) {
                hits += 1;
                self.order.remove(&(old, unit));
            }
            self.order.insert((key, unit));
        }
        while self.order.len() > self.capacity {
            let victim = self.order.iter().find(|(_, unit)| !needed.contains(unit)).copied();
            let Some(victim) = victim else { break };
            self.order.remove(&victim);
            self.keys.remove(&victim.1);
        }
        hits
    }
}

/// The store's policy.
struct Stored {
    cache: Cache,
    n_layer: usize,
}

impl Policy for Stored {
    fn next(&mut self, step: usize, needed: &[usize]) -> usize {
        if step.is_multiple_of(self.n_layer) {
            self.cache.advance(1);
        }
        let hits = needed.iter().filter(|unit| self.cache.is_resident(**unit)).count();
        needed.iter().for_each(|&unit| self.cache.touch(unit, 1));
        for &unit in needed {
            if !self.cache.is_resident(unit) {
                self.cache.admit(&[unit], |unit| needed.contains(&unit), &mut Vec::new());
            }
        }
        hits
    }
}

/// The share of uses that are hits, after the first tenth of the trace.
fn hit_share(trace: &Trace, policy: &mut dyn Policy) -> f64 {
    let first = trace.uses.len() / 10;
    let (mut hits, mut all) = (0, 0);
    for (step, needed) in trace.uses.iter().enumerate() {
        let n = policy.next(step, needed);
        if step >= first {
            hits += n;
            all += needed.len();
        }
    }
    hits as f64 / all.max(1) as f64
}

/// For each use, the step of the next use of the same unit, as a key: the farthest is the smallest.
fn next_uses(trace: &Trace) -> HashMap<(usize, usize), u64> {
    let (mut next, mut last) = (HashMap::new(), HashMap::new());
    for (step, needed) in trace.uses.iter().enumerate().rev() {
        for &unit in needed {
            let at = last.insert(unit, step as u64).unwrap_or(u64::MAX);
            next.insert((step, unit), u64::MAX - at);
        }
    }
    next
}

fn simulate(trace: &Trace) {
    println!("\n{} ({})\n", trace.name, trace.facts());
    let lives: Vec<String> = HALF_LIVES.iter().map(|life| format!("counts, {life}")).collect();
    println!("| cache | LRU | LFU | {} | optimum |", lives.join(" | "));
    println!("| --- |{}", " ---: |".repeat(3 + HALF_LIVES.len()));
    let next = next_uses(trace);
    for size in SIZES {
        let capacity = (trace.n_units * size).div_ceil(100);
        let mut row = Vec::new();
        row.push(hit_share(trace, &mut Keyed::new(capacity, |step, _| (step as u64, 0))));
        let mut counts = HashMap::new();
        row.push(hit_share(
            trace,
            &mut Keyed::new(capacity, |step, unit| {
                let count: &mut u64 = counts.entry(unit).or_default();
                *count += 1;
                (*count, step as u64)
            }),
        ));
        for half_life in HALF_LIVES {
            let policy = CachePolicy { half_life, ..CachePolicy::default() };
            let mut cache = Cache::new(capacity as u64, policy);
            (0..trace.n_units).for_each(|_| _ = cache.add(1, 0.0));
            row.push(hit_share(trace, &mut Stored { cache, n_layer: trace.n_layer }));
        }
        let far = |step, unit| (next[&(step, unit)], 0);
        row.push(hit_share(trace, &mut Keyed::new(capacity, far)));
        let row: Vec<String> = row.iter().map(|share| format!("{:.1}", 100.0 * share)).collect();
        println!("| {size} % | {} |", row.join(" | "));
    }
}

fn main() -> Result<(), String> {
    // Cargo adds `--bench`.
    let arguments = std::env::args().skip(1);
    let paths: Vec<String> = arguments.filter(|argument| argument != "--bench").collect();
    println!("Hits in percent of all uses, after the first tenth of the tokens.");
    for path in &paths {
        simulate(&Trace::read(path)?);
    }
    if paths.is_empty() {
        for (n_expert, n_used, spread) in [(128, 8, 1.2), (64, 6, 0.8), (8, 2, 0.5), (256, 8, 1.0)]
        {
            simulate(&Trace::generate(n_expert, n_used, spread, 1));
        }
    }
    Ok(())
}
