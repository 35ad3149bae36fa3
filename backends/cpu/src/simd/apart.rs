//! Dot products of the formats whose codes are table indices, written once for all vector levels
//! (see `plain.rs`).
//!
//! A block is unpacked by [`hal::format::Quants`] into bytes and scales that stay in cache, which
//! are then multiplied as those of any other format. SIMD lookups in tables of this size are
//! slower than plain loads, so unpacking is the same at every level.

/// The module `apart` of a SIMD level with instructions `$features`, over its `Sixteens` and
/// `totals`; `$zero` is a register of sums.
macro_rules! apart_kernels {
    ($features:literal, $zero:expr) => {
        use hal::format::{Format, Unpacked};

        use super::super::ActView;
        use super::super::rows::Row;
        use super::super::tile::for_tiles;
        use super::{Sixteens, totals};

        /// A format with blocks of 256 or 128 values without minimums; `TILE` bytes are 512 of them.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn dots<const TILE: usize, const N: usize>(
            format: Format,
            row: Row<'_>,
            x: [ActView<'_>; N],
        ) -> [f32; N] {
            let quants = format.quants().expect("a format with blocks");
            let (n_values, n_bytes) = (format.block_values(), format.block_bytes());
            let mut parts = Unpacked::default();
            let mut acc = [$zero; N];
            for_tiles::<TILE, N>(row, x, |tile, x| {
                for half in 0..2 {
                    let blocks = &tile[TILE / 2 * half..][..TILE / 2];
                    quants.unpack(&blocks[..n_bytes], &mut parts);
                    if n_values < 256 {
                        let mut second = Unpacked::default();
                        quants.unpack(&blocks[n_bytes..], &mut second);
                        parts.codes[n_values..].copy_from_slice(&second.codes[..n_values]);
                        let n_groups = n_values / quants.group;
                        parts.scales[n_groups..2 * n_groups]
                            .copy_from_slice(&second.scales[..n_groups]);
                    }
                    let mut scales = parts.scales;
                    if quants.group == 32 {
                        scales = std::array::from_fn(|i| parts.scales[i / 2]);
                    }
                    let mut products = Sixteens::new(half, &scales, x);
                    products.add_bytes(bytemuck::cast_slice(&parts.codes), x);
                    products.add_to(&mut acc);
                }
            });
            totals(acc)
        }
    };
}
pub(super) use apart_kernels;

/// The dot product of one such format.
macro_rules! dot_apart {
    ($features:literal, $format:ident) => {{
        #[inline]
        #[target_feature(enable = $features)]
        fn dots<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
            const TILE: usize =
                512 / Format::$format.block_values() * Format::$format.block_bytes();
            apart::dots::<TILE, N>(Format::$format, row, x)
        }
        dot_of_rows!($features, dots)
    }};
}
pub(super) use dot_apart;
