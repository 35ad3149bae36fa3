//! Properties that the shaders rely on, tested without a device.

use hal::format::Format;
use hal::{HostRows, PackDesc, Select, Source, TensorDesc};
use std::sync::Arc;

use super::{pack, row_words, tables};

fn weights() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.is_weight())
}

fn matrix(format: Format, n_rows: usize, n_cols: usize) -> HostRows {
    let bytes = conformance::random_weights(format, n_rows * n_cols, 7);
    HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, format).expect("whole blocks")
}

/// A row takes as many bytes as in the file, except for padding at the ends of planes and rows.
#[test]
fn rows_are_no_larger_than_in_the_file() {
    for format in weights() {
        let n_cols = 4096;
        let file = format.row_bytes(n_cols).expect("whole blocks");
        let device = 4 * row_words(format, n_cols).expect("whole blocks");
        assert!((file..file + 16).contains(&device), "{format}: {device} instead of {file}");
    }
}

/// A pack of some rows with spare slots begins with the bytes of the separately packed rows.
#[test]
fn a_pack_equals_its_rows_packed_separately() {
    for format in weights() {
        let n_cols = format.block_values() * 3;
        let source = matrix(format, 9, n_cols);
        let select = Select::Rows([1, 4, 8].into());
        let desc = PackDesc { select, spare: 2, ..PackDesc::whole(source.desc()) };
        let mut whole = Vec::new();
        pack::pack(&desc, &source, &mut |at, bytes| {
            assert_eq!(at, whole.len() as u64);
            whole.extend_from_slice(bytes);
            Ok(())
        })
        .expect("packs");
        let row = 4 * row_words(format, n_cols).expect("whole blocks");
        for (slot, id) in [1, 4, 8].into_iter().enumerate() {
            let one = pack::pack_rows(&desc, &source, id..id + 1).expect("packs");
            assert_eq!(one, whole[slot * row..][..row], "{format}");
            let places = pack::refill(&TensorDesc::new(5, n_cols, format), slot..slot + 1, &one);
            assert_eq!(places, Ok(vec![((slot * row) as u64, 0..row)]));
        }
        // Consecutive rows need one write.
        let three = pack::pack_rows(&desc, &source, 3..6).expect("packs");
        let each =
            (3..6).flat_map(|id| pack::pack_rows(&desc, &source, id..id + 1).expect("packs"));
        assert_eq!(three, each.collect::<Vec<u8>>(), "{format}");
        let places = pack::refill(&TensorDesc::new(5, n_cols, format), 2..5, &three);
        assert_eq!(places, Ok(vec![((2 * row) as u64, 0..3 * row)]));
        assert_eq!(whole.len(), 5 * row);
    }
}

#[test]
fn refill_rejects_wrong_lengths_and_slots() {
    let desc = TensorDesc::new(5, 64, Format::Q4_0);
    let row = 4 * row_words(Format::Q4_0, 64).expect("whole blocks");
    assert!(pack::refill(&desc, 0..1, &vec![0; row - 1]).is_err());
    assert!(pack::refill(&desc, 5..6, &vec![0; row]).is_err());
    assert!(pack::refill(&desc, 3..6, &vec![0; 3 * row]).is_err());
    assert!(pack::refill(&desc, 1..3, &vec![0; row]).is_err());
}

/// No entry is left empty: values of IQ2 and IQ3 are never zero, and values of IQ1 are -8, 0 or 8.
#[test]
fn tables_are_full() {
    let tables = tables();
    assert_eq!(tables.len(), 8704);
    let is_iq1 = |word: u32| word.to_le_bytes().iter().all(|b| [0, 8, 248].contains(b));
    assert!(tables[..4352].iter().all(|word| word.to_le_bytes().iter().all(|&b| b != 0)));
    assert!(tables[4352..8448].iter().all(|&word| is_iq1(word)));
}
