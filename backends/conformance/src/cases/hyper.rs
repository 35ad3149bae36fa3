//! Cases of hyper-connections.

use hal::op::{HyperRead, HyperWeights, HyperWrite};
use hal::{Result, Tensor};

use crate::Case;
use crate::rig::Rig;

/// Tokens, streams, and columns of a stream: short, several chunks of one token, prefill.
const SHAPES: [[usize; 3]; 5] = [[1, 4, 33], [3, 2, 257], [2, 4, 5000], [37, 4, 64], [5, 8, 96]];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let [n_tokens, n, width] = shape;
        let sizes = format!("{n_tokens}x{n}x{width}");
        for n_iterations in [1, 2, 20] {
            let name = format!("HyperWeights/{sizes}/{n_iterations}");
            cases.push(Case::new(name, move |rig| weights(rig, shape, n_iterations)));
        }
        cases.push(Case::new(format!("HyperWeights/{sizes}/pre"), move |rig| {
            weights(rig, shape, 0)
        }));
        cases.push(Case::new(format!("HyperRead/{sizes}"), move |rig| read(rig, shape, n_tokens)));
        cases.push(Case::new(format!("HyperRead/{sizes}/one"), move |rig| read(rig, shape, 1)));
        cases.push(Case::new(format!("HyperWrite/{sizes}"), move |rig| write(rig, shape)));
    }
    cases
}

/// With 0 iterations, the weights are `pre` alone.
fn weights(rig: &mut Rig, [n_tokens, n, _]: [usize; 3], n_iterations: usize) -> Result<()> {
    let (n_cols, n_scales) = if n_iterations == 0 { (n, 1) } else { (n * (n + 2), 3) };
    let products = rig.rng.floats(n_tokens * n_cols).iter().map(|v| 4.0 * v).collect::<Vec<f32>>();
    let weights = rig.output_from(n_tokens, n_cols, &products)?;
    let (scale, base) = (rig.input(1, n_scales)?, rig.input(1, n_cols)?);
    let n_iterations = n_iterations.max(1);
    let op = HyperWeights {
        scale,
        base,
        weights: weights.clone(),
        n_streams: n,
        eps: 1e-6,
        n_iterations,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

fn read(rig: &mut Rig, [n_tokens, n, width]: [usize; 3], n_rows: usize) -> Result<()> {
    let streams = rig.input(n_tokens, n * width)?;
    // Columns after those of the shares are not read.
    let weights: Tensor = rig.input(n_rows, n + 3)?;
    let y = rig.output(n_tokens, width)?;
    rig.run([HyperRead { streams, weights, y: y.clone(), n_streams: n }.into()])?;
    rig.watch("y", &y)
}

fn write(rig: &mut Rig, [n_tokens, n, width]: [usize; 3]) -> Result<()> {
    let (x, weights) = (rig.input(n_tokens, width)?, rig.input(n_tokens, n * (n + 2))?);
    let values = rig.rng.floats(n_tokens * n * width);
    let streams = rig.output_from(n_tokens, n * width, &values)?;
    rig.run([HyperWrite { x, weights, streams: streams.clone(), n_streams: n }.into()])?;
    rig.watch("streams", &streams)
}
