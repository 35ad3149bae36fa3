//! Which accesses to global memory a fence has ordered.
//!
//! Kernels hand results to the host with a flag: stores, a fence (`membar.sys`), then
//! `st.relaxed.sys`. The last of several blocks, found with an atomic counter, may write the flag for
//! all of them: then each block needs the fence before its atomic. A barrier passes stores on to the
//! whole block, so that one thread's fence orders all of them (causality order, PTX ISA, "Memory
//! Consistency Model"). In the other direction `ld.relaxed.sys` reads a flag of the host; a fence must
//! follow before data is read, or the kernel ends.

use crate::fault::FaultKind;

/// The state of one block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// For each warp, the lanes before whose next flag a fence must order stores, their own or,
    /// since a barrier, those of other threads.
    stored: Vec<u32>,
    /// For each warp, the lanes that read a flag, themselves or before a barrier, without a fence
    /// since.
    acquired: Vec<u32>,
}

/// What all blocks of a launch share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    /// Line of an atomic that was executed while stores before it were not ordered.
    early_atomic: Option<u32>,
}

impl Order {
    pub(crate) fn start(&mut self, n_warps: usize) {
        self.stored = vec![0; n_warps];
        self.acquired = vec![0; n_warps];
    }

    pub(crate) fn store(&mut self, warp: usize, lanes: u32) {
        self.stored[warp] |= lanes;
    }

    /// Data is read.
    pub(crate) fn load(&self, warp: usize, lanes: u32) -> Result<(), FaultKind> {
        if self.acquired[warp] & lanes == 0 {
            return Ok(());
        }
        Err(FaultKind::Order(
            "data is read behind a flag of the host, and no fence is between".to_owned(),
        ))
    }

    /// A flag is read.
    pub(crate) fn load_flag(&mut self, warp: usize, lanes: u32) {
        self.acquired[warp] |= lanes;
    }

    /// A flag is written.
    pub(crate) fn store_flag(
        &self,
        warp: usize,
        lanes: u32,
        published: &Published,
    ) -> Result<(), FaultKind> {
        if self.stored[warp] & lanes != 0 {
            return Err(FaultKind::Order(
                "a flag is written behind stores, and no fence is between".to_owned(),
            ));
        }
        match published.early_atomic {
            None => Ok(()),
            Some(line) => Err(FaultKind::Order(format!(
                "a flag is written after the atomic at line {line}, behind stores without a fence between"
            ))),
        }
    }

    pub(crate) fn atomic(&self, warp: usize, lanes: u32, line: u32, published: &mut Published) {
        if self.stored[warp] & lanes != 0 {
            published.early_atomic = Some(line);
        }
    }

    pub(crate) fn fence(&mut self, warp: usize, lanes: u32) {
        self.stored[warp] &= !lanes;
        self.acquired[warp] &= !lanes;
    }

    /// All threads of the block see what each has seen.
    pub(crate) fn barrier(&mut self) {
        for lanes in [&mut self.stored, &mut self.acquired] {
            if lanes.iter().any(|lanes| *lanes != 0) {
                lanes.fill(u32::MAX);
            }
        }
    }

    /// Threads end.
    pub(crate) fn exit(&self, warp: usize, lanes: u32) -> Result<(), FaultKind> {
        if self.acquired[warp] & lanes == 0 {
            return Ok(());
        }
        Err(FaultKind::Order(
            "a thread ends behind a flag of the host, and no fence is between".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let mut order = Order::default();
        order.start(2);
        order
    }

    #[test]
    fn a_fence_orders_stores_before_a_flag() {
        let (mut order, published) = (order(), Published::default());
        order.store(0, 1);
        assert!(order.store_flag(0, 1, &published).is_err());
        order.store_flag(1, 1, &published).expect("another thread without a barrier between");
        order.barrier();
        assert!(order.store_flag(1, 1, &published).is_err());
        order.fence(1, 1);
        order.store_flag(1, 1, &published).expect("a fence behind the barrier orders all stores");
    }

    #[test]
    fn an_atomic_publishes_only_behind_a_fence() {
        let (mut order, mut published) = (order(), Published::default());
        order.store(0, 1);
        order.fence(0, 1);
        order.atomic(0, 1, 7, &mut published);
        order.store_flag(0, 1, &published).expect("ordered");
        order.store(0, 1);
        order.atomic(0, 1, 8, &mut published);
        order.fence(0, 1);
        assert!(order.store_flag(0, 1, &published).is_err());
    }

    #[test]
    fn a_fence_follows_a_flag_of_the_host() {
        let mut order = order();
        order.load_flag(0, 1);
        assert!(order.load(0, 1).is_err() && order.exit(0, 1).is_err());
        order.load(0, 2).expect("another lane");
        order.fence(0, 1);
        order.load(0, 1).expect("behind the fence");
    }
}
