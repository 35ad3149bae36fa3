//! M-RoPE of vision models, in text: the sections in the file divide the pairs of a head between
//! four position ids. In text, three of these are equal and the fourth is 0, so RoPE rotates the
//! pairs of the first three sections only.

use std::sync::Arc;

use hal::op::Pairing;

use crate::{Error, LayerReader, Mixer, RopeTable};

/// Reads attention with sections that alternate (Qwen3-VL).
pub(super) fn interleaved(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let keeps = |[a, b, c]: [usize; 3], at: usize| at < 3 * [a, b, c][at % 3];
    with_sections(layer, keeps)
}

/// Reads attention with sections one after the other (Qwen2-VL). RoPE pairs the halves of a head
/// if the file has sections; otherwise the family's pairing applies.
pub(super) fn consecutive(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let keeps = |[a, b, c]: [usize; 3], at: usize| at < a + b + c;
    with_sections(layer, keeps)
}

/// Reads attention whose RoPE rotates the pairs that `keeps` accepts, given the first three sections
/// and the place of a pair in all sections.
fn with_sections(
    layer: &LayerReader<'_>,
    keeps: impl Fn([usize; 3], usize) -> bool,
) -> Result<Mixer, Error> {
    const KEY: &str = "rope.dimension_sections";
    let mut mixer = layer.attention()?;
    let keys = layer.keys();
    let Some(list) = keys.metadata.u32_array(&keys.name(KEY))? else { return Ok(mixer) };
    let sections: Vec<usize> = list.iter().map(|&n| n as usize).collect();
    let most = layer.sizes().d_head;
    let total = sections.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    match (sections.as_slice(), total) {
        (&[a, b, c, _], Some(total)) if (1..=most).contains(&total) => {
            if let Mixer::Attention(attention) = &mut mixer {
                let table = attention.rope.take();
                attention.rope = table.map(|table| {
                    let table = RopeTable::clone(&table).paired(Pairing::Halves);
                    Arc::new(table.mask_pairs(|pair| keeps([a, b, c], pair % total)))
                });
            }
            Ok(mixer)
        }
        (list, total) => {
            let expected = format!("four section sizes, 1 to {most} in total");
            let found = total.map_or("over 2^64".to_owned(), |total| total.to_string());
            let found = format!("{} sizes, {found} in total", list.len());
            Err(keys.wrong_key(KEY, expected, found))
        }
    }
}
