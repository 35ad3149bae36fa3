//! Tiles of 512 values of a quantised row and the matching activations, and the unpacking of scales
//! that all SIMD levels share.

use hal::format::Q8_BLOCK;

use super::rows::Row;
use super::{ActView, Q8View};

/// Values per tile; a multiple of every format's block size.
pub(super) const TILE: usize = 512;

/// The activations of one token for one tile.
#[derive(Clone, Copy)]
pub(super) struct Q8Tile<'a> {
    pub q: &'a [i8; TILE],
    pub d: &'a [f32; TILE / 32],
    pub sum: &'a [i32; TILE / 32],
}

impl<'a> ActView<'a> {
    /// The activations for quantised weights.
    #[inline]
    pub(super) fn q8(self) -> Q8View<'a> {
        match self {
            ActView::Q8(x) => x,
            ActView::F32(_) => unreachable!("hal checks that quantised weights take Q8"),
        }
    }

    /// The activations for plain weights.
    #[inline]
    pub(super) fn f32(self) -> &'a [f32] {
        match self {
            ActView::F32(x) => x,
            ActView::Q8(_) => unreachable!("hal checks that plain weights take F32"),
        }
    }
}

/// The activations of one token for an incomplete last tile, padded with zeros.
pub(super) struct LastTile {
    q: [i8; TILE],
    d: [f32; TILE / 32],
    sum: [i32; TILE / 32],
}

