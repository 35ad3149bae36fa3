//! Cases of MatMul, and of importing matrices, checked by multiplying with them.

use hal::format::Format;
use hal::op::{HeadMatMul, MatMul};
use hal::{PackDesc, Result, Select, Tensor};

use super::{WIDEST, widths};
use crate::Case;
use crate::rig::{Rig, f32_bytes};
use crate::weights::{Origin, weight_formats};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        let [narrow, wide] = widths(format);
        for (rows, cols) in [(1, wide), (3, narrow), (67, wide)] {
            for n_tokens in [1, 2, 5, 16, 17, 40] {
                let body =
                    move |rig: &mut Rig| run_plain(rig, format, [rows, cols], n_tokens, false);
                cases.push(Case::new(format!("MatMul/{format}/{rows}x{cols}/t{n_tokens}"), body));
            }
        }
        for n_tokens in [1, 5, 40] {
            let body = move |rig: &mut Rig| run_plain(rig, format, [33, WIDEST], n_tokens, false);
            cases.push(Case::new(format!("MatMul/{format}/33x{WIDEST}/t{n_tokens}"), body));
        }
        // More tokens than fit in one tile, and different numbers of blocks per row.
        for (n_tokens, blocks) in [(33, 3), (100, 5), (515, 3)] {
            let cols = blocks * format.block_values().max(128);
            let body = move |rig: &mut Rig| run_plain(rig, format, [45, cols], n_tokens, true);
            cases.push(Case::new(format!("MatMul/{format}/45x{cols}/t{n_tokens}"), body));
        }
        let body = move |rig: &mut Rig| run_plain(rig, format, [67, narrow], 5, true);
        cases.push(Case::new(format!("MatMul/{format}/bias"), body));
        cases.push(Case::new(format!("MatMul/{format}/view"), move |rig| run_view(rig, format)));
        cases.push(Case::new(format!("MatMul/{format}/zeros"), move |rig| run_zeros(rig, format)));
        let body = move |rig: &mut Rig| independent_tokens(rig, format);
        cases.push(Case::new(format!("MatMul/{format}/alone"), body));
        for n_tokens in [1, 3, 11, 16, 40] {
            let body = move |rig: &mut Rig| run_heads(rig, format, n_tokens);
            cases.push(Case::new(format!("HeadMatMul/{format}/t{n_tokens}"), body));
        }
        let body = move |rig: &mut Rig| independent_heads(rig, format);
        cases.push(Case::new(format!("HeadMatMul/{format}/alone"), body));
        for origin in [Origin::Mapped, Origin::Paged] {
            let name = format!("Import/{format}/{origin:?}").to_lowercase();
            cases.push(Case::new(name, move |rig| run_packs(rig, format, origin)));
        }
        cases.push(Case::new(format!("Import/{format}/refill"), move |rig| refill(rig, format)));
    }
    cases
}

fn matmul(w: &Tensor, x: &Tensor, y: &Tensor) -> hal::Op {
    MatMul { w: w.clone(), x: x.clone(), bias: None, y: y.clone() }.into()
}

fn run_plain(rig: &mut Rig, format: Format, size: [usize; 2], n: usize, bias: bool) -> Result<()> {
    let [rows, cols] = size;
    let w = rig.weight(rows, cols, format)?;
    let x = rig.input(n, cols)?;
    let bias = if bias { Some(rig.input(1, rows)?) } else { None };
    let y = rig.output(n, rows)?;
    rig.run([MatMul { w, x, bias, y: y.clone() }.into()])?;
    rig.watch("y", &y)
}

/// Views of weights, input and output that begin inside their buffers.
fn run_view(rig: &mut Rig, format: Format) -> Result<()> {
    let cols = widths(format)[1];
    let w = rig.weight(67, cols, format)?.rows(5..48);
    let x = rig.input(9, cols)?.rows(3..8);
    let y = rig.output(5, 43)?;
    rig.run([matmul(&w, &x, &y)])?;
    rig.watch("y", &y)
}

/// A token of zeros, and tokens whose blocks differ greatly in magnitude.
fn run_zeros(rig: &mut Rig, format: Format) -> Result<()> {
    let cols = widths(format)[1];
    let w = rig.weight(7, cols, format)?;
    let mut values = rig.rng.floats(3 * cols);
    values[..cols].fill(0.0);
    values[cols..].chunks_mut(32).enumerate().for_each(|(i, block)| {
        let size = [1e-3, 1.0, 0.0, 1e3][i % 4];
        block.iter_mut().for_each(|v| *v *= size);
    });
    let x = rig.tensor(3, cols, &values)?;
    let y = rig.output(3, 7)?;
    rig.run([matmul(&w, &x, &y)])?;
    rig.watch("y", &y)
}

