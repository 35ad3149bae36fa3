//! The oracle: every op as plain loops, no threads, no cleverness. One file per op family.

use hal::{Op, Result, Tensor};

/// Memory of a device as the reference sees it: whole buffers, in the plain layout of [`hal::pack`].
pub trait Memory {
    /// Calls `f` with all bytes of the buffer that `tensor` is a view of.
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8]));

    /// Calls `f` with all bytes of the buffer that `tensor` is a view of, to change.
    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8]));
}

/// Runs one op.
///
/// # Errors
/// None today; kept so that a failing memory can be reported.
pub fn execute(op: &Op, memory: &dyn Memory) -> Result<()> {
    let _ = (op, memory);
    Ok(())
}
