//! Cases of memory: copies to and from the device, copies of rows, the budget.

use hal::format::Format;
use hal::{Bytes, Error, Result, TensorDesc};

use crate::Case;
use crate::rig::{POISON, Rig, f32_bytes};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("Memory/budget", run_budget),
        Case::new("Memory/copy-rows", run_copy_rows),
        Case::new("Memory/flight", run_copies_in_flight),
    ];
    for format in [Format::F32, Format::F16, Format::U32] {
        cases.push(Case::new(format!("Memory/{format}/views"), move |rig| run_views(rig, format)));
    }
    cases
}

/// Writes to overlapping views of one tensor.
fn run_views(rig: &mut Rig, format: Format) -> Result<()> {
    let (n_rows, n_cols, size) = (9, 7, format.block_bytes());
    let tensor = rig.device.alloc("memory", TensorDesc::new(n_rows, n_cols, format))?;
    let mut bytes = |n: usize| (0..n * size).map(|_| rig.rng.word() as u8).collect::<Vec<u8>>();
    let (whole, rows, values) = (bytes(n_rows * n_cols), bytes(3 * n_cols), bytes(3));
    rig.queue.write(&tensor, &whole)?;
    rig.queue.write(&tensor.rows(2..5), &rows)?;
    rig.queue.write(&tensor.rows(4..9).rows(3..4), &values)?;
    rig.watch_bits("whole", &tensor)?;
    rig.watch_bits("view", &tensor.rows(3..8))
}

/// A snapshot and its restore copy only the given rows.
fn run_copy_rows(rig: &mut Rig) -> Result<()> {
    let state = rig.input(6, 37)?;
    let store = rig.tensor(4, 37, &[POISON; 4 * 37])?;
    rig.queue.copy_rows(&state.rows(3..5), &store.rows(1..3))?;
    rig.watch_bits("snapshot", &store)?;
    let new = rig.rng.floats(37);
    rig.queue.write(&state.rows(4..5), &f32_bytes(&new))?;
    rig.queue.copy_rows(&store.rows(2..3), &state.rows(0..1))?;
    rig.queue.copy_rows(&state.rows(5..6), &state.rows(1..2))?;
    rig.watch_bits("state", &state)
}

/// Copies in flight own their staging memory, and a dropped copy still completes.
fn run_copies_in_flight(rig: &mut Rig) -> Result<()> {
    let tensor = rig.input(4, 33)?;
    let row = 33 * 4;
    let mut transfers = Vec::new();
    for r in 0..3 {
        let mut staging = rig.device.staging(Bytes(row))?;
        let values = rig.rng.floats(33);
        staging.bytes_mut().copy_from_slice(&f32_bytes(&values));
        transfers.push(rig.queue.upload(staging, &tensor.rows(r..r + 1))?);
    }
    drop(transfers.pop());
    for transfer in transfers {
        let staging = transfer.wait()?;
        let got = staging.bytes().len() as u64;
        if got != row {
            rig.faults.push(format!("staging returned with {got} bytes instead of {row}"));
        }
    }
    rig.watch_bits("tensor", &tensor)
}

/// Allocations past the budget fail, and the ledger releases dropped tensors.
fn run_budget(rig: &mut Rig) -> Result<()> {
    let ledger = rig.device.ledger().clone();
    let used = ledger.used();
    let free = ledger.budget() - used;
    if free > Bytes(1 << 60) {
        return Err(rig.unsupported("alloc", "the device has an unlimited budget"));
    }
    let rows = (free.0 / 4096) as usize + 1;
    match rig.device.alloc("too much", TensorDesc::new(rows, 1024, Format::F32)) {
        Err(Error::OutOfMemory { .. }) => {}
        Err(error) => rig.faults.push(format!("expected OutOfMemory, got: {error}")),
        Ok(_) => rig.faults.push("a tensor larger than the budget was allocated".to_owned()),
    }
    if ledger.used() != used {
        let now = ledger.used();
        rig.faults.push(format!("{now} are reserved after a failed allocation, not {used}"));
    }
    let tensor = rig.device.alloc_f32("a row", 1, 1024)?;
    if ledger.used() < used + Bytes(4096) {
        rig.faults.push("a tensor does not count against the budget".to_owned());
    }
    drop(tensor);
    if ledger.used() != used {
        rig.faults.push("a dropped tensor counts against the budget".to_owned());
    }
    Ok(())
}