/// In steps of up to 16 tokens, a token's values do not depend on the other tokens.
fn independent_tokens(rig: &mut Rig, format: Format) -> Result<()> {
    let cols = widths(format)[1];
    let w = rig.weight(67, cols, format)?;
    for n in [2, 7, 16] {
        let values = rig.rng.floats(n * cols);
        let x = rig.tensor(n, cols, &values)?;
        let y = rig.output(n, 67)?;
        rig.run([matmul(&w, &x, &y)])?;
        let whole = rig.read(&y)?;
        rig.watch(&format!("y of {n}"), &y)?;
        let (x1, y1) = (rig.input(1, cols)?, rig.output(1, 67)?);
        let program = rig.program([matmul(&w, &x1, &y1)])?;
        for t in 0..n {
            rig.queue.write(&x1, &f32_bytes(&values[t * cols..][..cols]))?;
            rig.queue.replay(&program)?.wait()?;
            let one = rig.read(&y1)?;
            rig.same_bits(&format!("token {t} of {n}"), &whole[t * 67..][..67], &one);
        }
    }
    Ok(())
}

/// The heads of a case: their number, the values of a head of x that are multiplied, and all of them.
fn heads(format: Format) -> [usize; 3] {
    let n_in = widths(format)[1].next_multiple_of(4);
    [3, n_in, n_in + 64]
}

/// A matrix per head. Values of y that no head writes keep their contents.
fn run_heads(rig: &mut Rig, format: Format, n: usize) -> Result<()> {
    let ([n_head, n_in, x_step], n_out, y_step) = (heads(format), 45, 52);
    let w = rig.weight(n_head * n_out, n_in, format)?;
    let x = rig.input(n, n_head * x_step)?;
    let before = rig.rng.floats(n * n_head * y_step);
    let y = rig.output_from(n, n_head * y_step, &before)?;
    rig.run([HeadMatMul { w, x, y: y.clone(), n_head }.into()])?;
    rig.watch("y", &y)
}

/// In steps of up to 16 tokens, a token's values do not depend on the other tokens.
fn independent_heads(rig: &mut Rig, format: Format) -> Result<()> {
    let ([n_head, n_in, x_step], n_out, n) = (heads(format), 33, 13);
    let (n_x, n_y) = (n_head * x_step, n_head * n_out);
    let w = rig.weight(n_y, n_in, format)?;
    let values = rig.rng.floats(n * n_x);
    let x = rig.tensor(n, n_x, &values)?;
    let y = rig.output(n, n_y)?;
    rig.run([HeadMatMul { w: w.clone(), x, y: y.clone(), n_head }.into()])?;
    let whole = rig.read(&y)?;
    rig.watch("y", &y)?;
    let (x, y) = (rig.input(1, n_x)?, rig.output(1, n_y)?);
    let program = rig.program([HeadMatMul { w, x: x.clone(), y: y.clone(), n_head }.into()])?;
    for t in 0..n {
        rig.queue.write(&x, &f32_bytes(&values[t * n_x..][..n_x]))?;
        rig.queue.replay(&program)?.wait()?;
        let one = rig.read(&y)?;
        rig.same_bits(&format!("token {t} of {n}"), &whole[t * n_y..][..n_y], &one);
    }
    Ok(())
}

/// Imports every kind of selection without transposing, from a source of the given origin.
fn run_packs(rig: &mut Rig, format: Format, origin: Origin) -> Result<()> {
    let (rows, cols) = (35, 5 * format.block_values());
    let source = rig.matrix_from(rows, cols, format, origin)?;
    let whole = PackDesc::whole(source.desc());
    let chosen = rig.rng.choose(11, rows);
    let blocks: Vec<u32> = vec![0, 2, 4];
    let selections = [
        ("all", Select::All),
        ("rows", Select::Rows(chosen.into())),
        ("blocks", Select::ColumnBlocks(blocks.into())),
    ];
    for (name, select) in selections {
        let pack = PackDesc { select, ..whole.clone() };
        let w = rig.device.import("weight", &pack, &source)?;
        let desc = pack.packed_desc()?;
        let x = rig.input(3, desc.n_cols)?;
        let y = rig.output(3, desc.n_rows)?;
        rig.run([matmul(&w, &x, &y)])?;
        rig.watch(name, &y)?;
    }
    Ok(())
}

/// Fills spare slots and overwrites occupied ones. The other slots stay unchanged.
fn refill(rig: &mut Rig, format: Format) -> Result<()> {
    let cols = widths(format)[0];
    let source = rig.matrix(20, cols, format)?;
    let select = Select::Rows(vec![1, 4, 7, 9, 15].into());
    let pack = PackDesc { select, spare: 2, ..PackDesc::whole(source.desc()) };
    let w = rig.device.import("weight", &pack, &source)?;
    let x = rig.input(2, cols)?;
    for (slots, rows) in [(5..6, 0..1), (4..7, 17..20), (2..3, 12..13)] {
        let bytes = rig.device.pack_rows(&pack, &source, rows)?;
        rig.queue.refill(&w, slots, &bytes)?;
    }
    let y = rig.output(2, 7)?;
    rig.run([matmul(&w, &x, &y)])?;
    rig.watch("y", &y)
}
