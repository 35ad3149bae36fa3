//! Adds up statistics of observed blocks. A profile receives only complete windows, so that a run
//! can be interrupted and resumed at any token.

use rayon::prelude::*;

use engine::ObservedBlock;
use model::Model;

use super::{LayerProfile, MAX_SAMPLES, Profile};

/// Collects the observations of a model.
#[derive(Debug)]
pub struct Gatherer<'a> {
    model: &'a Model,
    /// Norm of each neuron's weights in down, `[n_layer][n_ff]`; unused for counts alone.
    norms: Vec<Vec<f32>>,
    /// Counts of the current window.
    window: Vec<LayerProfile>,
    /// Tokens of the window that each layer has processed.
    n_seen: Vec<u64>,
    values: Vec<f32>,
}

impl<'a> Gatherer<'a> {
    /// Reads the down matrices of `model` once.
    ///
    /// # Errors
    /// Errors of reading the weights.
    pub fn new(model: &'a Model) -> hal::Result<Gatherer<'a>> {
        let norms = (0..model.hyper.n_layer).map(|layer| norms(model, layer));
        let norms = norms.collect::<hal::Result<_>>()?;
        let window = LayerProfile::empty(model);
        Ok(Gatherer { model, norms, window, n_seen: vec![0; model.hyper.n_layer], values: vec![] })
    }

    /// A gatherer without contributions: only counts (active neurons for models with exact zeros,
    /// used experts for MoE models) and squares of inputs. Reads no weights.
    #[must_use]
    pub fn counting(model: &'a Model) -> Gatherer<'a> {
        let n_layer = model.hyper.n_layer;
        let window = LayerProfile::empty(model);
        let norms = vec![Vec::new(); n_layer];
        Gatherer { model, norms, window, n_seen: vec![0; n_layer], values: vec![] }
    }

    /// Drops the current window.
    pub fn drop_window(&mut self) {
        self.window = LayerProfile::empty(self.model);
        self.n_seen.fill(0);
    }

    /// Adds a block of `layer` to the window, which will be added to `profile`.
    pub fn add(&mut self, profile: &Profile, layer: usize, observed: &ObservedBlock<'_>) {
        let Some(ffn) = &self.model.layers[layer].ffn else { return };
        let (n_ff, n_in) = (ffn.n_ff(), ffn.width());
        observed.values(self.model, &mut self.values);
        let tests = observed.gate.unwrap_or(observed.up);
        let exact = self.model.is_exactly_sparse();
        let (n_expert, width) = (ffn.n_expert().unwrap_or(0), ffn.n_per_expert());
        let (to, norms) = (&mut self.window[layer], &self.norms[layer]);
        let mut sizes = vec![0.0f32; n_ff];
        for t in 0..observed.n_tokens {
            let index = profile.n_tokens + self.n_seen[layer];
            let sampled = profile.stride > 0 && index.is_multiple_of(profile.stride);
            let mut sample = vec![0u64; if sampled { n_ff.div_ceil(64) } else { 0 }];
            let values = &self.values[t * n_ff..][..n_ff];
            let tests = &tests[t * n_ff..][..n_ff];
            let weights = observed.weights.map(|weights| &weights[t * n_expert..][..n_expert]);
            let uses = |expert: usize| weights.is_none_or(|weights| weights[expert] != 0.0);
            let mut sum = 0.0f64;
            for ((size, value), norm) in sizes.iter_mut().zip(values).zip(norms) {
                *size = value.abs() * norm;
                sum += f64::from(*size);
            }
            let n_used = (0..n_ff / width).filter(|&expert| uses(expert)).count() * width;
            let mean = (sum / n_used.max(1) as f64) as f32;
            for expert in (0..n_ff / width).filter(|&expert| uses(expert)) {
                if n_expert > 0 {
                    to.routed[expert] += 1;
                }
                for i in expert * width..(expert + 1) * width {
                    to.size[i] += f64::from(sizes[i]);
                    let fires =
                        if exact { tests[i] > 0.0 } else { sizes[i] >= mean && sizes[i] > 0.0 };
                    if fires {
                        to.fires[i] += 1;
                        if sampled {
                            sample[i / 64] |= 1 << (i % 64);
                        }
                    }
                }
            }
            for (sum, &x) in to.input.iter_mut().zip(&observed.x[t * n_in..]) {
                *sum += f64::from(x) * f64::from(x);
            }
            if sampled {
                to.samples.push(sample);
            }
            self.n_seen[layer] += 1;
        }
    }

    /// Adds the complete window to `profile`.
    pub fn commit(&mut self, profile: &mut Profile) {
        // Layers without neurons count no tokens, so the window's length is the largest count.
        let n_tokens = self.n_seen.iter().copied().max().unwrap_or_default();
        let (first, before) = (profile.n_tokens, profile.stride);
        let mut after = before;
        let layers = profile.layers.iter_mut().zip(&mut self.window);
        for (sum, new) in layers.filter(|(sum, _)| !sum.fires.is_empty()) {
            sum.fires.iter_mut().zip(&new.fires).for_each(|(sum, new)| *sum += new);
            sum.size.iter_mut().zip(&new.size).for_each(|(sum, new)| *sum += new);
            sum.input.iter_mut().zip(&new.input).for_each(|(sum, new)| *sum += new);
            sum.routed.iter_mut().zip(&new.routed).for_each(|(sum, new)| *sum += new);
            sum.order.clear();
            let mut stride = before;
            let index = first.next_multiple_of(before.max(1));
            let indices = (0..).map(|i| index + i * before);
            for (sample, index) in new.samples.drain(..).zip(indices) {
                if sum.samples.len() == MAX_SAMPLES {
                    let mut number = 0;
                    sum.samples.retain(|_| {
                        number += 1;
                        number % 2 == 1
                    });
                    stride *= 2;
                }
                if index.is_multiple_of(stride) {
                    sum.samples.push(sample);
                }
            }
            after = stride;
        }
        profile.stride = after;
        profile.n_tokens += n_tokens;
        self.drop_window();
    }
}

/// The norm of each neuron's weights in the down matrix of a layer, `[n_ff]`.
fn norms(model: &Model, layer: usize) -> hal::Result<Vec<f32>> {
    /// Rows that a thread processes at a time.
    const ROWS: usize = 256;
    let Some(ffn) = &model.layers[layer].ffn else { return Ok(Vec::new()) };
    let (down, n_ff) = (&ffn.down.w, ffn.n_ff());
    let desc = down.desc();
    let starts: Vec<usize> = (0..desc.n_rows).step_by(ROWS).collect();
    // A stored row of down has the weights of all neurons for one output value, or, with
    // `down_by_neuron`, the weights of one neuron.
    let n_out = desc.n_rows / ffn.n_expert().unwrap_or(1).max(1);
    let squares = |&start: &usize| {
        let rows = start..(start + ROWS).min(desc.n_rows);
        let bytes = down.rows(rows.clone())?;
        let mut values = vec![0.0f32; rows.len() * desc.n_cols];
        desc.format.dequantize(&bytes, &mut values);
        let mut squares: Vec<(usize, Vec<f64>)> = Vec::new();
        for (row, values) in rows.zip(values.chunks_exact(desc.n_cols.max(1))) {
            let squared = values.iter().map(|&v| f64::from(v) * f64::from(v));
            if ffn.down_by_neuron {
                squares.push((row, vec![squared.sum()]))
            } else {
                let first = row / n_out.max(1) * desc.n_cols;
                match squares.last_mut().filter(|(at, _)| *at == first) {
                    Some((_, sums)) => sums.iter_mut().zip(squared).for_each(|(s, v)| *s += v),
                    None => squares.push((first, squared.collect())),
                }
            }
        }
        Ok(squares)
    };
    let parts: hal::Result<Vec<_>> = starts.par_iter().map(squares).collect();
    let mut sums = vec![0.0f64; n_ff];
    for (first, part) in parts?.into_iter().flatten() {
        sums[first..].iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    Ok(sums.into_iter().map(|sum| sum.sqrt() as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ModelOptions;

    fn built_in() -> Model {
        Model::from_file(runtime::embedded::file().unwrap(), &ModelOptions::default()).unwrap()
    }

    #[test]
    fn samples_are_evenly_spaced_for_any_windows() {
        let model = built_in();
        let (n_ff, n_embd) = (model.max_n_ff(), model.hyper.n_embd);
        let run = |windows: &[usize]| {
            let mut profile = Profile::new(&model, "test", 0);
            let mut gatherer = Gatherer::new(&model).unwrap();
            let mut index = 0;
            for &n in windows {
                for _ in 0..n {
                    // The first 16 neurons encode the token's number in binary.
                    let bit = |i: usize| if i < 16 && index >> i & 1 == 1 { 1.0f32 } else { -1.0 };
                    let gate: Vec<f32> = (0..n_ff).map(bit).collect();
                    let (up, x) = (vec![1.0; n_ff], vec![0.5; n_embd]);
                    let (gate, weights) = (Some(&gate[..]), None);
                    let observed = ObservedBlock {
                        n_tokens: 1,
                        residual: &x,
                        x: &x,
                        gate,
                        up: &up,
                        weights,
                        activation: model.activation,
                    };
                    for layer in 0..model.hyper.n_layer {
                        gatherer.add(&profile, layer, &observed);
                    }
                    index += 1;
                }
                gatherer.commit(&mut profile);
            }
            profile
        };
        let all = run(&[1500]);
        assert_eq!((all.n_tokens, all.stride), (1500, 4));
        let numbers: Vec<u64> = all.layers[0].samples.iter().map(|s| s[0] & 0xFFFF).collect();
        assert_eq!(numbers, (0..1500).step_by(4).collect::<Vec<u64>>());
        assert_eq!(all, run(&[1, 511, 512, 13, 463]));
        let n_fires = (0..1500u64).filter(|i| i & 2 == 2).count() as u64;
        assert_eq!((all.layers[1].fires[1], all.layers[1].fires[20]), (n_fires, 0));
        assert!((all.layers[0].input[3] - 1500.0 * 0.25).abs() < 1e-9);
        let norm = all.layers[0].size[1] / n_fires as f64;
        assert!(norm > 0.0 && all.layers[0].size[20] == 0.0);
    }

    #[test]
    fn norms_match_the_columns_of_down() {
        let model = built_in();
        let down = &model.layers[1].ffn.as_ref().unwrap().down.w;
        let desc = down.desc();
        let mut values = vec![0.0; desc.n_rows * desc.n_cols];
        desc.format.dequantize(&down.rows(0..desc.n_rows).unwrap(), &mut values);
        let norms = norms(&model, 1).unwrap();
        for neuron in [0, 7, model.max_n_ff() - 1] {
            let column = values.iter().skip(neuron).step_by(desc.n_cols);
            let expected = column.map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
            assert!((f64::from(norms[neuron]) - expected).abs() < 1e-5 * expected, "{neuron}");
        }
    }
}
