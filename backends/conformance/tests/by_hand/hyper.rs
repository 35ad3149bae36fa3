//! Hyper-connections, and keys of blocks of positions.

use hal::op::{HyperRead, HyperWeights, HyperWrite, PoolKeys};
use hal::{KV_BLOCK, KvCache, KvRows};

use super::{OracleDevice, bytes};
use hal::format::Format;

#[test]
fn streams_are_read_and_written_by_their_weights() {
    let mut b = OracleDevice::new();
    let ln3 = 3f32.ln();
    // The products are 0 in the first token. In the second, they make up for other summands.
    let products =
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -ln3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let weights = b.f32s(2, 8, &products);
    let scale = b.f32s(1, 3, &[1.0, 5.0, 7.0]);
    let base = b.f32s(1, 8, &[0.0, ln3, 0.0, -ln3, 0.0, ln3, 0.0, 0.0]);
    b.run(HyperWeights {
        scale,
        base,
        weights: weights.clone(),
        n_streams: 2,
        eps: 0.0,
        n_iterations: 1,
    });
    // The softmax of the rows is 1/4, 3/4 and 1/2, 1/2; the columns have the sums 3/4 and 5/4.
    let mix = [1.0 / 3.0, 0.6, 2.0 / 3.0, 0.4];
    let first = [[0.5, 0.75, 1.0, 0.5], mix];
    let second = [[0.5, 0.5, 1.0, 0.5], mix];
    b.expect_near(&weights, &[first, second].as_flattened().concat());
    let streams = b.f32s(2, 4, &[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let y = b.f32s(2, 2, &[9.0; 4]);
    b.run(HyperRead {
        streams: streams.clone(),
        weights: weights.clone(),
        y: y.clone(),
        n_streams: 2,
    });
    b.expect_near(&y, &[2.75, 4.0, 0.0, 0.0]);
    let mean = b.f32s(1, 2, &[0.5, 0.5]);
    b.run(HyperRead { streams: streams.clone(), weights: mean, y: y.clone(), n_streams: 2 });
    b.expect_near(&y, &[2.0, 3.0, 0.0, 0.0]);
    let x = b.f32s(2, 2, &[10.0, 20.0, 1.0, 2.0]);
    b.run(HyperWrite { x, weights, streams: streams.clone(), n_streams: 2 });
    let new = [10.0 + 7.0 / 3.0, 20.0 + 10.0 / 3.0, 5.0 + 1.8, 10.0 + 2.8];
    b.expect_near(&streams, &[new, [1.0, 2.0, 0.5, 1.0]].concat());
}

/// Rows and columns of the mixing matrix have sums of nearly 1 after many iterations.
#[test]
fn a_mixing_matrix_becomes_doubly_stochastic() {
    let mut b = OracleDevice::new();
    let products: Vec<f32> = (0..24).map(|i| (i * i % 7) as f32 / 3.0).collect();
    let weights = b.f32s(1, 24, &products);
    let (scale, base) = (b.f32s(1, 3, &[1.0; 3]), b.f32s(1, 24, &[0.0; 24]));
    b.run(HyperWeights {
        scale,
        base,
        weights: weights.clone(),
        n_streams: 4,
        eps: 1e-6,
        n_iterations: 50,
    });
    let mix = b.read(&weights).split_off(8);
    for i in 0..4 {
        let sums = [mix[4 * i..][..4].iter().sum(), mix[i..].iter().step_by(4).sum::<f32>()];
        assert!(sums.iter().all(|sum: &f32| (sum - 1.0).abs() < 1e-4), "{mix:?}");
    }
}

#[test]
fn the_key_of_a_block_is_a_mean_weighted_by_gates() {
    let mut b = OracleDevice::new();
    // Position 4 does not end a block.
    let batch = b.batch(&[1, 4]);
    let cache = b.device.kv_cache(1, KvCache::both(2), KvCache::both(Format::F32)).unwrap();
    let mut rows = [f32::NAN; 2 * KV_BLOCK];
    rows[..4].copy_from_slice(&[1.0, 2.0, 5.0, 2.0]);
    b.queue.write(&cache.k, &bytes(rows.map(f32::to_le_bytes))).unwrap();
    let cache = KvRows { k: cache.k, v: None };
    let (ape, y) = (b.f32s(2, 1, &[0.0, 3f32.ln()]), b.f32s(2, 1, &[9.0; 2]));
    b.run(PoolKeys {
        cache: cache.clone(),
        batch: batch.clone(),
        ape: Some(ape),
        y: y.clone(),
        pool: 2,
    });
    b.expect_near(&y, &[4.0, 0.0]);
    let y = b.f32s(2, 2, &[9.0; 4]);
    b.run(PoolKeys { cache, batch, ape: None, y: y.clone(), pool: 2 });
    b.expect_near(&y, &[3.0, 2.0, 0.0, 0.0]);
}
