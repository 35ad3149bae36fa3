//! Compressed keys of blocks, and lists of them.

use std::f32::consts::FRAC_PI_2;

use hal::format::Format;
use hal::op::{BlockList, CACHE_ROW, CompressKeys, ListBlocks, NO_POSITION, Pairing};
use hal::{KvRows, TensorDesc};

use super::{OracleDevice, bytes};

#[test]
fn keys_are_weighted_means_of_overlapping_blocks() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[0, 1, 2, 3]);
    #[rustfmt::skip]
    let values = [
        2.0, 0.0, 2.0, -1.0,
        0.0, 2.0, -2.0, -1.0,
        9.0, 9.0, 1.0, 0.0,
        9.0, 9.0, 1.0, 2.0,
    ];
    let values = b.f32s(4, 4, &values);
    let gates = b.f32s(4, 4, &[0.0; 16]);
    // The first value of a block's first position has three times the weight.
    let mut summands = [0.0; 8];
    summands[2] = 3f32.ln();
    let k = b.device.alloc("keys", TensorDesc::new(16, 2, Format::F32)).unwrap();
    let ape = b.f32s(2, 4, &summands);
    let (norm, freqs) = (b.f32s(1, 2, &[2.0, 3.0]), b.f32s(1, 1, &[FRAC_PI_2]));
    let state = b.f32s(1, 32, &[f32::NAN; 32]);
    b.run(CompressKeys {
        values,
        gates,
        ape,
        norm,
        freqs,
        batch,
        state: state.clone(),
        cache: KvRows { k: k.clone(), v: None },
        ratio: 2,
        eps: 0.0,
        pairing: Pairing::Adjacent,
    });
    // Means of (1, -1), and of (1, 1), which is rotated by half a turn.
    b.expect_near(&k.rows(0..2), &[2.0, -3.0, -2.0, -3.0]);
    // The values of position 1, and its gates.
    assert_eq!(b.read(&state)[8..16], [0.0, 2.0, -2.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn lists_have_the_window_and_then_the_blocks() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[0, 1, 2, 3]);
    let selected = b.u32s(4, 18, &[9; 72]);
    let list = BlockList { window: 2, first_row: 32 };
    b.run(ListBlocks { batch, selected: selected.clone(), ratio: 2, list });
    let mut words = [0; 4 * 72];
    b.queue.read(&selected, &mut words).unwrap();
    let [first, second] = [CACHE_ROW | 32, CACHE_ROW | 33];
    for (token, entries) in
        [&[0][..], &[0, 1, first], &[1, 2, first], &[2, 3, first, second]].iter().enumerate()
    {
        let mut expected = [NO_POSITION; 18];
        expected[..entries.len()].copy_from_slice(entries);
        assert_eq!(words[72 * token..][..72].to_vec(), bytes(expected.map(u32::to_le_bytes)));
    }
}
