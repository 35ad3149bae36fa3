//! Dot products of the formats that are unpacked first, because their codes are table indices or
//! single bits. The x86 levels have faster kernels for them.
//!
//! [`hal::format::Quants`] unpacks a block into bytes and scales that stay in the cache; the kernel
//! then multiplies them like those of any other format.

use std::arch::aarch64::vdupq_n_f32;

use hal::format::{Format, UnpackedBlock};

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles};
use super::products::CodeProducts;
use super::{SubBlockProducts, totals};

/// Dot products for a format without minimums, with blocks of 256 or 128 values. A tile of
/// `TILE` bytes has 512 values.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn dots<P: CodeProducts, const TILE: usize, const N: usize>(
    format: Format,
    row: Row<'_>,
    x: Tokens<'_, N>,
) -> [f32; N] {
    let quants = format.quants().expect("the format has blocks");
    let (n_values, n_bytes) = (format.block_values(), format.block_bytes());
    let mut parts = UnpackedBlock::default();
    let mut acc = [vdupq_n_f32(0.0); N];
    for_tiles::<TILE, N>(row, x, |tile, x| {
        for half in 0..2 {
            let blocks = &tile[TILE / 2 * half..][..TILE / 2];
            quants.unpack(&blocks[..n_bytes], &mut parts);
            if n_values < 256 {
                let mut second = UnpackedBlock::default();
                quants.unpack(&blocks[n_bytes..], &mut second);
                parts.codes[n_values..].copy_from_slice(&second.codes[..n_values]);
                let n_groups = n_values / quants.group;
                parts.scales[n_groups..2 * n_groups].copy_from_slice(&second.scales[..n_groups]);
            }
            let mut scales = parts.scales;
            if quants.group == 32 {
                scales = std::array::from_fn(|i| parts.scales[i / 2]);
            }
            let mut products = SubBlockProducts::new(half, &scales, x);
            products.add_bytes::<P>(bytemuck::cast_slice(&parts.codes), x);
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}