impl LastTile {
    /// The last tile of each token; `None` if all tiles are complete, or if the activations are not
    /// quantised. All rows of a matrix share it: padding takes longer than multiplying.
    #[inline(always)]
    pub(super) fn of<const N: usize>(x: &[ActView<'_>; N]) -> Option<[LastTile; N]> {
        match x[0] {
            ActView::Q8(first) if !first.q.len().is_multiple_of(TILE) => Some(x.map(|x| {
                let x = x.q8();
                LastTile {
                    q: pad_with_zeros(x.q.as_chunks::<TILE>().1),
                    d: pad_with_zeros(x.d.as_chunks::<{ TILE / 32 }>().1),
                    sum: pad_with_zeros(x.sum.as_chunks::<{ TILE / 32 }>().1),
                }
            })),
            ActView::Q8(_) | ActView::F32(_) => None,
        }
    }
}

/// The activations of `N` tokens.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a, const N: usize> {
    pub views: [ActView<'a>; N],
    /// [`LastTile::of`] the views.
    last: Option<&'a [LastTile; N]>,
}

impl<'a, const N: usize> Tokens<'a, N> {
    /// `last` is [`LastTile::of`] the views.
    #[inline(always)]
    pub(super) fn new(views: [ActView<'a>; N], last: &'a Option<[LastTile; N]>) -> Self {
        Tokens { views, last: last.as_ref() }
    }
}

/// Calls `f` for each tile of `BYTES` bytes of `row`, with the tokens' activations for the tile.
///
/// The activations of an incomplete last tile are padded with zeros. Its weights are padded by the
/// rows that follow, which the zeros cancel; if there are none, by zeros too. (A copy of each row's
/// last tile is slow, because its loads span several of its stores and wait for them. It took half of
/// the time of rows of 768 values.) If a following row has an infinite scale, the product is NaN, as
/// the product of that row is.
///
/// Always inlined, so `f` is compiled for the caller's instructions.
#[inline(always)]
pub(super) fn for_tiles<const BYTES: usize, const N: usize>(
    row: Row<'_>,
    x: Tokens<'_, N>,
    f: impl FnMut(&[u8; BYTES], &[Q8Tile<'_>; N]),
) {
    for_tiles_prefetching(row, x, |at| row.prefetch_ahead::<BYTES>(at), f);
}

/// [`for_tiles`] for kernels that take longer than reading: they always prefetch into the first-level
/// cache. The choice between two caches costs instructions and registers: Q4_K and Q6_K of AVX2 took 1.15 times
/// as long (docs/measurements/cpu.md).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn for_tiles_near<const BYTES: usize, const N: usize>(
    row: Row<'_>,
    x: Tokens<'_, N>,
    f: impl FnMut(&[u8; BYTES], &[Q8Tile<'_>; N]),
) {
    for_tiles_prefetching(row, x, |at| row.prefetch_near::<BYTES>(at), f);
}

#[inline(always)]
fn for_tiles_prefetching<const BYTES: usize, const N: usize>(
    row: Row<'_>,
    x: Tokens<'_, N>,
    prefetch: impl Fn(usize),
    mut f: impl FnMut(&[u8; BYTES], &[Q8Tile<'_>; N]),
) {
    let last_x = x.last;
    let x = x.views.map(ActView::q8);
    for x in &x {
        assert_eq!(
            x.q.len() * BYTES,
            row.bytes.len() * TILE,
            "the activations and the row differ in length"
        );
        assert!(x.d.len() * 32 == x.q.len() && x.sum.len() == x.d.len());
    }
    let (tiles, rest) = row.bytes.as_chunks::<BYTES>();
    for i in 0..tiles.len() + usize::from(!rest.is_empty()) {
        prefetch(i * BYTES);
        let last;
        let (tile, x) = if let Some(tile) = tiles.get(i) {
            let x = x.map(|x| Q8Tile {
                q: &x.q.as_chunks().0[i],
                d: &x.d.as_chunks().0[i],
                sum: &x.sum.as_chunks().0[i],
            });
            (tile, x)
        } else {
            let following = row.on.get(i * BYTES..).and_then(|on| on.first_chunk::<BYTES>());
            let tile = match following {
                Some(tile) => tile,
                None => {
                    last = pad_with_zeros(rest);
                    &last
                }
            };
            let x = last_x.expect("an incomplete row comes with an incomplete last tile");
            let x = x.each_ref().map(|LastTile { q, d, sum }| Q8Tile { q, d, sum });
            (tile, x)
        };
        // The loop has a single call of `f`, so the compiler inlines it.
        f(tile, &x);
    }
}

/// The activations of one token for rows that are multiplied four at a time: complete tiles, and
/// perhaps half a tile.
#[cfg(target_arch = "x86_64")]
pub(super) struct OneToken<'a> {
    x: Q8View<'a>,
    /// The half tile, twice: a kernel multiplies the last halves of two rows at once.
    half: Option<LastTile>,
}

#[cfg(target_arch = "x86_64")]
impl<'a> OneToken<'a> {
    /// `None` if rows are empty or end with another part of a tile.
    #[inline(always)]
    pub(super) fn new(x: ActView<'a>) -> Option<Self> {
        const HALF: usize = TILE / 2;
        let x = x.q8();
        let half = match x.q.len() % TILE {
            0 if !x.q.is_empty() => None,
            HALF => Some(LastTile {
                q: twice(x.q.as_chunks::<TILE>().1),
                d: twice(x.d.as_chunks::<{ TILE / 32 }>().1),
                sum: twice(x.sum.as_chunks::<{ TILE / 32 }>().1),
            }),
            _ => return None,
        };
        Some(OneToken { x, half })
    }

    #[inline(always)]
    pub(super) fn half(&self) -> Option<Q8Tile<'_>> {
        self.half.as_ref().map(|LastTile { q, d, sum }| Q8Tile { q, d, sum })
    }
}

/// [`for_tiles`] for the complete tiles of four rows of a run that is far, and one token: `f` gets the
/// tiles at the same place. Returns the half tiles of `HALF` bytes; without them, their contents are
/// unspecified.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn for_tiles_of_four<'a, const BYTES: usize, const HALF: usize>(
    rows: [Row<'a>; 4],
    x: &OneToken<'_>,
    mut f: impl FnMut([&[u8; BYTES]; 4], &[Q8Tile<'_>; 1]),
) -> [&'a [u8; HALF]; 4] {
    const { assert!(BYTES == 2 * HALF) };
    let has_half = x.half.is_some();
    let x = x.x;
    let (q, d, sum) = (x.q.as_chunks().0, x.d.as_chunks().0, x.sum.as_chunks().0);
    let n_tiles = q.len();
    let n_bytes = n_tiles * BYTES + if has_half { HALF } else { 0 };
    assert!(d.len() == n_tiles && sum.len() == n_tiles);
    let tiles = rows.map(|row| row.bytes.as_chunks::<BYTES>().0);
    for (row, tiles) in rows.iter().zip(tiles) {
        assert!(tiles.len() == n_tiles && row.bytes.len() == n_bytes);
    }
    for i in 0..n_tiles {
        rows.iter().for_each(|row| row.prefetch_far::<BYTES>(i * BYTES));
        let x = Q8Tile { q: &q[i], d: &d[i], sum: &sum[i] };
        f(tiles.map(|tiles| &tiles[i]), &[x]);
    }
    if has_half {
        rows.iter().for_each(|row| row.prefetch_far::<HALF>(n_tiles * BYTES));
    }
    rows.map(|row| row.bytes.last_chunk().expect("a row has half a tile at least"))
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn twice<T: Copy + Default, const N: usize>(half: &[T]) -> [T; N] {
    let mut out = [T::default(); N];
    let (first, second) = out.split_at_mut(half.len());
    first.copy_from_slice(half);
    second.copy_from_slice(half);
    out
}

#[inline]
pub(super) fn pad_with_zeros<T: Copy + Default, const N: usize>(rest: &[T]) -> [T; N] {
    let mut out = [T::default(); N];
    out[..rest.len()].copy_from_slice(rest);
    out
}

/// Unpacks the 6-bit scales and minimums of a Q4_K or Q5_K block from their 12 bytes. Each result
/// has one byte per value, the first value in the lowest byte.
#[inline]
pub(super) fn six_bits(packed: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        u32::from_le_bytes(packed[at..at + 4].try_into().expect("the range has 4 of the 12 bytes"))
    };
    let (scales, mins, both) = (word(0), word(4), word(8));
    let upper = |v: u32| (v >> 6 & 0x0303_0303) << 4;
    let scales_4 = both & 0x0F0F_0F0F | upper(scales);
    let mins_4 = both >> 4 & 0x0F0F_0F0F | upper(mins);
    let join = |low: u32, high: u32| u64::from(low & 0x3F3F_3F3F) | u64::from(high) << 32;
    (join(scales, scales_4), join(mins, mins_4))
}

/// `codes` plus `by`, modulo 256: codes that are unsigned, or signed in another range.
pub(super) const fn shift_codes(mut codes: [i8; 16], by: i8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        codes[i] = codes[i].wrapping_add(by);
        i += 1;
    }
    codes
}

/// The scale of an MXFP4 block for products: 0 for the two exponents whose scales are subnormal.
/// Blocks of zeros have such exponents, and subnormal arithmetic is about a hundred times slower.
#[inline]
pub(super) fn e8m0_normal(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent.saturating_sub(1)) << 23)
}

/// The scales of a Q3_K block from their 12 bytes.
#[inline]
pub(super) fn q3_scales(packed: &[u8]) -> [i8; 16] {
    let word = |at: usize| {
        u32::from_le_bytes(packed[at..at + 4].try_into().expect("the range has 4 of the 12 bytes"))
    };
    let (first, second, upper) = (word(0), word(4), word(8));
    let four = |low: u32, upper: u32| low & 0x0F0F_0F0F | (upper & 0x0303_0303) << 4;
    let words = [
        four(first, upper),
        four(second, upper >> 2),
        four(first >> 4, upper >> 4),
        four(second >> 4, upper >> 6),
    ];
    let bytes: [u8; 16] = bytemuck::cast(words.map(u32::to_le_bytes));
    bytes.map(|six_bits| six_bits as i8 - 32)
}

/// Quantises `x` to Q8 blocks. `block` writes the `q` of one block and returns the block's `d` and
/// sum. The last block is padded with zeros.
#[inline(always)]
pub(super) fn for_q8_blocks(
    x: &[f32],
    q: &mut [i8],
    d: &mut [f32],
    sum: &mut [i32],
    mut block: impl FnMut(&[f32; Q8_BLOCK], &mut [i8; Q8_BLOCK]) -> (f32, i32),
) {
    let n_blocks = x.len().div_ceil(Q8_BLOCK);
    assert_eq!((q.len(), d.len(), sum.len()), (n_blocks * Q8_BLOCK, n_blocks, n_blocks));
    let (blocks, rest) = x.as_chunks::<Q8_BLOCK>();
    let q = q.as_chunks_mut::<Q8_BLOCK>().0;
    for (i, x) in blocks.iter().enumerate() {
        (d[i], sum[i]) = block(x, &mut q[i]);
    }
    if !rest.is_empty() {
        (d[blocks.len()], sum[blocks.len()]) = block(&pad_with_zeros(rest), &mut q[blocks.len()]);
    }
}
