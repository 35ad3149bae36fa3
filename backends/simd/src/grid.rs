//! The formats whose codes are table entries (IQ1, IQ2 and IQ3), for levels without kernels of their
//! own for them.

use hal::format::{Format, UnpackedBlock};

/// Unpacks blocks to signed bytes, XORed with `flip`, and the scale of each group.
pub(super) fn unpack(
    format: Format,
    blocks: &[u8],
    flip: i8,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    let Some(quants) = format.quants() else { return };
    let mut parts = UnpackedBlock::default();
    let out = codes.as_chunks_mut::<256>().0.iter_mut();
    let out = out.zip(scales.chunks_exact_mut(256 / quants.group));
    for (block, (codes, scales)) in blocks.chunks_exact(format.block_bytes()).zip(out) {
        quants.unpack(block, &mut parts);
        *codes = parts.codes.map(|code| (code ^ flip) as u8);
        scales.copy_from_slice(&parts.scales[..scales.len()]);
    }
}
